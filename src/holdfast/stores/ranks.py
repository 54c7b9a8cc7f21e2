"""The keys of a space in the order of each of its indexes, for stores that keep that order in
memory.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

Places = Sequence[bytes | None]
"""A record's place in each index; None where it has none."""


class Ranks:
    """For each index, every place and its key, sorted. Whoever shares one changes only a copy."""

    def __init__(self, indexes: int, placed: Iterable[tuple[str, Places]] = ()) -> None:
        self._orders: list[list[tuple[bytes, str]]] = [[] for _ in range(indexes)]
        for key, places in placed:
            for order, place in zip(self._orders, places, strict=True):
                if place is not None:
                    order.append((place, key))
        for order in self._orders:
            order.sort()

    def copy(self) -> "Ranks":
        """Another, as this one is now."""
        ranks = Ranks(0)
        ranks._orders = [list(order) for order in self._orders]
        return ranks

    def move(self, key: str, before: Places | None, after: Places | None) -> None:
        """Take a key from where it was to where it is; None: it was, or is, nowhere."""
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
        """The keys of a stretch of an index, in its order."""
        order, stretch = self._orders[index], self._stretch(index, low, high)
        return (order[at][1] for at in (reversed(stretch) if reverse else stretch))

    def count(self, index: int, low: bytes, high: bytes | None) -> int:
        """How many keys a stretch of an index has."""
        return len(self._stretch(index, low, high))

    def _stretch(self, index: int, low: bytes, high: bytes | None) -> range:
        order = self._orders[index]
        return range(
            bisect_left(order, (low,)), len(order) if high is None else bisect_left(order, (high,))
        )
