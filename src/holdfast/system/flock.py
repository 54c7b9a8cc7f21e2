"""Locks that end with their process: flock(2) on a file, which the kernel releases however the
process ends; and who holds a lock of the kernel on a file.

The descriptor of a flock is closed in a forked child and at exec, so that no child process keeps
the lock.
"""

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from types import TracebackType

from holdfast.kernel import threads
from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.system.access import PRIVATE, Access, open_file, unusable


class FlockLock:
    """A lock on a file, which is made when first needed and never removed: a held lock whose file
    is removed by hand becomes two locks.
    """

    def __init__(self, path: Path, access: Access = PRIVATE) -> None:
        self._path = path
        self._access = access

    def contender(self) -> "FlockContender":
        """A new contender. Raises StoreUnavailable when the file cannot be opened."""
        return FlockContender(self._path, self._access)

    def is_held(self) -> bool:
        """Whether any contender has it, found by taking it for an instant. Raises
        StoreUnavailable.
        """
        if not os.path.lexists(self._path):
            return False
        with contextlib.closing(FlockContender(self._path, self._access)) as probe:
            return not probe.try_take()


class FlockContender:
    """One caller that wants the lock, and maybe has it. Each opens the file itself, so that threads
    exclude each other too.
    """

    def __init__(self, path: Path, access: Access = PRIVATE) -> None:
        self._fd = -1
        self._mine = False
        self._pid = os.getpid()
        self._path = path
        self._access = access
        self._fd = self._opened()
        _open_ones.add(self)

    def try_take(self) -> bool:
        """Take it if it is free. Raises StoreUnavailable."""
        return self._mine or self._take(LOCK_EX | LOCK_NB)

    def wait(self) -> None:
        """Take it, however long that takes. Raises StoreUnavailable."""
        self._take(LOCK_EX)

    def _take(self, operation: int) -> bool:
        while True:
            try:
                flock(self._fd, operation)
            except BlockingIOError:
                return False
            except (OSError, ValueError) as error:
                raise self._unusable(error) from None
            if self._is_at_its_path():
                self._mine = True
                return True
            # The file was replaced: we have locked a file that nobody else will open.
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._fd = self._opened()

    def has_it(self) -> bool:
        """Whether it is ours: not in a forked child, and not if the file was replaced by hand."""
        return self._mine and self._fd >= 0 and self._is_at_its_path()

    def fileno(self) -> int:
        """The descriptor of the file, for reading and writing it."""
        return self._fd

    def watch(self, lost: Callable[[], None]) -> None:
        """Nothing to watch: a live process cannot lose it."""

    def close(self) -> None:
        """Release it."""
        _open_ones.discard(self)
        if self._mine and self._pid == os.getpid():
            # First, as an exception may come before the descriptor is closed. Not in a forked
            # child: it would unlock the parent's lock.
            with contextlib.suppress(OSError, ValueError):
                flock(self._fd, LOCK_UN)
        fd, self._fd, self._mine = self._fd, -1, False
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # For a user that was interrupted before it could close it.
        with contextlib.suppress(AttributeError):
            self.close()

    def _opened(self) -> int:
        try:
            return open_file(self._path, os.O_RDWR, self._access)
        except OSError as error:
            raise self._unusable(error) from None

    def _is_at_its_path(self) -> bool:
        try:
            there, here = os.stat(self._path, follow_symlinks=False), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _unusable(self, error: Exception) -> StoreUnavailable:
        # A ValueError: another thread has closed the descriptor meanwhile.
        return unusable(
            self._path, error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
        )


class FlockGuard:
    """A flock for the time of a short `with` block. flock(2) has no time limit, so a thread blocks
    in it while the caller waits with one. Raises LockTimeout.
    """

    def __init__(
        self, path: Path, timeout_s: float = TRANSACT_TIMEOUT_S, access: Access = PRIVATE
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._contender = FlockContender(path, access)
        self._mutex = threading.Lock()
        self._blocked = False
        self._given_up = False

    def __enter__(self) -> "FlockGuard":
        try:
            if not self._contender.try_take():
                self._wait()
        except BaseException:
            self._give_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._contender.close()

    def _give_up(self) -> None:
        """Release it now; or, while a thread blocks in it, as soon as that thread gets it."""
        with self._mutex:
            self._given_up = True
            if not self._blocked:
                self._contender.close()

    def _wait(self) -> None:
        taken = threading.Event()
        failed: list[StoreUnavailable] = []

        def block() -> None:
            try:
                self._contender.wait()
            except StoreUnavailable as error:
                failed.append(error)
            with self._mutex:
                self._blocked = False
                if self._given_up:
                    self._contender.close()
            taken.set()

        self._blocked = True
        threads.start(threading.Thread(target=block, name="holdfast-flock", daemon=True))
        if not taken.wait(self._timeout_s):
            raise LockTimeout(
                f"another program has had {self._path.name} for {self._timeout_s:g} s; nothing "
                "was changed: end or continue it",
                resource=str(self._path),
                outcome="none",
            )
        if failed:
            raise failed[0]


_open_ones: weakref.WeakSet[FlockContender] = weakref.WeakSet()
"""All that have a descriptor: a forked child closes its copies, also of forgotten ones."""


def _after_fork() -> None:
    for contender in list(_open_ones):
        # Closing a copy of the descriptor does not unlock the parent's lock.
        contender.close()


os.register_at_fork(after_in_child=_after_fork)


def flock_holder(path: Path) -> int | None:
    """The process that holds the flock of a file; None when it cannot be seen from here."""
    return next((pid or None for kind, pid, _ in kernel_locks(path) if kind == "FLOCK"), None)


def kernel_locks(path: Path) -> Iterator[tuple[str, int, int]]:
    """The locks on a file, from /proc/locks: kind, process (0 for one of another pid namespace) and
    first byte. Empty when the kernel does not say.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        # By inode alone: on btrfs the device in this table is not the one that stat returns. The
        # line of a waiter has an arrow, which moves its words on by one.
        if words[1] != "->" and words[5].endswith(f":{inode}"):
            yield words[1], int(words[4]), int(words[6])
