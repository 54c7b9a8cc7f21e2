"""PostgreSQL: one store for many machines. The extra `postgres`.

store.py        the port
address.py      a URL, and what of it may be shown
connections.py  the pool, time limits, lost connections, forks
pooler.py       whether what stands between gives each client a session of its own
session_lock.py a lock that ends with the connection of whoever has it
life.py         whether the server has forgotten anything since, and what follows from that
clock.py        the database's clock, known without asking
latches.py      advisory locks: of a space, of a key, and the statements that begin a transaction
messages.py     several statements in one message, kept prepared
transaction.py  the verbs, sent in as few messages as their answers allow
attempt.py      a body run to its end, also when the connection is lost at the commit
hotpath.py      put_new and delete_if
journal.py      reading what happened, with nothing skipped
listening.py    wake-ups, by one connection that listens
schema.py       tables, versions and the sequence of revisions
upkeep.py       check, and all of a store for another and from another
translate.py    the driver's errors as ours

Nothing here is imported before a store is opened, so that a program without the extra never misses it.
"""

from typing import TYPE_CHECKING

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.extras import installing

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore


def open_postgres(url: str, namespace: str = "default") -> "PostgresStore":
    """Connect to the store at a `postgresql://` URL, making its tables if they are not there.

    Raises StoreUnavailable when the driver is not installed or the server does not let us in, InvalidValue for what is no
    such URL, SchemaTooNew when a newer program made the tables.
    """
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise StoreUnavailable(
            f"PostgreSQL needs a driver that is not installed: {installing('postgres')}", outcome="none"
        ) from None
    return PostgresStore(url, namespace=namespace)
