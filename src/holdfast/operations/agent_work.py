"""What an agent does, as its gateway last published it. No gateway is asked, so one that hangs
delays no list.
"""

from pathlib import Path
from typing import Literal

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.gateway import AgentState, GatewayStatus
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.holder import Liveness
from holdfast.runtime.connection import Holdfast


class AgentWork(Plain, frozen=True, kw_only=True):
    """What an agent does since when, and what it works on.

    `waits` says what a prompt has to wait for. `idle_since` is set while it is ready and nothing is
    queued. `gateway` is none without one, gone when it was killed, and elsewhere on another
    machine; only one that is serving knows the agent's state.
    """

    state: AgentState = AgentState.UNKNOWN
    since: Instant | None = None
    activity: str = ""
    waits: str = ""
    idle_since: Instant | None = None
    queue_depth: int | None = None
    questions: int = 0
    gateway: Literal["none", "serving", "gone", "elsewhere"] = "none"


def work_of(hf: Holdfast, agent: Agent) -> AgentWork:
    """What an agent does. Without a gateway only its end is known."""
    status = None if agent.gateway is None else _published(hf, agent)
    if status is not None and status.gateway_health == "healthy":
        ready = status.agent_state is AgentState.READY and status.queue_depth == 0
        return AgentWork(
            state=status.agent_state,
            since=status.agent_state_since,
            activity=status.activity,
            waits=status.detail,
            idle_since=status.agent_state_since if ready else None,
            queue_depth=status.queue_depth,
            questions=len(status.questions),
            gateway="serving",
        )
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    state = AgentState.EXITED if alive is Liveness.DEAD else AgentState.UNKNOWN
    if agent.gateway is None:
        return AgentWork(state=state)
    if status is None:
        return AgentWork(state=state, gateway="elsewhere")
    return AgentWork(state=state, queue_depth=status.queue_depth, gateway="gone")


def _published(hf: Holdfast, agent: Agent) -> GatewayStatus | None:
    """The status that the gateway in an agent's record published on this machine."""
    assert agent.gateway is not None
    here = hf.processes.here().host_id
    if not (hf.store.embedded if agent.holder is None else agent.holder.host_id == here):
        # The folder of that name here is that of another agent.
        return None
    return GatewayFolder(Path(agent.gateway.state_path).parent).published(hf.processes)
