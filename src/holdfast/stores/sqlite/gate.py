"""The gate: one writer at a time among all threads and processes, in turn.

SQLite's own busy handler polls, and under load some writers get nothing for seconds. A blocking flock on a side file sleeps
in the kernel's queue instead. It knows no time limit, so a thread that only does this blocks in it while the callers wait
with their deadlines.
"""

import contextlib
import fcntl
import os
import threading
import time
from pathlib import Path

from holdfast.kernel.errors import LockTimeout
from holdfast.stores.sqlite.translate import opening_failed


class Gate:
    """A latch on a side file. Not re-entrant, and not a lock for users: it is held for one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise opening_failed(path, error) from None
        self._turn = threading.Lock()
        self._blocker: _Blocker | None = None

    def enter(self, timeout_s: float) -> None:
        """Come in, or raise LockTimeout, naming the process inside where the kernel tells it."""
        # The uncontended way costs one lock and one system call.
        if self._turn.acquire(blocking=False):
            if self._blocker is None and _try(self._fd):
                return
            deadline = time.monotonic() + timeout_s
        else:
            deadline = time.monotonic() + timeout_s
            if not self._turn.acquire(timeout=max(timeout_s, 0)):
                raise self._timeout(timeout_s)
        try:
            if not self._block(deadline):
                raise self._timeout(timeout_s)
        except BaseException:
            self._turn.release()
            raise

    def leave(self, *, sleepy: bool = False) -> None:
        """Let the next one in. `sleepy` says that the caller is about to sleep anyway, as in a sync."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._turn.release()
        if not sleepy:
            # flock hands over to whoever runs next; without this the one that just left would mostly be that one.
            os.sched_yield()

    def close(self) -> None:
        """Close the descriptor; in a forked child this does not open the parent's gate."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _block(self, deadline: float) -> bool:
        """Called by the one thread whose turn it is in this process."""
        blocker = self._blocker
        if blocker is None:
            if _try(self._fd):
                return True
            blocker = self._blocker = _Blocker(self._fd)
        return blocker.wait(deadline)

    def _timeout(self, timeout_s: float) -> LockTimeout:
        holder = _flock_holder(self._path)
        who = f"process {holder} is" if holder else "another writer is"
        return LockTimeout(
            f"no turn to write {self._path.name} within {timeout_s:g} s: {who} inside a transaction; nothing was changed. "
            "If it is stopped, continue or kill it",
            resource=str(self._path),
            holder_pid=holder,
            outcome="none",
        )


class _Blocker:
    """A thread that blocks in flock for whoever in this process is next.

    A caller that gives up leaves its request behind: the next caller adopts it, or the thread, once the flock is granted,
    gives it back at once.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mutex = threading.Lock()
        # Bare locks as signals: acquired means not given. A semaphore would cost ten times as much.
        self._asked = threading.Lock()
        self._granted = threading.Lock()
        self._asked.acquire()
        self._granted.acquire()
        self._blocking = False
        self._wanted = False
        threading.Thread(target=self._run, name="holdfast-gate", daemon=True).start()

    def wait(self, deadline: float) -> bool:
        """Return True holding the flock, or False at the deadline without it."""
        with self._mutex:
            self._wanted = True
            if not self._blocking:
                if _try(self._fd):
                    self._wanted = False
                    return True
                self._blocking = True
                self._asked.release()
        if self._granted.acquire(timeout=max(deadline - time.monotonic(), 0)):
            return True
        with self._mutex:
            if self._wanted:
                self._wanted = False
                return False
        # Granted between the timeout and the mutex: take it.
        self._granted.acquire()
        return True

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            except OSError:
                # The store was closed; whoever still waits meets its deadline.
                return
            with self._mutex:
                self._blocking = False
                if self._wanted:
                    self._wanted = False
                    self._granted.release()
                    continue
                fcntl.flock(self._fd, fcntl.LOCK_UN)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock_holder(path: Path) -> int | None:
    """The process that has the flock, from /proc/locks; None when it cannot be seen from here."""
    with contextlib.suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                return int(words[4]) or None
    return None
