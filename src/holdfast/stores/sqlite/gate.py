"""The gate: one writer at a time among all threads and processes, in turn.

SQLite's own busy handler polls, and under load some writers get nothing for seconds. A blocking flock on a side file sleeps
in the kernel's queue instead. It knows no time limit, so where the gate is shut, a thread that only does this blocks in it
while the callers wait with theirs. When the turn comes, that thread does the work at once, and what else of this process is
waiting by then: to hand the turn to the caller first would keep all other processes waiting for a change of threads.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import sched_yield
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic
from typing import Any, Protocol, TypeVar

from holdfast.access import Access, open_file
from holdfast.kernel.errors import InvalidValue, LockTimeout, StoreUnavailable
from holdfast.stores.sqlite.translate import opening_failed

T = TypeVar("T")

_TASKS_A_TURN_MAX = 16
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
    """A latch on a side file. Not re-entrant, and not a lock for users: it is held for one transaction.

    `beside` is what only those inside use; it is closed with the gate. `tries` is how often a shut gate is tried, giving way
    in between, before a thread is set to wait for it: where turns are short, it is open again before a thread could be.
    """

    def __init__(self, path: Path, access: Access, beside: Beside | None = None, *, tries: int = 1) -> None:
        self.path = path
        self._tries = tries
        self._beside = beside
        self._fd = self._opened(path, access)
        self._inside = threading.Lock()
        self._hiring = threading.Lock()
        self._clerk: _Clerk | None = None
        self._worker = 0
        self._closing = False

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        """Do the work while no other writer of any process is inside, and return what it returns.

        It may run in another thread of this process. `sleepy` says that the caller itself sleeps or gives way soon after.
        Raises LockTimeout when its turn did not come in time, naming the process inside where the kernel tells it; work that
        has begun is waited for. Raises InvalidValue inside of other work. What the work raises comes through.
        """
        me = get_ident()
        if self._worker == me:
            raise InvalidValue("a transaction cannot be begun inside another: do both in one, with both scopes")
        began = monotonic()
        if self._clerk is None or not self._clerk.busy:
            # An open gate costs one lock and two system calls. Threads of one process wait for each other right here.
            inside = self._inside
            if not inside.acquire(False) and not inside.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX)):
                raise self._late(timeout_s)
            try:
                for _ in range(self._tries):
                    if self._flock(_TRY):
                        self._worker = me
                        return work()
                    if self._beside is not None:
                        self._beside.want()
                    sched_yield()
            finally:
                self._worker = 0
                give_way = not sleepy and self.crowded()
                try:
                    # Also after Ctrl-C in the middle of locking, when it is not known; unlocking twice is harmless.
                    flock(self._fd, LOCK_UN)
                except (OSError, ValueError):
                    # A child that was forked inside has let go of its parent's gate.
                    pass
                finally:
                    inside.release()
                    if self._closing:
                        self._left()
                    if give_way:
                        # flock lets in whoever runs next; without this that would mostly be the one that just left.
                        sched_yield()
        # Another process is inside.
        left_s = timeout_s - (monotonic() - began)
        return self._hired().run(lambda: self._do(work), left_s, lambda: self._late(timeout_s))

    def crowded(self) -> bool:
        """Should one who leaves give way? Always, where it is not known whether others wait."""
        try:
            return self._beside is None or self._beside.wanted()
        except ValueError:
            # The gate was closed meanwhile, and the memory with it.
            return False

    def is_empty(self) -> bool:
        """Is there nothing in the side file? By its descriptor, which costs less than a look by name. Raises OSError when it
        is closed."""
        return not os.pread(self._fd, 1, 0)

    def close(self) -> None:
        """Let nobody in any more. A thread that is inside stays alone there until it has left."""
        self._closing = True
        if self._clerk is not None:
            self._clerk.dismiss()
        self._left()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's gate, which this does not open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._beside is not None:
                self._beside.close()

    def _opened(self, path: Path, access: Access) -> int:
        try:
            return open_file(path, os.O_RDWR, access)
        except OSError as error:
            raise opening_failed(path, error) from None

    def _left(self) -> None:
        """Close it if it should be and nobody is inside. Whoever leaves looks after leaving, so one of both sees the other."""
        if self._closing and self._inside.acquire(False):
            try:
                self.abandon()
            finally:
                self._inside.release()

    def _do(self, work: Callable[[], T]) -> T:
        self._worker = get_ident()
        try:
            return work()
        finally:
            self._worker = 0

    def _hired(self) -> "_Clerk":
        with self._hiring:
            if self._clerk is None:
                self._clerk = _Clerk(self._flock, self._unlock, self._left, self._inside)
            return self._clerk

    def _flock(self, operation: int) -> bool:
        try:
            flock(self._fd, operation)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            raise StoreUnavailable("the store is closed: connect again", outcome="none", closed=True) from None
        return True

    def _unlock(self) -> None:
        flock(self._fd, LOCK_UN)

    def _late(self, timeout_s: float) -> LockTimeout:
        holder = flock_holder(self.path)
        who = f"process {holder} is" if holder else "another writer is"
        return LockTimeout(
            f"no turn to write {self.path.name} within {timeout_s:.3g} s: {who} inside a transaction; nothing was changed. "
            "If it is stopped, continue or kill it",
            resource=str(self.path),
            holder_pid=holder,
            outcome="none",
        )


class _Task:
    """Work that waits for its turn. Whoever claims it first decides: the clerk to do it, or its caller to give up."""

    __slots__ = ("_claimed", "done", "error", "result", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        # Bare locks as signals, which cost a tenth of an Event: `done` is acquired until it is given.
        self.done = threading.Lock()
        self.done.acquire()
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        return self._claimed.acquire(blocking=False)

    def given_up(self) -> bool:
        return self._claimed.locked()

    def do(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for it
            self.error = error


class _Clerk:
    """A thread that waits at the shut gate for whoever in this process wants in."""

    def __init__(
        self,
        flock: Callable[[int], bool],
        unlock: Callable[[], None],
        left: Callable[[], None],
        inside: threading.Lock,
    ) -> None:
        self._flock = flock
        self._unlock = unlock
        self._left = left
        self._inside = inside
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.busy = False
        threading.Thread(target=self._serve, name="holdfast-gate", daemon=True).start()

    def run(self, work: Callable[[], T], timeout_s: float, late: Callable[[], LockTimeout]) -> T:
        """Have the work done when the turn comes."""
        task = _Task(work)
        self._tasks.put(task)
        try:
            ended = task.done.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX))
        except BaseException:
            # Ctrl-C: what has not begun will not, and what has is let finish, however often it is pressed.
            while not task.claim():
                with contextlib.suppress(KeyboardInterrupt):
                    task.done.acquire()
                    break
            raise
        if not ended:
            if task.claim():
                raise late()
            task.done.acquire()
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    def dismiss(self) -> None:
        """End the thread when it has done what it has."""
        self._tasks.put(None)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not task.given_up():
                self._take_turn(task)

    def _take_turn(self, first: _Task) -> None:
        done = 0
        self.busy = True
        try:
            with self._inside:
                self._flock(LOCK_EX)
                try:
                    task: _Task | None = first
                    while task is not None:
                        done += self._did(task)
                        task = self._another(done)
                finally:
                    self._unlock()
        except StoreUnavailable as closed:
            if first.claim():
                first.error = closed
                first.done.release()
        self.busy = False
        self._left()
        sched_yield()

    def _did(self, task: _Task) -> bool:
        if not task.claim():
            return False
        task.do()
        task.done.release()
        return True

    def _another(self, done: int) -> _Task | None:
        """Another task that is waiting already, to share the turn."""
        if done >= _TASKS_A_TURN_MAX:
            return None
        try:
            task = self._tasks.get_nowait()
        except Empty:
            return None
        if task is None:
            self.dismiss()
        return task


def flock_holder(path: Path) -> int | None:
    """The process that has the flock, from /proc/locks; None when it cannot be seen from here."""
    with contextlib.suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                return int(words[4]) or None
    return None
