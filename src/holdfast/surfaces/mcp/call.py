"""One call of a tool: what ends its waits when the client cancels it, and what is undone then."""

import logging
import threading
from collections.abc import Callable

from holdfast.kernel.errors import HoldfastError
from holdfast.operations.operation import Stop


class Call:
    """One call of a tool.

    What a tool made in it is undone when the client cancelled the call before its answer was
    ready, and when the call ends in an error: the agent would not know of it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._cancelled = False
        self._undo: list[Callable[[], object]] = []
        self.stop = Stop()

    @property
    def cancelled(self) -> bool:
        """Will nobody read the answer?"""
        with self._mutex:
            return self._cancelled

    def cancel(self) -> None:
        """The client cancels it."""
        with self._mutex:
            self._cancelled = True
        self.stop.set()

    def undo_by(self, undo: Callable[[], object]) -> None:
        """Register what undoes something that was just made."""
        self._undo.append(undo)

    def settle(self, *, failed: bool) -> None:
        """End the call, in its own thread."""
        self.stop.close()
        with self._mutex:
            undone = self._undo if self._cancelled or failed else []
        for undo in reversed(undone):
            try:
                undo()
            except HoldfastError as error:
                # The claim keeps its handle, and the next answer reports it.
                logging.getLogger("holdfast.mcp").warning("not undone: %s", error.message)
