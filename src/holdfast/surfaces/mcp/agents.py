"""Other agents, and requests to them through their gateways."""

from contextlib import suppress

from msgspec.structs import asdict, replace

from holdfast.domains.agents.records import bare
from holdfast.kernel.errors import Refused, Unavailable
from holdfast.operations import agents, gateways, questions
from holdfast.operations.agents import Cleanup, FindAgents, FoundAgents, LiveAgent
from holdfast.operations.gateways import GetRequest, SendRequest, SentRequest
from holdfast.operations.operation import Wait
from holdfast.operations.questions import AnswerQuestion
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Session
from holdfast.surfaces.mcp.offer import BackgroundWait
from holdfast.surfaces.mcp.tool import ToolResult, WaitS, tool

_GATEWAY_S = 15.0
"""Beyond the wait itself: a gateway that restarts is called more than once."""


@tool(agents.find, reads=True)
def find_agents(session: Session, call: Call, request: FindAgents) -> ToolResult:
    """Live agents, or the one of a name or id: whom you can send a request to, the state of each,
    what a prompt waits for, and the questions they ask. not_found says why there is no such live
    agent."""
    found: FoundAgents = agents.find(session.hf, request)
    words = "send_request reaches those with a gateway"
    shown = [_with_handle(one) for one in found.agents]
    return {"agents": shown, "questions": found.questions, "next": words}


@tool(questions.answer)
def answer_question(session: Session, call: Call, request: AnswerQuestion) -> ToolResult:
    """Answer what another agent asks its operator (find_agents lists the questions), where your own
    operator allows it. It is never given twice."""
    session.check_may("answer", "answer questions")
    _refuse_own(session, request)
    known = replace(request, by=session.me.label)
    done = questions.reply(session.hf, known, claimed=False)
    return asdict(done) | {"next": ""}


@tool(agents.cleanup, repeatable=True)
def clean_up_agents(session: Session, call: Call, request: Cleanup) -> ToolResult:
    """Remove the records that dead agents left; live ones stay. With dry_run only say which."""
    return asdict(agents.cleanup(session.hf, request)) | {"next": ""}


@tool(gateways.send)
def send_request(
    session: Session, call: Call, request: SendRequest, *, wait_s: WaitS = 0
) -> ToolResult:
    """Queue a prompt for another agent, durably and in order; kind interrupt stops what it does
    now. Returns at once with a handle, or with wait_s waits for the answer. Then ask with
    request_status."""
    # Its own identity: a model could type any name.
    sender = replace(request, sender=session.me.label)
    sent: SentRequest = gateways.send(session.hf, sender)
    if request.kind == "prompt" and (undo := gateways.send.undo) is not None:
        call.undo_by(lambda: undo(session.hf, sent, Wait()))
    if wait_s > 0:
        with suppress(Unavailable):
            # It is accepted, whether or not its gateway can say how far it has got. After an error
            # the agent would send it again, and what had begun would be done twice.
            return answered(session, sent.agent, sent.request_id, wait_s, call)
    return _answer(sent)


@tool(gateways.progress, reads=True)
def request_status(
    session: Session, call: Call, request: GetRequest, *, wait_s: WaitS = 0
) -> ToolResult:
    """How far a request to another agent has got: accepted, running, completed with its answer,
    or failed with the reason. With wait_s it waits for the end."""
    return answered(session, request.agent, request.request_id, wait_s, call)


def live_agent(session: Session, name: str) -> ToolResult:
    """A live agent, with its handle."""
    found: FoundAgents = agents.find(session.hf, FindAgents(name=name))
    [agent] = found.agents
    return _with_handle(agent)


def _with_handle(agent: LiveAgent) -> ToolResult:
    return {"handle": f"agent:{agent.agent_id}", **asdict(agent)}


def _refuse_own(session: Session, request: AnswerQuestion) -> None:
    """Raise Refused for a question of the caller: an agent would permit itself what it asks."""
    me = session.me
    own = {questions.asker(queue) for queue in me.queues}
    if me.agent is not None:
        own |= {bare(me.agent.agent_name), me.agent.agent_id}
    if questions.asker(request.agent) in own:
        raise Refused(
            f"{request.agent} is yourself: another must answer what you ask", agent=request.agent
        )


def answered(
    session: Session, agent: str, request_id: str, wait_s: float, call: Call
) -> ToolResult:
    """A request when it has ended or the time is over.

    In a thread of its own: the gateway's answer cannot be interrupted, and a cancelled call must
    not wait for it.
    """
    query = GetRequest(agent=agent, request_id=request_id, wait_s=wait_s)
    waiting = BackgroundWait[SentRequest](lambda _: gateways.progress(session.hf, query))
    waiting.begin()
    if not waiting.wait(wait_s + _GATEWAY_S, call):
        raise Unavailable(
            f"the gateway of {agent} takes too long to answer: ask again", agent=agent
        )
    if waiting.error is not None:
        raise waiting.error
    assert waiting.found is not None
    return _answer(waiting.found)


def _answer(sent: SentRequest) -> ToolResult:
    over = sent.state in ("completed", "failed")
    words = "" if over else "request_status with this handle, and wait_s to wait for the answer"
    return asdict(sent) | {"handle": f"request:{sent.agent}/{sent.request_id}", "next": words}
