"""Questions for the page: what an agent asks, and the buttons that answer it."""

from collections.abc import Iterator

from holdfast.domains.gateway.state import ALLOW, DENY, Choice
from holdfast.operations.page.explanation import Action, AskedQuestion
from holdfast.operations.questions import OpenQuestion, list_
from holdfast.runtime.connection import Holdfast

_DETAIL_CHARS = 2000
_LABELS = {ALLOW.name: "Allow", DENY.name: "Deny"}


def questions_of(hf: Holdfast, *names: str) -> tuple[AskedQuestion, ...]:
    """The open questions of an agent by any of its names, the oldest first."""
    return tuple(asked(one) for one in list_(hf) if one.agent in names)


def question_of_job(hf: Holdfast, job_id: str) -> tuple[AskedQuestion, ...]:
    """The question of a job that waits for a permission."""
    return tuple(asked(one) for one in list_(hf) if one.job_id == job_id)


def asked(question: OpenQuestion) -> AskedQuestion:
    """A question with its buttons."""
    return AskedQuestion(
        question_id=question.question_id,
        subject=question.subject,
        detail="" if question.detail == question.subject else question.detail[:_DETAIL_CHARS],
        asked_at=question.asked_at,
        expires_at=question.expires_at,
        actions=tuple(_actions(question)),
    )


def _actions(question: OpenQuestion) -> Iterator[Action]:
    def answer(label: str, effect: str, reply: str | None) -> Action:
        return Action(
            verb="answer",
            subject=question.agent,
            label=label,
            effect=effect,
            question_id=question.question_id,
            about=question.subject,
            reply=reply,
        )

    for choice in question.choices:
        label = _LABELS.get(choice.name, choice.name)
        yield answer(label, _effect(question, choice), choice.name)
    if question.free_text and question.choices:
        effect = f"{question.agent} gets your text as the answer."
        if question.kind == "permission" and question.source == "gateway":
            effect = f"{question.agent} is refused, and gets your text as the reason."
        yield answer("Answer", effect, None)


def _effect(question: OpenQuestion, choice: Choice) -> str:
    if choice.name == ALLOW.name:
        return f"{question.agent} may do it, this once."
    if choice.name == DENY.name:
        return f"{question.agent} is refused, and goes on without it."
    more = f": {choice.label}" if choice.label else ""
    return f"{question.agent} gets “{choice.name}” as the answer{more}."
