"""Threads and locks in calls that Ctrl-C, or another signal's exception, may end at any moment."""

import sys
from collections.abc import Callable
from threading import RLock, Thread
from typing import Protocol, cast


def start(thread: Thread) -> None:
    """Start a thread. An exception of a signal handler comes through; the thread may run anyway."""
    # `Thread.start` waits on a Condition. A signal just after the Condition has released its lock
    # makes Python release it again, and that RuntimeError hides the KeyboardInterrupt.
    outer = sys.exception()
    try:
        thread.start()
    except RuntimeError as error:
        if error.__context__ is not None and error.__context__ is not outer:
            raise error.__context__ from None
        raise


class OwnedLock(Protocol):
    """The standard library's RLock, with the method that `threading.Condition` uses too.

    An exception may come between the moment a lock is acquired and the moment the caller knows.
    Then the cleanup has to ask the lock whether this thread holds it.
    """

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *_: object) -> None: ...

    def _is_owned(self) -> bool: ...


owned_lock = cast(Callable[[], OwnedLock], RLock)
