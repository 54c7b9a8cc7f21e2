"""Ending a wait from another thread: a descriptor that becomes readable, and a call that the client
may take back.
"""

import logging
import os
import threading
from collections.abc import Callable

from holdfast.kernel.errors import HoldfastError


class Stop:
    """A descriptor that becomes readable when a wait is to end. Closed by the thread that waits,
    asked by any other.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ask(self) -> None:
        """End the wait; harmless when it is over."""
        with self._mutex:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Nobody waits with it any more."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                os.close(self.fd)


class Call:
    """One call of a tool.

    What a tool made in it is undone when the client took the call back before its answer was ready,
    and when the call ends in an error: nobody would know of it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._cancelled = False
        self._undo: list[Callable[[], object]] = []
        self._wakes: list[threading.Event] = []
        self.stop = Stop()

    @property
    def taken_back(self) -> bool:
        """Will nobody read the answer?"""
        with self._mutex:
            return self._cancelled

    def cancel(self) -> None:
        """The client takes it back."""
        with self._mutex:
            self._cancelled = True
            waiting = list(self._wakes)
        self.stop.ask()
        for woken in waiting:
            woken.set()

    def undo_by(self, act: Callable[[], object]) -> None:
        """What undoes something that was just made."""
        self._undo.append(act)

    def wakes(self, woken: threading.Event) -> None:
        """Set this when the call is taken back."""
        with self._mutex:
            self._wakes.append(woken)
            if self._cancelled:
                woken.set()

    def settle(self, *, failed: bool) -> None:
        """The end of the call, in its own thread."""
        self.stop.close()
        with self._mutex:
            undone = self._undo if self._cancelled or failed else []
        for act in reversed(undone):
            try:
                act()
            except HoldfastError as error:
                # It is still in hand then, and told of there.
                logging.getLogger("holdfast.mcp").warning("not undone: %s", error.message)
