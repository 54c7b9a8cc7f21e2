"""Locks on folders that other programs change too: an exclusive flock, held around each change.

A layout names its lock file. The lock is taken before the latch, so that waiting for another
program delays no change of other files. Several locks are taken in the order of their paths.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.gate import Gate, flock_holder
from holdfast.system.access import LACKING, Access, open_file

T = TypeVar("T")


class _Replaced(Exception):
    """The locked file is no longer at its path, where other programs look for it."""


class FolderLock(Gate):
    """The lock of one folder. A missing lock file is made; a missing folder is not."""

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        def checked() -> T:
            if not self._is_at_its_path():
                raise _Replaced
            return work()

        return super().run(checked, timeout_s, sleepy=sleepy)

    def _opened(self, path: Path, access: Access) -> int:
        """Raises FileNotFoundError for a missing folder, and StoreUnavailable for anything but a
        plain file.
        """
        try:
            # Reading is enough for a lock: another user's lock file may not be writable.
            return open_file(path, os.O_RDONLY, access)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(str(path)) from None
        except OSError as error:
            if error.errno in LACKING:
                raise opening_failed(path, error) from None
            raise _unusable(path, os.strerror(error.errno or 0)) from None
        except StoreUnavailable as error:
            raise _unusable(path, error.fields.get("why", "it is no plain file")) from None

    def _is_at_its_path(self) -> bool:
        try:
            at_path, locked = os.lstat(self.path), os.fstat(self._fd)
        except OSError:
            return False
        return (at_path.st_dev, at_path.st_ino) == (locked.st_dev, locked.st_ino)

    def _late(self, timeout_s: float) -> LockTimeout:
        holder = flock_holder(self.path)
        who = f"process {holder}" if holder else "another program"
        return LockTimeout(
            f"{self.path} was not free within {timeout_s:.3g} s: {who} holds it; nothing was "
            "changed. Try again; if that process is stopped, continue or end it",
            resource=str(self.path),
            holder_pid=holder,
            outcome="none",
        )


class FolderLocks:
    """The locks that one store has used."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[Path, FolderLock] = {}

    def run(self, paths: Sequence[Path], work: Callable[[], T], deadline: float) -> T:
        """Call `work` with all of these locks, which are given in their order.

        A folder that does not exist has no lock, and no program can hold it. Raises LockTimeout,
        which names the file and the process that holds it where the kernel shows that, and
        StoreUnavailable for a lock that is no plain file.
        """
        if not paths:
            return work()
        path, rest = paths[0], paths[1:]
        while True:
            lock = self._lock(path)
            if lock is None:
                return self.run(rest, work, deadline)
            try:
                return lock.run(
                    lambda: self.run(rest, work, deadline),
                    max(deadline - time.monotonic(), 0.0),
                    sleepy=True,
                )
            except _Replaced:
                self._known.pop(path, None)
                lock.close()

    def close(self) -> None:
        """Close every lock, each once no thread is inside."""
        while self._known:
            self._known.popitem()[1].close()

    def after_fork(self) -> None:
        """In a forked child: drop the parent's locks without unlocking them."""
        known, self._known = self._known, {}
        for lock in known.values():
            lock.abandon()

    def _lock(self, path: Path) -> FolderLock | None:
        known = self._known.get(path)
        if known is not None:
            return known
        try:
            mine = FolderLock(path, self._access)
        except FileNotFoundError:
            return None
        known = self._known.setdefault(path, mine)
        if known is not mine:
            # Another thread opened it first.
            mine.close()
        return known


def _unusable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot lock {path} ({why}), so that other programs could change its folder at the same "
        "time: make it a plain file that you may read, or remove it, and it is made again",
        path=str(path),
        outcome="none",
    )
