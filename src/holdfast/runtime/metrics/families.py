"""Queues of agents, asked of their gateways. A gateway that does not answer is a value, and what it
last wrote down stands.

Jobs by status, and events that wait for a broker.

How far behind the journal's followers are, and how far back it goes.

How long agents and workflows are still believed, and how long ago they were last heard of.

What the locks have been through, and how they stand.

How much the registry of hosts keeps.

How long the store takes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from holdfast.domains.agents import Agent
from holdfast.domains.jobs import JobStatus
from holdfast.domains.network import Counts
from holdfast.domains.workflows import Workflow
from holdfast.domains.workflows.context import WorkflowsSnapshot
from holdfast.kernel.histogram import Histogram
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import LOCK_STATISTICS_MAX, METRICS_CLAIMS_MAX
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag
from holdfast.primitives.locks.inspect import LockStatus
from holdfast.primitives.locks.statistics import OTHERS, LockStatistics
from holdfast.runtime.metrics.text import buckets, gauge, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric

    from holdfast.domains.gateway import Status

_BLOCKED = {"reconciliation": "blocked_reconciliation", "unavailable": "blocked_unavailable"}


class GatewayReading(NamedTuple):
    """How an agent's gateway stands: whether it answers, and its status, or the last one it left;
    None for neither.
    """

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
    known = [
        (reading.agent, reading.up, reading.status)
        for reading in readings
        if reading.status is not None
    ]
    depths = [
        ([agent, state], depth)
        for agent, _, status in known
        for state, depth in (
            ("accepted", status.queue_depth - _running(status)),
            ("running", _running(status)),
        )
    ]
    yield gauges(
        "holdfast_gateway_queue_depth",
        "Requests that have not ended, by agent and state.",
        ["agent", "state"],
        depths,
    )
    yield gauges(
        "holdfast_gateway_blocked",
        "Whether requests are refused, and why: an operator must reconcile, or the agent is not "
        "there.",
        ["agent", "why"],
        (
            ([agent, why], status.request_admission == admission)
            for agent, up, status in known
            if up
            for why, admission in _BLOCKED.items()
        ),
    )
    yield gauge(
        "holdfast_gateways_unasked", "Gateways that were not asked, as there are too many.", unasked
    )


def _running(status: "Status") -> int:
    return min(int(status.active_execution == "running"), status.queue_depth)


if TYPE_CHECKING:
    from prometheus_client import Metric


def of_jobs(counts: Mapping[JobStatus, int], unsent: int, *, sendable: bool) -> "Iterator[Metric]":
    """The samples of jobs."""
    numbers = (([status.value], float(number)) for status, number in counts.items())
    yield gauges("holdfast_jobs", "Jobs that are kept, by status.", ["status"], numbers)
    yield gauge(
        "holdfast_job_events_unsent", "Events of jobs that wait for a message broker.", unsent
    )
    yield gauge(
        "holdfast_job_events_sendable", "Whether anybody chose a broker for those.", sendable
    )


if TYPE_CHECKING:
    from prometheus_client import Metric


def of_journal(
    lags: Mapping[str, Lag], oldest: Entry | None, keep_s: float, now: datetime
) -> "Iterator[Metric]":
    """The samples of the journal."""
    yield gauges(
        "holdfast_journal_lag_entries",
        "Entries that a follower has yet to tell of, as far as was looked.",
        ["follower"],
        (([name], lag.entries) for name, lag in lags.items()),
    )
    yield gauges(
        "holdfast_journal_lag_seconds",
        "Age of the first entry that a follower has yet to tell of; 0 when there is none.",
        ["follower"],
        (
            ([name], 0.0 if lag.since is None else _age_s(lag.since, now))
            for name, lag in lags.items()
        ),
    )
    age_s = 0.0 if oldest is None else _age_s(oldest.at, now)
    yield gauge(
        "holdfast_journal_oldest_entry_age_seconds", "Age of the oldest entry that is kept.", age_s
    )
    yield gauge("holdfast_journal_keep_seconds", "Age at which entries may be dropped.", keep_s)


def _age_s(at: datetime, now: datetime) -> float:
    # Clocks step back.
    return max((now - at).total_seconds(), 0.0)


if TYPE_CHECKING:
    from prometheus_client import Metric


class _Claim(NamedTuple):
    labels: tuple[str, ...]
    age_s: float
    remaining_s: float


def of_agents(agents: Iterable[Agent], damaged: int, now: datetime) -> "Iterator[Metric]":
    """The samples of agents: how many there are, and the leases that end first."""
    claims = [
        _Claim(
            (agent.agent_id, agent.agent_name),
            _since(agent.published_at, now),
            -_since(agent.lease_expires_at, now),
        )
        for agent in agents
    ]
    fresh = sum(claim.remaining_s >= 0 for claim in claims)
    states = {"fresh": fresh, "expired": len(claims) - fresh, "damaged": damaged}
    yield gauges(
        "holdfast_agents",
        "Records of agents, by state.",
        ["state"],
        (([name], n) for name, n in states.items()),
    )
    yield from _leases("agent", "published", ["agent", "name"], claims)


def of_workflows(sight: WorkflowsSnapshot) -> "Iterator[Metric]":
    """The samples of workflows and of the swap under way."""
    claims = [
        _Claim(
            (workflow.name, workflow.recipe),
            _since(workflow.last_renewed_at, sight.now),
            _remaining(workflow, sight),
        )
        for workflow in sight.workflows
    ]
    dead = sum(sight.verdicts.get(workflow.owner) is Liveness.DEAD for workflow in sight.workflows)
    states = {"live": len(claims) - dead, "dead": dead, "damaged": len(sight.damaged)}
    yield gauges(
        "holdfast_workflows",
        "Registered workflows, by state.",
        ["state"],
        (([name], n) for name, n in states.items()),
    )
    yield from _leases("workflow", "renewed", ["workflow", "recipe"], claims)
    yield gauge(
        "holdfast_swap_age_seconds",
        "How long the swap under way has been so; 0 without one.",
        _swap_age(sight),
    )


def _remaining(workflow: Workflow, sight: WorkflowsSnapshot) -> float:
    remaining_s = -_since(workflow.lease.expires_at, sight.now)
    # Without a renewal it is believed all the same as long as its processes are seen to live.
    seen = not workflow.lease.explicit and sight.verdicts.get(workflow.owner) is Liveness.ALIVE
    return max(remaining_s, 0.0) if seen else remaining_s


def _swap_age(sight: WorkflowsSnapshot) -> float:
    # What a dead one left behind is cleared by the next one who needs it to be, and holds up
    # nobody.
    if sight.marker is None or sight.verdicts.get(sight.marker.holder) is Liveness.DEAD:
        return 0.0
    return max(_since(sight.marker.begun_at, sight.now), 0.001)


def _leases(what: str, heard: str, labels: list[str], claims: list[_Claim]) -> "Iterator[Metric]":
    first = sorted(claims, key=lambda claim: (claim.remaining_s, claim.labels))[:METRICS_CLAIMS_MAX]
    yield gauges(
        f"holdfast_{what}_lease_age_seconds",
        f"How long ago the {what} was {heard}.",
        labels,
        ((claim.labels, claim.age_s) for claim in first),
    )
    yield gauges(
        f"holdfast_{what}_lease_remaining_seconds",
        f"How long the {what} is still believed without a sign of life; less than 0 when it is "
        "not any more.",
        labels,
        ((claim.labels, claim.remaining_s) for claim in first),
    )


def _since(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()


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

    Who has got a name keeps it for the life of this object, and who has not never gets one: so no
    counter goes back.
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
    named.admit(
        sorted(
            statistics, key=lambda name: (-statistics[name].waits, -statistics[name].grants, name)
        )
    )
    named.admit([status.name for status in held])
    yield from _of_statistics(_summed(statistics, named))
    standing: dict[str, tuple[int, int]] = {}
    for status in held:
        holders, waiters = standing.get(named.label(status.name), (0, 0))
        alive = sum(not hold.reclaimable for hold in status.holds)
        standing[named.label(status.name)] = (holders + alive, waiters + len(status.queue))
    for what, means, at in (
        ("holders", "Who holds a resource now.", 0),
        ("waiters", "Who waits for a resource now.", 1),
    ):
        yield gauges(
            f"holdfast_lock_{what}",
            means,
            ["resource"],
            (([name], both[at]) for name, both in standing.items()),
        )


def _of_statistics(statistics: Mapping[str, LockStatistics]) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for what, means in COUNTED.items():
        counter = CounterMetricFamily(f"holdfast_lock_{what}", means, labels=["resource"])
        for name, one in statistics.items():
            counter.add_metric([name], getattr(one, what))
        yield counter
    for what, means in (
        ("wait", "How long requests waited."),
        ("hold", "How long grants were held."),
    ):
        histogram = HistogramMetricFamily(
            f"holdfast_lock_{what}_seconds", means, labels=["resource"]
        )
        for name, one in statistics.items():
            counts, total_s = (
                (one.wait_counts, one.wait_s) if what == "wait" else (one.hold_counts, one.hold_s)
            )
            histogram.add_metric([name], buckets(counts), total_s)
        yield histogram


def _summed(statistics: Mapping[str, LockStatistics], named: Named) -> dict[str, LockStatistics]:
    summed: dict[str, LockStatistics] = {}
    for name, one in statistics.items():
        label = named.label(name)
        summed[label] = summed[label].plus(one) if label in summed else one
    return summed


if TYPE_CHECKING:
    from prometheus_client import Metric


def of_registry(counts: Counts) -> "Iterator[Metric]":
    """The samples of what is registered and leased."""
    yield gauge("holdfast_registry_hosts", "Registered hosts.", counts.hosts)
    yield gauge("holdfast_registry_host_leases", "Leases on hosts that count.", counts.host_leases)
    yield gauge(
        "holdfast_registry_neighbor_leases",
        "Leases on neighbours that count.",
        counts.neighbor_leases,
    )


if TYPE_CHECKING:
    from prometheus_client import Metric


class Probe(NamedTuple):
    """What one empty transaction came to: whether it was made, whether there is a store at all, and
    how long it took.
    """

    up: bool
    made: bool
    took_s: float


def of_store(probe: Probe, times: Mapping[str, Histogram]) -> "Iterator[Metric]":
    """The samples of the store, as this process sees it."""
    from prometheus_client.core import HistogramMetricFamily

    yield store_up(probe.up)
    yield gauge(
        "holdfast_store_made",
        "Whether there is a store: 0 before anything was put into it.",
        probe.made,
    )
    yield gauge(
        "holdfast_store_probe_seconds",
        "How long that took, with its turn and its sync.",
        probe.took_s,
    )
    histogram = HistogramMetricFamily(
        "holdfast_store_transaction_seconds",
        "How long calls of the store took in this process.",
        labels=["operation"],
    )
    for operation, found in times.items():
        histogram.add_metric([operation], buckets(found.counts), found.total_s)
    yield histogram


def store_up(up: bool) -> "Metric":
    """Whether the store can be used."""
    return gauge("holdfast_store_up", "Whether the store took one empty transaction in time.", up)
