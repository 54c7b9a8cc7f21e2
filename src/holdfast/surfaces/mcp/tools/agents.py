"""`find_agents`, `send_request` and `request_status`: other agents, and prompts to them through
their gateways.
"""

from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import process_liveness
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.limits import ID_CHARS_MAX, MCP_LIST_MAX, PROMPT_BYTES_MAX
from holdfast.surfaces.mcp.answers import AgentView, Found, Sent
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand
from holdfast.surfaces.mcp.pursuit import Pursuit
from holdfast.surfaces.mcp.tool import Tool, WaitS

AgentName = Annotated[
    str, Meta(min_length=1, max_length=ID_CHARS_MAX, description="An agent's name or id.")
]
Prompt = Annotated[
    str,
    # A schema counts characters, and the gateway counts bytes: a character has one or more. So this
    # bound only tells.
    Meta(
        min_length=1,
        extra_json_schema={"maxLength": PROMPT_BYTES_MAX},
        description=f"What to say to the agent, in at most {PROMPT_BYTES_MAX} bytes of UTF-8.",
    ),
]
Key = Annotated[
    str,
    Meta(
        min_length=1, max_length=ID_CHARS_MAX, description="The same key again is the same request."
    ),
]


_ANSWER_S = 15.0
"""Beyond the wait itself: a gateway that begins anew is asked more than once."""


class FindArguments(Plain, frozen=True, kw_only=True):
    """A name or id, or nothing for all."""

    name: AgentName | None = None
    limit: Annotated[int, Meta(ge=1, le=MCP_LIST_MAX, description="At most this many.")] = 20


class SendArguments(Plain, frozen=True, kw_only=True):
    """To whom, and what."""

    agent: AgentName
    kind: Literal["prompt", "interrupt"] = "prompt"
    prompt: Prompt | None = None
    idempotency_key: Key | None = None
    wait_s: WaitS = 0


class RequestArguments(Plain, frozen=True, kw_only=True):
    """A request that was sent."""

    agent: AgentName
    request_id: Annotated[
        str, Meta(min_length=1, max_length=ID_CHARS_MAX, description="As send_request gave it.")
    ]
    wait_s: WaitS = 0


def find_agents(hand: Hand, asked: FindArguments, call: Call) -> Found:
    """Live agents."""
    agents = hand.hf.agents
    if asked.name is not None:
        found = [agents.resolve(asked.name).unwrap()]
    else:
        found = agents.list_agents(fresh=True, limit=asked.limit, damaged=[])
    return Found(
        agents=tuple(_view(hand, agent) for agent in found),
        next="send_request reaches those with a gateway",
    )


def send_request(hand: Hand, asked: SendArguments, call: Call) -> Sent:
    """A prompt, or an interrupt, for another agent."""
    if (asked.prompt is None) != (asked.kind == "interrupt"):
        raise InvalidValue(
            "send_request: a prompt needs its text, and an interrupt has none", field="prompt"
        )
    gateway = hand.hf.gateway(asked.agent)
    if asked.prompt is None:
        sent = gateway.interrupt(idempotency_key=asked.idempotency_key)
    else:
        sent = gateway.prompt(asked.prompt, idempotency_key=asked.idempotency_key)
        call.undo_by(lambda: _cancel(hand, asked.agent, sent["request_id"]))
    if asked.wait_s > 0:
        with suppress(Unavailable):
            # It is accepted, whether or not its gateway can say how far it has got. Told otherwise,
            # the agent would send it again, and what had begun would be done twice.
            sent = _waited(gateway, sent["request_id"], asked.wait_s, call)
    return _sent(asked.agent, sent)


def request_status(hand: Hand, asked: RequestArguments, call: Call) -> Sent:
    """How far a request has got."""
    return _sent(
        asked.agent, _waited(hand.hf.gateway(asked.agent), asked.request_id, asked.wait_s, call)
    )


def _waited(gateway: GatewayClient, request_id: str, wait_s: float, call: Call) -> dict[str, Any]:
    """The request when it has ended, or the time is over. In a thread, as an answer that is under
    way cannot be ended: whoever takes the call back does not wait for it.
    """
    pursuit = Pursuit(lambda _: gateway.request(request_id, wait_s=wait_s), ended=lambda: None)
    if not pursuit.wait(wait_s + _ANSWER_S, call):
        raise Unavailable(
            f"the gateway of {gateway.agent} takes too long to answer: ask again",
            agent=gateway.agent,
        )
    if pursuit.error is not None:
        raise pursuit.error
    assert pursuit.found is not None
    return pursuit.found


def _cancel(hand: Hand, agent: str, request_id: str) -> None:
    with suppress(HoldfastError):
        # Begun, or the gateway is away: it takes its course.
        hand.hf.gateway(agent).cancel(request_id)


def _view(hand: Hand, agent: Agent) -> AgentView:
    hf = hand.hf
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    return AgentView(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        tool=agent.identity.tool,
        backend=agent.identity.backend,
        tmux_session=agent.session_name,
        lease_expires_at=agent.lease_expires_at,
        process="none" if alive is None else alive.value,
        has_gateway=agent.gateway is not None,
    )


def _sent(agent: str, request: dict[str, Any]) -> Sent:
    over = request["state"] in ("completed", "failed")
    return Sent(
        agent=agent,
        request_id=request["request_id"],
        state=request["state"],
        epoch=request["epoch"],
        answer=(request.get("result") or {}).get("text"),
        error_code=request.get("error_code") or None,
        error=request.get("error_detail") or None,
        next=""
        if over
        else "request_status with this request_id, and wait_s to wait for the answer",
    )


AGENT_TOOLS = (
    Tool(
        "find_agents",
        "Lists live agents, or looks one up by name or id. Use it to find whom to send a request "
        "to. Ends in not_found with "
        "the reason when there is no such live agent.",
        FindArguments,
        Found,
        find_agents,
        only_looks=True,
        again_is_harmless=True,
    ),
    Tool(
        "send_request",
        "Queues a prompt for another agent, durably and in order; kind interrupt stops what it "
        "does now. Comes back at once "
        "with a request_id unless you give wait_s. Then ask with request_status for the answer.",
        SendArguments,
        Sent,
        send_request,
    ),
    Tool(
        "request_status",
        "Tells how far a request to another agent has got: accepted, running, completed with its "
        "answer, or failed with the "
        "reason. With wait_s it waits for the end.",
        RequestArguments,
        Sent,
        request_status,
        only_looks=True,
        again_is_harmless=True,
    ),
)
