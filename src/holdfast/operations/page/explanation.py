"""The answer to "why?": what is so, since when, what it means, and what can be done about it. The
same shape for everything.

No span of time is in the words: an instant is a fact of its own, so that a page can let it
tick.
"""

from typing import Literal

from holdfast.kernel.codec import Instant, Plain

Tone = Literal["good", "busy", "wait", "bad", "idle"]
"""How a thing is doing, for the eye: as it should, at work, waiting, in need of somebody, or
nothing going on.
"""

Verb = Literal[
    "kick", "cancel_job", "requeue_job", "retry_job", "replay", "discard", "cancel_request"
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
    """Of a gateway: the epoch that the decision is meant for."""
    by: str | None = None
    """Of a resource: the one job that it is to be taken from, so that none suffers that has come
    since.
    """
    token: int | None = None
    """Of a job: the attempt that is to end, so that the next one does not."""


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


def known(*facts: Fact) -> tuple[Fact, ...]:
    """Those that say something."""
    return tuple(fact for fact in facts if fact.text or fact.at is not None)
