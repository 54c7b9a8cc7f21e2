"""The end of what is held for a time, by this process's own clock: a store that is away cannot say
that it is over.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.kernel import threads

_NO_MEMORY_S = 0.05


class Expiring(Protocol):
    """Something that ends at a moment of the monotonic clock, which a renewal moves; `math.inf`:
    never.
    """

    @property
    def ends_s(self) -> float: ...


class ExpiryTimer:
    """A thread that calls `expire` for each held thing at its end. It runs only while one has an
    end.
    """

    def __init__(
        self, held: Callable[[], Iterable[Expiring]], expire: Callable[[Expiring], None]
    ) -> None:
        self._held = held
        self._expire = expire
        self.begin_process()

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child."""
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._next_s = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, one: Expiring) -> None:
        """Expire this one at its end. Costs nothing while another ends first."""
        if one.ends_s >= self._next_s:
            return
        with self._mutex:
            self._next_s = one.ends_s
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-expiry", daemon=True
                )
                try:
                    threads.start(self._thread)
                except BaseException:
                    # Let the next call start another thread. A second one beside it does no harm.
                    self._thread, self._next_s = None, math.inf
                    raise
        self._wake.set()

    def close(self) -> None:
        """End the thread: nothing expires any more."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._wake.clear()
                now_s = time.monotonic()
                for one in [one for one in self._held() if one.ends_s <= now_s]:
                    self._expire(one)
                with self._mutex:
                    # Before the look: a thing that comes too late for it is noted by `watch`.
                    self._next_s = math.inf
                    self._next_s = min((one.ends_s for one in self._held()), default=math.inf)
                    if self._next_s == math.inf:
                        # The next call of `watch` starts another thread.
                        self._thread = None
                        return
                    left_s = max(self._next_s - now_s, 0)
                self._wake.wait(left_s)
            except MemoryError:
                # No other thread does this.
                time.sleep(_NO_MEMORY_S)
