"""A lock among the threads of one process, for stores that live in its memory."""

import threading
from collections.abc import Callable


class ThreadLock:
    """A lock that ends with its process, since everything it protects does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def contender(self) -> "ThreadContender":
        """Get ready to ask for it."""
        return ThreadContender(self._lock)

    def is_held(self) -> bool:
        """Has anybody got it at this moment?"""
        return self._lock.locked()


class ThreadContender:
    """One who wants the lock, and maybe has it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._mine = False

    def try_take(self) -> bool:
        """Take it if nobody else has it."""
        self._mine = self._mine or self._lock.acquire(blocking=False)
        return self._mine

    def has_it(self) -> bool:
        """Is it ours?"""
        return self._mine

    def watch(self, lost: Callable[[], None]) -> None:
        """Nothing to watch: it is not lost as long as this process lives."""

    def close(self) -> None:
        """Let go of it."""
        if self._mine:
            self._mine = False
            self._lock.release()
