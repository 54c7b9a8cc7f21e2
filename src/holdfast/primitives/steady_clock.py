"""How far the store's clock is believed: a clock that was set forward ends no lease, and makes
nothing old, by that.

The store's clock is the machine's or the database's, and somebody can set it. Beside it runs one
that nobody sets: the time since the machine's boot. A row in the store says what both showed at one
moment, for all processes of the boot. Where the store's clock is ahead of what has passed since
then, it was set forward, or this process has another clock than the rest:

    steady.look()               reads and keeps that row; free when it was done a moment ago
    steady.reclaimable(...)     `lease.reclaimable`, but for what was set forward lately
    steady.believed(tx.now)     the store's clock without what was set forward lately
    steady.proven(tx.now)       the same over a longer time, for removal by age; None if unknown

What was set forward is believed in the end: by then every live holder has renewed its lease, and
somebody has seen to a clock that is wrong. A clock that is set back is believed at once, since by
it nothing is over too early.
"""

import contextlib
import os
import weakref
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.kernel.clock import Passing, ago
from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Liveness
from holdfast.kernel.lease import Lease, reclaimable
from holdfast.kernel.limits import (
    CLOCK_JUMP_S,
    CLOCK_LOOK_EVERY_S,
    CLOCK_ROWS_KEEP_S,
    CLOCK_SILENCE_S,
    CLOCK_WRITE_EVERY_S,
    LEASE_JUMP_BELIEVED_S,
    RETENTION_JUMP_BELIEVED_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Store, Tx

_DRIFT = 0.0005
"""Two clocks that nobody sets drift apart by no more: no time server slews a clock any faster."""
_READ_S = CLOCK_JUMP_S / 2
"""An answer that takes longer says little of when it was true."""
_WRITE_S = 1.0
_WRITE_EMBEDDED_S = 0.05
"""Of an embedded store all writers go through one gate: a busy one opens soon, and at a shut one
nobody waits for this.
"""


class ClockSighting(Record, frozen=True, kw_only=True):
    """What the store's clock and one that nobody sets showed at the same moment.

    Of what the store's clock showed, `jump_s` came by setting it forward, when the other showed
    `jumped_s`. And `doubt_s` may have, for the store was silent for so long when it was first used
    in this boot, at `doubted_s`.
    """

    at: Instant
    passed_s: float
    jump_s: float = 0.0
    jumped_s: float = 0.0
    doubt_s: float = 0.0
    doubted_s: float = 0.0


CLOCK_SIGHTINGS = Space("clock_sightings", ClockSighting)
"""By the name of the clock that nobody sets, which is another one after each boot."""


class Jump(NamedTuple):
    """By how much the store's clock was set forward, and how long ago."""

    seconds: float
    ago_s: float


class SteadyClock:
    """What this process knows of the store's clock. Safe for threads; a forked child looks anew."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.proxy(store)
        self._pid = os.getpid()
        self._seen: ClockSighting | None = None
        self._clock = ""
        self._next_s = float("-inf")

    def look(self) -> None:
        """Compare the clocks, unless this process did so a moment ago. For outside of transactions.
        A store that does not answer is asked again at the next look.
        """
        passing = self._store.passing()
        if (
            passing.seconds < self._next_s
            and self._pid == os.getpid()
            and passing.clock == self._clock
        ):
            return
        self._pid, self._clock, self._next_s = (
            os.getpid(),
            passing.clock,
            passing.seconds + CLOCK_LOOK_EVERY_S,
        )
        with contextlib.suppress(HoldfastError):
            self._compare(passing)

    def reclaimable(self, lease: Lease, liveness: Liveness, now: datetime) -> bool:
        """May another take a claim? By the rule of kernel/lease.py, and by no clock that was just
        set forward.
        """
        if liveness is Liveness.DEAD or not reclaimable(lease, liveness, now):
            return liveness is Liveness.DEAD
        return reclaimable(lease, liveness, self.believed(now, since=lease.granted_at))

    def peek(self) -> Jump | None:
        """Look, and write nothing; by how much the store's clock was set forward in the last day,
        None when it was not.
        """
        self._pid, self._clock, self._next_s = (
            os.getpid(),
            self._store.passing().clock,
            float("-inf"),
        )
        self._compare(self._store.passing(), write=False)
        return self.jump()

    def believed(
        self,
        now: datetime,
        *,
        since: datetime | None = None,
        after_s: float = LEASE_JUMP_BELIEVED_S,
    ) -> datetime:
        """What of the store's clock is believed when it is asked whether something is over. Never
        later than `now`.

        What began `since` the clock was set forward is not concerned by that; and all of it is
        believed `after_s`.
        """
        return self._without(now, after_s, since) or now

    def proven(self, now: datetime, *, asked: bool = False) -> datetime | None:
        """The same when something is to be removed for its age; None when this process has compared
        no clocks yet.

        A store that was silent for long may have a wrong clock by now. That counts unless somebody
        `asked` for an age.
        """
        without, seen = self._without(now, RETENTION_JUMP_BELIEVED_S, None), self._seen
        if without is None or seen is None or asked:
            return without
        doubted = self._store.passing().seconds - seen.doubted_s < RETENTION_JUMP_BELIEVED_S
        return ago(without, seen.doubt_s) if doubted else without

    def jump(self) -> Jump | None:
        """By how much the store's clock was set forward in the last day, as far as was seen; None
        when it was not.
        """
        seen, passing = self._seen, self._store.passing()
        if (
            seen is None
            or passing.clock != self._clock
            or not _recent(seen, passing.seconds, RETENTION_JUMP_BELIEVED_S)
        ):
            return None
        return Jump(seen.jump_s, passing.seconds - seen.jumped_s)

    def _without(self, now: datetime, after_s: float, since: datetime | None) -> datetime | None:
        seen = self._seen
        if seen is None:
            return None
        passing = self._store.passing()
        if passing.clock != self._clock:
            return None
        # What the clock was set forward by since the last look counts as just now.
        moved = _moved(seen, now, passing.seconds)
        if not _recent(moved, passing.seconds, after_s):
            return now
        jumped_at = ago(now, passing.seconds - moved.jumped_s)
        return now if since is not None and since > jumped_at else ago(now, moved.jump_s)

    def _compare(self, passing: Passing, *, write: bool = True) -> None:
        def look(tx: ReadTx) -> tuple[datetime, ClockSighting | None]:
            row = tx.get(CLOCK_SIGHTINGS, passing.clock)
            return tx.now, None if row is None else row.record

        # A caller that looks has a time limit of its own, and a late answer is of no use to it.
        now, found = self._store.read(
            look, scope=[CLOCK_SIGHTINGS], timeout_s=_READ_S if write else TRANSACT_TIMEOUT_S
        )
        passed_s = self._store.passing().seconds
        if passed_s - passing.seconds > _READ_S:
            self._next_s = passed_s
            return
        moved = (
            ClockSighting(at=now, passed_s=passed_s)
            if found is None
            else _moved(found, now, passed_s)
        )
        if (
            found is not None
            and moved.jump_s == found.jump_s
            and passed_s - found.passed_s < CLOCK_WRITE_EVERY_S
        ):
            self._seen = moved
            return
        if found is None:
            moved = self._first(now, passed_s)

        def keep(tx: Tx) -> None:
            if found is None:
                # Those of earlier boots are of no use to anybody.
                for row in tx.range(CLOCK_SIGHTINGS, damaged=[]):
                    if row.record.at < ago(tx.now, CLOCK_ROWS_KEEP_S):
                        tx.delete(CLOCK_SIGHTINGS, row.key)
            tx.put(CLOCK_SIGHTINGS, passing.clock, moved)

        self._seen = moved
        if not write:
            return
        with contextlib.suppress(HoldfastError):
            # A reader may not write, and a store that is busy has others who do.
            limit_s = _WRITE_EMBEDDED_S if self._store.embedded else _WRITE_S
            self._store.transact(keep, scope=[CLOCK_SIGHTINGS], durable=False, timeout_s=limit_s)

    def _first(self, now: datetime, passed_s: float) -> ClockSighting:
        """The first of a boot. It may have begun with a wrong clock: where the newest entry of the
        journal is old, that is so, or the store was not used for long. Leases are believed to be
        over; nothing is removed for its age for a while.
        """
        newest = next(iter(self._store.journal(limit=1, reverse=True).entries), None)
        silence_s = 0.0 if newest is None else (now - newest.at).total_seconds()
        if silence_s <= CLOCK_SILENCE_S:
            return ClockSighting(at=now, passed_s=passed_s)
        return ClockSighting(at=now, passed_s=passed_s, doubt_s=silence_s, doubted_s=passed_s)


def _moved(seen: ClockSighting, now: datetime, passed_s: float) -> ClockSighting:
    """What is known when the store's clock shows `now`, by what it showed before."""
    gone_s = passed_s - seen.passed_s
    ahead_s = (now - seen.at).total_seconds() - gone_s
    jump_s, jumped_s = (
        (seen.jump_s, seen.jumped_s)
        if _recent(seen, passed_s, RETENTION_JUMP_BELIEVED_S)
        else (0.0, 0.0)
    )
    if ahead_s > CLOCK_JUMP_S + _DRIFT * max(gone_s, 0):
        jump_s, jumped_s = jump_s + ahead_s, passed_s
    elif ahead_s < -CLOCK_JUMP_S:
        # Set back: what it had been set forward by is undone, all or in part.
        jump_s = max(jump_s + ahead_s, 0.0)
    return replace(seen, at=now, passed_s=passed_s, jump_s=jump_s, jumped_s=jumped_s)


def _recent(seen: ClockSighting, passed_s: float, limit_s: float) -> bool:
    return seen.jump_s > 0 and passed_s - seen.jumped_s < limit_s


def steady_clock(store: Store) -> SteadyClock:
    """The one of a store object."""
    found = _CLOCKS.get(store)
    if found is None:
        found = _CLOCKS[store] = SteadyClock(store)
    return found


_CLOCKS: "weakref.WeakKeyDictionary[Store, SteadyClock]" = weakref.WeakKeyDictionary()
