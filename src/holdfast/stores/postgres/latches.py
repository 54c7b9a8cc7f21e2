"""Latches: advisory locks of a transaction, and the one statement that takes them.

A space in a scope is one lock, exclusive when it is latched whole and shared when only single rows
of it are. A row is latched by its own row lock; a key without a row by the lock of its stripe. A
space has STRIPES of those, so no transaction, however many keys it makes, can fill the server's
table of locks.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from holdfast.kernel.space import Rows, Space
from holdfast.stores.port import spaces_of
from holdfast.stores.postgres.connection import CallDeadline
from holdfast.stores.postgres.connections import WAIT_S

STRIPES = 1024
LISTENER_LOCKS = 16
_USUAL_S = 0.1
"""How much less than the default limit may be left without telling the server: less than the
client's own grace.
"""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's clock in microseconds. A number does not depend on the session's DateStyle and time
zone.
"""

Sql = tuple[str, list[Any]]
"""A statement and its parameters."""
Lock = tuple[str, int]
"""The call that takes an advisory lock, and the lock's number."""

_WHOLE, _SHARED = "pg_advisory_xact_lock(%s)", "pg_advisory_xact_lock_shared(%s)"
_PASSED_MS = "(extract(epoch FROM clock_timestamp() - now()) * 1000)::integer"
_LIMIT = "set_config('lock_timeout', %s, true)"
_LEFT = f"set_config('lock_timeout', greatest(%s - {_PASSED_MS}, 1)::text, true)"
_BEGIN: Sql = "BEGIN", []
_NOT_DURABLE: Sql = "SET LOCAL synchronous_commit = off", []


@lru_cache(maxsize=4096)
def space_key(namespace: str, space: str) -> int:
    return _number("space", namespace, space)


def stripe_key(namespace: str, space: str, key: str) -> int:
    """The lock of a key that may have no row."""
    stripe = _number("stripe", key) % STRIPES
    return _number("key", namespace, space, str(stripe))


def migration_key() -> int:
    """The lock under which tables are made and changed."""
    return _number("migration")


def session_key(namespace: str, name: str) -> int:
    """The lock that a session keeps for longer than a transaction."""
    return _number("session", namespace, name)


@lru_cache(maxsize=256)
def listeners_class(namespace: str) -> int:
    """The class of the locks that all listeners share. There are LISTENER_LOCKS of them, so that
    two notifiers that try for one seldom take each other for a listener.
    """
    return _number("listeners", namespace) >> 32


def exclusive(keys: Iterable[int], limit_ms: int = 0) -> Sql:
    """The statement that takes these locks, in the same order for everyone; several of them within
    a limit from the transaction's beginning.
    """
    return taking(whole(keys), limit_ms)


def whole(keys: Iterable[int]) -> list[Lock]:
    """These locks, exclusive, in the same order for everyone."""
    return [(_WHOLE, key) for key in sorted(set(keys))]


def limited(deadline: CallDeadline, namespace: str, space: str, stripes: Iterable[int]) -> Sql:
    """The statement that latches a space for work on single rows of it, and these stripes of its
    keys, with what is left of a time limit. For a message that begins no transaction of its own.
    """
    limit = limit_ms(deadline)
    locks = [(_SHARED, space_key(namespace, space)), *whole(stripes)]
    sql, parameters = taking(locks, limit)
    if _is_usual(deadline):
        return sql, parameters
    return sql.replace("SELECT ", f"SELECT {_LIMIT}, ", 1), [str(limit), *parameters]


@lru_cache(maxsize=1024)
def of_scope(namespace: str, scope: tuple[Space[Any] | Rows, ...]) -> list[Lock]:
    """The locks of a scope, in the one global order of spaces."""
    whole = {space.name for space in scope if isinstance(space, Space)}
    return [
        (_WHOLE if space.name in whole else _SHARED, space_key(namespace, space.name))
        for space in spaces_of(scope)
    ]


def taking(locks: Sequence[Lock], limit_ms: int) -> Sql:
    """The statement that takes these locks, within a limit from the transaction's beginning."""
    # The server bounds each wait by itself. Before every further one it gets what is left of the
    # limit, or all waits together could take many times as long.
    parameters = [limit_ms] * (2 * len(locks) - 1)
    parameters[::2] = [key for _, key in locks]
    return "SELECT " + f", {_LEFT}, ".join(call for call, _ in locks), parameters


def begin(deadline: CallDeadline, *, durable: bool = True) -> list[Sql]:
    """The statements that begin a transaction with what is left of a time limit."""
    limits = [] if _is_usual(deadline) else [limit(deadline)]
    return [_BEGIN, *limits, *([] if durable else [_NOT_DURABLE])]


def _is_usual(deadline: CallDeadline) -> bool:
    """Every session begins with the default limit, and most calls have it."""
    return 0 <= WAIT_S - deadline.left_s() <= _USUAL_S


def limit_ms(deadline: CallDeadline) -> int:
    return max(int(deadline.left_s() * 1000), 1)


def limit(deadline: CallDeadline) -> Sql:
    """The statement that sends the server what is left of a time limit.

    It bounds each wait for a lock, which costs nothing where nobody waits; a limit on statements
    would. The client ends anything else that takes too long.
    """
    return f"SELECT {_LIMIT}", [str(limit_ms(deadline))]


def _number(*parts: str) -> int:
    text = "\0".join(("holdfast", *parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)
