"""Durations, counted by length."""

from typing import NamedTuple

BUCKETS_S = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0),
)
"""Upper bounds of the buckets; one more bucket has the longer ones."""


class Histogram(NamedTuple):
    """How many durations each bucket has, and their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    total_s: float = 0.0
