"""Counted holds: what is answered of them."""

from holdfast.kernel.codec import Plain
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.claims import claimant, refuse_unseen


class HoldCount(Plain, frozen=True, kw_only=True):
    """How many hold a subject now."""

    subject: str
    by: str
    count: int


class HoldsSwept(Plain, frozen=True, kw_only=True):
    """How many holders were removed that are gone."""

    swept: int


def taken(
    hf: Holdfast, subject: str, *, by: str, ttl_s: float | None, pid: int | None
) -> HoldCount:
    """Hold a subject, for one whose own process is not there to hold it. Raises what `Holds.take`
    does.
    """
    refuse_unseen(hf, pid, ttl_s, "hold")
    count = hf.holds.take(subject, by=by, process=claimant(hf, pid, by), ttl_s=ttl_s)
    return HoldCount(subject=subject, by=by, count=count)


def dropped(hf: Holdfast, subject: str, *, by: str) -> HoldCount:
    """Let go of a subject. Raises NotFound when `by` does not hold it."""
    return HoldCount(subject=subject, by=by, count=hf.holds.drop(subject, by=by))
