"""How much the registry of hosts keeps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.domains.network import Counts
from holdfast.views.metrics.text import gauge

if TYPE_CHECKING:
    from prometheus_client import Metric


def of_registry(counts: Counts) -> "Iterator[Metric]":
    """The samples of what is registered and leased."""
    yield gauge("holdfast_registry_hosts", "Registered hosts.", counts.hosts)
    yield gauge("holdfast_registry_host_leases", "Leases on hosts that count.", counts.host_leases)
    yield gauge("holdfast_registry_neighbor_leases", "Leases on neighbours that count.", counts.neighbor_leases)
