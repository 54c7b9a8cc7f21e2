"""Whether an agent lives, in parts: no part alone says it."""

from datetime import datetime

from holdfast.domains.agents.outside import Outside
from holdfast.domains.agents.record import Agent
from holdfast.kernel.codec import Plain
from holdfast.kernel.holder import Liveness, probe

_LOOPBACK = ("127.", "::1", "localhost")


class Parts(Plain, frozen=True, kw_only=True):
    """What is known of each part of an agent. None: it has no such part."""

    lease: Liveness
    process: Liveness | None
    tmux_session: Liveness | None
    gateway: Liveness | None


def look_at(agent: Agent, outside: Outside, *, embedded: bool, now: datetime) -> Parts:
    """Look at every part. Does I/O, so it is for outside of transactions."""
    gateway = None
    if agent.gateway is not None:
        beyond_reach = agent.gateway.host.startswith(_LOOPBACK) and not _is_here(agent, outside, embedded=embedded)
        gateway = Liveness.UNKNOWN if beyond_reach else outside.gateways.liveness(agent.gateway)
    return Parts(
        lease=Liveness.ALIVE if agent.fresh(now) else Liveness.DEAD,
        process=_process(agent, outside, embedded=embedded),
        tmux_session=_tmux_session(agent, outside, embedded=embedded),
        gateway=gateway,
    )


def is_gone(agent: Agent, outside: Outside, *, embedded: bool) -> bool:
    """Is it proved that nothing of the agent is left: its process dead, and its tmux session gone where it had one?

    Either alone is not enough: launchers exit while tmux lives on, and a tmux session can be renamed. A process that was not
    named, or cannot be seen from here, proves nothing.
    """
    if not is_dead(agent, outside, embedded=embedded):
        return False
    return _tmux_session(agent, outside, embedded=embedded) in (None, Liveness.DEAD)


def is_dead(agent: Agent, outside: Outside, *, embedded: bool) -> bool:
    """Is its own process proved dead?"""
    return _process(agent, outside, embedded=embedded) is Liveness.DEAD


def _process(agent: Agent, outside: Outside, *, embedded: bool) -> Liveness | None:
    return None if agent.holder is None else probe(agent.holder, outside.processes, embedded=embedded)


def _tmux_session(agent: Agent, outside: Outside, *, embedded: bool) -> Liveness | None:
    if agent.session_name is None:
        return None
    if not _is_here(agent, outside, embedded=embedded):
        return Liveness.UNKNOWN
    return outside.sessions.liveness(agent.session_name)


def _is_here(agent: Agent, outside: Outside, *, embedded: bool) -> bool:
    """Does it run where this process runs, so that what is seen here is of it? Its holder says so, if there is one."""
    if agent.holder is None:
        return embedded
    here = outside.processes.here()
    return (agent.holder.host_id, agent.holder.pid_ns) == (here.host_id, here.pid_ns)
