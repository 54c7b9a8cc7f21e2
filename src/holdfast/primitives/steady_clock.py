"""The store's clock without recent jumps: a clock that was set forward ends no lease and makes
nothing old.

Somebody can set the store's clock, but not the time since the machine's boot. A row in the store
says what both showed at one moment, for all processes of the boot. If the store's clock is ahead of
the time that has passed since then, it was set forward.

A jump counts later, when live holders have renewed their leases, and somebody has corrected a wrong
clock. A clock that is set back counts at once: nothing ends too early by it.
"""

import contextlib
import os
import weakref
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel.clock import MonotonicTime, ago
from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Liveness
from holdfast.kernel.lease import Lease, reclaimable
from holdfast.kernel.limits import (
    CLOCK_COMPARE_EVERY_S,
    CLOCK_JUMP_S,
    CLOCK_ROWS_KEEP_S,
    CLOCK_SILENCE_S,
    CLOCK_WRITE_EVERY_S,
    LEASE_JUMP_IGNORED_S,
    RETENTION_JUMP_IGNORED_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Store, Tx

_DRIFT = 0.0005
"""Greatest drift between two clocks that nobody sets: no time server slews a clock faster."""
_READ_S = CLOCK_JUMP_S / 2
"""A slower answer does not say when it was true."""
_WRITE_S = 1.0
# The gate of an embedded store opens soon, or is blocked, which is not worth waiting for.
_WRITE_EMBEDDED_S = 0.05


class ClockSighting(Record, frozen=True, kw_only=True):
    """What the store's clock (`at`) and the time since boot (`passed_s`) showed at one moment.

    The store's clock was set forward by `jump_s`, last at `jumped_s` of the time since boot. If the
    newest journal entry was old at the first use in this boot, at `doubted_s`, then `doubt_s` is
    its age: the clock may have been set forward by as much.
    """

    at: Instant
    passed_s: float
    jump_s: float = 0.0
    jumped_s: float = 0.0
    doubt_s: float = 0.0
    doubted_s: float = 0.0


CLOCK_SIGHTINGS = Space("clock_sightings", ClockSighting)
"""Keyed by the name of the boot clock, which differs after each boot."""


class Jump(Struct, frozen=True):
    """By how much the store's clock was set forward, and how long ago."""

    seconds: float
    ago_s: float


class SteadyClock:
    """What this process knows of the store's clock. Thread-safe; a forked child compares again."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.proxy(store)
        self._pid = os.getpid()
        self._seen: ClockSighting | None = None
        self._clock = ""
        self._next_s = float("-inf")

    def compare(self) -> None:
        """Compare the clocks, unless this process did so a moment ago. Not inside a
        transaction."""
        time, pid = self._store.monotonic(), os.getpid()
        if time.seconds < self._next_s and self._pid == pid and time.clock == self._clock:
            return
        self._pid, self._clock = pid, time.clock
        self._next_s = time.seconds + CLOCK_COMPARE_EVERY_S
        with contextlib.suppress(HoldfastError):
            self._compare(time)

    def peek(self) -> Jump | None:
        """Compare the clocks without writing; return the jump of the last day, if any."""
        time = self._store.monotonic()
        self._pid, self._clock, self._next_s = os.getpid(), time.clock, float("-inf")
        self._compare(time, write=False)
        return self.jump()

    def reclaimable(self, lease: Lease, liveness: Liveness, now: datetime) -> bool:
        """The rule of `kernel/lease.py`, without a recent jump of the clock."""
        if liveness is Liveness.DEAD:
            return True
        # Most leases are fresh even by the clock that jumped.
        return reclaimable(lease, liveness, now) and reclaimable(
            lease, liveness, self.without_jump(now, since=lease.granted_at)
        )

    def without_jump(
        self, now: datetime, *, since: datetime | None = None, after_s: float = LEASE_JUMP_IGNORED_S
    ) -> datetime:
        """`now` without a jump of the clock in the last `after_s`. A jump before `since` does not
        count. Never later than `now`.
        """
        return self._without(now, after_s, since) or now

    def for_retention(self, now: datetime, *, age_given: bool = False) -> datetime | None:
        """The time by which something is removed for its age; None before the first comparison.
        After a long silence the clock may be wrong, unless `age_given`: the caller named the age.
        """
        without, seen = self._without(now, RETENTION_JUMP_IGNORED_S, None), self._seen
        if without is None or seen is None or age_given:
            return without
        doubted = self._store.monotonic().seconds - seen.doubted_s < RETENTION_JUMP_IGNORED_S
        return ago(without, seen.doubt_s) if doubted else without

    def jump(self) -> Jump | None:
        """The jump of the store's clock in the last day, if any is known."""
        seen, time = self._seen, self._store.monotonic()
        if (
            seen is None
            or time.clock != self._clock
            or not _recent(seen, time.seconds, RETENTION_JUMP_IGNORED_S)
        ):
            return None
        return Jump(seen.jump_s, time.seconds - seen.jumped_s)

    def _without(self, now: datetime, after_s: float, since: datetime | None) -> datetime | None:
        seen = self._seen
        if seen is None:
            return None
        time = self._store.monotonic()
        if time.clock != self._clock:
            return None
        # A jump since the last comparison counts as just now.
        moved = _moved(seen, now, time.seconds)
        if not _recent(moved, time.seconds, after_s):
            return now
        jumped_at = ago(now, time.seconds - moved.jumped_s)
        return now if since is not None and since > jumped_at else ago(now, moved.jump_s)

    def _compare(self, time: MonotonicTime, *, write: bool = True) -> None:
        def sighting(tx: ReadTx) -> tuple[datetime, ClockSighting | None]:
            row = tx.get(CLOCK_SIGHTINGS, time.clock)
            return tx.now, None if row is None else row.record

        # The caller has a time limit of its own, and a late answer is of no use.
        now, found = self._store.read(
            sighting, scope=[CLOCK_SIGHTINGS], timeout_s=_READ_S if write else TRANSACT_TIMEOUT_S
        )
        passed_s = self._store.monotonic().seconds
        if passed_s - time.seconds > _READ_S:
            self._next_s = passed_s
            return
        if found is None:
            moved = self._first(now, passed_s)
        else:
            moved = _moved(found, now, passed_s)
            fresh = passed_s - found.passed_s < CLOCK_WRITE_EVERY_S
            write = write and not (fresh and moved.jump_s == found.jump_s)

        def put(tx: Tx) -> None:
            if found is None:
                # Rows of earlier boots are useless.
                for row in tx.range(CLOCK_SIGHTINGS, damaged=[]):
                    if row.record.at < ago(tx.now, CLOCK_ROWS_KEEP_S):
                        tx.delete(CLOCK_SIGHTINGS, row.key)
            tx.put(CLOCK_SIGHTINGS, time.clock, moved)

        self._seen = moved
        if not write:
            return
        with contextlib.suppress(HoldfastError):
            # A reader may not write, and a busy store has other writers.
            limit_s = _WRITE_EMBEDDED_S if self._store.embedded else _WRITE_S
            self._store.transact(put, scope=[CLOCK_SIGHTINGS], durable=False, timeout_s=limit_s)

    def _first(self, now: datetime, passed_s: float) -> ClockSighting:
        """The first sighting of a boot, which may have begun with a wrong clock."""
        # If the newest entry is old, the clock is wrong, or nobody used the store. Leases are over
        # then, but nothing is removed for its age for a while.
        newest = next(iter(self._store.journal(limit=1, reverse=True).entries), None)
        silence_s = 0.0 if newest is None else (now - newest.at).total_seconds()
        if silence_s <= CLOCK_SILENCE_S:
            return ClockSighting(at=now, passed_s=passed_s)
        return ClockSighting(at=now, passed_s=passed_s, doubt_s=silence_s, doubted_s=passed_s)


def _moved(seen: ClockSighting, now: datetime, passed_s: float) -> ClockSighting:
    """The next sighting, when the store's clock shows `now`. It was set forward if it moved by more
    than the time that passed since `seen`.
    """
    elapsed_s = passed_s - seen.passed_s
    ahead_s = (now - seen.at).total_seconds() - elapsed_s
    recent = _recent(seen, passed_s, RETENTION_JUMP_IGNORED_S)
    jump_s, jumped_s = (seen.jump_s, seen.jumped_s) if recent else (0.0, 0.0)
    if ahead_s > CLOCK_JUMP_S + _DRIFT * max(elapsed_s, 0):
        jump_s, jumped_s = jump_s + ahead_s, passed_s
    elif ahead_s < -CLOCK_JUMP_S:
        # Set back: this undoes an earlier jump, wholly or in part.
        jump_s = max(jump_s + ahead_s, 0.0)
    return replace(seen, at=now, passed_s=passed_s, jump_s=jump_s, jumped_s=jumped_s)


def _recent(seen: ClockSighting, passed_s: float, limit_s: float) -> bool:
    return seen.jump_s > 0 and passed_s - seen.jumped_s < limit_s


_clocks: "weakref.WeakKeyDictionary[Store, SteadyClock]" = weakref.WeakKeyDictionary()


def steady_clock(store: Store) -> SteadyClock:
    """The one clock of a store object."""
    found = _clocks.get(store)
    if found is None:
        found = _clocks[store] = SteadyClock(store)
    return found
