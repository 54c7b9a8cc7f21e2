"""What the locks have been through, and how they stand."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.kernel.limits import LOCK_STATISTICS_MAX
from holdfast.primitives.locks.picture import LockStatus
from holdfast.primitives.locks.statistics import OTHERS, LockStatistics
from holdfast.views.metrics.text import buckets, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric

COUNTED = {
    "grants": "Grants of a resource.",
    "waits": "Grants that had to be waited for.",
    "timeouts": "Requests whose time limit passed.",
    "deaths": "Grants taken from a dead holder.",
    "expiries": "Grants whose lease ran out.",
    "deadlocks": "Requests that would have waited for ever.",
    "kicks": "Grants taken away by an operator.",
}
"""What is counted of each resource, and what it means."""


class Named:
    """Which resources have samples of their own, at most so many; all others share one.

    Who has got a name keeps it for the life of this object, and who has not never gets one: so no counter goes back.
    """

    def __init__(self, most: int = LOCK_STATISTICS_MAX) -> None:
        self._most = most
        self._names: set[str] = set()

    def admit(self, busiest_first: Sequence[str]) -> None:
        """Give names while there are some."""
        for name in busiest_first:
            if len(self._names) >= self._most:
                return
            self._names.add(name)

    def label(self, name: str) -> str:
        """What a resource is called in samples."""
        return name if name in self._names else OTHERS


def of_locks(
    statistics: Mapping[str, LockStatistics], held: Sequence[LockStatus], named: Named | None = None
) -> "Iterator[Metric]":
    """The samples of statistics, and of the resources that are held or waited for."""
    named = Named() if named is None else named
    named.admit(sorted(statistics, key=lambda name: (-statistics[name].waits, -statistics[name].grants, name)))
    named.admit([status.name for status in held])
    yield from _of_statistics(_summed(statistics, named))
    standing: dict[str, tuple[int, int]] = {}
    for status in held:
        holders, waiters = standing.get(named.label(status.name), (0, 0))
        alive = sum(not hold.reclaimable for hold in status.holds)
        standing[named.label(status.name)] = (holders + alive, waiters + len(status.queue))
    for what, means, at in (("holders", "Who holds a resource now.", 0), ("waiters", "Who waits for a resource now.", 1)):
        yield gauges(f"holdfast_lock_{what}", means, ["resource"], (([name], both[at]) for name, both in standing.items()))


def _of_statistics(statistics: Mapping[str, LockStatistics]) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for what, means in COUNTED.items():
        counter = CounterMetricFamily(f"holdfast_lock_{what}", means, labels=["resource"])
        for name, one in statistics.items():
            counter.add_metric([name], getattr(one, what))
        yield counter
    for what, means in (("wait", "How long requests waited."), ("hold", "How long grants were held.")):
        histogram = HistogramMetricFamily(f"holdfast_lock_{what}_seconds", means, labels=["resource"])
        for name, one in statistics.items():
            counts, total_s = (one.wait_counts, one.wait_s) if what == "wait" else (one.hold_counts, one.hold_s)
            histogram.add_metric([name], buckets(counts), total_s)
        yield histogram


def _summed(statistics: Mapping[str, LockStatistics], named: Named) -> dict[str, LockStatistics]:
    summed: dict[str, LockStatistics] = {}
    for name, one in statistics.items():
        label = named.label(name)
        summed[label] = summed[label].plus(one) if label in summed else one
    return summed
