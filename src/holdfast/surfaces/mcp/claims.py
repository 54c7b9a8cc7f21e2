"""What this process has in hand for its agent: by handle, told of in every answer, and let go in
order at the end.
"""

import logging
import threading
import time
from collections.abc import Iterable
from itertools import count
from typing import Protocol, TypeVar

from holdfast.adapters.event_sender import BackgroundSender, EventSender
from holdfast.kernel.errors import Full, HoldfastError, NotFound, Unavailable
from holdfast.kernel.limits import MCP_CLOSE_S, MCP_HANDLES_MAX
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.answers import Holding, Notice
from holdfast.surfaces.mcp.heartbeat import Attendant
from holdfast.surfaces.mcp.identity import Identity


class Claim(Protocol):
    """One thing in hand."""

    @property
    def handle(self) -> str:
        """What the agent calls it by."""
        ...

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        ...

    def notices(self) -> Iterable[Notice]:
        """What the agent is to know of it, as of now."""
        ...

    def attend(self, now_s: float) -> float | None:
        """Do what is due in the background; when the next is due, on the process's clock. None:
        nothing.
        """
        ...

    def let_go(self, within_s: float) -> bool:
        """End it. True when that freed something."""
        ...


C = TypeVar("C")

_log = logging.getLogger("holdfast.mcp")


def unknown(error: HoldfastError) -> Notice:
    """What is told while the store does not answer."""
    words = f"it is not known whether you still have what you had: {error.message}"
    return Notice(kind="store_unavailable", handle="", message=words)


class Hand:
    """What this process has in hand. For several threads at once."""

    def __init__(self, hf: Holdfast, me: Identity) -> None:
        self.hf = hf
        self.me = me
        self._mutex = threading.Lock()
        self._claims: dict[str, Claim] = {}
        self._numbers = count(1)
        self._closed = False
        self._errand: BackgroundSender | None = None
        self.attendant = Attendant(self.claims)

    @property
    def errand(self) -> BackgroundSender:
        """What takes the events of jobs to their broker; begun with the first one."""
        with self._mutex:
            if self._errand is None:
                self._errand = BackgroundSender(EventSender(self.hf.job_events), complain=_log.info)
            return self._errand

    def new_handle(self, kind: str) -> str:
        """A handle that was not used before. Raises Full when there are too many already."""
        self.check_room()
        return f"{kind}:{next(self._numbers)}"

    def check_room(self) -> None:
        """Raises Full when there are too many handles already."""
        if len(self.claims()) >= MCP_HANDLES_MAX:
            raise Full(
                f"you have {MCP_HANDLES_MAX} handles, which is the most: release those that you "
                "do not need"
            )

    def add(self, claim: Claim) -> None:
        """Take something into hand. Raises Unavailable when the server is stopping."""
        with self._mutex:
            closed = self._closed
            if not closed:
                self._claims[claim.handle] = claim
        if closed:
            claim.let_go(MCP_CLOSE_S)
            raise Unavailable("the server is stopping: nothing was taken", outcome="none")
        self.attendant.wake()

    def claims(self) -> list[Claim]:
        """Everything, in the order in which it was taken."""
        with self._mutex:
            return list(self._claims.values())

    def any_of(self, handle: str) -> Claim:
        """What has this handle. Raises NotFound."""
        with self._mutex:
            claim = self._claims.get(handle)
        if claim is None:
            raise NotFound(
                f"you have no handle {handle!a}: `whoami` lists those you have", handle=handle
            )
        return claim

    def of(self, handle: str, kind: type[C]) -> C:
        """What has this handle, if it is of this kind. Raises NotFound."""
        claim = self.any_of(handle)
        if not isinstance(claim, kind):
            raise NotFound(
                f"{handle} is not for this, but for a {claim.holding().what}", handle=handle
            )
        return claim

    def drop(self, handle: str) -> None:
        """The agent knows that it is over."""
        with self._mutex:
            self._claims.pop(handle, None)

    def let_go(self, handle: str, within_s: float = MCP_CLOSE_S) -> bool:
        """End what has this handle, and forget it."""
        with self._mutex:
            claim = self._claims.get(handle)
        if claim is None:
            return False
        freed = claim.let_go(within_s)
        self.drop(handle)
        return freed

    def notices(self) -> tuple[Notice, ...]:
        """What is pending for the agent, as far as the store can say."""
        found: list[Notice] = []
        try:
            for claim in self.claims():
                found += claim.notices()
        except Unavailable as error:
            # The others are not asked about: each would wait for the store as long again.
            found.append(unknown(error))
        return tuple(found)

    def close(self) -> None:
        """Let everything go, the last first. What cannot be let go in time ends with the
        process.
        """
        with self._mutex:
            self._closed = True
        self.attendant.close()
        end_s = time.monotonic() + MCP_CLOSE_S
        for claim in reversed(self.claims()):
            try:
                self.let_go(claim.handle, max(end_s - time.monotonic(), 0.05))
            except HoldfastError:
                # The death of this process does it.
                self.drop(claim.handle)
        if self._errand is not None:
            self._errand.close(max(end_s - time.monotonic(), 0.05))
