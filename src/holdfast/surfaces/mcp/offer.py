"""Waits that go on between calls, and what they bring: delivered to the agent or given back."""

import logging
import select
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import HoldfastError, LeaseLost, StoreUnavailable, Unavailable
from holdfast.kernel.limits import MCP_UNCLAIMED_S
from holdfast.operations.operation import Stop, unexpected
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Holding, Notice, NoticeKind, Session

T = TypeVar("T")
GO_ON = "your place in the queue is kept: call wait with this handle to go on, or release it"


def bug(error: Exception) -> HoldfastError:
    """The error for what nobody expected; the log says where it was."""
    logging.getLogger("holdfast.mcp").error("bug", exc_info=error)
    return unexpected(error)


class AheadView(Plain, frozen=True, kw_only=True):
    """Who is before the agent. `since` is when it acquired, or joined the queue."""

    by: str
    what: str
    holds: bool
    since: Instant


class BackgroundWait(Generic[T]):
    """A wait in a thread of its own, which goes on while no call waits for it.

    `seek` gets the descriptor that ends its wait.
    """

    def __init__(self, seek: Callable[[int], T | None]) -> None:
        self._seek = seek
        self._stop = Stop()
        self._ended = Stop()
        self._thread: threading.Thread | None = None
        self.done = False
        self.found: T | None = None
        self.error: HoldfastError | None = None

    def begin(self, ended: Callable[[], object] = lambda: None) -> None:
        """Begin to wait; `ended` is called when that is over."""
        self._thread = threading.Thread(
            target=self._run, args=(ended,), name="holdfast-wait", daemon=True
        )
        self._thread.start()

    def wait(self, limit_s: float, call: Call) -> bool:
        """Wait until it is over, the time has passed or the call is cancelled; True: it is over."""
        if not self.done:
            ends = select.poll()
            for stop in (self._ended, call.stop):
                ends.register(stop.fd, select.POLLIN)
            ends.poll(limit_s * 1000)
        return self.done

    def _run(self, ended: Callable[[], object]) -> None:
        try:
            self.found = self._seek(self._stop.fd)
        except HoldfastError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - the agent gets it with the next answer
            self.error = bug(error)
        self._stop.close()
        self.done = True
        self._ended.set()
        ended()


class Offer(BackgroundWait[T]):
    """A claim that the agent waits for: delivered to it, or given back, never both."""

    what: str
    ready: str
    """Its state when the wait has brought it."""
    refused: NoticeKind

    def __init__(self, handle: str) -> None:
        super().__init__(self._sought)
        self.handle = handle
        self._state = threading.Lock()
        self._came_s = 0.0
        self._unwanted = False
        self._waited = False
        self.delivered = False
        """Does the agent know of it?"""
        self.withdrawn = False
        """Was it given back because the agent did not come for it?"""

    @abstractmethod
    def seek(self, stop_fd: int) -> T | None:
        """Wait for it; None when the descriptor ended that."""

    @abstractmethod
    def verify(self, found: T) -> None:
        """Raises LeaseLost when it was taken away since, StoreUnavailable."""

    @abstractmethod
    def give_back(self, found: T) -> bool:
        """Release it. True when that freed something."""

    @abstractmethod
    def over(self) -> LeaseLost:
        """The error for one that was given up."""

    @abstractmethod
    def granted(self, found: T, *, first: bool) -> Iterator[Notice]:
        """What the agent must know of it; `first` when it did not know of it yet."""

    def abandon(self, found: T) -> None:
        """Give back what came while the claim was given up."""
        self.give_back(found)

    def result(self) -> T | None:
        """What it brought; None while it waits.

        Raises what it was refused with, and LeaseLost when it was withdrawn.
        """
        if not self.done:
            return None
        if self.error is not None:
            raise self.error
        if self.withdrawn:
            raise self.over()
        return self.found

    def deliver(self) -> bool:
        """Note that the agent is about to know of it; True for the first time.

        Raises LeaseLost when it was withdrawn in the same moment.
        """
        with self._state:
            if self.withdrawn:
                raise self.over()
            first, self.delivered = not self.delivered, True
        return first

    def start(self, session: Session, call: Call, wait_s: float) -> T | None:
        """Begin, and return what it brought within the time; see `answer`."""
        self.begin(session.wake)
        session.add(self)
        call.undo_by(lambda: session.release(self.handle))
        self.wait(wait_s, call)
        return self.answer(session, call)

    def answer(self, session: Session, call: Call) -> T | None:
        """What it brought, for the agent to know; None while it waits.

        Raises what it was refused with, and LeaseLost; its handle is over then.
        """
        try:
            found = self.result()
            if found is not None:
                self.verify(found)
                if not call.cancelled:
                    self.deliver()
        except HoldfastError as error:
            if not isinstance(error, Unavailable) or error is self.error:
                session.drop(self.handle)
            raise
        return found

    def holding(self) -> Holding:
        try:
            state = "waiting" if self.result() is None else self.ready
        except HoldfastError as error:
            state = error.code
        return Holding(handle=self.handle, what=self.what, state=state)

    def notices(self) -> Iterator[Notice]:
        try:
            found = self.result()
            if found is None:
                return
            self.verify(found)
            first = self.deliver()
        except LeaseLost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
        except HoldfastError as error:
            if error is not self.error:
                raise
            yield Notice(kind=self.refused, handle=self.handle, message=error.message)
        else:
            yield from self.granted(found, first=first)

    def renew(self, now_s: float) -> float | None:
        # Others wait for what the agent does not come for.
        if not self.done or self.found is None or self.delivered:
            return None
        if now_s < (due_s := self._came_s + MCP_UNCLAIMED_S):
            return due_s
        with self._state:
            # Before it is given back: an agent that heard of it later would work without it.
            self.withdrawn = not self.delivered
        if self.withdrawn:
            try:
                self.give_back(self.found)
            except HoldfastError:
                return now_s + 1.0
        return None

    def release(self, within_s: float) -> bool:
        """Stop waiting, and give back what was found. True when that freed something.

        Raises StoreUnavailable when that is not over in time: a new request for the same would
        re-enter this one, and be given up with it.
        """
        if self._thread is None:
            return False
        with self._state:
            if not self._unwanted:
                self._unwanted, self._waited = True, not self.done and self.found is None
        self._stop.set()
        self._thread.join(within_s)
        if not self.done:
            raise StoreUnavailable(
                "it could not be given up yet, since the store does not answer: release it again",
                outcome="unknown",
            )
        return self._waited if self.found is None else self.give_back(self.found)

    def _sought(self, stop_fd: int) -> T:
        found = self.seek(stop_fd)
        with self._state:
            if found is not None and not self._unwanted:
                self._came_s = time.monotonic()
                # From here on `release` has to give it back, even before the thread ends.
                self.found = found
                return found
        if found is not None:
            # It came while it was given up, and `release` may not have waited for it.
            self.abandon(found)
        raise self.over()
