"""The time limit of a call, over all the transactions that it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.kernel.errors import LockTimeout
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.primitives.log import warn

T = TypeVar("T")

_LEAST_S = 1.0
"""A transaction gets at least this long: the caller's limit is for waiting, not for the store."""
_FIRST_S = 2.0
"""How long the first attempt takes before the log says why the caller waits."""


class Deadline:
    """A time limit, or none."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        unlimited = timeout_s is None or timeout_s == float("inf")
        self._end_s = None if unlimited else time.monotonic() + (timeout_s or 0.0)

    def left_s(self) -> float | None:
        """The seconds left; None without a limit."""
        return None if self._end_s is None else max(self._end_s - time.monotonic(), 0.0)

    def transaction_s(self) -> float:
        """The time limit of one transaction."""
        if self._end_s is None:
            return TRANSACT_TIMEOUT_S
        return min(max(self._end_s - time.monotonic(), _LEAST_S), TRANSACT_TIMEOUT_S)

    def end(self) -> None:
        self._end_s = time.monotonic()

    def passed(self) -> bool:
        """True when no time is left."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    def retry(self, act: Callable[[float], T], *, stop_fd: int | None = None) -> T:
        """Call `act` with its time limit, and repeat it while another writer blocks it and time is
        left. Raises the last LockTimeout when the time is over or `stop_fd` is readable.
        """
        limit_s = min(self.transaction_s(), _FIRST_S)
        longest_s = TRANSACT_TIMEOUT_S if stop_fd is None else _FIRST_S
        logged = False
        while True:
            try:
                return act(limit_s)
            except LockTimeout as error:
                if stop_fd is not None and _readable(stop_fd):
                    self.end()
                if self.passed() or error.fields.get("outcome") != "none":
                    raise
                if not logged:
                    # The caller is not in a queue yet, so no command shows this wait.
                    warn("still waiting: %s", error.message)
                    logged = True
            left_s = self.left_s()
            limit_s = longest_s if left_s is None else min(left_s, longest_s)


def earliest(*limits_s: float | None) -> float | None:
    """The shortest of several time limits; None when there is none."""
    return min([limit for limit in limits_s if limit is not None], default=None)


def _readable(fd: int) -> bool:
    # Loaded here: a short command rarely waits.
    import select

    return bool(select.select([fd], [], [], 0)[0])
