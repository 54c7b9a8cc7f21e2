"""A lock that can be asked whether this thread has it.

An exception may come between the moment that a lock is taken and the moment that the caller knows
it: Ctrl-C, a timer's signal. Whoever cleans up then has to ask the lock itself.
"""

import threading
from typing import Protocol, cast


class OwnedLock(Protocol):
    """The standard library's RLock, with the one method of it that `threading.Condition` uses
    too.
    """

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it. False when it was not free in time."""
        ...

    def release(self) -> None:
        """Let it go. Raises RuntimeError when this thread does not have it."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *_: object) -> None: ...

    def _is_owned(self) -> bool: ...


def owned_lock() -> OwnedLock:
    """A new one, which is free."""
    return cast(OwnedLock, threading.RLock())
