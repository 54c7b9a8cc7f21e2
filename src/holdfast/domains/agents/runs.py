"""The last run of an agent: how it was started, so that it can be started again, and how it ended.

An agent's record goes when the agent ends. This note of it stays, for its own user alone: the words
of a command and a screen may have secrets.
"""

from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import field
from msgspec.structs import replace

from holdfast.domains.agents.records import Agent
from holdfast.kernel.agent_adapter import PathText, Text
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.limits import AGENT_RUN_KEEP_S, AGENT_SCREEN_CHARS


class AgentConversation(Plain, frozen=True, kw_only=True):
    """A conversation with a tool, as the tool's own reports name it. `transcript` is the file in
    which the tool keeps it, if the tool says so.
    """

    session_id: Text
    transcript: str = ""


class AgentExit(Plain, frozen=True, kw_only=True):
    """How an agent ended. None: nobody saw it."""

    exit_status: int | None = None
    ended_at: Instant | None = None


class StoppedAgent(Plain, frozen=True, kw_only=True):
    """What a stop did. `was_running`: anything of the agent was alive. `killed`: it did not end in
    time when it was asked to. `tmux_session`: ended with it, left since it is not its own, or none.
    """

    agent_name: str
    agent_id: str
    generation_id: str
    was_running: bool
    killed: bool = False
    tmux_session: Literal["ended", "left", "none"] = "none"
    exited: AgentExit


class RestartedAgent(Plain, frozen=True, kw_only=True):
    """A new generation of an agent, in tmux or run by its gateway. `conversation` is that with
    which it goes on; None: it began a new one, and `why` says why.
    """

    agent: Agent
    conversation: str | None
    why: str = ""


class LaunchChoices(Plain, frozen=True, kw_only=True):
    """What the user chose for an agent beside its name and its command. None: nothing."""

    tool: str | None = None
    session_root: PathText | None = None
    agent_def_dir: PathText | None = None
    lease_s: float | None = None
    leftovers: str = "wait"
    adapter: dict[str, Any] = field(default_factory=dict)


class AgentRun(Plain, frozen=True, kw_only=True):
    """One run of an agent. `agent` is the record as it was published.

    `command` is empty when it cannot be repeated. `hooked`: Holdfast started it, so its tool's
    hooks report, if it has any. `own_session`: the tmux session was made for the
    agent. `socket_path` is the socket of its tmux server. `started_by` is the agent that started
    it, if one did.
    """

    schema_version: Literal[1] = 1
    agent: Agent
    command: tuple[str, ...]
    working_directory: PathText
    choices: LaunchChoices = LaunchChoices()
    hooked: bool = True
    own_session: bool = False
    socket_path: PathText | None = None
    started_by: str | None = None
    conversation: AgentConversation | None = None
    end: AgentExit | None = None
    screen: str = ""

    def ended(self, exit_status: int | None, at: datetime, screen: str) -> "AgentRun":
        """The run with its end, and as much of its last screen as is kept."""
        end = AgentExit(exit_status=exit_status, ended_at=at)
        return replace(self, end=end, screen=screen[-AGENT_SCREEN_CHARS:])

    def last_record(self) -> Agent:
        """The record, whose lease ended with the agent."""
        at = None if self.end is None else self.end.ended_at
        if at is None or at <= self.agent.published_at:
            return self.agent
        return replace(self.agent, lease_expires_at=at)

    def outdated(self, now: datetime) -> bool:
        """Is it too old to be kept? Where nobody saw the end, it counts from the lease's end."""
        at = None if self.end is None else self.end.ended_at
        since = self.agent.lease_expires_at if at is None else at
        return (now - since).total_seconds() > AGENT_RUN_KEEP_S


class AgentRuns(Protocol):
    """The notes of agents' last runs, of one store and one user."""

    def read(self, agent_id: str) -> AgentRun | None: ...

    def write(self, run: AgentRun) -> None:
        """Replace the note of an agent; it is lost where it cannot be written."""
        ...

    def remove(self, agent_id: str) -> None: ...

    def listed(self) -> list[AgentRun]:
        """All readable ones, by their agents' ids."""
        ...


def find_run(runs: AgentRuns, asked: str, agent_id: str, name: str) -> AgentRun | None:
    """The last run of an agent that was asked for by its name or id. `agent_id` is the id that it
    has, or had. Of several agents of one name, that which was published last.
    """
    run = runs.read(agent_id) or runs.read(asked)
    if run is not None:
        return run
    named = [one for one in runs.listed() if one.agent.agent_name == name]
    return max(named, key=lambda one: one.agent.published_at, default=None)
