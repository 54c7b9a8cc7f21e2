"""Which requests are valid and admitted, and the errors for the others."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Observation
from holdfast.domains.gateway.records import Attachment, Server, admission_of
from holdfast.domains.gateway.state import Question
from holdfast.kernel import errors
from holdfast.kernel.limits import PROMPT_BYTES_MAX, REPLY_BYTES_MAX
from holdfast.kernel.names import check_new_label
from holdfast.kernel.text import hidden_in
from holdfast.primitives.queue import Draft
from holdfast.primitives.queue.queue import check_draft

_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters other than tab and newline. ESC[201~ would end a bracketed paste, and the
terminal would take the rest of the prompt as keys.
"""


_NO_BRACKETS = str.maketrans("[]", "()")


class Submission(NamedTuple):
    """A draft, and the epoch that its sender expects, if it names one."""

    draft: Draft
    expected_epoch: int | None = None


def draft_of(
    kind: str,
    payload: Mapping[str, Any],
    check: Callable[[str], None],
    *,
    idempotency_key: str | None = None,
    sender: str | None = None,
    sender_claimed: bool = False,
    name_sender: bool = False,
) -> Draft:
    """The draft of a request; `check` is the adapter's own check of a prompt. With `name_sender`
    the agent gets the prompt behind the name of its sender. Raises InvalidValue and InvalidName
    before anything is stored.
    """
    if sender is not None:
        check_new_label(sender, "sender")
    if kind == "submit_prompt":
        if set(payload) - {"prompt"}:
            raise errors.InvalidValue(
                f"a prompt's payload has `prompt` alone, not {_names(payload)}", field="payload"
            )
        prompt = payload.get("prompt")
        if not isinstance(prompt, str):
            raise errors.InvalidValue('a prompt\'s payload is {"prompt": "..."}', field="prompt")
        check_prompt(prompt)
        if name_sender:
            prompt = named(prompt, sender, claimed=sender_claimed)
            check_prompt(prompt)
        check(prompt)
    elif kind == "interrupt":
        if payload:
            raise errors.InvalidValue(
                f"an interrupt has no payload, not even {_names(payload)}: leave it empty",
                field="payload",
            )
    else:
        raise errors.InvalidValue(
            f"{kind[:40]!a} is not a kind of request: use submit_prompt or interrupt", field="kind"
        )
    draft = Draft(
        kind=kind,
        payload=dict(payload),
        idempotency_key=idempotency_key,
        express=kind == "interrupt",
        sender=sender,
        sender_claimed=sender_claimed,
    )
    check_draft(draft)
    return draft


def named(prompt: str, sender: str | None, *, claimed: bool) -> str:
    """A prompt behind the name of its sender, if that is known: `[from boss] say hello`. Brackets
    in the name become parentheses, so that a name does not end before its end.
    """
    if sender is None:
        return prompt
    name = sender.translate(_NO_BRACKETS)
    return f"[from {name}{', as claimed' if claimed else ''}] {prompt}"


def _names(payload: Mapping[str, Any]) -> str:
    return ", ".join(ascii(name)[:40] for name in list(payload)[:4])


def check_prompt(prompt: str) -> None:
    """Raise InvalidValue for a prompt that is empty or too long, hides text (see `kernel.text`), or
    has control characters other than tab and newline.
    """
    check_text(prompt, "prompt", PROMPT_BYTES_MAX)


def check_text(text: str, field: str, bytes_max: int) -> None:
    """Raise InvalidValue for a text that an agent must not get, as `check_prompt` says."""
    if not text.strip():
        raise errors.InvalidValue(f"the {field} is empty: write what is to be done", field=field)
    if (found := _FORBIDDEN.search(text)) is not None:
        raise errors.InvalidValue(
            f"the {field} has the control character {found[0]!a} at {found.start()}: only tab and "
            "newline can be delivered, as a terminal would obey the others",
            field=field,
            at=found.start(),
        )
    if (hidden := hidden_in(text)) is not None:
        at, character = hidden
        raise errors.InvalidValue(
            f"the {field} hides text from people: its character {at + 1} is "
            f"U+{ord(character):04X}, which the agent reads and nobody at its terminal sees. "
            "Remove it and those behind it",
            field=field,
            at=at,
        )
    size = len(text.encode())
    if size > bytes_max:
        raise errors.InvalidValue(
            f"the {field} has {size} bytes and may have {bytes_max}: put the text into a file and "
            "name the file",
            field=field,
            bytes=size,
        )


def check_admission(
    agent: str, attachment: Attachment, seen: Observation, expected_epoch: int | None
) -> None:
    """Refuse a request that cannot be accepted now. Raises Blocked, UpstreamUnavailable, or Refused
    for another epoch.
    """
    admission = admission_of(attachment, seen)
    if admission == "blocked_reconciliation":
        raise errors.Blocked(
            f"the agent behind {agent} was replaced: decide first what becomes of the waiting "
            f"requests, with `holdfast gateway reconcile {agent} replay|discard --epoch "
            f"{attachment.epoch}`",
            request_admission=admission,
            epoch=attachment.epoch,
        )
    if admission == "blocked_unavailable":
        raise away(agent, seen, request_admission=admission)
    if expected_epoch is not None and expected_epoch != attachment.epoch:
        raise errors.Refused(
            f"epoch {expected_epoch} was expected and it is {attachment.epoch}: the agent was "
            "replaced since; look at it first",
            request_admission=admission,
            epoch=attachment.epoch,
            expected_epoch=expected_epoch,
        )


def away(agent: str, seen: Observation, **fields: str) -> errors.UpstreamUnavailable:
    """The error for an absent agent: AgentGone when its terminal is there without its process."""
    if seen.reason:
        return errors.AgentGone(
            f"nothing is sent to {agent}: {seen.detail}",
            reason=seen.reason,
            outcome="none",
            **fields,
        )
    why = seen.detail or "it does not answer"
    return errors.UpstreamUnavailable(
        f"the agent behind {agent} is not there ({why}): try again when it is back",
        outcome="none",
        **fields,
    )


def check_reconcilable(attachment: Attachment, epoch: int) -> None:
    """Refuse a decision about another epoch, or when there is nothing to decide. Raises Refused."""
    if epoch != attachment.epoch:
        raise errors.Refused(
            f"the decision is about epoch {epoch} and it is {attachment.epoch}: look at the "
            "status, and decide about that epoch",
            epoch=attachment.epoch,
            expected_epoch=epoch,
        )
    if not attachment.reconciling:
        raise errors.Refused(
            "there is nothing to reconcile: no replaced agent blocks admission",
            epoch=attachment.epoch,
        )


def find_question(questions: Sequence[Question], question_id: str, reply: str) -> Question:
    """The question of that id, if `reply` answers it. Raises NotFound and InvalidValue."""
    question = next((one for one in questions if one.question_id == question_id), None)
    if question is None:
        open_now = ", ".join(one.question_id for one in questions[:4]) or "none"
        raise errors.NotFound(
            f"the agent does not ask {question_id[:60]} now: it was answered, or the agent went on "
            f"without an answer. Open questions: {open_now}",
            question_id=question_id[:128],
        )
    names = [choice.name for choice in question.choices]
    if not names:
        raise errors.InvalidValue(
            "this question can only be answered in the agent's own terminal: `holdfast agents "
            "attach` opens it",
            field="reply",
        )
    if reply in names:
        return question
    if not question.free_text:
        raise errors.InvalidValue(
            f"{reply[:40]!a} is no answer to this question: use {' or '.join(names)}",
            field="reply",
        )
    check_text(reply, "reply", REPLY_BYTES_MAX)
    return question


def choose_stale(chosen: Sequence[str], stale: Sequence[str]) -> list[str]:
    """The chosen ones of the stale requests, in arrival order. Raises NotFound for a request that
    is not stale.
    """
    for request_id in chosen:
        if request_id not in stale:
            raise errors.NotFound(
                f"request {request_id[:60]} does not wait for a decision: only requests of earlier "
                "epochs that have not started do",
                request_id=request_id[:128],
            )
    return [request_id for request_id in stale if request_id in set(chosen)]


def with_owner(attachment: Attachment, agent: str, owner: str | None) -> Attachment:
    """The attachment with its owner, if that is known. Raises Held when the queue belongs to
    another agent.
    """
    if attachment.owner is not None and owner not in (None, attachment.owner):
        raise errors.Held(
            f"the queue under {agent} is that of the agent with the {attachment.owner}, and not "
            f"of the one with the {owner}: start the gateway again, and it gets its own queue",
            agent=agent,
            owner=attachment.owner,
        )
    return attachment if owner is None else replace(attachment, owner=owner)


def served_by(agent: str, server: Server) -> errors.Held:
    process = server.process
    return errors.Held(
        f"a gateway of {agent} runs already, as pid {process.pid} on {process.host_id}: use it, "
        f"or stop it with `holdfast gateway detach {agent}`",
        agent=agent,
        pid=process.pid,
        host_id=process.host_id,
    )


def check_serving(attachment: Attachment, agent: str, token: int) -> Attachment:
    """The attachment, if the gateway with this token still serves. Raises Fenced."""
    if attachment.server is None or attachment.server.token != token:
        raise errors.Fenced(
            f"another gateway serves {agent} now: this one must end", agent=agent, token=token
        )
    return attachment
