"""Agents over HTTP: those that something else runs. To run one is the command line's."""

from typing import Annotated

from holdfast.domains.agents import Agent
from holdfast.domains.agents.cleanup import Report
from holdfast.domains.agents.control import Target
from holdfast.domains.agents.records import TMUX_BACKED
from holdfast.domains.agents.resolution import Resolution
from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import AGENT_GRACE_S, LABEL_CHARS_MAX, LIST_MAX
from holdfast.kernel.store import Damage
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import agents as answers
from holdfast.surfaces.answers.claims import claimant
from holdfast.surfaces.http.server.fields import (
    AgentName,
    Label,
    Limit,
    PathText,
    Pid,
    Seconds,
    Token,
    Ttl,
    told,
)
from holdfast.surfaces.http.server.operation import operation

_BACKENDS = "|".join(TMUX_BACKED)
_Backend = Annotated[
    str,
    told(
        "What it runs on.",
        pattern=rf"^({_BACKENDS}|[a-z0-9]+_headless)$",
        max_length=LABEL_CHARS_MAX,
    ),
]


class ListAgents(Plain, frozen=True, kw_only=True):
    """Which agents: all, or those whose lease is not over."""

    fresh: bool = False
    limit: Limit = LIST_MAX


class OfAgent(Plain, frozen=True, kw_only=True):
    """An agent, by its name or id."""

    agent: AgentName


class ControlTarget(Plain, frozen=True, kw_only=True):
    """An agent, and the definition folder that it must have, or may."""

    agent: AgentName
    agent_def_dir: PathText | None = None
    needs_agent_def_dir: bool = False


class Publish(Plain, frozen=True, kw_only=True):
    """An agent that something else runs."""

    name: AgentName
    backend: _Backend
    tool: Label
    manifest_path: PathText
    session_name: Label | None = None
    session_root: PathText | None = None
    agent_def_dir: PathText | None = None
    agent_id: AgentName | None = None
    generation_id: Label | None = None
    pid: Pid | None = None
    lease_s: Ttl | None = None
    take_over: bool = False


class Refresh(Plain, frozen=True, kw_only=True):
    """The generation that lives on."""

    agent: AgentName
    generation_id: Label
    token: Token | None = None
    lease_s: Ttl | None = None


class Remove(Plain, frozen=True, kw_only=True):
    """The generation that is over."""

    agent: AgentName
    generation_id: Label
    token: Token | None = None


class Cleanup(Plain, frozen=True, kw_only=True):
    """What is to be left alone, and whether anything is to be removed at all."""

    grace_s: Seconds = AGENT_GRACE_S
    dry_run: bool = False
    tmux_check: bool = True


@operation("GET", "/v1/agents")
def list_(hf: Holdfast, asked: ListAgents, damaged: Damage) -> list[Agent]:
    """Agents by name."""
    return hf.agents.list_agents(fresh=asked.fresh, limit=asked.limit, damaged=damaged)


@operation("GET", "/v1/agents/{agent}", problems=(404, 409), outside=True)
def get(hf: Holdfast, asked: OfAgent) -> answers.AgentView:
    """One agent, fresh or not, and what is known of its parts: lease, process, tmux session,
    gateway.
    """
    return answers.agent_view(hf, asked.agent)


@operation("GET", "/v1/agents/{agent}/resolve", problems=(404, 409))
def resolve(hf: Holdfast, asked: OfAgent) -> Resolution:
    """The live agent of a name or an id; the error's `reason` says why there is none."""
    found = hf.agents.resolve(asked.agent)
    found.unwrap()
    return found


@operation("GET", "/v1/agents/{agent}/target", problems=(404, 409), outside=True)
def control_target(hf: Holdfast, asked: ControlTarget) -> Target:
    """What may be controlled under a name or an id. Trusts nothing that the record points at, and
    never falls back.
    """
    return hf.agents.control_target(
        asked.agent, asked.agent_def_dir, needs_agent_def_dir=asked.needs_agent_def_dir
    )


@operation("POST", "/v1/agents", problems=(404, 409), outside=True)
def publish(hf: Holdfast, asked: Publish) -> Agent:
    """Publish an agent, or resume its generation, for one lease. Nothing refreshes it but you."""
    return hf.agents.publish(
        asked.name,
        backend=asked.backend,
        tool=asked.tool,
        manifest_path=asked.manifest_path,
        session_name=asked.session_name,
        session_root=asked.session_root,
        agent_def_dir=asked.agent_def_dir,
        agent_id=asked.agent_id,
        generation_id=asked.generation_id,
        holder=claimant(hf, asked.pid),
        lease_s=asked.lease_s,
        take_over=asked.take_over,
    )


@operation("POST", "/v1/agents/{agent}/refresh", problems=(404, 409, 412))
def refresh(hf: Holdfast, asked: Refresh) -> Agent:
    """Extend the lease of a generation from now. Whoever is refused has lost the id, and stands
    down.
    """
    agent_id = answers.id_of(hf, asked.agent)
    return hf.agents.refresh(
        agent_id, asked.generation_id, token=asked.token, lease_s=asked.lease_s
    )


@operation("POST", "/v1/agents/{agent}/remove", problems=(404, 409, 412))
def remove(hf: Holdfast, asked: Remove) -> answers.Removed:
    """Take a generation's own record out."""
    agent_id = answers.id_of(hf, asked.agent)
    hf.agents.remove(agent_id, asked.generation_id, token=asked.token)
    return answers.Removed(removed=agent_id, generation_id=asked.generation_id)


@operation("POST", "/v1/upkeep/agents/cleanup", outside=True)
def cleanup(hf: Holdfast, asked: Cleanup) -> Report:
    """Remove what agents left behind, and say what was planned, removed, preserved and failed, each
    with its reason.
    """
    return hf.agents.cleanup(
        grace_s=asked.grace_s, dry_run=asked.dry_run, tmux_check=asked.tmux_check
    )


OPERATIONS = [list_, get, resolve, control_target, publish, refresh, remove, cleanup]
