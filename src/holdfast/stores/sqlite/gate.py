"""The gate: one writer at a time among all threads and processes, in turn.

SQLite's own busy handler polls, and under load some writers get nothing for seconds. A blocking
flock on a side file sleeps in the kernel's queue instead. flock has no time limit, so where the
gate is shut a thread of its own blocks in it (gate_thread.py) while the callers wait with theirs.
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
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, TypeVar

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.threads import owned_lock
from holdfast.stores.checks import closed, nested
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.filesystem import open_side_file
from holdfast.system.access import Access
from holdfast.system.folder_walk import Folder

if TYPE_CHECKING:
    from holdfast.stores.sqlite.gate_thread import GateThread

T = TypeVar("T")

_TRY = LOCK_EX | LOCK_NB

STRIDE = 1024
"""How far the bound moves beyond the last revision given when the next one would pass it."""

_BYTES = 24

_LOOK_AGAIN_S = 0.05
"""How often a thread that waits for another of its process checks that it still should."""

_WANTED_MS = 20
"""How long those that leave the gate yield after somebody found it shut: long enough for the waiter
to get the processor. Where nobody waits, yielding would only give time to strangers.
"""


class SharedCounter:
    """The revisions of a volatile file, counted in memory that all its processes share: the last
    revision and a bound, used only inside the gate, and when somebody last found the gate shut,
    which is a hint.

    Writing every revision into the file would cost a second page with each change. So the file
    keeps the bound (LAST_REVISION), and no revision beyond it is given. The last revision given is
    in the gate's side file, mapped into memory.

    The memory alone proves nothing: the side file may be new, or a program that does not know it
    may have continued from the bound. So the memory says for which bound it counts, and each
    statement or transaction that uses a revision checks that the file still has that bound. The
    bound only grows, so memory that counts for another bound is never trusted again.
    """

    def __init__(self, path: Path, access: Access, folder: Folder | None = None) -> None:
        # Most programs never open a volatile file.
        import mmap

        try:
            # A descriptor of its own: one that shared the gate's lock would keep it, in a child,
            # beyond its holder's death.
            fd = open_side_file(path, access, folder)
            try:
                # Never overwrites, and leaves no hole: on a full disk that would become a SIGBUS.
                os.posix_fallocate(fd, 0, _BYTES)
                self._memory = mmap.mmap(fd, _BYTES)
                self.numbers = memoryview(self._memory).cast("q")
            finally:
                os.close(fd)
        except OSError as error:
            raise opening_failed(path, error) from None
        except ValueError:
            raise StoreUnavailable(
                f"{path} was truncated while it was opened: try again", outcome="none"
            ) from None

    def take(self) -> tuple[int, int]:
        """The next revision, given from here on even if its statement fails, and the bound that the
        statement must find in the file. A revision beyond the bound means that none is left.
        """
        numbers = self.numbers
        revision, bound = numbers[0] + 1, numbers[1]
        if revision <= bound:
            numbers[0] = revision
        return revision, bound

    def next(self, bound: int) -> int:
        """The next revision, for a caller that has just read this bound in the file; one beyond the
        bound when none is left. It counts as given after `give`.
        """
        given, known = self.numbers[0], self.numbers[1]
        return given + 1 if known == bound and given < bound else bound + 1

    def give(self, last: int) -> None:
        """Before the commit: all revisions up to this one are given."""
        self.numbers[0] = last

    def begin(self, last: int, bound: int) -> None:
        """After the commit of a new bound: count below it, from the last revision given."""
        # In this order: killed in between, the memory counts for an old bound, which is never
        # trusted again.
        self.numbers[0] = last
        self.numbers[1] = bound

    def want(self) -> None:
        """Say that the gate is wanted. This clock is the same for all processes of a machine."""
        self.numbers[2] = monotonic_ns() // 1_000_000

    def close(self) -> None:
        """Unmap the memory; others go on counting in it."""
        self.numbers.release()
        self._memory.close()


class Gate:
    """A latch on a side file, held for one transaction. Not re-entrant. The locks of folders of the
    files store are gates too.

    `memory` is used only by those inside, and is closed with the gate. `tries` is how often a shut
    gate is tried, yielding in between, before a thread waits for it: where turns are short, it is
    open again before a thread could be.
    """

    _opened = staticmethod(open_side_file)

    def __init__(
        self,
        path: Path,
        access: Access,
        memory: SharedCounter | None = None,
        *,
        tries: int = 1,
        folder: Folder | None = None,
    ) -> None:
        self.path = path
        self._tries = tries
        self._memory = memory
        self._fd = self._opened(path, access, folder)
        self._inside = owned_lock()
        self._thread_start = threading.Lock()
        self._thread: GateThread | None = None
        self._closing = False
        _gates.add(self)

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        """Do the work while no other writer of any process is inside, and return what it returns.

        The work may run in another thread of this process. `sleepy` says that the caller itself
        sleeps or yields soon after. Raises LockTimeout when its turn did not come in time, naming
        the process inside if the kernel says which; work that has begun is waited for. Raises
        InvalidValue inside of other work. What the work raises comes through.
        """
        inside = self._inside
        if inside._is_owned():
            raise nested()
        began = monotonic()
        if not self._thread_waits():
            mine = done = False
            try:
                # Ctrl-C can come out of any call here. Python runs no signal handler between the
                # end of a `try` and the first C function that its `finally` calls, so however often
                # it comes, both unlocks below are called.
                try:
                    # An open gate costs one lock and two system calls. Threads of one process wait
                    # for each other right here.
                    mine = inside.acquire(False)
                    # Once the gate's thread waits in the kernel, which may take long, this caller
                    # belongs into its queue: there `close` refuses it.
                    while not mine and not self._closing and not self._thread_waits():
                        left_s = timeout_s - (monotonic() - began)
                        if left_s <= 0:
                            raise self._late(timeout_s)
                        mine = inside.acquire(timeout=min(left_s, _LOOK_AGAIN_S))
                    for _ in range(self._tries if mine else 0):
                        if self._flock(_TRY):
                            result = work()
                            done = True
                            break
                        if self._memory is not None:
                            self._memory.want()
                        sched_yield()
                finally:
                    if mine or inside._is_owned():
                        try:
                            flock(self._fd, LOCK_UN)
                        except (OSError, ValueError):
                            # A child that was forked inside has closed its parent's gate.
                            pass
                        except BaseException:
                            # Memory ran out just here; unlocking twice is harmless.
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
                    # flock lets in the process that runs next; without this, mostly the one that
                    # just left.
                    sched_yield()
                return result
        if self._closing:
            self._close_if_empty()
            raise closed()
        # Another process is inside.
        left_s = timeout_s - (monotonic() - began)
        return self._started_thread().run(work, left_s, lambda: self._late(timeout_s))

    def crowded(self) -> bool:
        """Should the one who leaves yield? Always, where it is unknown whether others wait."""
        memory = self._memory
        try:
            return memory is None or (
                0 <= monotonic_ns() // 1_000_000 - memory.numbers[2] <= _WANTED_MS
            )
        except ValueError:
            # The gate was closed meanwhile, and the memory with it.
            return False

    def is_empty(self) -> bool:
        """Is the side file empty? Raises OSError when the gate is closed."""
        return not os.pread(self._fd, 1, 0)

    def close(self) -> None:
        """Let nobody in any more. A thread that is inside stays alone there until it has left."""
        self._closing = True
        if self._thread is not None:
            self._thread.end()
        self._close_if_empty()

    def abandon(self) -> None:
        """In a forked child: close the copy of the parent's descriptor, which unlocks nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # The program may have closed all descriptors, as daemons do.
            with contextlib.suppress(OSError):
                os.close(fd)
            if self._memory is not None:
                self._memory.close()

    def _leave(self) -> None:
        """After an exception: open what this thread may have left shut, as when memory ran out on
        its way out.
        """
        while self._inside._is_owned():
            self._unlock()
            self._inside.release()
        self._close_if_empty()

    def _close_if_empty(self) -> None:
        """Close the gate if it is closing and nobody is inside. The one who leaves checks after
        leaving, so one of the two sees the other.
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

    def _thread_waits(self) -> bool:
        return self._thread is not None and self._thread.busy

    def _started_thread(self) -> "GateThread":
        with self._thread_start:
            if self._thread is None:
                # Loaded here: a short command rarely finds the gate shut.
                from holdfast.stores.sqlite.gate_thread import GateThread

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
        # Most programs never wait in vain.
        from holdfast.system.flock import flock_holder

        holder = flock_holder(self.path)
        who = f"process {holder} is" if holder else "another writer is"
        return LockTimeout(
            f"no turn to write {self.path.name} within {timeout_s:.3g} s: {who} inside a "
            "transaction; nothing was changed. If it is stopped, continue or kill it",
            resource=str(self.path),
            holder_pid=holder,
            outcome="none",
        )


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _after_fork() -> None:
    # A descriptor shared with the parent would keep the gate shut after the parent's death, also
    # that of a store which a thread was just opening.
    for gate in list(_gates):
        with contextlib.suppress(Exception):
            gate.abandon()


os.register_at_fork(after_in_child=_after_fork)
