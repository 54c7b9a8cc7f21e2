"""What an agent waits for: told to it once its turn has come, or given back, and never both."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.kernel.errors import HoldfastError, LeaseLost, StoreUnavailable
from holdfast.kernel.limits import MCP_UNTOLD_S
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.pursuit import Pursuit

T = TypeVar("T")


class Turn(Generic[T]):
    """A turn that is waited for in a thread of its own, and so keeps its place between the agent's
    calls.

    `seek` is given the descriptor that ends its wait, and returns None when that ended it.
    `abandon` gets what was found as it was given up. `over` makes the error that says so.
    """

    def __init__(
        self,
        seek: Callable[[int], T | None],
        *,
        abandon: Callable[[T], object],
        over: Callable[[], LeaseLost],
    ) -> None:
        self._seek = seek
        self._abandon = abandon
        self._over = over
        self._pursuit: Pursuit[T] | None = None
        self._mutex = threading.Lock()
        self._came_s = 0.0
        self._unwanted = False
        self._waited = False
        self._told = False
        self.kept: T | None = None
        """What was found, from the moment on at which giving up has to give it back."""
        self.withheld = False
        """Was it given back since nobody came for it?"""

    def begin(self, ended: Callable[[], object]) -> None:
        """Begin to wait; `ended` is called when that is over."""
        self._pursuit = Pursuit(self._found, ended=ended)

    def wait(self, limit_s: float, call: Call) -> None:
        """Wait for its end."""
        if self._pursuit is not None:
            self._pursuit.wait(limit_s, call)

    @property
    def waits(self) -> bool:
        """Has it not come yet?"""
        return self._pursuit is None or not self._pursuit.done

    @property
    def refusal(self) -> HoldfastError | None:
        """What it was refused with."""
        return None if self._pursuit is None else self._pursuit.error

    def found(self) -> T | None:
        """What it brought; None while it is waited for. Raises what it was refused with, and
        LeaseLost when it was withheld.
        """
        if self.waits:
            return None
        if self.refusal is not None:
            raise self.refusal
        if self.withheld:
            raise self._over()
        return self.kept

    @property
    def told(self) -> bool:
        """Does the agent know of it?"""
        return self._told

    def tell(self) -> bool:
        """The agent is about to know of it; True for the first time. Raises LeaseLost when it was
        withheld in the same moment.
        """
        with self._mutex:
            if self.withheld:
                raise self._over()
            first, self._told = not self._told, True
        return first

    def untold_until_s(self) -> float | None:
        """When it has been there for long enough without the agent being told, on the process's
        clock; None when there is nothing to tell, or the agent knows.
        """
        return (
            None if self.waits or self.kept is None or self._told else self._came_s + MCP_UNTOLD_S
        )

    def withhold(self) -> bool:
        """Nobody came for it: from here on nobody is told of it, and the caller gives it back.
        False when somebody was told.
        """
        with self._mutex:
            # Before it is given back: whoever was told of it from here on would work without it.
            self.withheld = not self._told
            return self.withheld

    def give_up(self, within_s: float) -> bool:
        """Wait for it no longer; True when nothing was decided yet. What it found before is the
        caller's to give back.

        Raises StoreUnavailable when that is not over in time: what is asked for again meanwhile
        would be taken for the same, and be given up with it.
        """
        if self._pursuit is None:
            return False
        with self._mutex:
            if not self._unwanted:
                self._unwanted, self._waited = True, self.waits and self.kept is None
        if not self._pursuit.stop(within_s):
            raise StoreUnavailable(
                "it could not be given up yet, since the store does not answer: release it again",
                outcome="unknown",
            )
        return self._waited

    def _found(self, stop_fd: int) -> T:
        found = self._seek(stop_fd)
        with self._mutex:
            if found is not None and not self._unwanted:
                self._came_s = time.monotonic()
                self.kept = found
                return found
        if found is not None:
            # It came as it was given up, and whoever gave it up may not have waited for that.
            self._abandon(found)
        raise self._over()
