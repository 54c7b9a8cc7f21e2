"""The FIFO of a tree: its processes inherit the write end, so the kernel knows whether one of them
is left.

Programs that close all descriptors lose it; the mark in the environment finds those. The guardian
and the processes of the tree keep a FIFO open for reading and writing, which never blocks.
Observers open it for reading. Nobody writes to it.
"""

import os
import stat

_ENDED = stat.S_ISVTX
"""The mode bit that says that the tree ended in order. Data in the FIFO would be read by one
observer only, and a missing link may be the work of a program that cleans up.
"""
_ASKED = stat.S_ISUID
"""The mode bit that says that the tree was asked to end, at the time of the last change. Each
process that looks at the tree may end soon after, so none of them can count the grace alone.
"""
_HIGH = 100
"""Shells and scripts use small descriptor numbers for files of their own."""


def keep(path: str) -> int:
    """Open a FIFO as one of its keepers. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


def bequeath(fd: int) -> None:
    """Give a keeper's descriptor to the program that this process executes next."""
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH)
    except OSError:
        # The limit of open files is that low.
        os.set_inheritable(fd, True)


def observe(path: str) -> int:
    """Open a FIFO as an observer. Raises OSError; FileNotFoundError also for what is no FIFO."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def has_ended(fd: int) -> bool:
    """Did the tree end in order?"""
    return bool(os.fstat(fd).st_mode & _ENDED)


def is_kept(fd: int) -> bool:
    """Does any process have the write end?"""
    # An observer that came after the last keeper gets no POLLHUP, so the read has to tell.
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return True
    return False


def note_ask(path: str) -> None:
    """Remember for all processes that the tree is asked to end now."""
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | _ASKED)
        os.utime(path)
    except OSError:
        # Another program removed it. This process remembers the time by itself.
        return


def asked_at(path: str) -> float | None:
    """When the tree was asked to end, in seconds since 1970; None when it was not."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime if found.st_mode & _ASKED else None


def end(path: str) -> None:
    """Say that the tree ended in order. Observers read that from the FIFO, so it stays until a
    wrapper or a sweep removes it: without it each of them would have to scan for the mark.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Another program removed it: an observer scans for the mark then.
        return
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(os.fstat(fd).st_mode) | _ENDED)
    except OSError:
        return
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove the FIFO of a tree that has ended, if it is there."""
    try:
        os.unlink(path)
    except OSError:
        return
