"""What one agent holds through this process: by handle, renewed, reported in every answer."""

import logging
import threading
import time
from collections.abc import Iterable
from itertools import count
from typing import Literal, Protocol, TypeVar

from holdfast.adapters.event_sender import BackgroundSender, EventSender
from holdfast.kernel.codec import Plain, encodable
from holdfast.kernel.errors import Full, HoldfastError, NotFound, Refused, Unavailable
from holdfast.kernel.limits import MCP_CLOSE_S, MCP_HANDLES_MAX
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.identity import Claimant

_log = logging.getLogger("holdfast.mcp")
C = TypeVar("C")

NoticeKind = Literal[
    "lease_lost",
    "lock_granted",
    "lock_refused",
    "job_cancelled",
    "job_timed_out",
    "job_lost",
    "job_answered",
    "preemption_asked",
    "swap_ready",
    "swap_not_needed",
    "swap_refused",
    "store_unavailable",
]


HANDLES = {
    "lock": "acquire",
    "job": "create_job or claim_job",
    "request": "send_request",
    "agent": "find_agents",
    "recipe": "use_recipe",
    "swap": "yield_or_swap",
}
"""The kinds of handles, and the tools that return them."""


class Notice(Plain, frozen=True, kw_only=True):
    """Something that happened to a claim, repeated until the agent acts on its handle."""

    kind: NoticeKind
    handle: str
    message: str


class Holding(Plain, frozen=True, kw_only=True):
    """One thing that the agent has, or waits for."""

    handle: str
    what: str
    state: str


class SessionClaim(Protocol):
    """What a handle stands for."""

    @property
    def handle(self) -> str: ...

    def holding(self) -> Holding:
        """What it is, and its state."""

    def notices(self) -> Iterable[Notice]:
        """The notices that the agent must get now."""

    def renew(self, now_s: float) -> float | None:
        """Do what is due in the background; return when the next is due on the process's clock."""

    def release(self, within_s: float) -> bool:
        """End it. True when that freed something."""


def no_handle(handle: str) -> NotFound:
    """The error for a handle by which the agent holds nothing."""
    return NotFound(
        f"you hold nothing by {handle[:200]!a}: `whoami` lists what you hold, `status` shows any "
        "job, request or agent by its handle",
        handle=handle,
    )


def unknown(error: HoldfastError) -> Notice:
    """The notice for a store that does not answer."""
    words = f"it is not known whether you still have what you had: {error.message}"
    return Notice(kind="store_unavailable", handle="", message=encodable(words))


class Session:
    """The claims of one agent. Thread-safe."""

    def __init__(self, hf: Holdfast, me: Claimant, may: Iterable[str] = ()) -> None:
        self.hf = hf
        self.me = me
        self.may = frozenset(may)
        """What the operator allows the agent beside its own work."""
        self._mutex = threading.Lock()
        self._claims: dict[str, SessionClaim] = {}
        self._numbers = count(1)
        self._closed = False
        self._sender: BackgroundSender | None = None
        self._woken = threading.Event()
        threading.Thread(target=self._renew, name="holdfast-renewal", daemon=True).start()

    def job_changed(self, job_id: str) -> None:
        """Send the job's events in the background, and write the audit log before the answer."""
        with self._mutex:
            if self._sender is None:
                self._sender = BackgroundSender(EventSender(self.hf.job_events), complain=_log.info)
        self._sender.wake(job_id)
        self.hf.catch_up(wait=True)

    def new_handle(self, kind: str) -> str:
        """A handle that was not used before. Raises Full when there are too many already."""
        self.check_room()
        return f"{kind}:{next(self._numbers)}"

    def check_may(self, what: str, words: str) -> None:
        """Raises Refused for what the operator does not allow the agent."""
        if what not in self.may:
            raise Refused(
                f"you may not {words}: ask a person, who may allow it by `holdfast mcp --allow "
                f"{what}`",
                may=sorted(self.may),
            )

    def check_room(self) -> None:
        """Raises Full when there are too many handles already."""
        if len(self.claims()) >= MCP_HANDLES_MAX:
            raise Full(
                f"you have {MCP_HANDLES_MAX} handles, which is the most: release those that you "
                "do not need"
            )

    def add(self, claim: SessionClaim) -> None:
        """Add a claim. Raises Unavailable when the server is stopping; the claim is released."""
        with self._mutex:
            closed = self._closed
            if not closed:
                self._claims[claim.handle] = claim
        if closed:
            claim.release(MCP_CLOSE_S)
            raise Unavailable("the server is stopping: nothing was claimed", outcome="none")
        self.wake()

    def claims(self) -> list[SessionClaim]:
        """Everything, in the order in which it was claimed."""
        with self._mutex:
            return list(self._claims.values())

    def find(self, handle: str) -> SessionClaim | None:
        """The claim with this handle."""
        with self._mutex:
            return self._claims.get(handle)

    def claim(self, handle: str, kind: type[C]) -> C:
        """The claim with this handle, if it is of this kind. Raises NotFound."""
        claim = self.find(handle)
        if claim is None:
            raise no_handle(handle)
        if not isinstance(claim, kind):
            raise NotFound(
                f"{handle} is not for this, but for a {claim.holding().what}", handle=handle
            )
        return claim

    def drop(self, handle: str) -> None:
        """Forget a claim that is over, and that the agent knows to be over."""
        with self._mutex:
            self._claims.pop(handle, None)

    def release(self, handle: str, within_s: float = MCP_CLOSE_S) -> bool:
        """End a claim and forget it. True when that freed something."""
        claim = self.find(handle)
        if claim is None:
            return False
        freed = claim.release(within_s)
        self.drop(handle)
        return freed

    def notices(self) -> tuple[Notice, ...]:
        """What is pending for the agent, as far as the store can say."""
        found: list[Notice] = []
        try:
            for claim in self.claims():
                found += claim.notices()
        except Unavailable as error:
            # The other claims are skipped: each would wait for the store as long again.
            found.append(unknown(error))
        return tuple(found)

    def wake(self) -> None:
        """Wake the renewal: there is something new to renew."""
        self._woken.set()

    def close(self) -> None:
        """Release everything, the last first. What takes too long ends with the process."""
        with self._mutex:
            self._closed = True
        self.wake()
        end_s = time.monotonic() + MCP_CLOSE_S
        for claim in reversed(self.claims()):
            try:
                self.release(claim.handle, max(end_s - time.monotonic(), 0.05))
            except HoldfastError:
                # The death of this process does it.
                self.drop(claim.handle)
        if self._sender is not None:
            self._sender.close(max(end_s - time.monotonic(), 0.05))

    def _renew(self) -> None:
        """Renew claims while the model thinks; sleep until something is due."""
        while not self._closed:
            self._woken.clear()
            due = [self._renewed(claim) for claim in self.claims()]
            next_s = min((at_s for at_s in due if at_s is not None), default=None)
            self._woken.wait(None if next_s is None else max(next_s - time.monotonic(), 0.0))

    def _renewed(self, claim: SessionClaim) -> float | None:
        try:
            return claim.renew(time.monotonic())
        except Exception:  # noqa: BLE001 - a fault in one must not end the renewal of others
            _log.exception("%s was not renewed", claim.handle)
            return time.monotonic() + 1.0
