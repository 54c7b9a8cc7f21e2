"""Tokens: integers that only grow for the life of a store.

A token is the revision of the transaction that granted a claim. Its upper bits are an era, its
lower 22 a counter. A new store, a restore and each new volatile file begin an era: the number of
seconds since 2025, or the last known era plus one if that is greater (plus `STRIDE` if the clock is
far behind it). So a restored store is ahead of the tokens that it gave after its backup, which it
cannot know. A counter that overflows carries into the era, but only 4 million grants a second could
overtake time.

Tokens stay under 2**53 until 2093, so that JavaScript and jq read them exactly.
"""

from datetime import UTC, datetime

COUNTER_BITS = 22
_ORIGIN = datetime(2025, 1, 1, tzinfo=UTC)

# How many seconds a clock may be behind the last era and still be believed.
_STEPPED_BACK = 60
STRIDE = 1 << 16
"""Added to the last era when the clock is far behind it: room for counters that carry."""


def era(token: int) -> int:
    """The era of a token."""
    return token >> COUNTER_BITS


def first(era: int) -> int:
    """The revision at which an era starts; every token of the era is greater."""
    return era << COUNTER_BITS


def next_era(known: int, now: datetime) -> int:
    """An era greater than the last known one. It is also greater than every era of a lost copy of
    the store, unless the clock is behind the last of these.
    """
    seconds = int((now - _ORIGIN).total_seconds())
    if seconds < known - _STEPPED_BACK:
        return known + STRIDE
    return max(known + 1, seconds)
