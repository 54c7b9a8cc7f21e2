"""What a swap leaves when its process dies while it loads: the processes of its load, which are not work and may be ended."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domains.workflows.record import SwapMarker
from holdfast.kernel.holder import Survivor
from holdfast.kernel.limits import SWAP_LOAD_UNSEEN_S


class Remains(NamedTuple):
    """A swap whose process is dead or has lost the swap lock, and whose load has not ended as far as is known."""

    marker: SwapMarker
    survivors: Sequence[Survivor]
    """The processes that live, where they can be seen."""
    left_s: float | None
    """Where they cannot be seen: how long this process goes on to believe that they live."""


class UnseenLoads:
    """How long one process has seen that the swap lock is free while the load of that swap is out of its sight.

    The lock ends with the process that swaps, and then a guardian ends the load on the same machine. Nobody else can see that,
    so its time has to pass. Each process measures it by itself: clocks of two machines may differ by more.
    """

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def note(self, token: int) -> float:
        """Take note of such a swap; return how long its load is still believed to run."""
        self._since_s = {token: self._since_s.get(token, time.monotonic())}
        return self.left_s(token) or 0.0

    def left_s(self, token: int) -> float | None:
        """How long the load of a swap is still believed to run; None when it is no such swap."""
        since_s = self._since_s.get(token)
        return None if since_s is None else max(since_s + SWAP_LOAD_UNSEEN_S - time.monotonic(), 0.0)

    def forget(self) -> None:
        """The swap under way has its lock, or its load can be seen."""
        self._since_s = {}
