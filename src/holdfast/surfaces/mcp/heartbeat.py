"""The thread that gives signs of life while the model thinks. It sleeps until something is due."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol


class Attended(Protocol):
    """Something that needs looking after."""

    def attend(self, now_s: float) -> float | None:
        """Do what is due; when the next is due, or None."""
        ...


class Attendant:
    """Looks after what there is, in a thread of its own."""

    def __init__(self, attended: Callable[[], Sequence[Attended]]) -> None:
        self._attended = attended
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-attendant", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something new to look after."""
        self._woken.set()

    def close(self) -> None:
        """Look after nothing any more."""
        self._closed = True
        self._woken.set()

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = [self._look_after(one) for one in self._attended()]
            next_s = min((at_s for at_s in due if at_s is not None), default=None)
            self._woken.wait(None if next_s is None else max(next_s - time.monotonic(), 0.0))

    def _look_after(self, one: Attended) -> float | None:
        try:
            return one.attend(time.monotonic())
        except Exception:
            # Of a fault in one, the others must not die.
            logging.getLogger("holdfast.mcp").exception("not looked after")
            return time.monotonic() + 1.0
