"""Counted holds over HTTP."""

from holdfast.kernel.codec import Plain
from holdfast.primitives.holds import Hold
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import holds as answers
from holdfast.surfaces.http.server.fields import By, Pid, Resource, Ttl
from holdfast.surfaces.http.server.operation import operation


class TakeHold(Plain, frozen=True, kw_only=True):
    """A subject to hold; `ttl_s` or `pid` says what ends that."""

    subject: Resource
    by: By
    ttl_s: Ttl | None = None
    pid: Pid | None = None


class DropHold(Plain, frozen=True, kw_only=True):
    """A subject to let go of."""

    subject: Resource
    by: By


class OfSubject(Plain, frozen=True, kw_only=True):
    """A subject."""

    subject: Resource


@operation("GET", "/v1/holds")
def list_(hf: Holdfast) -> dict[str, int]:
    """Every subject that is held, and how many hold it."""
    return hf.holds.subjects()


@operation("GET", "/v1/holds/{subject}")
def holders(hf: Holdfast, asked: OfSubject) -> tuple[Hold, ...]:
    """Who holds a subject, in the order they came."""
    return hf.holds.holders(asked.subject)


@operation("POST", "/v1/holds/{subject}/take", problems=(404,))
def take(hf: Holdfast, asked: TakeHold) -> answers.HoldCount:
    """Hold a subject, and answer with how many do now. Taking it again is one hold."""
    return answers.taken(hf, asked.subject, by=asked.by, ttl_s=asked.ttl_s, pid=asked.pid)


@operation("POST", "/v1/holds/{subject}/drop", problems=(404,))
def drop(hf: Holdfast, asked: DropHold) -> answers.HoldCount:
    """Let go of a subject, and answer with how many hold it still."""
    return answers.dropped(hf, asked.subject, by=asked.by)


@operation("POST", "/v1/upkeep/holds/sweep")
def sweep(hf: Holdfast) -> answers.HoldsSwept:
    """Remove every holder that is gone."""
    return answers.HoldsSwept(swept=hf.holds.sweep())


OPERATIONS = [list_, holders, take, drop, sweep]
