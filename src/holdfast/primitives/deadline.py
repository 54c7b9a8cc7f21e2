"""How long a caller waits, over all the transactions that its call takes."""

import select
import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.kernel.errors import LockTimeout
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S

T = TypeVar("T")

_MOMENT_S = 1.0

_FIRST_S = 2.0
"""How long the first try for a turn takes before the caller is told why it waits."""


class Deadline:
    """A time limit, or none."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end_s = (
            None if timeout_s is None or timeout_s == float("inf") else time.monotonic() + timeout_s
        )

    def left_s(self) -> float | None:
        """What is left of it; None when there is no limit."""
        return None if self._end_s is None else max(self._end_s - time.monotonic(), 0.0)

    def for_a_turn_s(self) -> float:
        """How long the store may take for one change. A moment even where nothing is left: that is
        for waiting in line, and not for the store's own work.
        """
        left_s = self.left_s()
        return (
            TRANSACT_TIMEOUT_S
            if left_s is None
            else min(max(left_s, _MOMENT_S), TRANSACT_TIMEOUT_S)
        )

    def end(self) -> None:
        """Let it be over now."""
        self._end_s = time.monotonic()

    def passed(self) -> bool:
        """Is it over?"""
        return self._end_s is not None and time.monotonic() >= self._end_s

    def insist(self, act: Callable[[float], T], *, stop_fd: int | None = None) -> T:
        """Do one change or look, which gets the seconds it may take; again while another writer
        keeps it from its turn and there is time left. The first refusal is logged, since nothing
        else shows this wait.

        Raises the last LockTimeout when the time is over, or `stop_fd` has become readable. Trying
        again is safe, as a LockTimeout says that nothing was changed.
        """
        limit_s = min(self.for_a_turn_s(), _FIRST_S)
        longest_s = TRANSACT_TIMEOUT_S if stop_fd is None else _FIRST_S
        told = False
        while True:
            try:
                return act(limit_s)
            except LockTimeout as error:
                if stop_fd is not None and select.select([stop_fd], [], [], 0)[0]:
                    self.end()
                if self.passed() or error.fields.get("outcome") != "none":
                    raise
                if not told:
                    # Loaded here: most commands warn of nothing and must start fast.
                    import logging

                    logging.getLogger("holdfast.locks").warning("still waiting: %s", error.message)
                    told = True
            left_s = self.left_s()
            limit_s = longest_s if left_s is None else min(left_s, longest_s)


def earliest(*limits_s: float | None) -> float | None:
    """The shortest of several time limits, of which any may be none."""
    return min((limit for limit in limits_s if limit is not None), default=None)
