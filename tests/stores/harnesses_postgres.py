"""The harness of the PostgreSQL store. It is sent to other processes, so it is nothing but a
URL.
"""

from typing import TYPE_CHECKING

import psycopg

from holdfast.kernel.store import Store
from holdfast.stores.postgres import connections, open_postgres
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance import LATCHED, PERSISTENT, SHARED
from tests.harness.timeouts import PATIENCE_S

if TYPE_CHECKING:
    import pytest


def be_patient(monkeypatch: "pytest.MonkeyPatch") -> None:
    """Neither side gives the other up for standing still for a moment, as on a busy machine: the
    server ends no transaction because nothing is said in it, and its own word is awaited when a
    time limit is over. For connections made from now on.
    """
    monkeypatch.setattr(connections, "_GRACE_S", PATIENCE_S)
    limits = connections._SESSION_LIMITS.replace("'5000'", f"'{int(PATIENCE_S * 1000)}'")
    assert limits != connections._SESSION_LIMITS
    monkeypatch.setattr(connections, "_SESSION_LIMITS", limits)


class PostgresHarness:
    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url

    def open(self, *, namespace: str = "default") -> Store:
        return open_postgres(self.url, namespace)

    def damage(self, space: str, key: str, data: bytes) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(
                f"UPDATE holdfast.s_{space} SET value = %s WHERE key = %s".encode(),
                (data.decode(), key),
            )


# Not CLOCKED: the database's clock decides.
POSTGRES = frozenset({SHARED, PERSISTENT, LATCHED})
