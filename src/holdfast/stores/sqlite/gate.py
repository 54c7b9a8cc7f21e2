"""The gate: one writer at a time among all threads and processes, in turn.

SQLite's own busy handler polls, and under load some writers get nothing for seconds. A blocking
flock on a side file sleeps in the kernel's queue instead. It knows no time limit, so where the gate
is shut, a thread of its own blocks in it (gate_thread.py) while the callers wait with theirs.
"""

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import sched_yield
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeVar

from holdfast.kernel.errors import InvalidValue, LockTimeout
from holdfast.stores.owned_lock import owned_lock
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.gate_thread import GateThread, closed
from holdfast.system.access import Access, open_file

T = TypeVar("T")

_TRY = LOCK_EX | LOCK_NB


class Beside(Protocol):
    """Memory that all processes at the gate share."""

    def want(self) -> None:
        """Say that the gate is wanted."""
        ...

    def wanted(self) -> bool:
        """Did somebody find the gate shut a short while ago?"""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Gate:
    """A latch on a side file. Not re-entrant, and not a lock for users: it is held for one
    transaction.

    `beside` is what only those inside use; it is closed with the gate. `tries` is how often a shut
    gate is tried, giving way in between, before a thread is set to wait for it: where turns are
    short, it is open again before a thread could be.
    """

    def __init__(
        self, path: Path, access: Access, beside: Beside | None = None, *, tries: int = 1
    ) -> None:
        self.path = path
        self._tries = tries
        self._beside = beside
        self._fd = self._opened(path, access)
        self._inside = owned_lock()
        self._beginning = threading.Lock()
        self._thread: GateThread | None = None
        self._closing = False
        _gates.add(self)

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        """Do the work while no other writer of any process is inside, and return what it returns.

        It may run in another thread of this process. `sleepy` says that the caller itself sleeps or
        gives way soon after. Raises LockTimeout when its turn did not come in time, naming the
        process inside where the kernel tells it; work that has begun is waited for. Raises
        InvalidValue inside of other work. What the work raises comes through.
        """
        inside = self._inside
        if inside._is_owned():
            raise InvalidValue(
                "a transaction cannot be begun inside another: do both in one, with both scopes"
            )
        began = monotonic()
        if self._thread is None or not self._thread.busy:
            mine = done = False
            try:
                # Ctrl-C can come out of any call here. Python runs no signal's handler between the
                # end of a `try` and the first C function that its `finally` calls, so however often
                # it comes, both of these are called.
                try:
                    # An open gate costs one lock and two system calls. Threads of one process wait
                    # for each other right here.
                    mine = inside.acquire(False) or inside.acquire(
                        timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX)
                    )
                    if not mine:
                        raise self._late(timeout_s)
                    for _ in range(self._tries):
                        if self._flock(_TRY):
                            result = work()
                            done = True
                            break
                        if self._beside is not None:
                            self._beside.want()
                        sched_yield()
                finally:
                    if mine or inside._is_owned():
                        try:
                            flock(self._fd, LOCK_UN)
                        except (OSError, ValueError):
                            # A child that was forked inside has let go of its parent's gate.
                            pass
                        except BaseException:
                            # Of memory that ran out just here; to unlock twice is harmless.
                            flock(self._fd, LOCK_UN)
                            raise
                        finally:
                            inside.release()
            except BaseException:
                self._leave()
                raise
            if done:
                if self._closing:
                    self._close_if_empty()
                if not sleepy and self.crowded():
                    # flock lets in whoever runs next; without this that would mostly be the one
                    # that just left.
                    sched_yield()
                return result
        if self._closing:
            self._close_if_empty()
            raise closed()
        # Another process is inside.
        left_s = timeout_s - (monotonic() - began)
        return self._begun_thread().run(work, left_s, lambda: self._late(timeout_s))

    def crowded(self) -> bool:
        """Should one who leaves give way? Always, where it is not known whether others wait."""
        try:
            return self._beside is None or self._beside.wanted()
        except ValueError:
            # The gate was closed meanwhile, and the memory with it.
            return False

    def is_empty(self) -> bool:
        """Is there nothing in the side file? By its descriptor, which costs less than a look by
        name. Raises OSError when it is closed.
        """
        return not os.pread(self._fd, 1, 0)

    def close(self) -> None:
        """Let nobody in any more. A thread that is inside stays alone there until it has left."""
        self._closing = True
        if self._thread is not None:
            self._thread.end()
        self._close_if_empty()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's gate, which this does not open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # The program may have closed all descriptors, as daemons do.
            with contextlib.suppress(OSError):
                os.close(fd)
            if self._beside is not None:
                self._beside.close()

    def _opened(self, path: Path, access: Access) -> int:
        try:
            return open_file(path, os.O_RDWR, access)
        except OSError as error:
            raise opening_failed(path, error) from None

    def _leave(self) -> None:
        """After an exception: open what this thread may have left shut, as when memory ran out on
        its way out.
        """
        while self._inside._is_owned():
            with contextlib.suppress(OSError, ValueError):
                flock(self._fd, LOCK_UN)
            self._inside.release()
        self._close_if_empty()

    def _close_if_empty(self) -> None:
        """Close it if it should be and nobody is inside. Whoever leaves looks after leaving, so one
        of both sees the other.
        """
        inside = self._inside
        if not self._closing or inside._is_owned():
            return
        try:
            if inside.acquire(False):
                self.abandon()
        finally:
            if inside._is_owned():
                inside.release()

    def _begun_thread(self) -> GateThread:
        with self._beginning:
            if self._thread is None:
                self._thread = GateThread(
                    self._flock, self._unlock, self._close_if_empty, self._inside
                )
            return self._thread

    def _flock(self, operation: int) -> bool:
        try:
            flock(self._fd, operation)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.EBADF:
                raise opening_failed(self.path, error) from None
            raise closed() from None
        return True

    def _unlock(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            flock(self._fd, LOCK_UN)

    def _late(self, timeout_s: float) -> LockTimeout:
        holder = flock_holder(self.path)
        who = f"process {holder} is" if holder else "another writer is"
        return LockTimeout(
            f"no turn to write {self.path.name} within {timeout_s:.3g} s: {who} inside a "
            "transaction; nothing was changed. "
            "If it is stopped, continue or kill it",
            resource=str(self.path),
            holder_pid=holder,
            outcome="none",
        )


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: a descriptor that it shares with its parent would keep the gate shut after
    the parent's death, also that of a store which a thread was just opening.
    """
    for gate in list(_gates):
        with contextlib.suppress(Exception):
            gate.abandon()


os.register_at_fork(after_in_child=_after_fork)


def flock_holder(path: Path) -> int | None:
    """The process that has the flock, from /proc/locks; None when it cannot be seen from here."""
    with contextlib.suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                return int(words[4]) or None
    return None
