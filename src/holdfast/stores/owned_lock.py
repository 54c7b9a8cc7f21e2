"""A lock that can be asked whether this thread holds it.

Ctrl-C, or another signal's exception, may come between the moment a lock is acquired and the moment
the caller knows. The cleanup then has to ask the lock itself.
"""

import threading
from collections.abc import Callable
from typing import Protocol, cast


class OwnedLock(Protocol):
    """The standard library's RLock, with the method that `threading.Condition` uses too."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *_: object) -> None: ...

    def _is_owned(self) -> bool: ...


owned_lock = cast(Callable[[], OwnedLock], threading.RLock)
