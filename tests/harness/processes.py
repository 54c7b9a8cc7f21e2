"""Facts from the kernel about other processes. Uses only the standard library, as the benchmark's
venv has no more.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def children(pid: int) -> list[int]:
    """The children that its first thread started and did not wait for."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Used(NamedTuple):
    """What a process has used since it began, all threads together."""

    sleeps: int
    """How often it went to sleep, and so how often it was awake."""
    cpu_s: float

    def is_rest(self, seconds: float) -> bool:
        """Did it only look now and then in so much time? A process that polls sleeps often, and one that
        spins computes all the time. The time alone does not tell: a busy machine may charge an idle
        process tens of milliseconds for one look.
        """
        return self.sleeps < 10 * seconds and self.cpu_s < seconds / 4


def used_by(pid: int) -> Used:
    """What a process that lives has used."""
    sleeps = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        sleeps += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    # The clock's number is made of the pid, as in the C library.
    return Used(sleeps, time.clock_gettime((~pid << 3) | 2))


def used_since(before: Used, pid: int) -> Used:
    """What it has used since then."""
    now = used_by(pid)
    return Used(now.sleeps - before.sleeps, now.cpu_s - before.cpu_s)


def state_of(pid: int) -> str | None:
    """The state of a process's first thread in one letter, such as T while it stands still; None
    when there is no such process.
    """
    try:
        return stat_of(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def stat_of(pid: int) -> list[str]:
    """The fields of its `stat` behind its name, which may hold anything. Raises OSError when there
    is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def flock_waiters(path: Path) -> int:
    """How many wait for the flock of a file."""
    ends = f":{path.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(
        1 for words in lines if words[1] == "->" and words[2] == "FLOCK" and words[6].endswith(ends)
    )


def send(pid: int, number: int, is_meant: Callable[[int], bool]) -> bool:
    """Send a signal to a process that may be gone, if it is still the one that is meant; say
    whether it was sent. Pids are used again within minutes, so the process is opened before it is
    checked.
    """
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            if is_meant(pid):
                signal.pidfd_send_signal(fd, number)
                return True
        finally:
            os.close(fd)
    return False
