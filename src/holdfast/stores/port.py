"""The part of the store port that all stores share: arguments are checked, time limits become
deadlines on the monotonic clock, and the store's own methods get both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.kernel.clock import Clock, MonotonicTime, SystemClock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOURNAL_READ_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.names import check_id
from holdfast.kernel.space import R, Rows, Space
from holdfast.kernel.store import (
    BEGINNING,
    Batch,
    Cursor,
    Leftover,
    ReadTx,
    Row,
    Scope,
    Tx,
)
from holdfast.stores.checks import check_keys, check_limit

T = TypeVar("T")


class Plan(Struct, frozen=True):
    """A scope as it was given, its spaces, their names, and whether they are volatile."""

    scope: tuple[Space[Any] | Rows, ...]
    spaces: list[Space[Any]]
    names: frozenset[str]
    volatile: bool


def spaces_of(scope: Scope) -> list[Space[Any]]:
    """The spaces of a scope in the global order of latches."""
    named: dict[str, Space[Any]] = {}
    for one in scope:
        space = one.space if isinstance(one, Rows) else one
        named[space.name] = space
    return sorted(named.values(), key=attrgetter("order"))


@lru_cache(maxsize=1024)
def plan_of(scope: tuple[Space[Any] | Rows, ...]) -> Plan:
    """The plan of a scope, computed once for all its transactions. Raises InvalidValue for a mix
    of volatile and durable spaces, which no embedded store can commit as one.
    """
    spaces = spaces_of(scope)
    volatile = set(map(attrgetter("volatile"), spaces))
    names = frozenset(map(attrgetter("name"), spaces))
    if len(volatile) > 1:
        raise InvalidValue(
            "one transaction cannot span volatile and durable spaces: "
            + ", ".join(space.name for space in spaces)
        )
    return Plan(scope, spaces, names, True in volatile)


class BaseStore(ABC):
    """The port's calls, as every store takes them, and no files that people read."""

    def layout_folder(self, name: str) -> Path | None:  # noqa: ARG002 - it has none
        return None

    def leftovers(self, space: Space[Any]) -> list[Leftover]:  # noqa: ARG002 - it has no folders
        return []

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:  # noqa: ARG002
        return False

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        return self._transact(body, plan_of(tuple(scope)), monotonic() + timeout_s, durable)

    def read(
        self, body: Callable[[ReadTx], T], *, scope: Scope, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> T:
        return self._read(body, plan_of(tuple(scope)), monotonic() + timeout_s)

    def get(
        self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> Row[R] | None:
        return self._get(space, key, monotonic() + timeout_s)

    def put_new(
        self,
        space: Space[R],
        items: Sequence[tuple[str, R]],
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int | None:
        check_keys([key for key, _ in items], distinct=True)
        return self._put_new(space, items, monotonic() + timeout_s)

    def delete_if(
        self,
        space: Space[Any],
        keys: Sequence[str],
        token: int,
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int:
        check_keys(keys)
        return self._delete_if(space, keys, token, monotonic() + timeout_s)

    def journal(
        self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False
    ) -> Batch:
        check_limit(limit)
        return self._journal(cursor, limit, reverse)

    @abstractmethod
    def _transact(
        self, body: Callable[[Tx], T], plan: Plan, deadline: float, durable: bool = True
    ) -> T: ...

    @abstractmethod
    def _read(self, body: Callable[[ReadTx], T], plan: Plan, deadline: float) -> T: ...

    @abstractmethod
    def _journal(self, cursor: Cursor, limit: int, reverse: bool) -> Batch: ...

    # A store or a space without a faster way does these in general transactions.

    def _get(self, space: Space[R], key: str, deadline: float) -> Row[R] | None:
        return self._read(lambda tx: tx.get(space, key), plan_of((space,)), deadline)

    def _put_new(
        self, space: Space[R], items: Sequence[tuple[str, R]], deadline: float
    ) -> int | None:
        def insert(tx: Tx) -> int | None:
            if any(tx.get(space, key) for key, _ in items):
                return None
            for key, record in items:
                tx.put(space, key, record)
            return tx.revision

        return self._transact(insert, plan_of((space,)), deadline)

    def _delete_if(
        self, space: Space[Any], keys: Sequence[str], token: int, deadline: float
    ) -> int:
        def delete(tx: Tx) -> int:
            return sum(
                tx.delete(space, key)
                for key in dict.fromkeys(keys)
                if (row := tx.get(space, key)) and row.revision == token
            )

        return self._transact(delete, plan_of((space,)), deadline)


class EmbeddedStore(BaseStore):
    """A store of this machine, whose clock is the store's."""

    embedded = True

    def __init__(self, namespace: str, clock: Clock | None) -> None:
        self.namespace = check_id(namespace, "namespace")
        self._clock = clock or SystemClock()

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> MonotonicTime:
        return self._clock.monotonic()
