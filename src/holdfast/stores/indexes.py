"""The keys of a space in the order of each of its indexes, for stores that sort in memory."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

Places = Sequence[bytes | None]
"""A record's place in each index; None where it has none."""


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

    def keys(
        self, index: int, low: bytes, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[str]:
        """The keys between two bounds of an index, in its order."""
        order, positions = self._orders[index], self._between(index, low, high)
        return (order[at][1] for at in (reversed(positions) if reverse else positions))

    def count(self, index: int, low: bytes, high: bytes | None) -> int:
        return len(self._between(index, low, high))

    def _between(self, index: int, low: bytes, high: bytes | None) -> range:
        order = self._orders[index]
        end = len(order) if high is None else bisect_left(order, (high,))
        return range(bisect_left(order, (low,)), end)
