"""Counted holds: how many use a subject, without those that died."""

from typing import Annotated

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import NotFound
from holdfast.operations.claims import CLAIM_ENDS, ClaimPid, claimant
from holdfast.operations.fields import By, Resource, Ttl
from holdfast.operations.operation import Flag, Positional, Request, operation
from holdfast.primitives.holds import Hold
from holdfast.runtime.connection import Holdfast


class HoldSubject(Request, frozen=True, kw_only=True):
    """A subject."""

    subject: Annotated[Resource, Positional()]


class DropHold(HoldSubject, frozen=True, kw_only=True):
    """A subject to release."""

    by: Annotated[By, Flag("--by", metavar="JOB", help="Who holds it.")]


class TakeHold(DropHold, frozen=True, kw_only=True):
    """A subject to hold; `ttl_s` or `pid` says what ends the hold."""

    one_of = CLAIM_ENDS
    ttl_s: Annotated[
        Ttl | None, Flag("--ttl", help="It ends after this long, unless taken again.")
    ] = None
    pid: ClaimPid = None


class HoldCount(Plain, frozen=True, kw_only=True):
    """How many hold a subject now."""

    subject: str
    by: str
    count: int


class HoldsSwept(Plain, frozen=True, kw_only=True):
    """How many dead holders were removed."""

    swept: int


@operation("GET /v1/holds", cli="holds list")
def list_(hf: Holdfast) -> dict[str, int]:
    """Every subject that is held, and how many hold it."""
    return hf.holds.subjects()


@operation("GET /v1/holds/{subject}", cli="holds list")
def holders(hf: Holdfast, request: HoldSubject) -> tuple[Hold, ...]:
    """The holders of a subject, in the order they came."""
    return hf.holds.holders(request.subject)


@operation("POST /v1/holds/{subject}/take", cli="holds take", errors=(NotFound,))
def take(hf: Holdfast, request: TakeHold) -> HoldCount:
    """Hold a subject, and return how many do now. Taking it again is one hold."""
    process = claimant(hf, request.pid, request.by)
    count = hf.holds.take(
        request.subject, by=request.by, process=process, ttl_s=request.ttl_s, detached=True
    )
    return HoldCount(subject=request.subject, by=request.by, count=count)


@operation("POST /v1/holds/{subject}/drop", cli="holds drop", errors=(NotFound,))
def drop(hf: Holdfast, request: DropHold) -> HoldCount:
    """Release a subject, and return how many hold it still."""
    count = hf.holds.drop(request.subject, by=request.by)
    return HoldCount(subject=request.subject, by=request.by, count=count)


@operation("POST /v1/upkeep/holds/sweep", cli="holds sweep")
def sweep(hf: Holdfast) -> HoldsSwept:
    """Remove every holder that is gone. The next change of the same subject does it too."""
    return HoldsSwept(swept=hf.holds.sweep())


OPERATIONS = [list_, holders, take, drop, sweep]
