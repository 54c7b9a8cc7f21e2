"""Asleep until the store changes: one thread listens, and every coroutine that waits is woken by
it.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Sequence

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Store

_AGAIN_S = 0.5


class Changes:
    """What has changed, as a number that only grows.

    Take `mark` before looking, and wait for it to be passed.
    """

    def __init__(self, store: Store, topics: Sequence[str]) -> None:
        self._store = store
        self._topics = list(topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self.mark = 0
        self.closed = False

    def start(self) -> None:
        """Begin to listen. Called on the loop that waits."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="holdfast-changes", daemon=True)
        self._thread.start()

    async def passed(self, mark: int, timeout_s: float) -> bool:
        """Sleep until something has changed since `mark` was taken.

        False when the time is up, or all is closed.
        """
        if self.mark > mark or self.closed:
            return not self.closed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return not self.closed

    def end_waits(self) -> None:
        """Let everybody go who waits, now and from now on. Called on the loop."""
        self.closed = True
        self._wake()

    def close(self) -> None:
        """Stop listening."""
        self.closed = True
        os.eventfd_write(self._bell, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._bell)

    def _listen(self) -> None:
        while not self.closed:
            try:
                with self._store.listen(self._topics) as ears:
                    while not self.closed:
                        ears.wait(None, also=[self._bell])
                        self._tell()
            except (HoldfastError, OSError):
                # The store is away. Whoever waits looks again, and learns of it there.
                self._tell()
                threading.Event().wait(_AGAIN_S)

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):
            # The loop may be closed by now: then nobody waits.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.mark += 1
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)
