"""Tokens: integers that only grow for the life of a store.

A token is the revision of the transaction that granted a claim. Its upper bits are an era, its lower 28 a counter. A store
begins a new era when it is made, when it is restored from a backup, and for each new volatile file: eras come from the
number of minutes since 2025 or, if that is not beyond the last era known, from that era plus one. So a restored store,
which cannot know what it gave out after its backup, is ahead of it all the same. A counter that runs over simply carries
into the era; it would need 268 million grants in a minute to reach an era that time has not passed.

Tokens stay under 2**53 until 2088, so that JavaScript and jq read them exactly.
"""

from datetime import UTC, datetime

COUNTER_BITS = 28
_ORIGIN = datetime(2025, 1, 1, tzinfo=UTC)


def era(token: int) -> int:
    """Return the era of a token."""
    return token >> COUNTER_BITS


def first(era: int) -> int:
    """Return the revision at which an era starts; every token given in it is greater."""
    return era << COUNTER_BITS


def next_era(known: int, now: datetime) -> int:
    """Return an era greater than the last one known and than any that a lost copy of the store can have begun.

    Not promised when the copy is lost and the clock was stepped back behind its last era as well.
    """
    return max(known + 1, int((now - _ORIGIN).total_seconds()) // 60)
