"""The locks of folders that other programs change too: an exclusive flock, held around each change
of ours.

A layout names its lock file. The lock is taken before the latch, so that whoever waits for another
program keeps nobody from changing other files. A change of several folders takes their locks in the
order of their paths.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.space import Space
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.redo import laid_out
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.gate import Gate, flock_holder
from holdfast.system.access import LACKING, Access, open_file

T = TypeVar("T")

_FLAGS = os.O_RDONLY
"""To lock a file it is enough to read it: another user's lock file may be closed to writing."""


class Replaced(Exception):
    """The lock was taken on a file that is at its path no more, where nobody else will find it.
    Never leaves this module.
    """

    def __init__(self, lock: "FolderLock") -> None:
        super().__init__(str(lock.path))
        self.lock = lock


class FolderLock(Gate):
    """The lock of one folder. Its file is made when it is not there; the folder is not."""

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        def checked() -> T:
            if not self._is_at_its_path():
                raise Replaced(self)
            return work()

        return super().run(checked, timeout_s, sleepy=sleepy)

    def _opened(self, path: Path, access: Access) -> int:
        """Raises FileNotFoundError when there is no folder, and StoreUnavailable for what is no
        plain file.
        """
        try:
            fd = open_file(path, _FLAGS, access)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(str(path)) from None
        except OSError as error:
            if error.errno in LACKING:
                raise opening_failed(path, error) from None
            raise _unusable(path, os.strerror(error.errno or 0)) from None
        except StoreUnavailable as error:
            raise _unusable(path, error.fields.get("why", "it is no plain file")) from None
        return fd

    def _is_at_its_path(self) -> bool:
        try:
            there, here = os.lstat(self.path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _late(self, timeout_s: float) -> LockTimeout:
        holder = flock_holder(self.path)
        who = f"process {holder}" if holder else "another program"
        return LockTimeout(
            f"{self.path} was not free within {timeout_s:.3g} s: {who} holds it; nothing was "
            "changed. Try again; "
            "if that process is stopped, continue or end it",
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
        """Do the work while no other program has any of these locks, which are given in their
        order.

        A folder that is not there has no lock yet, and nobody who could hold it. Raises
        LockTimeout, naming the file and the process that has it where the kernel tells that, or
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
            except Replaced as replaced:
                self._known.pop(path, None)
                replaced.lock.close()

    def close(self) -> None:
        """Let go of all of them, once nobody is inside."""
        while self._known:
            self._known.popitem()[1].close()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's locks, which this does not unlock."""
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
            # Another thread was quicker.
            mine.close()
        return known


def locks_of(folders: Folders, spaces: Iterable[Space[Any]]) -> tuple[Path, ...]:
    """The lock files of these spaces' folders, in their order."""
    layouts = [layout for space in spaces if (layout := laid_out(space)) is not None]
    return tuple(
        sorted(
            {
                folders.of(layout.folder) / layout.lock
                for layout in layouts
                if layout.lock is not None
            }
        )
    )


def _unusable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot lock {path} ({why}), so no change is safe from other programs: make it a plain "
        "file that you may read, or "
        "remove it, and it is made anew",
        path=str(path),
        outcome="none",
    )
