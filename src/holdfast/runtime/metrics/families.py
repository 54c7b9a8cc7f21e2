"""The metric families of each domain and of the store, as values of Prometheus' library.
docs/operations.md lists them, and ops/dashboard.json draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from holdfast.domains.agents import Agent
from holdfast.domains.gateway.state import AgentState
from holdfast.domains.jobs import JobStatus
from holdfast.domains.network import Counts
from holdfast.domains.workflows import Workflow
from holdfast.domains.workflows.context import WorkflowsSnapshot
from holdfast.kernel.histogram import BUCKETS_S, Histogram
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import LOCK_STATISTICS_MAX, METRICS_CLAIMS_MAX
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag
from holdfast.primitives.locks.inspect import LockStatus
from holdfast.primitives.locks.statistics import OTHERS, LockStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import GaugeMetricFamily

    from holdfast.adapters.hosting_folder import HostingRecord
    from holdfast.domains.gateway import GatewayStatus

COUNTED = {
    "grants": "Grants of a resource.",
    "waits": "Grants that had to be waited for.",
    "timeouts": "Requests whose time limit passed.",
    "deaths": "Grants taken from a dead holder.",
    "expiries": "Grants whose lease ran out.",
    "deadlocks": "Requests that would have waited for ever.",
    "kicks": "Grants taken away by an operator.",
}
"""The counters of each resource, and their meaning."""
_BLOCKED = {"reconciliation": "blocked_reconciliation", "unavailable": "blocked_unavailable"}


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


class GatewayReading(NamedTuple):
    """The state of an agent's gateway: whether it answers, and its status, or the last one it
    wrote; None for neither.
    """

    agent: str
    up: bool
    status: GatewayStatus | None


def of_gateways(
    readings: Sequence[GatewayReading],
    unasked: int,
    hosting: HostingRecord | None,
    now: datetime,
) -> Iterator[Metric]:
    yield gauges(
        "holdfast_gateway_up",
        "Whether the gateway of an agent answers.",
        ["agent"],
        (([reading.agent], reading.up) for reading in readings),
    )
    known = [(one.agent, one.up, one.status) for one in readings if one.status is not None]
    depths = []
    for agent, _, status in known:
        running = min(int(status.active_execution == "running"), status.queue_depth)
        depths.append(([agent, "accepted"], status.queue_depth - running))
        depths.append(([agent, "running"], running))
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
    programs = [] if hosting is None else [([hosting.program], 1.0)]
    yield gauges(
        "holdfast_gateway_host",
        "The program that hosts the gateways of all agents of this machine.",
        ["program"],
        programs,
    )
    hosted = Counter(() if hosting is None else (one.state for one in hosting.gateways))
    yield gauges(
        "holdfast_gateways_hosted",
        "Gateways of that host, by state.",
        ["state"],
        (([state], float(number)) for state, number in sorted(hosted.items())),
    )
    states = [status.agent_state for _, up, status in known if up]
    yield gauges(
        "holdfast_agent_states",
        "Agents behind gateways that answer, by what they do.",
        ["state"],
        (([state.value], states.count(state)) for state in AgentState),
    )
    asked = [one.asked_at for _, up, status in known if up for one in status.questions]
    yield gauge("holdfast_agent_questions", "Questions of agents without an answer.", len(asked))
    yield gauge(
        "holdfast_agent_question_age_seconds",
        "Age of the oldest of them; 0 without one.",
        _oldest_s(asked, now),
    )


def of_questions(waiting: Sequence[datetime], now: datetime) -> Iterator[Metric]:
    """Of the jobs that wait for a permission, by when they asked."""
    yield gauge("holdfast_jobs_waiting", "Jobs that wait for a permission.", len(waiting))
    yield gauge(
        "holdfast_job_waiting_age_seconds",
        "For how long the first of them has waited; 0 without one.",
        _oldest_s(waiting, now),
    )


def _oldest_s(moments: Sequence[datetime], now: datetime) -> float:
    return max((now - min(moments)).total_seconds(), 0.0) if moments else 0.0


def of_jobs(counts: Mapping[JobStatus, int], unsent: int, *, sendable: bool) -> Iterator[Metric]:
    numbers = (([status.value], float(number)) for status, number in counts.items())
    yield gauges("holdfast_jobs", "Jobs that are kept, by status.", ["status"], numbers)
    yield gauge(
        "holdfast_job_events_unsent", "Events of jobs that wait for a message broker.", unsent
    )
    yield gauge(
        "holdfast_job_events_sendable", "Whether anybody chose a broker for those.", sendable
    )


def of_journal(
    lags: Mapping[str, Lag], oldest: Entry | None, keep_s: float, now: datetime
) -> Iterator[Metric]:
    def age_s(at: datetime | None) -> float:
        # A clock may be set back.
        return 0.0 if at is None else max(_since(at, now), 0.0)

    yield gauges(
        "holdfast_journal_lag_entries",
        "Entries that a follower has yet to process, as far as was looked.",
        ["follower"],
        (([name], lag.entries) for name, lag in lags.items()),
    )
    yield gauges(
        "holdfast_journal_lag_seconds",
        "Age of the first entry that a follower has yet to process; 0 when there is none.",
        ["follower"],
        (([name], age_s(lag.since)) for name, lag in lags.items()),
    )
    yield gauge(
        "holdfast_journal_oldest_entry_age_seconds",
        "Age of the oldest entry that is kept.",
        age_s(None if oldest is None else oldest.at),
    )
    yield gauge("holdfast_journal_keep_seconds", "Age at which entries may be dropped.", keep_s)


class _Claim(NamedTuple):
    labels: tuple[str, ...]
    age_s: float
    remaining_s: float


def of_agents(agents: Iterable[Agent], damaged: int, now: datetime) -> Iterator[Metric]:
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
    yield _by_state("holdfast_agents", "Records of agents, by state.", states)
    yield from _leases("agent", "published", ["agent", "name"], claims)


def of_workflows(snapshot: WorkflowsSnapshot) -> Iterator[Metric]:
    """The registered workflows, and the swap under way."""
    claims = [
        _Claim(
            (workflow.name, workflow.recipe),
            _since(workflow.last_renewed_at, snapshot.now),
            _remaining_s(workflow, snapshot),
        )
        for workflow in snapshot.workflows
    ]
    dead = sum(
        snapshot.probed.get(workflow.owner) is Liveness.DEAD for workflow in snapshot.workflows
    )
    states = {"live": len(claims) - dead, "dead": dead, "damaged": len(snapshot.damaged)}
    yield _by_state("holdfast_workflows", "Registered workflows, by state.", states)
    yield from _leases("workflow", "renewed", ["workflow", "recipe"], claims)
    # The marker of a dead swap delays nobody: the next request clears it.
    marker = snapshot.marker
    running = marker is not None and snapshot.probed.get(marker.holder) is not Liveness.DEAD
    yield gauge(
        "holdfast_swap_age_seconds",
        "How long the swap under way has been so; 0 without one.",
        max(_since(marker.begun_at, snapshot.now), 0.001)
        if marker is not None and running
        else 0.0,
    )


def _remaining_s(workflow: Workflow, snapshot: WorkflowsSnapshot) -> float:
    remaining_s = -_since(workflow.lease.expires_at, snapshot.now)
    # Even without a renewal it counts as live while its processes are seen to live.
    seen = not workflow.lease.explicit and snapshot.probed.get(workflow.owner) is Liveness.ALIVE
    return max(remaining_s, 0.0) if seen else remaining_s


def _leases(what: str, heard: str, labels: list[str], claims: list[_Claim]) -> Iterator[Metric]:
    """The leases that end first."""
    first = sorted(claims, key=lambda claim: (claim.remaining_s, claim.labels))[:METRICS_CLAIMS_MAX]
    yield gauges(
        f"holdfast_{what}_lease_age_seconds",
        f"How long ago the {what} was {heard}.",
        labels,
        ((claim.labels, claim.age_s) for claim in first),
    )
    yield gauges(
        f"holdfast_{what}_lease_remaining_seconds",
        f"How long the {what} counts as alive without a sign of life; less than 0 when it no "
        "longer does.",
        labels,
        ((claim.labels, claim.remaining_s) for claim in first),
    )


def _by_state(name: str, means: str, states: Mapping[str, int]) -> Metric:
    return gauges(name, means, ["state"], (([state], number) for state, number in states.items()))


def _since(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()


class NamedResources:
    """The resources that have samples of their own, up to a maximum; all others share one.

    A resource with samples of its own keeps them as long as this object lives, and one without
    never gets them: no counter may go back.
    """

    def __init__(self, most: int = LOCK_STATISTICS_MAX) -> None:
        self._most = most
        self._names: set[str] = set()

    def admit(self, busiest_first: Sequence[str]) -> None:
        for name in busiest_first:
            if len(self._names) >= self._most:
                return
            self._names.add(name)

    def label(self, name: str) -> str:
        return name if name in self._names else OTHERS


def of_locks(
    statistics: Mapping[str, LockStatistics],
    held: Sequence[LockStatus],
    named: NamedResources | None = None,
) -> Iterator[Metric]:
    """The statistics of resources, and the present holders and waiters."""
    named = NamedResources() if named is None else named
    named.admit(
        sorted(
            statistics, key=lambda name: (-statistics[name].waits, -statistics[name].grants, name)
        )
    )
    named.admit([status.name for status in held])
    yield from _of_statistics(statistics, named)
    holders: dict[str, int] = {}
    waiters: dict[str, int] = {}
    for status in held:
        label = named.label(status.name)
        alive = sum(not hold.reclaimable for hold in status.holds)
        holders[label] = holders.get(label, 0) + alive
        waiters[label] = waiters.get(label, 0) + len(status.queue)
    for what, means, numbers in (
        ("holders", "Who holds a resource now.", holders),
        ("waiters", "Who waits for a resource now.", waiters),
    ):
        samples = (([label], number) for label, number in numbers.items())
        yield gauges(f"holdfast_lock_{what}", means, ["resource"], samples)


def _of_statistics(
    statistics: Mapping[str, LockStatistics], named: NamedResources
) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    summed: dict[str, LockStatistics] = {}
    for name, one in statistics.items():
        label = named.label(name)
        summed[label] = summed[label].plus(one) if label in summed else one
    for what, means in COUNTED.items():
        counter = CounterMetricFamily(f"holdfast_lock_{what}", means, labels=["resource"])
        for label, one in summed.items():
            counter.add_metric([label], getattr(one, what))
        yield counter
    wait = HistogramMetricFamily(
        "holdfast_lock_wait_seconds", "How long requests waited.", labels=["resource"]
    )
    hold = HistogramMetricFamily(
        "holdfast_lock_hold_seconds", "How long grants were held.", labels=["resource"]
    )
    for label, one in summed.items():
        wait.add_metric([label], buckets(one.wait_counts), one.wait_s)
        hold.add_metric([label], buckets(one.hold_counts), one.hold_s)
    yield wait
    yield hold


def of_registry(counts: Counts) -> Iterator[Metric]:
    yield gauge("holdfast_registry_hosts", "Registered hosts.", counts.hosts)
    yield gauge("holdfast_registry_host_leases", "Leases on hosts that count.", counts.host_leases)
    yield gauge(
        "holdfast_registry_neighbor_leases",
        "Leases on neighbours that count.",
        counts.neighbor_leases,
    )


class Probe(NamedTuple):
    """The result of one empty transaction: whether it succeeded, whether there is a store at all,
    and how long it took.
    """

    up: bool
    made: bool
    took_s: float


def of_store(probe: Probe, times: Mapping[str, Histogram]) -> Iterator[Metric]:
    """The store, as this process sees it."""
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


def store_up(up: bool) -> Metric:
    return gauge("holdfast_store_up", "Whether the store took one empty transaction in time.", up)


def parts_up(parts: Mapping[str, bool]) -> Metric:
    values = (([name], up) for name, up in parts.items())
    return gauges(
        "holdfast_metrics_part_up", "Whether a part of these could be read.", ["part"], values
    )
