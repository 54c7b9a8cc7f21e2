"""What comes back from a tool: structs, whose JSON schemas the client gets with the tool."""

from typing import Literal

import msgspec

from holdfast.domains.jobs import Job
from holdfast.domains.jobs.records import LateResult
from holdfast.domains.workflows import SwapStatus
from holdfast.domains.workflows.messages import describe_unknown
from holdfast.domains.workflows.records import Workflow
from holdfast.kernel.codec import Instant, Plain
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.inspect import Explanation

NoticeKind = Literal[
    "lease_lost",
    "lock_granted",
    "lock_refused",
    "job_cancelled",
    "job_timed_out",
    "job_lost",
    "preemption_asked",
    "swap_ready",
    "swap_not_needed",
    "swap_refused",
    "store_unavailable",
]


class Notice(Plain, frozen=True, kw_only=True):
    """Something that happened to what you have, told until you act on its handle."""

    kind: NoticeKind
    handle: str
    message: str


class Answer(Plain, frozen=True, kw_only=True):
    """What every answer has: what to do next, and what is pending for you. Read `pending` first."""

    next: str = ""
    pending: tuple[Notice, ...] = ()


class Ahead(Plain, frozen=True, kw_only=True):
    """Who is before you: a holder, or another that waits. `since` is when it got it, or got in
    line.
    """

    by: str
    what: str
    holds: bool
    since: Instant


class Holding(Plain, frozen=True, kw_only=True):
    """One thing that you have, or wait for."""

    handle: str
    what: str
    state: str


class Me(Answer, frozen=True, kw_only=True):
    """Who you are here. `by` is what others see as the holder of what you hold."""

    label: str
    by: str
    pid: int
    agent_id: str | None
    agent_name: str | None
    queues: tuple[str, ...]
    store: str
    namespace: str
    holdings: tuple[Holding, ...]


class AgentView(Plain, frozen=True, kw_only=True):
    """A live agent. `process` is what is known of it: alive, dead, unknown, or none where no
    process was named.
    """

    agent_name: str
    agent_id: str
    tool: str
    backend: str
    tmux_session: str | None
    lease_expires_at: Instant
    process: str
    has_gateway: bool


class Found(Answer, frozen=True, kw_only=True):
    """Live agents."""

    agents: tuple[AgentView, ...]


class Sent(Answer, frozen=True, kw_only=True):
    """A request to another agent, as far as it has got."""

    agent: str
    request_id: str
    state: str
    epoch: int
    answer: str | None = None
    error_code: str | None = None
    error: str | None = None


class JobView(Plain, frozen=True, kw_only=True):
    """A job. `agent_session` is the queue it is in."""

    job_id: str
    status: str
    prompt: str
    agent: str
    agent_session: str
    attempt: int
    max_attempts: int
    token: int | None
    timeout_sec: float
    idle_timeout_sec: float | None
    expected_artifacts: tuple[str, ...]
    workdir: str | None
    created_at: Instant
    started_at: Instant | None
    result: str | None
    error: str | None
    error_code: str | None
    late_result: LateResult | None


class JobAnswer(Answer, frozen=True, kw_only=True):
    """A job, or none: then there was nothing to claim. `handle` is what gives a claimed one
    back.
    """

    job: JobView | None
    handle: str | None = None


class LockAnswer(Answer, frozen=True, kw_only=True):
    """A request for locks. `state` held: all names are yours. waiting: it keeps its place in line.
    `position` is 1 for the next in line, and `ahead` has the holders and the first in line.
    """

    handle: str
    state: Literal["held", "waiting"]
    names: tuple[str, ...]
    mode: Mode
    token: int | None = None
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    reentered: bool = False
    position: int | None = None
    ahead: tuple[Ahead, ...] = ()


class RecipeAnswer(Answer, frozen=True, kw_only=True):
    """Your work on a recipe, or your swap to one. `state` registered: others may not swap it away
    without asking. waiting: others are in the way, see `ahead`. ready: load the recipe now. loaded:
    it is loaded already, so load nothing; your swap is over. ended: it is over.
    """

    handle: str
    state: Literal["registered", "waiting", "ready", "loaded", "ended"]
    recipe: str
    token: int | None = None
    swap_needed: bool = False
    ahead: tuple[Ahead, ...] = ()


class Waited(Answer, frozen=True, kw_only=True):
    """How what you wait for stands: held or ready when your turn has come, waiting when not.
    loaded: the recipe of your swap is loaded already, so load nothing; your swap is over. Of a lock
    that you wait for, `position` is your place in line, 1 for the next.
    """

    handle: str
    state: Literal["held", "waiting", "ready", "loaded"]
    token: int | None = None
    position: int | None = None
    ahead: tuple[Ahead, ...] = ()


class Released(Answer, frozen=True, kw_only=True):
    """Whether something was let go. False: it was not yours any more, or was part of another grant
    of yours.
    """

    handle: str
    released: bool


class WorkflowView(Plain, frozen=True, kw_only=True):
    """Work that needs a recipe."""

    name: str
    recipe: str
    pid: int
    preemptible: bool
    preempt: str


class Recipes(Plain, frozen=True, kw_only=True):
    """What is loaded, which swap is under way, and who works with what. `unknown` says why nobody
    knows what is loaded: a load failed, or has not ended.
    """

    current: str | None
    unknown: str | None
    swapping_to: str | None
    workflows: tuple[WorkflowView, ...]


class Status(Answer, frozen=True, kw_only=True):
    """What was asked about: a lock, a job, or what you have and which recipe is loaded."""

    lock: Explanation | None = None
    job: JobView | None = None
    holdings: tuple[Holding, ...] = ()
    recipes: Recipes | None = None


def job_view(job: Job) -> JobView:
    """A job as an agent may see it: without its keys."""
    facts = {name: getattr(job, name) for name in JobView.__struct_fields__ if name != "status"}
    return JobView(status=job.status.value, **facts)


def recipes_view(found: SwapStatus) -> Recipes:
    """How recipes and swaps stand."""
    return Recipes(
        current=None if found.current is None else found.current.recipe,
        unknown=None if found.unknown is None else describe_unknown(found.unknown),
        swapping_to=None if found.marker is None else found.marker.recipe,
        workflows=tuple(_workflow_view(workflow) for workflow in found.workflows),
    )


def _workflow_view(workflow: Workflow) -> WorkflowView:
    return WorkflowView(
        name=workflow.name,
        recipe=workflow.recipe,
        pid=workflow.owner.pid,
        preemptible=workflow.preemptible,
        preempt=workflow.preempt.value,
    )
