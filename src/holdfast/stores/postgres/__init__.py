"""PostgreSQL: one store for many machines. The extra `postgres`.

store.py         the port, and reading the journal
address.py       the URL, and what of it may be shown
connection.py    one connection, messages of several statements, the deadline of a call, the
                 database's clock
connections.py   the pool, lost connections, forks, poolers
session_lock.py  a lock that ends with its connection
latches.py       advisory locks of a space and of a key
transaction.py   the transaction, sent in as few messages as its answers allow
attempt.py       a body run to its end, also when the connection is lost at the commit
calls.py         put_new and delete_if, and their outcome when the connection is lost
listener.py      wake-ups, through one connection that listens
schema.py        tables, versions, the sequence of revisions, and whether the server has lost
                 transactions
maintenance.py   check, and copies from and to another store
errors.py        the driver's errors as ours

Nothing here is imported before a store is opened, so a program without the extra never misses it.
"""

from typing import TYPE_CHECKING

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.text import installing

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore


def open_postgres(url: str, namespace: str = "default") -> "PostgresStore":
    """Connect to the store at a `postgresql://` URL, making its tables if they are not there.

    Raises StoreUnavailable when the driver is not installed or the server does not let us in,
    InvalidValue for what is no such URL, SchemaTooNew when a newer program made the tables.
    """
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise StoreUnavailable(
            f"PostgreSQL needs a driver that is not installed: {installing('postgres')}",
            outcome="none",
        ) from None
    return PostgresStore(url, namespace=namespace)
