"""The answer to "why?", in one shape for all things: their state, since when, what it means, and
what can be done about it.

The words have no span of time: an instant is a fact of its own, so that a page can keep the span up
to date.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal, TypeVar

from holdfast.kernel.codec import Instant, Plain

L = TypeVar("L")
T = TypeVar("T")

Tone = Literal["good", "busy", "wait", "bad", "idle"]
"""How a thing is doing, for its colour: well, at work, waiting, in need of attention, or idle."""

Verb = Literal[
    "kick",
    "cancel_job",
    "requeue_job",
    "retry_job",
    "replay",
    "discard",
    "cancel_request",
    "answer",
]
"""What an operator may do. Nothing else has a button."""


class Fact(Plain, frozen=True, kw_only=True):
    """One thing that is known: in words, or an instant."""

    name: str
    text: str = ""
    at: Instant | None = None


class Action(Plain, frozen=True, kw_only=True):
    """What an operator may do now, to what, and what will happen then."""

    verb: Verb
    subject: str
    label: str
    effect: str
    epoch: int | None = None
    """For a gateway: the epoch that the decision is meant for."""
    by: str | None = None
    """For a resource: the one job to take it from. A job that came since keeps it."""
    token: int | None = None
    """For a job: the attempt to end. A later attempt goes on."""
    question_id: str | None = None
    """For an agent's question: the one to answer; `about` says what it asks."""
    about: str = ""
    reply: str | None = None
    """The answer; None for a text that the operator writes."""


class AskedQuestion(Plain, frozen=True, kw_only=True):
    """A question that waits for an operator."""

    question_id: str
    subject: str
    detail: str
    asked_at: Instant
    expires_at: Instant | None
    actions: tuple[Action, ...]
    """Without any it is answered in the agent's own terminal."""


class Why(Plain, frozen=True, kw_only=True):
    """Why a thing is as it is."""

    kind: str
    name: str
    title: str
    state: str
    tone: Tone
    words: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    advice: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    questions: tuple[AskedQuestion, ...] = ()


def matching(
    things: Iterable[T], line_of: Callable[[T], tuple[L, str]], words: str, limit: int
) -> list[tuple[T, L]]:
    """The first things in whose text the words occur, each with its line. `line_of` gives the line
    of a thing and the text that is searched.
    """
    shown = ((thing, *line_of(thing)) for thing in things)
    found = ((thing, line) for thing, line, text in shown if words.casefold() in text.casefold())
    return list(islice(found, limit))


def known(*facts: Fact) -> tuple[Fact, ...]:
    """Those that say something."""
    return tuple(fact for fact in facts if fact.text or fact.at is not None)
