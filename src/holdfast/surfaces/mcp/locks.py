"""Locks: a request from the first call to its release."""

from collections.abc import Iterator

from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.limits import MCP_UNCLAIMED_S
from holdfast.operations import locks
from holdfast.operations.locks import Acquire
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.grant import lost
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.request import check_names
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Notice, Session
from holdfast.surfaces.mcp.offer import GO_ON, AheadView, Offer
from holdfast.surfaces.mcp.tool import ToolResult, WaitS, tool

_MOMENT_S = 0.25
"""What is free is granted within a moment; without one, every first answer would be `waiting`."""


class LockClaim(Offer[Grant]):
    """A set of names that is waited for, or held."""

    ready = "held"
    refused = "lock_refused"

    def __init__(self, hf: Holdfast, handle: str, request: Acquire) -> None:
        super().__init__(handle)
        self._hf = hf
        self._request = request
        self.names = check_names(request.names)
        self.mode = request.mode
        self.what = f"{self.mode.value} lock on {', '.join(self.names)}"
        self._queued = False

    def result(self) -> Grant | None:
        """The grant; None while it waits. Raises what it was refused with, and LeaseLost."""
        found = super().result()
        if found is not None and found.gone == "released":
            raise self.over()
        if found is not None and found.gone == "lost":
            raise lost(found)
        return found

    def verify(self, found: Grant) -> None:
        self._hf.locks.check(found)

    def give_back(self, found: Grant) -> bool:
        return self._hf.locks.release(found)

    def granted(self, found: Grant, *, first: bool) -> Iterator[Notice]:
        if first:
            words = (
                f"{', '.join(self.names)} is yours now (token {found.token}): do what you wanted "
                "it for, then release it"
            )
            yield Notice(kind="lock_granted", handle=self.handle, message=words)

    def seek(self, stop_fd: int) -> Grant | None:
        return self._hf.locks.try_acquire(
            self.names,
            by=self._request.by,
            mode=self.mode,
            timeout_s=None,
            ttl_s=self._request.ttl_s,
            on_wait=self._queue,
            stop_fd=stop_fd,
        )

    def over(self) -> LeaseLost:
        why = f"given back after {MCP_UNCLAIMED_S:g} s, as you did not come for it"
        return LeaseLost(
            f"{', '.join(self.names)} was {why if self.withdrawn else 'given up'}: `acquire` again "
            "if you still need it",
            names=list(self.names),
        )

    def abandon(self, found: Grant) -> None:
        """Release it without waiting for the store."""
        self._hf.locks.abandon(found)

    def state(self, grant: Grant | None) -> ToolResult:
        """How it stands. `position` is 1 for the next; `ahead` has holders, then waiters."""
        why = None
        if grant is None and self._queued:
            why = self._hf.locks.obstruction(self.names, by=self._request.by, mode=self.mode)
        words = GO_ON if grant is None else "do your work, then release with this handle"
        return {
            "handle": self.handle,
            "state": "waiting" if grant is None else "held",
            "names": self.names,
            "mode": self.mode,
            "token": None if grant is None else grant.token,
            "tokens": {} if grant is None else dict(grant.tokens),
            "reentered": grant is not None and grant.reentered,
            "position": None if why is None else why.position,
            "ahead": [] if why is None else _ahead(why),
            "next": "you held all of it already" if grant and grant.reentered else words,
        }

    def _queue(self, _: object) -> None:
        self._queued = True


def _ahead(why: Obstruction) -> list[AheadView]:
    holders = [(one.by, one.resource, True, one.since) for one in why.holders]
    waiters = [(one.by, ", ".join(one.names), False, one.since) for one in why.ahead]
    return [
        AheadView(by=by, what=what, holds=holds, since=since)
        for by, what, holds, since in (*holders, *waiters)
    ]


@tool(locks.acquire)
def acquire(session: Session, call: Call, request: Acquire, *, wait_s: WaitS = 0) -> ToolResult:
    """Lock resources by name so that nobody else uses them: all names or none, so ask for all in
    one call. state held: go ahead. state waiting: your place in the queue is kept, call wait with
    the handle. Release it when done; if you end or are killed, the next waiter gets it."""
    claim = LockClaim(session.hf, session.new_handle("lock"), request)
    return claim.state(claim.start(session, call, max(wait_s, _MOMENT_S)))
