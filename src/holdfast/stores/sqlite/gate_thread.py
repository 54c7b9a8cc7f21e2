"""The thread that waits at a shut gate for the callers of this process.

When the turn comes, the thread does the work itself, and the other work of this process that waits
by then. Handing the turn to the caller first would make all other processes wait for a thread
switch.
"""

import contextlib
import threading
from collections.abc import Callable
from fcntl import LOCK_EX
from os import sched_yield
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar

from holdfast.kernel import threads
from holdfast.kernel.errors import LockTimeout
from holdfast.kernel.threads import OwnedLock
from holdfast.stores.checks import closed

T = TypeVar("T")

_TASKS_A_TURN_MAX = 16
_LOOK_AGAIN_S = 1.0


class Task:
    """Work that waits for its turn. The first to claim it decides: the thread to do it, or its
    caller to give up.
    """

    __slots__ = ("_claimed", "_ended", "_error", "_result", "_signal", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = False
        # A bare lock as a signal costs a tenth of an Event. It is locked until the work has ended.
        self._signal = threading.Lock()
        self._signal.acquire()
        self._claimed: dict[None, int] = {}

    def claim(self) -> bool:
        """Decide about the task; False when another thread has. The answer never changes, so a
        thread that was interrupted here can ask again.
        """
        me = get_ident()
        return self._claimed.setdefault(None, me) == me

    def is_claimed(self) -> bool:
        return bool(self._claimed)

    def do(self) -> bool:
        """Do the work and wake the caller, unless it has given up. Raises only when the caller
        could not be woken.
        """
        if not self.claim():
            return False
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for it
            self._error = error
        self._end()
        return True

    def fail(self, error: BaseException) -> None:
        """Wake the caller with an error, unless the task has ended."""
        if not self._ended:
            self._error = error
            self._end()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the task has ended; False when it has not by then."""
        deadline = monotonic() + timeout_s
        while not self._ended:
            left_s = deadline - monotonic()
            # In short waits: memory may run out just where the signal should be given.
            if not self._signal.acquire(timeout=min(max(left_s, 0), _LOOK_AGAIN_S)) and left_s <= 0:
                return self._ended
        return True

    def cancel(self) -> None:
        """After an exception in the caller: work that has not begun never will; work that has is
        waited for, however often Ctrl-C is pressed, because it uses the caller's connection.
        """
        while True:
            try:
                if not self.claim():
                    self.wait(threading.TIMEOUT_MAX)
                return
            except BaseException:  # noqa: BLE001 - the first one is raised by the caller
                continue

    def result(self) -> Any:
        """What the work returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _end(self) -> None:
        # In this order: a caller that was interrupted when it had the signal checks the flag.
        self._ended = True
        if self._signal.locked():
            self._signal.release()


class GateThread:
    """One thread, and the queue of tasks that wait for their turn."""

    def __init__(
        self,
        flock: Callable[[int], bool],
        unlock: Callable[[], None],
        left: Callable[[], None],
        inside: OwnedLock,
    ) -> None:
        self._flock = flock
        self._unlock = unlock
        self._left = left
        self._inside = inside
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._first_task: Task | None = None
        """The task for which the thread waits in the kernel's queue, until its turn comes."""
        self._over = False
        self.busy = False
        threads.start(threading.Thread(target=self._serve, name="holdfast-gate", daemon=True))

    def run(self, work: Callable[[], T], timeout_s: float, late: Callable[[], LockTimeout]) -> T:
        """Have the work done when the turn comes."""
        task = Task(work)
        try:
            self._tasks.put(task)
            if self._over:
                # It may have been put after the others were refused.
                self._refuse_all()
            if not task.wait(timeout_s):
                if task.claim():
                    raise late()
                task.wait(threading.TIMEOUT_MAX)
        except BaseException:
            task.cancel()
            raise
        result: T = task.result()
        return result

    def end(self) -> None:
        """Refuse every task that has not begun, and end the thread, which may still be waiting for
        its turn.
        """
        self._over = True
        self._refuse_all()
        self._tasks.put(None)

    def _serve(self) -> None:
        while True:
            try:
                if not self._serve_next():
                    return
            except BaseException:  # noqa: BLE001 - memory ran out; the callers have no other thread
                continue

    def _serve_next(self) -> bool:
        """Wait for a task, and take a turn for it. False when the thread is to end."""
        task: Task | None = None
        try:
            task = self._tasks.get()
            if task is None:
                return False
            self._first_task = task
            if self._over:
                self._refuse_all()
            if not task.is_claimed():
                self._take_turn(task)
                self._left()
                sched_yield()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for the task
            if task is not None and task.claim():
                task.fail(error)
        finally:
            self.busy = False
        return True

    def _refuse_all(self) -> None:
        task = self._first_task
        ending = False
        with contextlib.suppress(Empty):
            while True:
                if task is not None and task.claim():
                    task.fail(closed())
                task = self._tasks.get_nowait()
                ending = ending or task is None
        if ending:
            self._tasks.put(None)

    def _take_turn(self, first: Task) -> None:
        self.busy = True
        with self._inside:
            done = 0
            task: Task | None = first
            try:
                self._flock(LOCK_EX)
                self._first_task = None
                while task is not None:
                    done += task.do()
                    task = self._next_in_turn(done)
                self._unlock()
            except BaseException as error:
                self._unlock()
                if task is not None:
                    task.claim()
                    task.fail(error)
                raise

    def _next_in_turn(self, done: int) -> Task | None:
        """A task that waits already, to share the turn."""
        if done >= _TASKS_A_TURN_MAX:
            return None
        try:
            task = self._tasks.get_nowait()
        except Empty:
            return None
        if task is None:
            self._tasks.put(None)
        return task
