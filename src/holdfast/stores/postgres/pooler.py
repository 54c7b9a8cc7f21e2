"""A pooler in front of the server: one that gives each transaction another session takes away what a session keeps.

Statements are prepared in a session, wake-ups are listened for in one, and the lock of a swap lives as long as one. A pooler
that lends sessions out by the transaction, or by the statement, would lose them all, at times and in silence.
"""

from typing import Any

import psycopg

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.postgres.address import Address

_WHO = "SELECT pg_backend_pid()"
_TRIES = 8


def refuse_shared_sessions(address: Address, raw: psycopg.Connection[Any]) -> None:
    """Raise StoreUnavailable unless a connection through a pooler keeps its session while others come and go.

    Another connection takes whichever session is free and keeps it in a transaction; if that was this one's, this one is given
    another. Tried several times, for poolers that do not lend the last one out first.
    """
    mine = _who(raw)
    with psycopg.connect(address.conninfo, autocommit=True) as other:
        for _ in range(_TRIES):
            try:
                other.execute("BEGIN")
                taken = _who(other)
            except psycopg.Error:
                # A pooler of single statements knows no transactions.
                raise _shared(address) from None
            if taken == mine or _who(raw) != mine:
                raise _shared(address)
            other.execute("ROLLBACK")


def _who(raw: psycopg.Connection[Any]) -> int:
    return int(raw.execute(_WHO).fetchall()[0][0])


def _shared(address: Address) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} is a pooler that lends out sessions by the transaction, and Holdfast needs one for as long as it is "
        "connected: give the URL of the server itself, or of a pool in session mode (PgBouncer: pool_mode = session)",
        outcome="none",
        pooler=True,
    )
