"""Gateways for the page: how each is doing, what waits in its queue, and why nothing moves."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.domains.gateway import AgentState, GatewayStatus
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.text import counted
from holdfast.operations.gateways import RequestView
from holdfast.operations.page.explanation import Action, AskedQuestion, Fact, Tone, Why, known

_PROMPT_CHARS = 2000
ASKS = "asks"
_DRAFT = "draft"


class GatewayLine(Plain, frozen=True, kw_only=True):
    """One gateway in a list."""

    agent: str
    """What it is kept under: the agent's name or, where that does not follow from the name, its id.
    """
    name: str
    """What people call the agent."""
    tone: Tone
    state: str
    why: str
    queue_depth: int = 0
    epoch: int = 0
    backend: str = ""
    address: str = ""
    running: bool = False
    reconcile: bool = False
    """An operator must decide."""
    waits_for_somebody: bool = False
    """The agent asks something, or somebody's text is in its input box, since `since`."""
    since: Instant | None = None
    activity: str = ""


class RequestLine(Plain, frozen=True, kw_only=True):
    """One request in a gateway's queue."""

    request_id: str
    kind: str
    prompt: str
    state: str
    tone: Tone
    epoch: int
    accepted_at: Instant
    finished_at: Instant | None
    sender: str
    error: str
    cancel: Action | None


class GatewayDetails(Plain, frozen=True, kw_only=True):
    """A gateway and its newest requests."""

    why: Why
    requests: tuple[RequestLine, ...]


def gateway_line(
    agent: str, status: GatewayStatus | None, *, silent: bool = False, name: str | None = None
) -> GatewayLine:
    """A gateway by the status it gave, or left; `silent` when it did not answer in time. `name` is
    the agent's, if it is kept under another word.
    """
    tone, state, why = _state(status, silent)
    line = GatewayLine(agent=agent, name=name or agent, tone=tone, state=state, why=why)
    if status is None:
        return line
    host, port = status.gateway_host, status.gateway_port
    return replace(
        line,
        queue_depth=status.queue_depth,
        epoch=status.managed_agent_instance_epoch,
        backend=status.backend,
        address=f"{host}:{port}" if host and port else "",
        running=status.active_execution == "running",
        reconcile=status.request_admission == "blocked_reconciliation",
        waits_for_somebody=state in (ASKS, _DRAFT),
        since=status.agent_state_since,
        activity=status.activity,
    )


def gateway_details(
    line: GatewayLine,
    status: GatewayStatus | None,
    requests: Sequence[RequestView],
    questions: tuple[AskedQuestion, ...] = (),
) -> GatewayDetails:
    """A gateway, why it is as it is, and its requests, the newest first."""
    old = [one for one in requests if one.state == "accepted" and one.epoch < line.epoch]
    detail, instance = "", ""
    if status is not None:
        detail, instance = status.detail, status.managed_agent_instance_id or ""
    why = Why(
        kind="gateway",
        name=line.agent,
        title=f"gateway of {line.name}",
        state=line.state,
        tone=line.tone,
        words=(
            f"{line.why[:1].upper()}{line.why[1:]}.",
            *([f"It says: {detail}"] if detail else []),
        ),
        facts=known(
            Fact(name="agent", text="" if status is None else status.agent_state.value),
            Fact(name="since", at=line.since),
            Fact(name="works on", text=line.activity),
            Fact(name="waiting and running", text=str(line.queue_depth)),
            Fact(name="epoch", text=str(line.epoch) if line.epoch else ""),
            Fact(name="kept under", text=line.agent if line.agent != line.name else ""),
            Fact(name="instance", text=instance),
            Fact(name="backend", text=line.backend),
            Fact(name="address", text=line.address),
        ),
        advice=_advice(line),
        actions=_actions(line, len(old)) if line.reconcile else (),
        questions=questions,
    )
    return GatewayDetails(why=why, requests=tuple(_request(one) for one in reversed(requests)))


def _state(status: GatewayStatus | None, silent: bool) -> tuple[Tone, str, str]:
    if silent:
        return "bad", "does not answer", "the gateway's process is there but gave no answer in time"
    if status is None:
        return (
            "idle",
            "never served",
            "it has a folder, in which no gateway has written its status",
        )
    if status.gateway_health != "healthy":
        depth = status.queue_depth
        waits = (
            f"; {counted(depth, 'accepted request waits', 'accepted requests wait')} for the next "
            "one"
            if depth
            else ""
        )
        return ("bad" if depth else "idle"), "not attached", f"no gateway serves it now{waits}"
    if status.request_admission == "blocked_reconciliation":
        return (
            "bad",
            "blocked: decide",
            "the agent was replaced, and requests for the earlier instance wait",
        )
    if status.request_admission == "blocked_unavailable":
        return "bad", "blocked: no agent", "the agent is not there, so nothing is accepted"
    if status.agent_state is AgentState.ASKING:
        subjects = "; ".join(one.subject for one in status.questions)
        return "wait", ASKS, f"the agent asks: {subjects}" if subjects else status.detail
    if status.agent_state is AgentState.DRAFT:
        return "wait", _DRAFT, status.detail
    if status.active_execution == "running":
        return "busy", "running", "the agent works on a request"
    return "good", "open", "it accepts requests, and nothing runs"


def _advice(line: GatewayLine) -> tuple[str, ...]:
    if line.reconcile:
        return (
            "read what waits below, then replay it to the new instance or discard it; nothing "
            "is replayed by itself",
        )
    if line.state == ASKS:
        return ("answer what it asks; where there is no button, in the agent's own terminal",)
    if line.state == _DRAFT:
        return ("send the text in the agent's input box, or remove it there; prompts wait for it",)
    if line.state in ("not attached", "never served"):
        return (f"start it: holdfast gateway serve {line.agent}",)
    if line.state == "blocked: no agent":
        return ("bring the agent back; what was accepted before stays in the queue",)
    if line.state == "does not answer":
        return ("check its process: it may be stopped, or its machine too busy",)
    return ("nothing to do",)


def _actions(line: GatewayLine, waiting: int) -> tuple[Action, ...]:
    given = counted(
        waiting, "request of an earlier instance is", "requests of an earlier instance are"
    )
    replay = f"{given} given to the new one (epoch {line.epoch}), and requests are accepted again."
    ended = counted(
        waiting, "request of an earlier instance ends", "requests of an earlier instance end"
    )
    discard = f"{ended} as failed, code discarded, and requests are accepted again."
    return (
        Action(verb="replay", subject=line.agent, label="Replay", effect=replay, epoch=line.epoch),
        Action(
            verb="discard", subject=line.agent, label="Discard", effect=discard, epoch=line.epoch
        ),
    )


_TONES: dict[str, Tone] = {
    "accepted": "wait",
    "running": "busy",
    "completed": "good",
    "failed": "bad",
}


def _request(one: RequestView) -> RequestLine:
    effect = f"{one.request_id} ends as failed, code cancelled, and never reaches the agent."
    return RequestLine(
        request_id=one.request_id,
        kind=one.kind,
        prompt=str(one.payload.get("prompt") or "")[:_PROMPT_CHARS],
        state=one.state,
        tone=_TONES.get(one.state, "idle"),
        epoch=one.epoch,
        accepted_at=one.accepted_at,
        finished_at=one.finished_at,
        sender=f"{one.sender or ''}{', as claimed' if one.sender_claimed else ''}",
        error=": ".join(text for text in (one.error_code, one.error_detail) if text),
        cancel=Action(verb="cancel_request", subject=one.request_id, label="Cancel", effect=effect)
        if one.state == "accepted"
        else None,
    )
