"""System calls that the standard library lacks, or has only in modules that load slowly; signals to
processes that may end at any moment.
"""

from __future__ import annotations

import os
import select

# Type checkers know this name. Importing `typing`, or the enumerations of `signal`, takes as long
# as everything else in a guardian.
TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
else:
    import _signal as signal

_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS_MAX = 50


def call(name: str, *arguments: int | bytes) -> int:
    """Call a C function that takes and returns C ints; -1 when it fails. Bytes become a pointer."""
    # Loading `ctypes` takes 3.6 ms, and the extension module below it 0.5 ms. Wrapper and guardian
    # both load it.
    try:
        from _ctypes import call_function, dlopen, dlsym
    except ImportError:
        import ctypes

        return int(getattr(ctypes.CDLL(None), name)(*arguments))
    return int(call_function(dlsym(dlopen(None, 0), name), arguments))  # type: ignore[arg-type]


def become_subreaper() -> None:
    """Let orphans below this process become its children. This survives execve(2)."""
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def readable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Is a descriptor readable or hung up, now or within this time? None waits without limit."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def pipe() -> tuple[int, int]:
    """A pipe with descriptors above 2. If standard input, output or error were closed, the kernel
    gives their numbers to new files, and the command would inherit such a file as its stream.
    """
    ends = os.pipe()
    if min(ends) > 2:
        return ends
    import fcntl

    reader, writer = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in ends)
    for fd in ends:
        os.close(fd)
    return reader, writer


def send(pid: int, belongs: Callable[[int], bool], *numbers: int) -> bool:
    """Send signals to a process of a tree; False when it is not of the tree, has ended, or may not
    be signalled.
    """
    # The kernel may give a pid to another process between the check and the signal. So the process
    # is opened first, and only then is it checked that it belongs to the tree.
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


def stop(pid: int, belongs: Callable[[int], bool]) -> None:
    """Send SIGSTOP."""
    send(pid, belongs, signal.SIGSTOP)


def kill(members: Callable[[], Iterable[int]], belongs: Callable[[int], bool]) -> None:
    """Send SIGKILL to processes that may fork all the time: stop them until no new one appears,
    then kill them all.
    """
    stopped: set[int] = set()
    for _ in range(_KILL_ROUNDS_MAX):
        new = [pid for pid in members() if pid not in stopped]
        if not new:
            break
        for pid in new:
            stop(pid, belongs)
        stopped.update(new)
    for pid in stopped:
        send(pid, belongs, signal.SIGKILL)
