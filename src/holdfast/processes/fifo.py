"""The FIFO of a tree: its processes inherit the write end, so the kernel knows whether one is left.

Programs that close all descriptors lose it; the mark in the environment finds those. The guardian
and the processes of the tree keep a FIFO open for reading and writing, which never blocks.
Observers open it for reading. Nobody writes to it.
"""

import os
import stat

# The mode bit that says that the tree ended in order. Data in the FIFO would reach one observer
# only, and a missing link may be the work of a program that cleans up.
_ENDED = stat.S_ISVTX
# The mode bit that says that the tree was sent SIGTERM, at the time of the last change. A process
# that checks the tree may end soon after, so none can measure the grace alone.
_TERMINATED = stat.S_ISUID
# Shells and scripts use small descriptor numbers for files of their own.
_HIGH = 100


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
    """Open a FIFO as an observer. Raises OSError; FileNotFoundError also for another file."""
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
    # The kernel sends no POLLHUP to an observer that came after the last keeper, so it must read.
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return True
    return False


def note_termination(path: str) -> None:
    """Record for all processes that the tree was sent SIGTERM now."""
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | _TERMINATED)
        os.utime(path)
    except OSError:
        # Another program removed it. This process remembers the time by itself.
        return


def terminated_at(path: str) -> float | None:
    """When the tree was sent SIGTERM, in seconds since 1970; None when it was not."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime if found.st_mode & _TERMINATED else None


def end(path: str) -> None:
    """Record that the tree ended in order. The FIFO stays until a wrapper or a sweep removes it:
    without it every observer would have to scan for the mark.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Another program removed it. Then observers scan for the mark.
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
