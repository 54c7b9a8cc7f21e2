"""Metric families as the text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from holdfast.kernel.errors import Unavailable
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.kernel.text import installing

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4"
"""The content type for a server; the encoding is UTF-8."""


def need_library() -> None:
    """Raise Unavailable when the extra `server` is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise Unavailable(
            f"metrics for Prometheus need a library that is not installed: {installing('server')}",
            outcome="none",
        ) from None


def text_of(families: Sequence[Metric]) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    collected = CollectorRegistry()
    collected.register(_Collector(families))
    return generate_latest(collected).decode()


class _Collector:
    """The collector that the library asks for."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """The number of samples up to each bound, all smaller ones included."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    return [
        (bound, float(reached)) for bound, reached in zip(bounds, accumulate(counts), strict=True)
    ]


def gauge(name: str, means: str, value: float) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, means, value=value)


def gauges(
    name: str, means: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """A value for each set of labels."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, means, labels=list(labels))
    for label_values, value in values:
        family.add_metric(list(label_values), value)
    return family
