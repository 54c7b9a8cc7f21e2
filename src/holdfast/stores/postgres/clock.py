"""The database's clock, known without asking each time."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

TRUSTED_S = 60.0
"""How long the last answer is counted on from. Clocks drift apart by some milliseconds in that time."""


class ServerClock:
    """What the server's clock said last, and when. Safe for threads and after fork.

    Time passes on CLOCK_BOOTTIME, which nobody sets and which goes on while the machine sleeps.
    """

    def __init__(self) -> None:
        self._seen: tuple[datetime, float] | None = None

    def saw(self, at: datetime) -> datetime:
        """Take down what an answer said, the moment it came; return it."""
        self._seen = at, time.clock_gettime(time.CLOCK_BOOTTIME)
        return at

    def now(self, ask: Callable[[], datetime]) -> datetime:
        """The server's clock: behind it by at most what the last answer took to come, and the drift since then."""
        seen = self._seen
        if seen is not None:
            at, came = seen
            passed = time.clock_gettime(time.CLOCK_BOOTTIME) - came
            if passed <= TRUSTED_S:
                return at + timedelta(seconds=passed)
        return self.saw(ask())
