"""What the locks of a store have been through: counts and histograms of each resource.

A process counts for itself and adds what it counted to the store now and then, so that a grant pays
nothing for it. A process that is killed takes along what it had not added yet.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable

from holdfast.kernel.codec import Record
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.kernel.limits import LOCK_STATISTICS_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx

OTHERS = "…"
"""Where resources beyond the bound are summed up."""

_NONE = (0,) * (len(BUCKETS_S) + 1)


class LockStatistics(Record, frozen=True, kw_only=True):
    """The counts of one resource since its store's volatile part began."""

    grants: int = 0
    waits: int = 0
    """Grants that had to be waited for."""
    timeouts: int = 0
    deaths: int = 0
    """Grants taken from a dead holder."""
    expiries: int = 0
    """Grants whose lease ran out."""
    deadlocks: int = 0
    kicks: int = 0
    wait_s: float = 0.0
    hold_s: float = 0.0
    wait_counts: tuple[int, ...] = _NONE
    """How many waits were up to each bound of BUCKETS_S, and how many longer; those that ended
    without a grant included.
    """
    hold_counts: tuple[int, ...] = _NONE

    def plus(self, other: "LockStatistics") -> "LockStatistics":
        """Both together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _PLAIN}
        return LockStatistics(
            **sums,
            wait_counts=tuple(
                a + b for a, b in zip(self.wait_counts, other.wait_counts, strict=True)
            ),
            hold_counts=tuple(
                a + b for a, b in zip(self.hold_counts, other.hold_counts, strict=True)
            ),
        )


_PLAIN = (
    "grants",
    "waits",
    "timeouts",
    "deaths",
    "expiries",
    "deadlocks",
    "kicks",
    "wait_s",
    "hold_s",
)

LOCK_STATISTICS = Space("lock_statistics", LockStatistics, volatile=True)


class _Tally:
    """What this process counted of one resource."""

    def __init__(self) -> None:
        self.grants = self.waits = self.timeouts = self.deaths = self.expiries = self.deadlocks = (
            self.kicks
        ) = 0
        self.wait_s = self.hold_s = 0.0
        self.wait_counts = list(_NONE)
        self.hold_counts = list(_NONE)

    def add(self, other: "_Tally | None") -> None:
        """Take over what another has counted."""
        if other is not None:
            for name in _PLAIN:
                setattr(self, name, getattr(self, name) + getattr(other, name))
            self.wait_counts = [
                a + b for a, b in zip(self.wait_counts, other.wait_counts, strict=True)
            ]
            self.hold_counts = [
                a + b for a, b in zip(self.hold_counts, other.hold_counts, strict=True)
            ]

    def taken(self) -> LockStatistics:
        """The counts as a record."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return LockStatistics(
            **plain, wait_counts=tuple(self.wait_counts), hold_counts=tuple(self.hold_counts)
        )


class Counting:
    """The counts of this process, on their way to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.begin_process()

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child: what was counted is its parent's to add."""
        self._mutex = threading.Lock()
        self._adding = threading.Lock()
        self._tallies: dict[str, _Tally] = {}

    def count(self, names: Iterable[str], what: str) -> None:
        """One more of something, for each name."""
        with self._mutex:
            for name in names:
                tally = self._tally(name)
                setattr(tally, what, getattr(tally, what) + 1)

    def granted(self, names: Iterable[str]) -> None:
        """A grant began."""
        with self._mutex:
            for name in names:
                (self._tallies.get(name) or self._tally(name)).grants += 1

    def held(self, names: Iterable[str], held_s: float) -> None:
        """A grant ended after so long."""
        bucket = bisect_left(BUCKETS_S, held_s)
        with self._mutex:
            for name in names:
                tally = self._tallies.get(name) or self._tally(name)
                tally.hold_s += held_s
                tally.hold_counts[bucket] += 1

    def waited(self, names: Iterable[str], waited_s: float, *, granted: bool) -> None:
        """A wait ended after so long."""
        bucket = bisect_left(BUCKETS_S, waited_s)
        with self._mutex:
            for name in names:
                tally = self._tally(name)
                tally.waits += granted
                tally.wait_s += waited_s
                tally.wait_counts[bucket] += 1

    def add_up(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """Add what was counted to the store's statistics. What cannot be added now is kept for the
        next time. What another thread is just adding is there too when this returns.
        """
        if self._adding.acquire(timeout=timeout_s):
            try:
                self._add_up(timeout_s)
            finally:
                self._adding.release()

    def _add_up(self, timeout_s: float) -> None:
        with self._mutex:
            tallies, self._tallies = self._tallies, {}
        if not tallies:
            return
        counted = {name: tally.taken() for name, tally in tallies.items()}
        try:
            self._store.transact(
                lambda tx: _add(tx, counted),
                scope=[LOCK_STATISTICS],
                durable=False,
                timeout_s=timeout_s,
            )
        except BaseException:
            with self._mutex:
                for name, tally in tallies.items():
                    tally.add(self._tallies.get(name))
                self._tallies |= tallies
            raise

    def _tally(self, name: str) -> _Tally:
        found = self._tallies.get(name)
        if found is None:
            found = self._tallies[name] = _Tally()
        return found


def _add(tx: Tx, counted: dict[str, LockStatistics]) -> None:
    room = LOCK_STATISTICS_MAX - tx.count(LOCK_STATISTICS)
    others = LockStatistics()
    for name, statistics in counted.items():
        row = tx.get(LOCK_STATISTICS, name)
        if row is None and room <= 0:
            others = others.plus(statistics)
            continue
        room -= row is None
        tx.put(LOCK_STATISTICS, name, statistics if row is None else row.record.plus(statistics))
    if others != LockStatistics():
        row = tx.get(LOCK_STATISTICS, OTHERS)
        tx.put(LOCK_STATISTICS, OTHERS, others if row is None else row.record.plus(others))
