"""The swap lock: a real lock that dies with its process, and so tells a live swap from what a dead one left behind."""

from collections.abc import Callable
from typing import Protocol


class Contender(Protocol):
    """One who wants the swap lock, and maybe has it. Closing it lets go."""

    def try_take(self) -> bool:
        """Take the lock if nobody else has it; True also when it is ours already. Never waits for its holder.

        Raises StoreUnavailable when that cannot be known.
        """
        ...

    def has_it(self) -> bool:
        """Is the lock still ours? False as soon as what carried it is gone."""
        ...

    def watch(self, lost: Callable[[], None]) -> None:
        """Call back once, from another thread, when the lock that is ours is found to be gone. Until `close`; where it cannot
        be lost by a process that lives, never."""
        ...

    def close(self) -> None:
        """Let go of it. Calling it again is harmless."""
        ...


class SwapLock(Protocol):
    """The lock that a swap keeps from its beginning to its end.

    Promised by each: at most one contender has it; it ends with the process of whoever has it, however that ends; neither a
    forked child nor a program that was started meanwhile keeps it. Not promised: any order among those who want it.
    """

    def contender(self) -> Contender:
        """Get ready to ask for it. Raises StoreUnavailable."""
        ...

    def is_held(self) -> bool:
        """Has anybody got it at this moment? To be asked under the latch of the workflows, under which it is also taken: so a
        question and a taker never meet. Raises StoreUnavailable."""
        ...
