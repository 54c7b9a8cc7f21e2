"""A lock among the threads of one process, for stores that live in its memory."""

from collections.abc import Callable


class ThreadLock:
    """A lock that ends with its process, since everything it protects does."""

    def __init__(self) -> None:
        self._owner: dict[None, ThreadContender] = {}
        """The one who has it. Each change is a single step, so that no exception can come in between."""

    def contender(self) -> "ThreadContender":
        """Get ready to ask for it."""
        return ThreadContender(self._owner)

    def is_held(self) -> bool:
        """Has anybody got it at this moment?"""
        return bool(self._owner)


class ThreadContender:
    """One who wants the lock, and maybe has it."""

    def __init__(self, owner: "dict[None, ThreadContender]") -> None:
        self._owner = owner

    def try_take(self) -> bool:
        """Take it if nobody else has it."""
        return self._owner.setdefault(None, self) is self

    def has_it(self) -> bool:
        """Is it ours?"""
        return self._owner.get(None) is self

    def watch(self, lost: Callable[[], None]) -> None:
        """Nothing to watch: it is not lost as long as this process lives."""

    def close(self) -> None:
        """Let go of it; again is harmless."""
        if self.has_it():
            del self._owner[None]
