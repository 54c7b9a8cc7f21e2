"""Agents: what is answered of them."""

from msgspec.structs import asdict

from holdfast.domains.agents import Agent, Reason
from holdfast.domains.agents.liveness import Parts
from holdfast.kernel.codec import Plain
from holdfast.runtime.connection import Holdfast


class AgentView(Agent, frozen=True, kw_only=True):
    """An agent's record, and what is known of its parts: lease, process, tmux session, gateway."""

    liveness: Parts


class Removed(Plain, frozen=True, kw_only=True):
    """Whose record was taken out."""

    removed: str
    generation_id: str


def agent_view(hf: Holdfast, asked: str) -> AgentView:
    """The agent of a name or an id, fresh or not. Raises NotFound and Ambiguous."""
    agent = hf.agents.get(id_of(hf, asked))
    return AgentView(**asdict(agent), liveness=hf.agents.liveness(agent))


def id_of(hf: Holdfast, asked: str) -> str:
    """The id that a name or an id means, of a live agent or of one that is not. Raises Ambiguous,
    and InvalidName.
    """
    found = hf.agents.resolve(asked)
    if found.record is not None or found.reason is Reason.AMBIGUOUS:
        return found.unwrap().agent_id
    return found.agent_ids[0] if found.agent_ids else asked
