"""An outage of the store, for a program that waits until it is over."""

import time
from collections.abc import Callable

from holdfast.kernel.errors import Unavailable

_PAUSE_S = 0.5


class Outage:
    """Says once that the store is away, and once that it is back. `pause` sleeps for some seconds:
    a store that was away notifies nobody when it is back.
    """

    def __init__(
        self, say: Callable[[str], object], pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._say = say
        self._pause = pause
        self._reported = False

    def wait(self, error: Unavailable, left_s: float | None = None) -> None:
        """Pause before the next try, no longer than is left."""
        if not self._reported:
            self._say(f"{error.message}. This waits, and goes on when the store is back")
        self._reported = True
        self._pause(_PAUSE_S if left_s is None else max(0.0, min(_PAUSE_S, left_s)))

    def over(self) -> None:
        """The store answers."""
        if self._reported:
            self._say("the store is back")
        self._reported = False
