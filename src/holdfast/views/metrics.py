"""Counters for Prometheus: what the locks have been through, and how much the registry keeps. The extra `server`.

Nothing of the extra is imported before somebody asks for the text.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from holdfast.domains.network import Counts, Registry
from holdfast.kernel.errors import Unavailable
from holdfast.primitives.locks import Locks
from holdfast.primitives.locks.picture import LockStatus
from holdfast.primitives.locks.statistics import BUCKETS_S, LockStatistics

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


def exposition(locks: Locks, registry: Registry) -> str:
    """Everything in the text format that Prometheus scrapes. Raises Unavailable when the extra is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise Unavailable(
            "metrics for Prometheus need a library that is not installed: pip install '.[server]'", outcome="none"
        ) from None
    # Read now, so that what cannot be read is told before anything is written.
    families = [*_of_locks(locks.statistics(), locks.list_held()), *_of_registry(registry.counts())]
    collected = CollectorRegistry()
    collected.register(_Collected(families))
    return generate_latest(collected).decode()


class _Collected:
    """What a collector of the library's must be."""

    def __init__(self, families: "list[Metric]") -> None:
        self._families = families

    def collect(self) -> "Iterable[Metric]":
        return self._families


def _of_locks(statistics: Mapping[str, LockStatistics], held: list[LockStatus]) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for what, means in COUNTED.items():
        counter = CounterMetricFamily(f"holdfast_lock_{what}", means, labels=["resource"])
        for name, one in statistics.items():
            counter.add_metric([name], getattr(one, what))
        yield counter
    for what, means in (("wait", "How long requests waited."), ("hold", "How long grants were held.")):
        histogram = HistogramMetricFamily(f"holdfast_lock_{what}_seconds", means, labels=["resource"])
        for name, one in statistics.items():
            counts, total_s = (one.wait_counts, one.wait_s) if what == "wait" else (one.hold_counts, one.hold_s)
            histogram.add_metric([name], _buckets(counts), total_s)
        yield histogram
    holders = GaugeMetricFamily("holdfast_lock_holders", "Who holds a resource now.", labels=["resource"])
    waiters = GaugeMetricFamily("holdfast_lock_waiters", "Who waits for a resource now.", labels=["resource"])
    for status in held:
        holders.add_metric([status.name], sum(not hold.reclaimable for hold in status.holds))
        waiters.add_metric([status.name], len(status.queue))
    yield holders
    yield waiters


def _of_registry(counts: Counts) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("holdfast_registry_hosts", "Registered hosts.", value=counts.hosts)
    yield GaugeMetricFamily("holdfast_registry_host_leases", "Leases on hosts that count.", value=counts.host_leases)
    yield GaugeMetricFamily(
        "holdfast_registry_neighbor_leases", "Leases on neighbours that count.", value=counts.neighbor_leases
    )


def _buckets(counts: tuple[int, ...]) -> list[tuple[str, float]]:
    """How many were up to each bound, all smaller ones included."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    return [(bound, float(reached)) for bound, reached in zip(bounds, accumulate(counts), strict=True)]
