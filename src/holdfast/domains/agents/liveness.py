"""Whether an agent is alive, in parts: no part alone proves it.

The agent is its own process: once that is dead nothing may be typed to it, whatever it has started.
But it keeps its id as long as any process of its tree is alive, so that no second generation works
beside it.
"""

from datetime import datetime

from msgspec import UNSET, UnsetType

from holdfast.domains.agents.ports import AgentPorts
from holdfast.domains.agents.records import Agent
from holdfast.kernel.codec import Plain
from holdfast.kernel.holder import Liveness, Processes, Survivor, orphaned, probe

_LOOPBACK = ("127.", "::1", "localhost")


class AgentLiveness(Plain, frozen=True, kw_only=True):
    """What is known of each part of an agent. None: it has no such part. `tree` is set when the
    process is dead and the record names its process tree: what is known of the processes that it
    started.
    """

    lease: Liveness
    process: Liveness | None
    tmux_session: Liveness | None
    gateway: Liveness | None
    tree: Liveness | UnsetType = UNSET


def probe_parts(agent: Agent, ports: AgentPorts, now: datetime) -> AgentLiveness:
    """Probe every part. Does I/O: never call it inside a transaction."""
    process = process_liveness(agent, ports.processes, embedded=ports.embedded)
    tree: Liveness | UnsetType = UNSET
    if process is Liveness.DEAD and agent.holder is not None and agent.holder.tree:
        tree = probe(agent.holder, ports.processes, embedded=ports.embedded)
    gateway = None
    if agent.gateway is not None:
        loopback = agent.gateway.host.startswith(_LOOPBACK)
        beyond_reach = loopback and not _is_here(agent, ports)
        gateway = Liveness.UNKNOWN if beyond_reach else ports.gateways.liveness(agent.gateway)
    return AgentLiveness(
        lease=Liveness.ALIVE if agent.fresh(now) else Liveness.DEAD,
        process=process,
        tmux_session=_tmux_session(agent, ports),
        gateway=gateway,
        tree=tree,
    )


def is_gone(agent: Agent, ports: AgentPorts) -> bool:
    """Is it verified that nothing of the agent is left: its process tree is dead, and its tmux
    session, if it had one, too?

    Either alone is not enough: launchers exit while tmux lives on, and a tmux session can be
    renamed. A process that was not named, or cannot be seen from here, proves nothing.

    An agent of Houmao 2 names no process, and its lease lasts for a hundred years. By its own rules
    it is gone when its tmux session is.
    """
    if agent.lifecycle is not UNSET and agent.holder is None:
        return _tmux_session(agent, ports) is Liveness.DEAD
    return is_dead(agent, ports) and _tmux_session(agent, ports) in (None, Liveness.DEAD)


def is_dead(agent: Agent, ports: AgentPorts) -> bool:
    """Is its process verified to be dead, and every process that it started?"""
    holder, embedded = agent.holder, ports.embedded
    return holder is not None and probe(holder, ports.processes, embedded=embedded) is Liveness.DEAD


def process_liveness(agent: Agent, processes: Processes, *, embedded: bool) -> Liveness | None:
    """What is known of the agent's own process; None when the record names none."""
    if agent.holder is None:
        return None
    return probe(agent.holder.leader, processes, embedded=embedded)


def survivors_of(agent: Agent, processes: Processes, *, embedded: bool) -> list[Survivor]:
    """The live processes that an agent started whose own process is dead; else none."""
    return [] if agent.holder is None else orphaned(agent.holder, processes, embedded=embedded)


def _tmux_session(agent: Agent, ports: AgentPorts) -> Liveness | None:
    if agent.session_name is None:
        return None
    if not _is_here(agent, ports):
        return Liveness.UNKNOWN
    return ports.sessions.liveness(agent.session_name)


def _is_here(agent: Agent, ports: AgentPorts) -> bool:
    """Does the agent run on this machine and in this container? Else a tmux session or a loopback
    port of the same name is not the agent's. Without a holder only an embedded store says so.
    """
    if agent.holder is None:
        return ports.embedded
    here = ports.processes.here()
    return (agent.holder.host_id, agent.holder.pid_ns) == (here.host_id, here.pid_ns)
