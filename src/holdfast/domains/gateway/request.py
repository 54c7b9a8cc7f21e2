"""What may be asked of an agent.

Why a request is not accepted, why a decision does not count, and why a queue is not served.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Sighting
from holdfast.domains.gateway.records import Attachment, Server, admission_of
from holdfast.kernel.errors import (
    AgentGone,
    Blocked,
    Held,
    InvalidValue,
    NotFound,
    Refused,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import PROMPT_BYTES_MAX
from holdfast.kernel.text import hidden_in
from holdfast.primitives.queue import Draft
from holdfast.primitives.queue.queue import check_draft

Kind = Literal["submit_prompt", "interrupt"]

_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but tab and newline. An escape would end a bracketed paste, and the rest of
the prompt would be typed.
"""


def draft_of(
    kind: str,
    payload: Mapping[str, Any],
    check: Callable[[str], None],
    *,
    idempotency_key: str | None = None,
) -> Draft:
    """Make a draft of what a caller asks for. Raises InvalidValue and InvalidName before anything
    is stored.
    """
    if kind == "submit_prompt":
        prompt = _prompt_in(payload)
        check_prompt(prompt)
        check(prompt)
    elif kind == "interrupt":
        if payload:
            raise InvalidValue(
                f"an interrupt has no payload, not even {_named(payload)}: leave it empty",
                field="payload",
            )
    else:
        raise InvalidValue(
            f"{kind[:40]!a} is no kind of request: use submit_prompt or interrupt", field="kind"
        )
    draft = Draft(
        kind=kind,
        payload=dict(payload),
        idempotency_key=idempotency_key,
        express=kind == "interrupt",
    )
    check_draft(draft)
    return draft


def check_prompt(prompt: str) -> None:
    """Refuse a prompt that is empty, too long, hides text, or has control characters other than tab
    and newline.

    Raises InvalidValue. What hides text is said in `kernel.text`.
    """
    if not prompt.strip():
        raise InvalidValue("the prompt is empty: say what is to be done", field="prompt")
    if (found := _FORBIDDEN.search(prompt)) is not None:
        raise InvalidValue(
            f"the prompt has the control character {found[0]!a} at {found.start()}: only tab and "
            "newline can be delivered, as "
            "a terminal would obey the others",
            field="prompt",
            at=found.start(),
        )
    if (hidden := hidden_in(prompt)) is not None:
        at, character = hidden
        raise InvalidValue(
            f"the prompt hides text from people: its character {at + 1} is "
            f"U+{ord(character):04X}, which the agent reads and "
            "nobody at its terminal sees. Leave it and those behind it out",
            field="prompt",
            at=at,
        )
    size = len(prompt.encode())
    if size > PROMPT_BYTES_MAX:
        raise InvalidValue(
            f"the prompt has {size} bytes and may have {PROMPT_BYTES_MAX}: put the text into a "
            "file and name it",
            field="prompt",
            bytes=size,
        )


def _prompt_in(payload: Mapping[str, Any]) -> str:
    if set(payload) - {"prompt"}:
        raise InvalidValue(
            f"a prompt's payload has `prompt` alone, not {_named(payload)}", field="payload"
        )
    prompt = payload.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidValue('a prompt\'s payload is {"prompt": "..."}', field="prompt")
    return prompt


def _named(payload: Mapping[str, Any]) -> str:
    return ", ".join(ascii(name)[:40] for name in list(payload)[:4])


def check_admission(
    agent: str, attachment: Attachment, seen: Sighting, expected_epoch: int | None
) -> None:
    """Refuse a request that cannot be accepted now. Raises Blocked, UpstreamUnavailable, or Refused
    for another epoch.
    """
    admission = admission_of(attachment, seen)
    if admission == "blocked_reconciliation":
        raise Blocked(
            f"the agent behind {agent} was replaced: decide first what becomes of the requests "
            "that wait, with "
            f"`holdfast gateway reconcile {agent} replay|discard --epoch {attachment.epoch}`",
            request_admission=admission,
            epoch=attachment.epoch,
        )
    if admission == "blocked_unavailable":
        raise away(agent, seen, request_admission=admission)
    if expected_epoch is not None and expected_epoch != attachment.epoch:
        raise Refused(
            f"epoch {expected_epoch} was expected and it is {attachment.epoch}: the agent was "
            "replaced since; look at it first",
            request_admission=admission,
            epoch=attachment.epoch,
            expected_epoch=expected_epoch,
        )


def away(agent: str, seen: Sighting, **fields: str) -> UpstreamUnavailable:
    """The agent is not there: AgentGone where its place is, and its own process is not in it."""
    if seen.reason:
        return AgentGone(
            f"nothing is sent to {agent}: {seen.detail}",
            reason=seen.reason,
            outcome="none",
            **fields,
        )
    why = seen.detail or "it does not answer"
    return UpstreamUnavailable(
        f"the agent behind {agent} is not there ({why}): try again when it is back",
        outcome="none",
        **fields,
    )


def check_reconcilable(attachment: Attachment, epoch: int) -> None:
    """Refuse a decision about another epoch, or about nothing. Raises Refused."""
    if epoch != attachment.epoch:
        raise Refused(
            f"the decision is about epoch {epoch} and it is {attachment.epoch}: look at the "
            "status, and decide about that",
            epoch=attachment.epoch,
            expected_epoch=epoch,
        )
    if not attachment.reconciling:
        raise Refused(
            "there is nothing to reconcile: admission is not shut by a replaced agent",
            epoch=attachment.epoch,
        )


def among(chosen: Sequence[str], stale: Sequence[str]) -> list[str]:
    """Those of the stale requests that were chosen, in the order they came. Raises NotFound for any
    other.
    """
    for request_id in chosen:
        if request_id not in stale:
            raise NotFound(
                f"request {request_id[:60]} does not wait for a decision: those of earlier epochs "
                "that were not begun do",
                request_id=request_id[:128],
            )
    return [request_id for request_id in stale if request_id in set(chosen)]


def belonging(attachment: Attachment, agent: str, owner: str | None) -> Attachment:
    """The attachment as that of its owner, if that is known. Raises Held for a queue that is
    another's.
    """
    if attachment.owner is not None and owner not in (None, attachment.owner):
        raise Held(
            f"the queue under {agent} is that of the agent with the {attachment.owner}, and not "
            f"of the one with the {owner}: "
            "start the gateway again, and it gets one of its own",
            agent=agent,
            owner=attachment.owner,
        )
    return attachment if owner is None else replace(attachment, owner=owner)


def served_by(agent: str, server: Server) -> Held:
    """Another gateway serves the agent."""
    process = server.process
    return Held(
        f"a gateway of {agent} runs already, as pid {process.pid} on {process.host_id}: use it, "
        "or stop it with "
        f"`holdfast gateway detach {agent}`",
        agent=agent,
        pid=process.pid,
        host_id=process.host_id,
    )
