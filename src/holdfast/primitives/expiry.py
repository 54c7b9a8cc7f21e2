"""The end of what is held for a time, told by this process's own clock: a store that is away cannot
say that it is over.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.kernel import threads

_NO_MEMORY_S = 0.05


class Ending(Protocol):
    """Something that is over at a moment of the process's monotonic clock, which a renewal moves;
    `math.inf`: at none.
    """

    @property
    def ends_s(self) -> float:
        """The moment."""
        ...


class Endings:
    """A thread that tells of each thing that is held and over. It runs only while anything is that
    can be.
    """

    def __init__(
        self, held: Callable[[], Iterable[Ending]], over: Callable[[Ending], None]
    ) -> None:
        self._held = held
        self._over = over
        self.begin_process()

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child."""
        self._mutex = threading.Lock()
        self._bell = threading.Event()
        self._next_s = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, one: Ending) -> None:
        """See to it that this one's end is told. Costs nothing while another's comes first."""
        if one.ends_s >= self._next_s:
            return
        with self._mutex:
            self._next_s = one.ends_s
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-endings", daemon=True
                )
                try:
                    threads.start(self._thread)
                except BaseException:
                    # Let the next call start another thread. A second one beside it does no harm.
                    self._thread, self._next_s = None, math.inf
                    raise
        self._bell.set()

    def close(self) -> None:
        """End the thread: nothing is told any more."""
        self._closed = True
        self._bell.set()

    def _run(self) -> None:
        while not self._closed:
            try:
                if not self._tell_and_wait():
                    return
            except MemoryError:
                # Nobody else tells of an end.
                time.sleep(_NO_MEMORY_S)

    def _tell_and_wait(self) -> bool:
        """Tell of what is over, and wait for the next end; False when there is none."""
        self._bell.clear()
        now_s = time.monotonic()
        for one in [one for one in self._held() if one.ends_s <= now_s]:
            self._over(one)
        if (left_s := self._left_s(now_s)) is None:
            return False
        self._bell.wait(left_s)
        return True

    def _left_s(self, now_s: float) -> float | None:
        """Until the next end. None: there is none, and so this thread is over; what is watched then
        begins another.
        """
        with self._mutex:
            # Before the look: what is held too late to be seen by it is then told here by `watch`.
            self._next_s = math.inf
            self._next_s = min((one.ends_s for one in self._held()), default=math.inf)
            if self._next_s == math.inf:
                self._thread = None
                return None
            return max(self._next_s - now_s, 0)
