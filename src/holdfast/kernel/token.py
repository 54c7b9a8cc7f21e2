"""Tokens: integers that only grow for the life of a store.

A token is the revision of the transaction that granted a claim. Its upper bits are an era, its
lower 22 a counter. A store begins a new era when it is made, when it is restored from a backup, and
for each new volatile file. An era is the number of seconds since 2025 or, if that is not beyond the
last era known, that era plus one. So a restored store, which cannot know what it gave out after its
backup, is ahead of it all the same. A counter that runs over simply carries into the era: only 4
million grants a second could reach an era that time has not passed. It may reach the era of another
file of the same store, which has its own records: of a record, and of all others in its file, no
token is given twice.

Tokens stay under 2**53 until 2093, so that JavaScript and jq read them exactly.
"""

from datetime import UTC, datetime

COUNTER_BITS = 22
_ORIGIN = datetime(2025, 1, 1, tzinfo=UTC)

_STEPPED_BACK = 60
"""How far behind the last era a clock may be and still be believed."""

STRIDE = 1 << 16
"""How far to go beyond the last era when the clock cannot be believed: room for what its counter
may have carried.
"""


def era(token: int) -> int:
    """Return the era of a token."""
    return token >> COUNTER_BITS


def first(era: int) -> int:
    """Return the revision at which an era starts; every token given in it is greater."""
    return era << COUNTER_BITS


def next_era(known: int, now: datetime) -> int:
    """Return an era greater than the last one known and than any that a lost copy of the store can
    have begun.

    A clock that was stepped back does not take tokens back. Not promised when the copy is lost as
    well, so that its last era is not known, and the clock is behind it.
    """
    seconds = int((now - _ORIGIN).total_seconds())
    if seconds < known - _STEPPED_BACK:
        return known + STRIDE
    return max(known + 1, seconds)
