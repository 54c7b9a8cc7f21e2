"""The port's queries, taken apart once for all stores, and their answers for stores that sort in
memory.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel.order import Parts, beyond_text, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, Row
from holdfast.stores.checks import check_limit, check_texts, index_number

Places = Sequence[bytes | None]
"""A record's place in each index; None where it has none."""


class Query(Struct, frozen=True):
    """Asks for the records from `low` up to but not including `high`: by their places in the index
    `by` or, without one, by their keys.
    """

    by: str | None
    low: bytes | str
    high: bytes | str | None
    reverse: bool = False
    limit: int | None = None


class QueryTx(ABC):
    """The queries of a transaction, as every store takes them."""

    @abstractmethod
    def select(self, space: Space[R], query: Query, damaged: Damage | None) -> list[Row[R]]:
        """The records that a query asks for, in its order."""

    def range(
        self,
        space: Space[R],
        *,
        prefix: str = "",
        start: str | None = None,
        stop: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        check_limit(limit)
        check_texts(prefix, start, stop)
        ends = [end for end in (beyond_text(prefix) if prefix else None, stop) if end is not None]
        low, high = max(prefix, start or ""), min(ends) if ends else None
        return self.select(space, Query(None, low, high, reverse, limit), damaged)

    def find(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        start: Parts | None = None,
        stop: Parts | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        check_limit(limit)
        low, high = span(match, start, stop)
        return self.select(space, Query(index, low, high, reverse, limit), damaged)

    def will_take(self, space: Space[Any], index: str, match: Parts = ()) -> None:  # noqa: B027 - a store nearby answers at once
        """Announce a `take_first`."""

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        return self._take_first(space, Query(index, *span(match)), but_for, damaged)

    def _take_first(
        self, space: Space[R], query: Query, but_for: Collection[str], damaged: Damage | None
    ) -> Row[R] | None:
        """For a store with one writer at a time: nobody else takes anything."""
        found = self.select(space, replace(query, limit=1 + len(but_for)), damaged)
        return next((row for row in found if row.key not in but_for), None)


class SortedIndexes:
    """For each index the places and their keys, sorted. Copy a shared one before a change."""

    def __init__(self, indexes: int, placed: Iterable[tuple[str, Places]] = ()) -> None:
        self._orders: list[list[tuple[bytes, str]]] = [[] for _ in range(indexes)]
        for key, places in placed:
            for order, place in zip(self._orders, places, strict=True):
                if place is not None:
                    order.append((place, key))
        for order in self._orders:
            order.sort()

    def copy(self) -> "SortedIndexes":
        copy = SortedIndexes(0)
        copy._orders = [list(order) for order in self._orders]
        return copy

    def move(self, key: str, before: Places | None, after: Places | None) -> None:
        """Move a key from its old places to its new ones; None: the record is new, or removed."""
        nowhere = (None,) * len(self._orders)
        for order, old, new in zip(self._orders, before or nowhere, after or nowhere, strict=True):
            if old == new:
                continue
            if old is not None:
                del order[bisect_left(order, (old, key))]
            if new is not None:
                insort(order, (new, key))

    def keys(self, space: Space[Any], query: Query) -> Iterator[str]:
        """The keys that a query of an index asks for, in its order."""
        assert query.by is not None
        order = self._orders[index_number(space, query.by)]
        return (order[at][1] for at in _positions(order, _bounds(query), query))

    def count(self, space: Space[Any], index: str, match: Parts) -> int:
        query = Query(index, *span(match))
        return len(_between(self._orders[index_number(space, index)], _bounds(query)))


def keys_between(ordered: Sequence[str], query: Query) -> Iterator[str]:
    """Those of the sorted keys that a query without an index asks for, in its order."""
    return (ordered[at] for at in _positions(ordered, (query.low, query.high), query))


def _bounds(query: Query) -> tuple[Any, Any]:
    return (query.low,), None if query.high is None else (query.high,)


def _positions(ordered: Sequence[Any], bounds: tuple[Any, Any], query: Query) -> Iterator[int]:
    found = _between(ordered, bounds)
    return islice(reversed(found) if query.reverse else found, query.limit)


def _between(ordered: Sequence[Any], bounds: tuple[Any, Any]) -> range:
    low, high = bounds
    return range(
        bisect_left(ordered, low), len(ordered) if high is None else bisect_left(ordered, high)
    )
