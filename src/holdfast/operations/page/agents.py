"""Agents for the page: who is alive, and why not."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.domains.agents import Agent, Agents
from holdfast.domains.agents.liveness import AgentLiveness, process_liveness, survivors_of
from holdfast.domains.agents.records import bare
from holdfast.domains.gateway import AgentState
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import Corrupt, InvalidName, NotFound
from holdfast.kernel.holder import Liveness, survivors_named
from holdfast.kernel.limits import LIST_MAX, PAGE_LINES
from holdfast.kernel.store import Entry
from holdfast.kernel.text import counted
from holdfast.operations.agent_work import AgentWork, work_of
from holdfast.operations.page.explanation import Fact, Tone, Why, known, matching
from holdfast.operations.page.questions import questions_of
from holdfast.runtime.connection import Holdfast

_STATES: dict[str, tuple[Tone, str]] = {
    "alive": ("good", "its process runs and its lease is fresh"),
    "presumed": ("good", "its lease is fresh; no process was named, so nothing more is known"),
    "unseen": (
        "wait",
        "its lease is fresh, but its process is on another machine or in another container",
    ),
    "dead": ("bad", "its process has ended, and nobody has removed its record"),
    "expired": ("bad", "its lease has expired: it was not refreshed in time"),
}
"""The states of an agent as seen from here, and what each means."""

_LIVING = ("alive", "presumed")
_DOES: dict[AgentState, tuple[Tone, str]] = {
    AgentState.STARTING: ("busy", "it has not shown yet that it takes prompts"),
    AgentState.READY: ("good", "it takes a prompt at once"),
    AgentState.WORKING: ("busy", "it works"),
    AgentState.ASKING: ("wait", "it waits for somebody at its terminal"),
    AgentState.DRAFT: ("wait", "somebody's text is in its input box"),
    AgentState.EXITED: ("bad", "it has ended"),
}
"""What a living agent does, by its gateway."""

_ABOUT_AGENTS = ("agent.", "gateway.")
"""How the kinds of those journal entries begin whose subject is an agent."""

_TROUBLED = 5
"""How many of the agents that need attention are named; the others are only counted."""


class AgentLine(Plain, frozen=True, kw_only=True):
    """One agent in a list."""

    agent_id: str
    name: str
    state: str
    tone: Tone
    why: str
    tool: str
    backend: str
    pid: int | None
    tmux_session: str | None
    gateway: str | None
    lease_expires_at: Instant
    published_at: Instant
    since: Instant | None
    """When what its gateway says of it began."""
    works_on: str


class AgentPage(Plain, frozen=True, kw_only=True):
    """A stretch of the list. `next` is where the following one begins; None at its end."""

    total: int
    lines: tuple[AgentLine, ...]
    next: tuple[str, str] | None


class AgentCensus(Plain, frozen=True, kw_only=True):
    """How many agents are in which state, of the first LIST_MAX."""

    total: int
    states: dict[str, int]
    troubled: tuple[AgentLine, ...]
    """A few of those that need attention."""


def agent_page(
    hf: Holdfast, *, after: tuple[str, str] | None = None, limit: int = PAGE_LINES, words: str = ""
) -> AgentPage:
    """A stretch of the list by name; with `words`, of those in whose line they occur, among at most
    LIST_MAX.
    """

    def searched(agent: Agent) -> tuple[AgentLine, str]:
        line = line_of(hf, agent)
        facts = (line.name, line.state, line.tool, line.tmux_session, line.agent_id)
        return line, " ".join(map(str, facts))

    found = matching(_from(hf.agents, after), searched, words, limit)
    last = found[-1][0] if len(found) == limit else None
    behind = None if last is None else (last.agent_name, last.agent_id)
    lines = tuple(line for _, line in found)
    return AgentPage(total=hf.agents.count(), lines=lines, next=behind)


def agent_census(hf: Holdfast) -> AgentCensus:
    """Count the agents by state."""
    states: dict[str, int] = dict.fromkeys(_STATES, 0)
    troubled: list[AgentLine] = []
    for agent in _from(hf.agents, None):
        state = _state(hf, agent)
        states[state] += 1
        if _STATES[state][0] == "bad" and len(troubled) < _TROUBLED:
            troubled.append(line_of(hf, agent))
    return AgentCensus(total=hf.agents.count(), states=states, troubled=tuple(troubled))


def agent_names(agents: Agents, entries: Iterable[Entry]) -> dict[str, str]:
    """The names of the agents that entries name only by their ids, as far as they are still
    published.
    """
    ids = {
        entry.subject
        for entry in entries
        if entry.kind.startswith(_ABOUT_AGENTS) and "agent_name" not in entry.data
    }
    return {agent_id: name for agent_id in ids if (name := name_of(agents, agent_id)) is not None}


def name_of(agents: Agents, agent_id: str) -> str | None:
    """The name of the agent with that id, without its prefix; None when there is no such agent, it
    is damaged, or the word is the name of another agent.
    """
    found = agents.page(after=(agent_id, ""), limit=1, damaged=[])
    if found and bare(found[0].agent_name) == agent_id:
        return None
    try:
        return bare(agents.get(agent_id).agent_name)
    except (NotFound, Corrupt, InvalidName):
        return None


def line_of(hf: Holdfast, agent: Agent) -> AgentLine:
    """An agent in a list. Of one that lives it says what the agent does, where that is known."""
    state = _state(hf, agent)
    work = AgentWork() if agent.gateway is None else work_of(hf, agent)
    tone, why = _STATES[state]
    does = _DOES.get(work.state) if state in _LIVING and work.gateway == "serving" else None
    left = survivors_of(agent, hf.processes, embedded=hf.store.embedded) if state == "dead" else ()
    if left:
        why = f"its process has ended, and processes that it started live ({survivors_named(left)})"
        why += ": its id stays its own until they end"
    if does is not None:
        state, (tone, why) = work.state.value, does
        why = work.waits or why
        if work.questions:
            why = f"{counted(work.questions, 'question waits', 'questions wait')} for an answer"
    return AgentLine(
        agent_id=agent.agent_id,
        name=agent.agent_name,
        state=state,
        tone=tone,
        why=why,
        tool=agent.identity.tool,
        backend=agent.identity.backend,
        pid=None if agent.holder is None else agent.holder.pid,
        tmux_session=agent.session_name,
        gateway=None if agent.gateway is None else f"{agent.gateway.host}:{agent.gateway.port}",
        lease_expires_at=agent.lease_expires_at,
        published_at=agent.published_at,
        since=None if does is None else work.since,
        works_on=work.activity,
    )


def why_agent(hf: Holdfast, agent_id: str) -> Why:
    """Why an agent counts as alive or not: each of its parts by itself. Asks tmux and its
    gateway.
    """
    agent = hf.agents.get(agent_id)
    line, parts = line_of(hf, agent), hf.agents.liveness(agent)
    names = {bare(agent.agent_name), agent.agent_id}
    if agent.gateway is not None:
        # Its gateway may be kept under a word of its own.
        names.add(Path(agent.gateway.state_path).parent.name)
    questions = questions_of(hf, *names)
    return Why(
        kind="agent",
        name=agent.agent_id,
        title=bare(agent.agent_name),
        state=line.state,
        tone=line.tone,
        words=(f"{bare(line.name)}: {line.why}.", _parts_words(parts)),
        facts=known(
            Fact(name="since", at=line.since),
            Fact(name="works on", text=line.works_on),
            Fact(name="lease ends", at=agent.lease_expires_at),
            Fact(name="published", at=agent.published_at),
            Fact(name="process", text="" if line.pid is None else f"pid {line.pid}"),
            Fact(name="tmux session", text=line.tmux_session or ""),
            Fact(name="gateway", text=line.gateway or ""),
            Fact(name="tool", text=f"{line.tool} on {line.backend}"),
            Fact(name="generation", text=agent.generation_id),
            Fact(name="id", text=agent.agent_id),
        ),
        advice=("answer what it asks",) if questions else _advice(line, parts),
        questions=questions,
    )


def _from(agents: Agents, after: tuple[str, str] | None) -> Iterator[Agent]:
    """Agents by name, read in pages, LIST_MAX at most."""
    for _ in range(LIST_MAX // PAGE_LINES):
        page = agents.page(after=after, limit=PAGE_LINES, damaged=[])
        yield from page
        if len(page) < PAGE_LINES:
            return
        after = (page[-1].agent_name, page[-1].agent_id)


def _state(hf: Holdfast, agent: Agent) -> str:
    if not agent.fresh(hf.store.now()):
        return "expired"
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    if alive is None:
        return "presumed"
    return {Liveness.ALIVE: "alive", Liveness.DEAD: "dead", Liveness.UNKNOWN: "unseen"}[alive]


_LIVENESS_WORDS = {
    Liveness.ALIVE: "is there",
    Liveness.DEAD: "is gone",
    Liveness.UNKNOWN: "cannot be seen from here",
}


def _parts_words(parts: AgentLiveness) -> str:
    found = {
        "lease": parts.lease,
        "process": parts.process,
        "process tree": parts.tree or None,
        "tmux session": parts.tmux_session,
        "gateway": parts.gateway,
    }
    words = [f"its {name} {_LIVENESS_WORDS[one]}" for name, one in found.items() if one is not None]
    return f"Checked just now: {', '.join(words)}."


def _advice(line: AgentLine, parts: AgentLiveness) -> tuple[str, ...]:
    if line.state == "dead" and parts.tree is Liveness.ALIVE:
        return (
            "end the processes that it left, or wait until they end",
            f"then a new `holdfast agents start {bare(line.name)}` succeeds it",
        )
    if line.state == "dead" and parts.tmux_session is Liveness.ALIVE:
        return (
            f"its tmux session lives on: inspect it with `tmux attach -t ={line.tmux_session}`",
        )
    if line.tone == "bad":
        return (
            f"a new `holdfast agents start {bare(line.name)}` succeeds it at once"
            if line.state == "dead"
            else "start it again",
            "`holdfast agents cleanup` removes what is left behind",
        )
    if parts.gateway is Liveness.DEAD:
        return (
            f"its gateway does not answer: `holdfast gateway serve {bare(line.name)}` starts it "
            "again",
        )
    return ("nothing to do",)
