"""Durations, counted by length."""

from msgspec import Struct

BUCKETS_S = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0),
)
"""Upper bounds of the buckets; one more bucket has the longer ones."""


class Histogram(Struct, frozen=True):
    """How many durations each bucket has, and their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    total_s: float = 0.0

    @property
    def mean_s(self) -> float | None:
        """The mean of the durations; None without any."""
        number = sum(self.counts)
        return self.total_s / number if number else None

    def within_s(self, percent: float) -> float | None:
        """The bound of a bucket that so many percent of the durations stayed within; None without
        any, and beyond the last bound.
        """
        number, reached = sum(self.counts), 0
        for bound_s, count in zip(BUCKETS_S, self.counts, strict=False):
            reached += count
            if number and reached >= number * percent / 100:
                return bound_s
        return None
