"""A request for locks, from the first call to its release."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from holdfast.app import Holdfast
from holdfast.kernel.errors import HoldfastError, LeaseLost
from holdfast.kernel.limits import MCP_UNTOLD_S
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.grant import lost
from holdfast.primitives.locks.waiting import Ahead as InLine
from holdfast.surfaces.mcp.answers import Ahead, Holding, Notice
from holdfast.surfaces.mcp.pursuit import Pursuit
from holdfast.surfaces.mcp.stopping import Call


class LockClaim:
    """A set of names that is waited for, or held. It waits in a thread of its own, and so keeps its place between calls."""

    def __init__(self, hf: Holdfast, handle: str, names: Sequence[str], by: str, mode: Mode, ttl_s: float | None) -> None:
        self._hf = hf
        self.handle = handle
        self.names = tuple(names)
        self.by = by
        self.mode = mode
        self._ttl_s = ttl_s
        self._ahead: Sequence[InLine] = ()
        self._pursuit: Pursuit[Grant | None] | None = None
        self._granted_s: float | None = None
        self.told = False
        """Does the agent know that it holds it?"""
        self._given_back = False
        self._mutex = threading.Lock()
        self._unwanted = False
        self._grant: Grant | None = None

    def begin(self, ended: Callable[[], object]) -> None:
        """Get in line."""

        def over() -> None:
            self._granted_s = time.monotonic()
            ended()

        self._pursuit = Pursuit(self._seek, ended=over)

    def wait(self, limit_s: float, call: Call) -> None:
        """Wait for the turn."""
        if self._pursuit is not None:
            self._pursuit.wait(limit_s, call)

    def grant(self) -> Grant | None:
        """What it holds; None while it waits. Raises what it was refused with, and LeaseLost when it is gone."""
        if self._pursuit is None or not self._pursuit.done:
            return None
        if self._pursuit.error is not None:
            raise self._pursuit.error
        found = self._pursuit.found
        if found is None or self._given_back or found.gone == "released":
            raise self._over()
        if found.gone == "lost":
            raise lost(found)
        return found

    def tell(self) -> bool:
        """The agent is about to know that it holds it; True for the first time. Raises LeaseLost when it was given back in the
        same moment."""
        with self._mutex:
            if self._given_back:
                raise self._over()
            first, self.told = not self.told, True
        return first

    def ahead(self) -> tuple[Ahead, ...]:
        """Who is before it, while it waits."""
        if self._pursuit is not None and self._pursuit.done:
            return ()
        return tuple(Ahead(by=one.by, what=", ".join(one.names), holds=one.holds) for one in self._ahead)

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        try:
            state = "waiting" if self.grant() is None else "held"
        except HoldfastError as error:
            state = error.code
        return Holding(handle=self.handle, what=f"{self.mode.value} lock on {', '.join(self.names)}", state=state)

    def notices(self) -> Iterator[Notice]:
        """Whether its turn has come, it was refused, or it was taken away."""
        try:
            grant = self.grant()
            if grant is None:
                return
            self._hf.locks.check(grant)
            first = self.tell()
        except LeaseLost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
            return
        except HoldfastError as error:
            if self._pursuit is None or error is not self._pursuit.error:
                raise
            yield Notice(kind="lock_refused", handle=self.handle, message=error.message)
            return
        if first:
            words = f"{', '.join(self.names)} is yours now (token {grant.token}): do what you wanted it for, then release it"
            yield Notice(kind="lock_granted", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """A grant that nobody came for is given back: others wait for it."""
        if self.told or self._granted_s is None or self._pursuit is None or self._pursuit.found is None:
            return None
        due_s = self._granted_s + MCP_UNTOLD_S
        if now_s < due_s:
            return due_s
        with self._mutex:
            if self.told:
                return None
            # Before it is: whoever was told of it from here on would work without it.
            self._given_back = True
        try:
            self._hf.locks.release(self._pursuit.found)
        except HoldfastError:
            return now_s + 1.0
        return None

    def let_go(self, within_s: float) -> bool:
        """Withdraw it, or release what it holds. Raises StoreUnavailable when that cannot be said to have been done."""
        if self._pursuit is None:
            return False
        with self._mutex:
            self._unwanted = True
            waited = self._grant is None
        self._pursuit.stop(within_s)
        return waited if self._grant is None else self._hf.locks.release(self._grant)

    def _seek(self, stop_fd: int) -> Grant | None:
        grant = self._hf.locks.try_acquire(
            self.names, by=self.by, mode=self.mode, timeout_s=None, ttl_s=self._ttl_s, on_wait=self._see, stop_fd=stop_fd
        )
        with self._mutex:
            if not self._unwanted:
                self._grant = grant
                return grant
        if grant is not None:
            # Its turn came as it was given up, and whoever gave it up may not have waited for that.
            self._hf.locks.abandon(grant)
        return None

    def _over(self) -> LeaseLost:
        why = f"given back after {MCP_UNTOLD_S:g} s, as nobody came for it" if self._given_back else "given up"
        return LeaseLost(f"{', '.join(self.names)} was {why}: `acquire` again if you still need it", names=list(self.names))

    def _see(self, ahead: Sequence[InLine]) -> None:
        self._ahead = list(ahead)
