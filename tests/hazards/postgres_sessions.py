"""Sessions of a database whose processes were killed: they live for a moment longer, and do what
they were sent before.
"""

from typing import Any

from holdfast.runtime.connection import Holdfast
from tests.harness.timeouts import until


def outlived(hf: Holdfast, url: str) -> None:
    """Wait until nobody but this connection has a session: what the dead had sent is done by then,
    or never will be. At once where the store is no database.
    """
    if hf.store.kind != "postgres":
        return
    # Here, so that tests that need no database load no driver.
    import psycopg

    store: Any = hf.store
    with psycopg.connect(url, autocommit=True) as operator:

        def others() -> set[int]:
            asked = (
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
                "pg_backend_pid()"
            )
            found = {pid for (pid,) in operator.execute(asked).fetchall()}
            return found - {
                raw.pgconn.backend_pid
                for raw in list(store.connections._open_ones)
                if not raw.closed
            }

        until(lambda: not others(), saw=others)
