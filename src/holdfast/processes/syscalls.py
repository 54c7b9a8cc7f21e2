"""System calls that the standard library lacks, or has only in modules that load slowly."""

from __future__ import annotations

import os
import select

_PR_SET_CHILD_SUBREAPER = 36


def call(name: str, *arguments: int | bytes) -> int:
    """Call a C function that takes and returns C ints; -1 when it fails. Bytes are passed as a
    pointer.
    """
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


def above_streams(fd: int) -> int:
    """Move a descriptor above 2. If standard input, output or error were closed, the kernel gives
    their numbers to new files, and the command would inherit such a file as its stream.
    """
    if fd > 2:
        return fd
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
