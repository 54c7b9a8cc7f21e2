"""How long the store takes."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.kernel.histogram import Histogram
from holdfast.views.metrics.text import buckets, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric


class Probe(NamedTuple):
    """What one empty transaction came to: whether it was made, whether there is a store at all, and how long it took."""

    up: bool
    made: bool
    took_s: float


def of_store(probe: Probe, times: Mapping[str, Histogram]) -> "Iterator[Metric]":
    """The samples of the store, as this process sees it."""
    from prometheus_client.core import HistogramMetricFamily

    yield store_up(probe.up)
    yield gauge("holdfast_store_made", "Whether there is a store: 0 before anything was put into it.", probe.made)
    yield gauge("holdfast_store_probe_seconds", "How long that took, with its turn and its sync.", probe.took_s)
    histogram = HistogramMetricFamily(
        "holdfast_store_transaction_seconds", "How long calls of the store took in this process.", labels=["operation"]
    )
    for operation, found in times.items():
        histogram.add_metric([operation], buckets(found.counts), found.total_s)
    yield histogram


def store_up(up: bool) -> "Metric":
    """Whether the store can be used."""
    return gauge("holdfast_store_up", "Whether the store took one empty transaction in time.", up)
