"""The processes of a tree whose guardian was killed, as children of the wrapper that adopted
them.
"""

import math
import os
import select
import time

from holdfast.processes import guardian as guardians
from holdfast.processes import kill as killing
from holdfast.processes.trees import KILLED_S


def has_children() -> bool:
    """Has this process children already? As one has that a shell became after it had started
    others.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Orphans:
    """All children of this process, from the end of the guardian on."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._kill_s: float | None = None
        self._ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def end(self) -> None:
        """Let `wait` end them: SIGTERM, the grace, SIGKILL. For signal handlers and other threads
        too.
        """
        os.eventfd_write(self._ending, 1)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until none is left, or the time is up. True when none is left. The time does not
        count while this ends them: False then says that the kernel did not end what was killed:
        call it again.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not _readable(self._ending):
            if _reap():
                return True
            if (left_s := end_s - time.monotonic()) <= 0:
                return False
            _sleep(left_s, self._ending)
        if self._kill_s is None:
            killing.ask(guardians.below(), guardians.is_below)
            self._kill_s = time.monotonic() + self._grace_s
        give_up_s = max(time.monotonic(), self._kill_s) + KILLED_S
        while not _reap():
            now_s = time.monotonic()
            if now_s >= give_up_s:
                return False
            if now_s >= self._kill_s:
                killing.kill(guardians.below, guardians.is_below)
                self._kill_s = now_s + guardians.KILL_AGAIN_S
            else:
                _sleep(self._kill_s - now_s)
        return True

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self._ending)


def _reap() -> bool:
    """Reap the children that have ended; True when there are none left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _sleep(timeout_s: float, wake: int | None = None) -> None:
    """Sleep until a child may have ended, the time is up, or `wake` is readable. One child is
    watched: while they end, others come to this process.
    """
    waiting = select.poll()
    if wake is not None:
        waiting.register(wake, select.POLLIN)
    try:
        fd = os.pidfd_open(guardians.below()[0])
    except (OSError, IndexError):
        # It has ended, or /proc does not show another user's.
        waiting.poll(min(timeout_s, guardians.KILL_AGAIN_S) * 1000)
        return
    waiting.register(fd, select.POLLIN)
    waiting.poll(None if timeout_s == math.inf else timeout_s * 1000)
    os.close(fd)


def _readable(fd: int) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(0))
