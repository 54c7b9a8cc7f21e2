"""Counts and histograms of each resource. A process counts in memory and adds that to the store now
and then, so that a grant does not pay for it. A killed process loses what it had not added yet.
"""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import add, attrgetter

from holdfast.kernel.codec import Record
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.kernel.limits import LOCK_STATISTICS_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.names import check_label
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx

OTHERS = "…"
"""The row that sums up the resources beyond LOCK_STATISTICS_MAX."""

_NO_COUNTS = (0,) * (len(BUCKETS_S) + 1)
_NUMBERS = (
    *("grants", "waits", "timeouts", "deaths", "expiries", "deadlocks", "kicks"),
    *("wait_s", "hold_s"),
)
_numbers_of = attrgetter(*_NUMBERS)


class LockStatistics(Record, frozen=True, kw_only=True):
    """The counts of one resource since its store's volatile part began."""

    grants: int = 0
    waits: int = 0
    """Grants after a wait."""
    timeouts: int = 0
    deaths: int = 0
    """Grants taken from a dead holder."""
    expiries: int = 0
    """Grants whose lease ran out."""
    deadlocks: int = 0
    kicks: int = 0
    wait_s: float = 0.0
    hold_s: float = 0.0
    wait_counts: tuple[int, ...] = _NO_COUNTS
    """Waits up to each bound of BUCKETS_S, and longer; those without a grant included."""
    hold_counts: tuple[int, ...] = _NO_COUNTS

    def plus(self, other: "LockStatistics") -> "LockStatistics":
        total = _Counts()
        total.add(self)
        total.add(other)
        return total.record()


LOCK_STATISTICS = Space("lock_statistics", LockStatistics, volatile=True)


def chosen_statistics(
    names: Iterable[str], found: Mapping[str, LockStatistics]
) -> dict[str, LockStatistics]:
    """The statistics of these names, also of those that were never locked. Raises InvalidName."""
    return {check_label(name, "resource"): found.get(name, LockStatistics()) for name in names}


class _Counts:
    """The counts of one resource, to be added to."""

    def __init__(self) -> None:
        self.grants = self.waits = self.timeouts = self.deaths = self.expiries = 0
        self.deadlocks = self.kicks = 0
        self.wait_s = self.hold_s = 0.0
        self.wait_counts = list(_NO_COUNTS)
        self.hold_counts = list(_NO_COUNTS)

    def add(self, other: "_Counts | LockStatistics") -> None:
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wait_counts = list(map(add, self.wait_counts, other.wait_counts))
        self.hold_counts = list(map(add, self.hold_counts, other.hold_counts))

    def record(self) -> LockStatistics:
        return LockStatistics(
            **dict(zip(_NUMBERS, _numbers_of(self), strict=True)),
            wait_counts=tuple(self.wait_counts),
            hold_counts=tuple(self.hold_counts),
        )


class LockCounters:
    """The counts of this process that are not in the store yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.begin_process()

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child: its parent adds the earlier counts."""
        self._mutex = threading.Lock()
        self._flushing = threading.Lock()
        self._counts: defaultdict[str, _Counts] = defaultdict(_Counts)

    def count(self, names: Iterable[str], what: str) -> None:
        with self._mutex:
            for name in names:
                counts = self._counts[name]
                setattr(counts, what, getattr(counts, what) + 1)

    def count_hold(self, names: Iterable[str], held_s: float) -> None:
        bucket = bisect_left(BUCKETS_S, held_s)
        with self._mutex:
            for name in names:
                counts = self._counts[name]
                counts.hold_s += held_s
                counts.hold_counts[bucket] += 1

    def count_wait(self, names: Iterable[str], waited_s: float, *, granted: bool) -> None:
        bucket = bisect_left(BUCKETS_S, waited_s)
        with self._mutex:
            for name in names:
                counts = self._counts[name]
                counts.waits += granted
                counts.wait_s += waited_s
                counts.wait_counts[bucket] += 1

    def flush(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """Add the counts to the store; on failure they are kept for the next time."""
        # Waits for another thread that is flushing, so that its counts are in the store too.
        if not self._flushing.acquire(timeout=timeout_s):
            return
        try:
            with self._mutex:
                taken, self._counts = self._counts, defaultdict(_Counts)
            if not taken:
                return
            try:
                self._store.transact(
                    lambda tx: _add(tx, taken),
                    scope=[LOCK_STATISTICS],
                    durable=False,
                    timeout_s=timeout_s,
                )
            except BaseException:
                with self._mutex:
                    for name, counts in taken.items():
                        if (newer := self._counts.get(name)) is not None:
                            counts.add(newer)
                    self._counts |= taken
                raise
        finally:
            self._flushing.release()


def _add(tx: Tx, counted: dict[str, _Counts]) -> None:
    room: int | None = None
    others: _Counts | None = None
    for name, counts in counted.items():
        total, row = _Counts(), tx.get(LOCK_STATISTICS, name)
        total.add(counts)
        if row is not None:
            total.add(row.record)
        else:
            # Counted only now: most of the time all of the resources have a row.
            room = LOCK_STATISTICS_MAX - tx.count(LOCK_STATISTICS) if room is None else room
            if room <= 0:
                others = others or _Counts()
                others.add(counts)
                continue
            room -= 1
        tx.put(LOCK_STATISTICS, name, total.record())
    if others is not None:
        if (row := tx.get(LOCK_STATISTICS, OTHERS)) is not None:
            others.add(row.record)
        tx.put(LOCK_STATISTICS, OTHERS, others.record())
