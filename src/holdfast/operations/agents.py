"""Agents that something else runs. To run one is the command line's."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from holdfast.domains.agents import Agent
from holdfast.domains.agents.cleanup import CleanupReport
from holdfast.domains.agents.control import Target
from holdfast.domains.agents.liveness import AgentLiveness, process_liveness
from holdfast.domains.agents.records import TMUX_BACKED, bare
from holdfast.domains.agents.resolution import Resolution
from holdfast.domains.agents.runs import AgentExit, RestartedAgent, StoppedAgent
from holdfast.domains.gateway import AgentState
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import (
    AgentEnded,
    Ambiguous,
    Collision,
    Fenced,
    Held,
    LeaseLost,
    NotFound,
    Refused,
    Untrusted,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import (
    AGENT_GRACE_S,
    AGENT_MOMENT_S,
    AGENT_SCREEN_LINES,
    AGENT_STOP_GRACE_MAX_S,
    LABEL_CHARS_MAX,
    LIST_MAX,
    MCP_LIST_MAX,
    TREE_GRACE_S,
)
from holdfast.kernel.store import Damage
from holdfast.operations.agent_key import AgentKey
from holdfast.operations.agent_work import AgentWork, work_of
from holdfast.operations.claims import claimant
from holdfast.operations.fields import (
    AgentName,
    Label,
    Limit,
    PathText,
    Pid,
    Seconds,
    Token,
    Ttl,
    described,
)
from holdfast.operations.operation import Argument, Flag, Positional, Request, operation
from holdfast.operations.questions import OpenQuestion, asker
from holdfast.operations.questions import list_ as list_questions
from holdfast.runtime.agent_screen import AgentScreen, last_record, screen_of
from holdfast.runtime.connection import Holdfast

GENERATION_VARIABLE = "HOLDFAST_AGENT_GENERATION"
"""The environment variable in which a command under `agents run` finds its generation."""

_BACKENDS = "|".join(TMUX_BACKED)
_Backend = Annotated[
    str,
    described(
        "What it runs on.",
        pattern=rf"^({_BACKENDS}|[a-z0-9]+_headless)$",
        max_length=LABEL_CHARS_MAX,
    ),
]
DefDir = Annotated[
    PathText | None,
    Flag(
        "--agent-def-dir",
        metavar="FOLDER",
        help="The agent's definition folder, as an absolute path.",
    ),
]
LeaseSeconds = Annotated[
    Ttl | None,
    Flag(
        "--lease",
        help="How long it counts as alive without a sign of life.  "
        "[default: agents.lease_s, a day]",
    ),
]
SessionRoot = Annotated[
    PathText | None,
    Flag(
        "--session-root",
        metavar="FOLDER",
        help="Where the manifest is.  [default for run and start: one of its own]",
    ),
]
IdOption = Annotated[
    AgentName | None,
    Flag("--id", metavar="ID", help="The agent's id.  [default: it follows from the name]"),
]
TakeOver = Annotated[
    bool,
    Flag(
        "--take-over",
        help="Replace the generation that has the id, even if it may be alive. The journal says "
        "so.",
    ),
]


class ListAgents(Request, frozen=True, kw_only=True):
    """Which agents: all that are published, or those whose lease is not over; or also those that
    have ended.
    """

    fresh: Annotated[bool, Flag("--fresh", help="Only those whose lease is not over.")] = False
    all: Annotated[
        bool, Flag("--all", help="Also those that have ended, as long as that is kept.")
    ] = False
    limit: Annotated[
        Limit, Flag("--limit", within=(0, None), show_default=True, help="At most this many.")
    ] = LIST_MAX


class FindAgents(Request, frozen=True, kw_only=True):
    """A live agent, by its name or id; without one all of them."""

    name: Annotated[AgentName | None, Argument("Its name, id or handle.", handle="agent")] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MCP_LIST_MAX)], Argument("At most this many.")
    ] = 20


class ControlTarget(AgentKey, frozen=True, kw_only=True):
    """An agent, and the definition folder that it must have, or may."""

    agent_def_dir: DefDir = None
    needs_agent_def_dir: Annotated[
        bool,
        Flag("--needs-agent-def-dir", help="Refuse it unless it has a definition folder."),
    ] = False


class Publish(Request, frozen=True, kw_only=True):
    """An agent that something else runs."""

    name: Annotated[AgentName, Positional("[NAME]")]
    backend: Annotated[
        _Backend,
        Flag(
            "--backend",
            default=None,
            help="What it runs on, such as local_interactive or claude_headless.",
        ),
    ]
    tool: Annotated[
        Label,
        Flag(
            "--tool", metavar="NAME", default=None, help="Which tool the agent is, such as claude."
        ),
    ]
    manifest_path: Annotated[
        PathText,
        Flag(
            "--manifest",
            metavar="PATH",
            help="Its manifest; what it says need not be said here.",
        ),
    ]
    session_name: Annotated[
        Label | None,
        Flag("--tmux-session", metavar="NAME", help="The tmux session it runs in."),
    ] = None
    session_root: SessionRoot = None
    agent_def_dir: DefDir = None
    agent_id: IdOption = None
    generation_id: Annotated[
        Label | None,
        Flag(
            "--generation",
            metavar="ID",
            help="Resume this one.  [default: the manifest's, else a new one]",
        ),
    ] = None
    pid: Annotated[
        Pid | None, Flag("--pid", help="The agent's own process, such as its pane's.")
    ] = None
    lease_s: LeaseSeconds = None
    take_over: TakeOver = False


class Remove(AgentKey, frozen=True, kw_only=True):
    """The generation that is over."""

    generation_id: Annotated[
        Label,
        Flag(
            "--generation",
            metavar="ID",
            envvar=GENERATION_VARIABLE,
            help=f"The generation whose record it must be.  [{GENERATION_VARIABLE}]",
        ),
    ]
    token: Annotated[
        Token | None,
        Flag(
            "--token",
            within=None,
            help="Refused (exit status 4) when the generation was resumed since.",
        ),
    ] = None


class Refresh(Remove, frozen=True, kw_only=True):
    """The generation that lives on."""

    lease_s: LeaseSeconds = None


_Grace = Annotated[
    Annotated[float, Meta(ge=0, le=AGENT_STOP_GRACE_MAX_S)],
    Flag(
        "--grace",
        within=(0, AGENT_STOP_GRACE_MAX_S),
        show_default=True,
        help="How long it may take to end by itself; then it is killed.",
    ),
]


class StopAgent(AgentKey, frozen=True, kw_only=True):
    """The agent that is to end, and how long it may take."""

    grace_s: _Grace = TREE_GRACE_S


class RestartAgent(StopAgent, frozen=True, kw_only=True):
    """The agent that is to start again, and with which conversation."""

    fresh: Annotated[
        bool, Flag("--fresh", help="Begin a new conversation.  [default: the last one goes on]")
    ] = False
    conversation: Annotated[
        Label | None,
        Flag(
            "--conversation",
            metavar="ID",
            help="Go on with this one.  [default: the last that its hooks reported]",
        ),
    ] = None
    watch_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)],
        Flag(
            "--watch",
            within=(0, 3600),
            show_default=True,
            help="How long the command must run to count as started.",
        ),
    ] = AGENT_MOMENT_S


class Cleanup(Request, frozen=True, kw_only=True):
    """What is to be left alone, and whether anything is to be removed at all."""

    grace_s: Annotated[
        Seconds,
        Flag(
            "--grace",
            show_default=True,
            help="Leave alone what expired, or was made without a record, more recently than this.",
        ),
    ] = AGENT_GRACE_S
    dry_run: Annotated[
        bool, Flag("--dry-run", help="Only say what would be removed."), Argument()
    ] = False
    tmux_check: Annotated[
        bool,
        Flag(
            "--no-tmux-check",
            choose=(True, False),
            help="Go by leases alone: ask neither tmux nor the process table.",
        ),
    ] = True


class ListedAgent(Agent, frozen=True, kw_only=True):
    """An agent's record, and what the agent does. `exited` is set of one that has ended, and says
    how.
    """

    work: AgentWork
    exited: AgentExit | UnsetType = UNSET


class AgentView(ListedAgent, frozen=True, kw_only=True):
    """An agent's record, what the agent does, and the state of its parts: lease, process, tmux
    session, gateway.
    """

    liveness: AgentLiveness


class ShowAgent(AgentKey, frozen=True, kw_only=True):
    """An agent, and how much of its screen to show."""

    lines: Annotated[
        Annotated[int, Meta(ge=1, le=AGENT_SCREEN_LINES)],
        Flag("-n", "--lines", show_default=True, help="At most so many lines, the last."),
    ] = 200


class LiveAgent(Plain, frozen=True, kw_only=True):
    """A live agent in short. `process` is alive, dead, unknown, or none where none is recorded;
    `waiting` says what a prompt has to wait for.
    """

    agent_name: str
    agent_id: str
    tool: str
    backend: str
    tmux_session: str | None
    lease_expires_at: Instant
    process: str
    has_gateway: bool
    state: AgentState
    activity: str
    waiting: str
    queue_depth: int | None


class FoundAgents(Plain, frozen=True, kw_only=True):
    """Live agents, and the questions that wait for an operator: of all, or of the one."""

    agents: list[LiveAgent]
    questions: list[OpenQuestion]


class Removed(Plain, frozen=True, kw_only=True):
    """Whose record was taken out."""

    removed: str
    generation_id: str


@operation("GET /v1/agents", cli="agents list")
def list_(hf: Holdfast, request: ListAgents, damaged: Damage) -> list[ListedAgent]:
    """Agents by name, and what each does, as its gateway last published it; with `all`, behind them
    those that have ended.
    """
    found = hf.agents.list_agents(fresh=request.fresh, limit=request.limit, damaged=damaged)
    entries = [ListedAgent(**asdict(agent), work=work_of(hf, agent)) for agent in found]
    if not request.all:
        return entries
    known = {agent.agent_id for agent in found}
    ended = [
        _ended(run.last_record(), run.end or AgentExit())
        for run in hf.agents.last_runs()
        if run.agent.agent_id not in known
    ]
    return [*entries, *ended][: request.limit]


def _ended(agent: Agent, exited: AgentExit) -> ListedAgent:
    work = AgentWork(state=AgentState.EXITED, since=exited.ended_at)
    return ListedAgent(**asdict(agent), work=work, exited=exited)


@operation("GET /v1/agents/{agent}", cli="agents get", errors=(NotFound, Ambiguous), outside=True)
def get(hf: Holdfast, request: AgentKey) -> AgentView:
    """One agent, fresh or not, what it does, and the state of its lease, process, tmux session and
    gateway; of one that has ended, how.
    """
    agent, exited = last_record(hf, request.agent)
    return AgentView(
        **asdict(agent),
        work=work_of(hf, agent),
        liveness=hf.agents.liveness(agent),
        exited=UNSET if exited is None else exited,
    )


@operation(
    "GET /v1/agents/{agent}/logs",
    cli="agents logs",
    errors=(NotFound, Ambiguous, Untrusted, UpstreamUnavailable),
    outside=True,
)
def logs(hf: Holdfast, request: ShowAgent) -> AgentScreen:
    """The last lines that an agent shows in its tmux pane, or showed before it ended."""
    return screen_of(hf, request.agent, request.lines)


@operation("GET /v1/agents/{agent}/resolve", cli="agents resolve", errors=(NotFound, Ambiguous))
def resolve(hf: Holdfast, request: AgentKey) -> Resolution:
    """The live agent of a name or an id; the error's `reason` says why there is none."""
    found = hf.agents.resolve(request.agent)
    found.unwrap()
    return found


@operation(mcp="find_agents", errors=(NotFound, Ambiguous))
def find(hf: Holdfast, request: FindAgents) -> FoundAgents:
    """The live agents in short, or the one of a name or an id, and what they ask."""
    questions = list_questions(hf)
    if request.name is None:
        found = hf.agents.list_agents(fresh=True, limit=request.limit, damaged=[])
    else:
        found = [hf.agents.resolve(request.name).unwrap()]
        words = {asker(request.name), bare(found[0].agent_name), found[0].agent_id}
        questions = [one for one in questions if one.agent in words]
    return FoundAgents(
        agents=[_live_agent(hf, agent) for agent in found], questions=questions[: request.limit]
    )


def _live_agent(hf: Holdfast, agent: Agent) -> LiveAgent:
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    work = work_of(hf, agent)
    return LiveAgent(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        tool=agent.identity.tool,
        backend=agent.identity.backend,
        tmux_session=agent.session_name,
        lease_expires_at=agent.lease_expires_at,
        process="none" if alive is None else alive.value,
        has_gateway=agent.gateway is not None,
        state=work.state,
        activity=work.activity,
        waiting=work.waits,
        queue_depth=work.queue_depth,
    )


@operation(
    "GET /v1/agents/{agent}/target",
    cli="agents target",
    errors=(NotFound, Untrusted),
    outside=True,
)
def control_target(hf: Holdfast, request: ControlTarget) -> Target:
    """What may be controlled under a name or an id.

    Trusts nothing that the record points at, and never falls back to another target.
    """
    return hf.agents.control_target(
        request.agent, request.agent_def_dir, needs_agent_def_dir=request.needs_agent_def_dir
    )


@operation("POST /v1/agents", cli="agents publish", errors=(NotFound, Held), outside=True)
def publish(hf: Holdfast, request: Publish) -> Agent:
    """Publish an agent, or resume its generation, for one lease. Nothing refreshes it but you."""
    fields = asdict(request)
    return hf.agents.publish(holder=claimant(hf, fields.pop("pid")), **fields)


@operation(
    "POST /v1/agents/{agent}/refresh", cli="agents refresh", errors=(NotFound, LeaseLost, Fenced)
)
def refresh(hf: Holdfast, request: Refresh) -> Agent:
    """Extend the lease of a generation from now. If refused, it has lost the id: stand down."""
    agent_id = hf.agents.resolve(request.agent).known_id()
    return hf.agents.refresh(
        agent_id, request.generation_id, token=request.token, lease_s=request.lease_s
    )


@operation(
    "POST /v1/agents/{agent}/remove", cli="agents remove", errors=(NotFound, LeaseLost, Fenced)
)
def remove(hf: Holdfast, request: Remove) -> Removed:
    """Remove a generation's own record."""
    agent_id = hf.agents.resolve(request.agent).known_id()
    hf.agents.remove(agent_id, request.generation_id, token=request.token)
    return Removed(removed=agent_id, generation_id=request.generation_id)


@operation(
    "POST /v1/agents/{agent}/stop",
    cli="agents stop",
    errors=(NotFound, Ambiguous, Untrusted, Refused),
    outside=True,
)
def stop(hf: Holdfast, request: StopAgent) -> StoppedAgent:
    """End an agent: its process is asked to, then its whole process tree and its own tmux session
    are ended. Harmless for one that has ended.
    """
    from holdfast.runtime.agent_stop import stop_agent

    return stop_agent(hf, request.agent, grace_s=request.grace_s)


@operation(
    "POST /v1/agents/{agent}/restart",
    cli="agents restart",
    errors=(NotFound, Ambiguous, Untrusted, Refused, Collision, AgentEnded, Held),
    outside=True,
)
def restart(hf: Holdfast, request: RestartAgent) -> RestartedAgent:
    """End an agent, if it runs, and start the same command again in the same folder and tmux
    session, with the same conversation where its tool can go on with one.
    """
    from holdfast.runtime.agent_restart import restart_agent

    return restart_agent(
        hf,
        request.agent,
        fresh=request.fresh,
        conversation=request.conversation,
        grace_s=request.grace_s,
        watch_s=request.watch_s,
    )


@operation(
    "POST /v1/upkeep/agents/cleanup", cli="agents cleanup", mcp="clean_up_agents", outside=True
)
def cleanup(hf: Holdfast, request: Cleanup) -> CleanupReport:
    """Remove what agents left behind.

    Returns what was planned, removed, preserved and failed, each with its reason.
    """
    return hf.agents.cleanup(**asdict(request))


OPERATIONS = [
    list_,
    get,
    logs,
    resolve,
    find,
    control_target,
    publish,
    refresh,
    remove,
    stop,
    restart,
    cleanup,
]
