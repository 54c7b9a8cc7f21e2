"""`acquire`, `wait` and `release`."""

from typing import Annotated

from msgspec import Meta

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.limits import LABEL_CHARS_MAX, LOCK_NAMES_MAX, LOCK_TTL_MAX_S
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.request import check_names
from holdfast.surfaces.mcp.answers import Ahead, LockAnswer, Released, Waited
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand
from holdfast.surfaces.mcp.lock_claim import LockClaim
from holdfast.surfaces.mcp.recipe_claims import SwapClaim
from holdfast.surfaces.mcp.tool import Handle, Tool, WaitS
from holdfast.surfaces.mcp.tools.recipes import NOT_NEEDED, ready

Name = Annotated[str, Meta(min_length=1, max_length=LABEL_CHARS_MAX)]


class AcquireArguments(Plain, frozen=True, kw_only=True):
    """What to hold."""

    names: Annotated[
        tuple[Name, ...],
        Meta(
            min_length=1,
            max_length=LOCK_NAMES_MAX,
            description="Everything you need at the same time, in any order.",
        ),
    ]
    shared: Annotated[
        bool, Meta(description="Share it with others that share it, instead of having it alone.")
    ] = False
    ttl_s: (
        Annotated[
            float,
            Meta(gt=0, le=LOCK_TTL_MAX_S, description="It ends after this long, whatever you do."),
        ]
        | None
    ) = None
    wait_s: WaitS = 0


class WaitArguments(Plain, frozen=True, kw_only=True):
    """What is waited for."""

    handle: Handle
    wait_s: WaitS = 25


class ReleaseArguments(Plain, frozen=True, kw_only=True):
    """What to let go."""

    handle: Handle


def acquire(hand: Hand, asked: AcquireArguments, call: Call) -> LockAnswer:
    """Get in line for a set of names, and wait for it a while."""
    names = check_names(asked.names)
    mode = Mode.SHARED if asked.shared else Mode.EXCLUSIVE
    claim = LockClaim(hand.hf, hand.new_handle("lock"), names, hand.me.by, mode, asked.ttl_s)
    claim.begin(hand.attendant.wake)
    hand.add(claim)
    call.undo_by(lambda: hand.let_go(claim.handle))
    # What is free is granted in a moment; without one, every answer would be to wait.
    claim.wait(max(asked.wait_s, _MOMENT_S), call)
    return _told(hand, claim, call)


def wait(hand: Hand, asked: WaitArguments, call: Call) -> Waited:
    """Go on waiting for locks or a swap."""
    claim = hand.any_of(asked.handle)
    if not isinstance(claim, LockClaim | SwapClaim):
        raise InvalidValue(
            f"{asked.handle} is yours already: there is nothing to wait for", field="handle"
        )
    claim.wait(asked.wait_s, call)
    if isinstance(claim, LockClaim):
        told = _told(hand, claim, call)
        return Waited(
            handle=told.handle,
            state=told.state,
            token=told.token,
            position=told.position,
            ahead=told.ahead,
            next=told.next,
        )
    swap = ready(hand, claim, call)
    if swap is None:
        return Waited(handle=claim.handle, state="waiting", ahead=claim.ahead(), next=_GO_ON)
    if not swap.needed:
        return Waited(handle=claim.handle, state="loaded", next=NOT_NEEDED)
    words = f"load {claim.recipe}, then yield_or_swap with action loaded or failed"
    return Waited(handle=claim.handle, state="ready", token=swap.token, next=words)


def release(hand: Hand, asked: ReleaseArguments, call: Call) -> Released:
    """Let go of whatever has this handle."""
    released = hand.let_go(hand.any_of(asked.handle).handle)
    words = (
        ""
        if released
        else "it was not yours any more, or is still held by another grant of yours: see pending "
        "and whoami"
    )
    return Released(handle=asked.handle, released=released, next=words)


def _told(hand: Hand, claim: LockClaim, call: Call) -> LockAnswer:
    """How a request stands, for the agent to know. Raises what it was refused with; its handle is
    over then.
    """
    try:
        grant = claim.grant()
        if grant is not None:
            hand.hf.locks.check(grant)
            if not call.taken_back:
                claim.tell()
    except Unavailable:
        raise
    except HoldfastError:
        hand.drop(claim.handle)
        raise
    if grant is None:
        why = claim.obstruction()
        return LockAnswer(
            handle=claim.handle,
            state="waiting",
            names=claim.names,
            mode=claim.mode,
            position=None if why is None else why.position,
            ahead=() if why is None else _ahead(why),
            next=_GO_ON,
        )
    return LockAnswer(
        handle=claim.handle,
        state="held",
        names=claim.names,
        mode=claim.mode,
        token=grant.token,
        tokens=dict(grant.tokens),
        reentered=grant.reentered,
        next="you held all of it already"
        if grant.reentered
        else "do your work, then release with this handle",
    )


def _ahead(why: Obstruction) -> tuple[Ahead, ...]:
    """Who is before the agent: the holders, then the first in line."""
    holders = [
        Ahead(by=one.by, what=one.resource, holds=True, since=one.since) for one in why.holders
    ]
    waiters = [
        Ahead(by=one.by, what=", ".join(one.names), holds=False, since=one.since)
        for one in why.ahead
    ]
    return (*holders, *waiters)


_MOMENT_S = 0.25
_GO_ON = "your place in line is kept: call wait with this handle to go on, or release to give it up"

LOCK_TOOLS = (
    Tool(
        "acquire",
        "Locks resources by name so that nobody else uses them: all names at once, or none. Ask "
        "for everything you need in "
        "one call. state held: go ahead. state waiting: your place in line is kept, call wait "
        "with the handle. Release when "
        "done; if you end or are killed, the next in line gets them.",
        AcquireArguments,
        LockAnswer,
        acquire,
    ),
    Tool(
        "wait",
        "Goes on waiting for a lock or a swap by its handle, without losing its place. state held "
        "or ready: it is your turn. "
        "state waiting: call again.",
        WaitArguments,
        Waited,
        wait,
        again_is_harmless=True,
    ),
    Tool(
        "release",
        "Lets go of whatever has this handle: a lock you hold or wait for, a job (which goes back "
        "to its queue), work with a "
        "recipe, or a swap. Also call it to clear a handle that pending says is lost.",
        ReleaseArguments,
        Released,
        release,
        again_is_harmless=True,
    ),
)
