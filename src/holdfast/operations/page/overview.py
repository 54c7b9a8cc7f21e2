"""Everything at a glance: how many of each, what needs somebody, who waits for whom, and what
happened last.
"""

from collections.abc import Iterator, Mapping, Sequence

from holdfast.domains.agents.records import bare
from holdfast.domains.jobs import Jobs, JobStatus
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.limits import PAGE_WAITS_MAX
from holdfast.kernel.store import Entry
from holdfast.kernel.text import counted
from holdfast.operations.page.agents import AgentCensus, agent_names
from holdfast.operations.page.explanation import Tone
from holdfast.operations.page.gateways import ASKS, GatewayLine
from holdfast.operations.page.jobs import line_of
from holdfast.operations.page.workflows import SwapSnapshot, swap_snapshot
from holdfast.primitives.locks.inspect import Alive, Graph, LockCounts
from holdfast.runtime.connection import Holdfast

_NEWEST = 30
_FAILED = 5
"""How many jobs that ended in error are named; the others are only counted."""
_FAILED_READ = 100
"""Among how many of the newest those are chosen that failed last."""


class Need(Plain, frozen=True, kw_only=True):
    """Something that needs attention, and where "why?" is answered."""

    kind: str
    name: str
    tone: Tone
    words: str
    at: Instant | None = None
    count: int = 1
    """How many things these are. Of more than one, `kind` is the list that shows them, and `name`
    the status there, if any.
    """


class Overview(Plain, frozen=True, kw_only=True):
    """What the page shows first."""

    now: Instant
    store: str
    namespace: str
    agents: AgentCensus
    locks: LockCounts
    graph: Graph
    jobs: dict[str, int]
    gateways: tuple[GatewayLine, ...]
    swap: SwapSnapshot
    needs: tuple[Need, ...]
    journal: tuple[Entry, ...]
    """The newest entries, the newest first."""
    names: dict[str, str]
    """The names of agents whose ids are in those entries."""


def overview(
    hf: Holdfast,
    census: AgentCensus,
    gateways: Sequence[GatewayLine],
    counts: Mapping[JobStatus, int],
) -> Overview:
    """Everything at a glance. Reads little, however much there is: agents and gateways were
    probed, and jobs counted, before.
    """
    graph = hf.locks.contention(limit=PAGE_WAITS_MAX)
    swap = swap_snapshot(hf.workflows)
    needs = (
        *_of_locks(graph),
        *_of_gateways(gateways),
        *_of_swap(swap),
        *_of_jobs(hf.jobs, counts[JobStatus.ERROR]),
        *_of_agents(census),
    )
    newest = tuple(hf.store.journal(limit=_NEWEST, reverse=True).entries)
    return Overview(
        now=hf.store.now(),
        store=hf.store.kind,
        namespace=hf.store.namespace,
        agents=census,
        locks=hf.locks.counts(),
        graph=graph,
        jobs={status.value: number for status, number in counts.items()},
        gateways=tuple(gateways),
        swap=swap,
        needs=needs,
        journal=newest,
        names=agent_names(hf.agents, newest),
    )


def _of_locks(graph: Graph) -> Iterator[Need]:
    for cycle in graph.deadlocks:
        yield Need(kind="graph", name="graph", tone="bad", words=f"a deadlock: {cycle}")
    waited = {edge.resource for edge in graph.edges if edge.position is not None}
    for edge in graph.edges:
        if edge.position is None and edge.alive is Alive.DEAD and edge.resource in waited:
            words = (
                f"{edge.resource} is held by {edge.job}, whose process is dead, and is waited for"
            )
            yield Need(kind="lock", name=edge.resource, tone="bad", words=words)


def _of_gateways(gateways: Sequence[GatewayLine]) -> Iterator[Need]:
    for line in gateways:
        if line.tone == "bad":
            yield Need(
                kind="gateway",
                name=line.agent,
                tone="bad",
                words=f"gateway of {line.name}: {line.why}",
            )
        elif line.waits_for_somebody:
            what = "" if line.state == ASKS else "has a draft: "
            words = f"{line.name} {what}{line.why.removeprefix('the agent ')}"
            yield Need(kind="gateway", name=line.agent, tone="wait", words=words, at=line.since)


def _of_swap(swap: SwapSnapshot) -> Iterator[Need]:
    if swap.target is not None and swap.waits_for:
        words = f"the swap to {swap.target} waits for {', '.join(swap.waits_for[:5])}"
        yield Need(kind="swap", name="swap", tone="wait", words=words, at=swap.begun_at)
    elif swap.target is None and swap.unknown:
        yield Need(
            kind="swap",
            name="swap",
            tone="bad",
            words=f"unknown model: {swap.unknown}",
            at=swap.unknown_at,
        )


def _of_jobs(jobs: Jobs, failed: int) -> Iterator[Need]:
    for job in jobs.list_jobs(status="running", limit=100, damaged=[]):
        if job.waiting_since is not None:
            words = f"job {job.job_id} waits for a permission: {line_of(job).prompt[:80]}"
            yield Need(kind="job", name=job.job_id, tone="wait", words=words, at=job.waiting_since)
    # A job that ended in error stays here until somebody deals with it: no time forgets it.
    newest = jobs.list_jobs(status="error", limit=_FAILED_READ, damaged=[])
    named = sorted(newest, key=lambda job: job.finished_at or job.updated_at, reverse=True)[
        :_FAILED
    ]
    for job in named:
        code = f", {job.error_code.replace('_', ' ')}" if job.error_code else ""
        words = f"job {job.job_id} ended in error{code}: {line_of(job).prompt[:80]}"
        yield Need(kind="job", name=job.job_id, tone="bad", words=words, at=job.finished_at)
    if (more := failed - len(named)) > 0:
        words = f"{counted(more, 'more job')} ended in error: show all {failed:,}"
        yield Need(kind="jobs", name="error", tone="bad", words=words, count=more)


def _of_agents(census: AgentCensus) -> Iterator[Need]:
    for line in census.troubled:
        since = line.lease_expires_at if line.state == "expired" else None
        yield Need(
            kind="agent",
            name=line.agent_id,
            tone="bad",
            words=f"agent {bare(line.name)}: {line.why}",
            at=since,
        )
    if (more := census.states["dead"] + census.states["expired"] - len(census.troubled)) > 0:
        words = f"{counted(more, 'more agent is', 'more agents are')} not alive: show all"
        yield Need(kind="agents", name="", tone="bad", words=words, count=more)
