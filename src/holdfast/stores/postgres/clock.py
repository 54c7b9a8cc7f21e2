"""The database's clock, known without asking each time."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

TRUSTED_S = 60.0
"""How long the last answer is used. Clocks drift apart by some milliseconds in that time."""


class ServerClock:
    """What the server's clock said last, and when. Safe for threads and after fork.

    Time passes on CLOCK_BOOTTIME, which nobody sets and which goes on while the machine sleeps.
    """

    def __init__(self) -> None:
        self._seen: tuple[datetime, float] | None = None

    def saw(self, at: datetime, asked_s: float) -> datetime:
        """Note the server's time as soon as its answer came, and when it was asked for
        (`passing_s`); return that time.

        The server's clock said so at some moment between the two. If the known time agrees with
        that, it is better and stays: a process that was stopped before it read the answer would set
        its clock back, and shorten its leases by as much.
        """
        came = passing_s()
        counted = at if self._seen is None else _counted(self._seen, came)
        agrees = at <= counted <= at + timedelta(seconds=came - asked_s)
        self._seen = (counted if agrees else at), came
        return at

    def now(self, ask: Callable[[], datetime]) -> datetime:
        """The server's time: behind it by at most what the quickest of the last answers took, and
        the drift since then.
        """
        seen, now_s = self._seen, passing_s()
        if seen is not None and now_s - seen[1] <= TRUSTED_S:
            return _counted(seen, now_s)
        return self.saw(ask(), now_s)


def passing_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _counted(seen: tuple[datetime, float], now_s: float) -> datetime:
    at, came = seen
    return at + timedelta(seconds=now_s - came)
