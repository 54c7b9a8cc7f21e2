"""The errors of the driver and the server as errors of Holdfast."""

import re

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from holdfast.kernel.errors import (
    HoldfastError,
    InvalidValue,
    LockTimeout,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.stores.checks import closed
from holdfast.stores.postgres.address import DatabaseUrl

_SHUT_DOWN = {"57P01", "57P02", "57P03", "57P05", "25P03"}
_OUT_OF_TURN = {"40001", "40P01"}
_OUT_OF_TIME = {"57014", "55P03"}
_DAMAGED = {"XX001", "XX002", "42P01", "42703", "3F000"}
_HINTS = {
    "25006": "it is a standby, or set to read only: give the URL of the primary",
    "42501": (
        "the user may not do that: let its owner run CREATE SCHEMA holdfast AUTHORIZATION your user"
    ),
    "3D000": "there is no such database: create it, or correct the URL",
    "53100": "its disk is full",
    "53200": "it is out of memory or locks: raise max_locks_per_transaction",
    "53300": "it lets no more connect: run fewer processes, or raise the server's max_connections "
    "or, if it names one, the CONNECTION LIMIT of the role or the database",
}
_TOO_MANY = "53300"
_TOO_MANY_WORDS = re.compile(
    "too many (clients|connections)|connection slots are reserved", re.IGNORECASE
)
"""The driver does not give the state of an error that comes while connecting."""


class NoAnswer(psycopg.OperationalError):
    """The server said nothing within the time limit, not even that the limit was over."""


def is_lost(error: psycopg.Error) -> bool:
    """Is the connection gone? Its last statement may or may not have been executed."""
    if isinstance(error, psycopg.InterfaceError) or error.sqlstate in _SHUT_DOWN:
        return True
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate[:2] == "08"
    )


def is_transient(error: psycopg.Error) -> bool:
    """Nothing was done: may the same work succeed if it runs again at once?"""
    return not isinstance(error, NoAnswer | PoolTimeout | PoolClosed) and (
        is_lost(error) or error.sqlstate in _OUT_OF_TURN
    )


def translated(address: DatabaseUrl, error: psycopg.Error) -> HoldfastError:
    """What an error that left everything unchanged means to the caller."""
    state = error.sqlstate or (_TOO_MANY if _TOO_MANY_WORDS.search(str(error)) else "")
    why = address.redacted(str(error).strip().partition("\n")[0])
    if isinstance(error, PoolClosed):
        return closed()
    if isinstance(error, PoolTimeout) or state in _OUT_OF_TIME | _OUT_OF_TURN:
        return out_of_time()
    if isinstance(error, psycopg.DataError):
        return InvalidValue(
            f"PostgreSQL cannot keep such text ({why}): leave out NUL and lone surrogates"
        )
    if state in _DAMAGED:
        return StoreCorrupt(
            f"{address} has not the tables that this store made ({why}): restore schema holdfast "
            "from a backup",
            sqlstate=state,
        )
    if is_lost(error) and state != _TOO_MANY:
        return unreachable(address, why)
    hint = _HINTS.get(state) or (
        "check the user and the password"
        if state[:2] == "28"
        else "see the server's log for more; nothing was changed"
    )
    return StoreUnavailable(f"{address} refused ({why}): {hint}", sqlstate=state, outcome="none")


def unreachable(address: DatabaseUrl, why: str) -> StoreUnavailable:
    """The server cannot be reached, or went away."""
    return StoreUnavailable(
        f"{address} does not answer ({why}); nothing was changed: check that it runs and that the "
        "URL is right",
        outcome="none",
    )


def unknown(address: DatabaseUrl) -> StoreUnavailable:
    """The connection was lost at the commit, and the server could not be asked how it ended."""
    return StoreUnavailable(
        f"the connection to {address} was lost at a commit and its outcome could not be learned in "
        "time: check before you repeat it",
        outcome="unknown",
    )


def out_of_time() -> LockTimeout:
    """The time limit passed before the caller got its latches, a row or a connection."""
    return LockTimeout(
        "no turn within the time limit: other transactions hold the same records or all "
        "connections; nothing was changed. Try again, or allow more time",
        outcome="none",
    )
