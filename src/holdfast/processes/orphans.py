"""The processes of a tree whose guardian was killed, as children of the wrapper."""

import math
import os
import select
import time

from holdfast.processes.guardian import KILL_AGAIN_S, descendants_here, is_descendant
from holdfast.processes.syscalls import kill, readable, terminate
from holdfast.processes.trees import KILLED_S


class Orphans:
    """All children of this process, once the guardian has ended."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._kill_s: float | None = None
        # A descriptor: signal handlers and other threads can end the tree while `wait` sleeps.
        self._ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def end(self) -> None:
        """Let `wait` end them: SIGTERM, the grace, SIGKILL."""
        os.eventfd_write(self._ending, 1)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until none is left, or the time is up. True when none is left. The time does not
        count while this ends them: then False says that the kernel has not ended what was killed,
        and the caller should call again.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not readable(self._ending):
            if _reap():
                return True
            if (left_s := end_s - time.monotonic()) <= 0:
                return False
            _sleep(left_s, self._ending)
        if self._kill_s is None:
            terminate(descendants_here(), is_descendant)
            self._kill_s = time.monotonic() + self._grace_s
        give_up_s = max(time.monotonic(), self._kill_s) + KILLED_S
        while not _reap():
            now_s = time.monotonic()
            if now_s >= give_up_s:
                return False
            if now_s >= self._kill_s:
                kill(descendants_here, is_descendant)
                self._kill_s = now_s + KILL_AGAIN_S
            else:
                _sleep(self._kill_s - now_s)
        return True

    def close(self) -> None:
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
    watched: while the others end, more may come to this process.
    """
    poll = select.poll()
    if wake is not None:
        poll.register(wake, select.POLLIN)
    try:
        fd = os.pidfd_open(descendants_here()[0])
    except (OSError, IndexError):
        # It has ended, or /proc does not show another user's process.
        poll.poll(min(timeout_s, KILL_AGAIN_S) * 1000)
        return
    poll.register(fd, select.POLLIN)
    poll.poll(None if timeout_s == math.inf else timeout_s * 1000)
    os.close(fd)
