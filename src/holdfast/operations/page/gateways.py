"""Gateways for the page: how each is doing, what waits in its queue, and why nothing moves."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.kernel.codec import Plain
from holdfast.kernel.text import counted
from holdfast.operations.page.explanation import Action, Fact, Tone, Why, known

Document = Mapping[str, Any]
_PROMPT_CHARS = 2000


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
    queue_depth: int
    epoch: int
    backend: str
    address: str
    running: bool
    reconcile: bool
    """An operator must decide."""


class RequestLine(Plain, frozen=True, kw_only=True):
    """One request in a gateway's queue."""

    request_id: str
    kind: str
    prompt: str
    state: str
    tone: Tone
    epoch: int
    accepted_at: str
    finished_at: str | None
    error: str
    cancel: Action | None


class GatewayDetails(Plain, frozen=True, kw_only=True):
    """A gateway and its newest requests."""

    why: Why
    requests: tuple[RequestLine, ...]


def gateway_line(
    agent: str, status: Document | None, *, silent: bool = False, name: str | None = None
) -> GatewayLine:
    """A gateway by the status it gave, or left; `silent` when it did not answer in time. `name` is
    the agent's, if it is kept under another word.
    """
    tone, state, why = _state(status, silent)
    found = status or {}
    host, port = found.get("gateway_host"), found.get("gateway_port")
    return GatewayLine(
        agent=agent,
        name=name or agent,
        tone=tone,
        state=state,
        why=why,
        queue_depth=int(found.get("queue_depth") or 0),
        epoch=int(found.get("managed_agent_instance_epoch") or 0),
        backend=str(found.get("backend") or ""),
        address=f"{host}:{port}" if host and port else "",
        running=found.get("active_execution") == "running",
        reconcile=found.get("request_admission") == "blocked_reconciliation",
    )


def gateway_details(
    line: GatewayLine, status: Document | None, requests: Sequence[Document]
) -> GatewayDetails:
    """A gateway, why it is as it is, and its requests, the newest first."""
    old = [
        one
        for one in requests
        if one.get("state") == "accepted" and int(one.get("epoch") or 0) < line.epoch
    ]
    detail = str((status or {}).get("detail") or "")
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
            Fact(name="waiting and running", text=str(line.queue_depth)),
            Fact(name="epoch", text=str(line.epoch) if line.epoch else ""),
            Fact(name="kept under", text=line.agent if line.agent != line.name else ""),
            Fact(name="instance", text=str((status or {}).get("managed_agent_instance_id") or "")),
            Fact(name="backend", text=line.backend),
            Fact(name="address", text=line.address),
        ),
        advice=_advice(line),
        actions=_actions(line, len(old)) if line.reconcile else (),
    )
    return GatewayDetails(why=why, requests=tuple(_request(one) for one in reversed(requests)))


def _state(status: Document | None, silent: bool) -> tuple[Tone, str, str]:
    if silent:
        return "bad", "does not answer", "the gateway's process is there but gave no answer in time"
    if status is None:
        return (
            "idle",
            "never served",
            "it has a folder, in which no gateway has written its status",
        )
    if status.get("gateway_health") != "healthy":
        depth = int(status.get("queue_depth") or 0)
        waits = (
            f"; {counted(depth, 'accepted request waits', 'accepted requests wait')} for the next "
            "one"
            if depth
            else ""
        )
        return ("bad" if depth else "idle"), "not attached", f"no gateway serves it now{waits}"
    if status.get("request_admission") == "blocked_reconciliation":
        return (
            "bad",
            "blocked: decide",
            "the agent was replaced, and requests for the earlier instance wait",
        )
    if status.get("request_admission") == "blocked_unavailable":
        return "bad", "blocked: no agent", "the agent is not there, so nothing is accepted"
    if status.get("active_execution") == "running":
        return "busy", "running", "the agent works on a request"
    return "good", "open", "it accepts requests, and nothing runs"


def _advice(line: GatewayLine) -> tuple[str, ...]:
    if line.reconcile:
        return (
            "read what waits below, then replay it to the new instance or discard it; nothing "
            "is replayed by itself",
        )
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


def _request(one: Document) -> RequestLine:
    state, request_id = str(one.get("state")), str(one.get("request_id"))
    effect = f"{request_id} ends as failed, code cancelled, and never reaches the agent."
    error = ": ".join(str(one[name]) for name in ("error_code", "error_detail") if one.get(name))
    return RequestLine(
        request_id=request_id,
        kind=str(one.get("kind")),
        prompt=str((one.get("payload") or {}).get("prompt") or "")[:_PROMPT_CHARS],
        state=state,
        tone=_TONES.get(state, "idle"),
        epoch=int(one.get("epoch") or 0),
        accepted_at=str(one.get("accepted_at")),
        finished_at=one.get("finished_at"),
        error=error,
        cancel=Action(verb="cancel_request", subject=request_id, label="Cancel", effect=effect)
        if state == "accepted"
        else None,
    )
