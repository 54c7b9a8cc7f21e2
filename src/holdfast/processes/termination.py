"""Signals to every process of a tree.

The kernel may give a pid to another process between the check and the signal. So each process is
opened as a pidfd first, and only then is it checked that it belongs to the tree.
"""

from __future__ import annotations

import os

# Type checkers know this name. Importing `typing` takes as long as everything else in a guardian.
TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
else:
    import _signal as signal

_ROUNDS_MAX = 50


def send(pid: int, belongs: Callable[[int], bool], *numbers: int) -> bool:
    """Send signals to a process; False when it is not of the tree, has ended, or may not be
    signalled.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not belongs(pid):
            return False
        for number in numbers:
            signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def terminate(pids: Iterable[int], belongs: Callable[[int], bool]) -> None:
    """Send SIGTERM, and SIGCONT since a stopped process could not react."""
    for pid in pids:
        send(pid, belongs, signal.SIGTERM, signal.SIGCONT)


def kill(members: Callable[[], Iterable[int]], belongs: Callable[[int], bool]) -> None:
    """Send SIGKILL to processes that may fork all the time: stop them until no new one appears,
    then kill them all.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        new = [pid for pid in members() if pid not in stopped]
        if not new:
            break
        for pid in new:
            send(pid, belongs, signal.SIGSTOP)
        stopped.update(new)
    for pid in stopped:
        send(pid, belongs, signal.SIGKILL)
