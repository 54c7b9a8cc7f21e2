"""Queues of agents, asked of their gateways. A gateway that does not answer is a value, and what it last wrote down stands."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.views.metrics.text import gauge, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric

    from holdfast.domains.gateway import Status

_BLOCKED = {"reconciliation": "blocked_reconciliation", "unavailable": "blocked_unavailable"}


class GatewayReading(NamedTuple):
    """How an agent's gateway stands: whether it answers, and its status, or the last one it left; None for neither."""

    agent: str
    up: bool
    status: "Status | None"


def of_gateways(readings: Sequence[GatewayReading], unasked: int) -> "Iterator[Metric]":
    """The samples of gateways."""
    yield gauges(
        "holdfast_gateway_up",
        "Whether the gateway of an agent answers.",
        ["agent"],
        (([reading.agent], reading.up) for reading in readings),
    )
    known = [(reading.agent, reading.up, reading.status) for reading in readings if reading.status is not None]
    depths = [
        ([agent, state], depth)
        for agent, _, status in known
        for state, depth in (("accepted", status.queue_depth - _running(status)), ("running", _running(status)))
    ]
    yield gauges(
        "holdfast_gateway_queue_depth", "Requests that have not ended, by agent and state.", ["agent", "state"], depths
    )
    yield gauges(
        "holdfast_gateway_blocked",
        "Whether requests are refused, and why: an operator must reconcile, or the agent is not there.",
        ["agent", "why"],
        (
            ([agent, why], status.request_admission == admission)
            for agent, up, status in known
            if up
            for why, admission in _BLOCKED.items()
        ),
    )
    yield gauge("holdfast_gateways_unasked", "Gateways that were not asked, as there are too many.", unasked)


def _running(status: "Status") -> int:
    return min(int(status.active_execution == "running"), status.queue_depth)
