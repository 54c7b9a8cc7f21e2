"""The cleanup after a tour: ends its processes and removes its folder, also if the tour is killed.

A second program beside the tour reads from a pipe that only the tour holds open. The kernel closes
the pipe however the tour ends. Processes of the tour have its folder in their environment.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "TMUX_TMPDIR"
"""The variable with the tour's folder in all its processes, tmux among them."""

_DONE = b"everything is cleaned up"
_ROUNDS_MAX = 100
_PAUSE_S = 0.05


@contextmanager
def cleaned_up(folder: Path, *, keep: bool) -> Iterator[None]:
    """End the processes of the block when it ends, and by a second program when this process is
    killed: that one removes the folder too, unless it is to be kept.
    """
    command = [sys.executable, "-I", __file__, str(folder), *(["keep"] if keep else [])]
    null = subprocess.DEVNULL
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=null,
        stderr=null,
        # Ctrl-C is for the tour.
        start_new_session=True,
    ) as program:
        try:
            yield
        finally:
            # A guardian survives its wrapper for a moment.
            _end_all(str(folder))
            program.communicate(_DONE)


def _end_all(folder: str) -> None:
    mark = f"{MARK}={folder}".encode()
    for _ in range(_ROUNDS_MAX):
        # Again and again: a process may have started another, and nothing reports when those that
        # were killed are gone.
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        if not sum(_killed(pid, mark) for pid in pids):
            return
        time.sleep(_PAUSE_S)


def _killed(pid: int, mark: bytes) -> bool:
    """Kill a process with this in its environment."""
    try:
        # By a descriptor: the pid may be another process's by the time it is used.
        process = os.pidfd_open(pid)
        try:
            if mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
    except OSError:
        # It has ended by itself, or is another user's.
        return False
    return True


def main(folder: str, *keep: str) -> None:
    """Wait for the end of the tour, and clean up if the tour did not."""
    if sys.stdin.buffer.read() != _DONE:
        _end_all(folder)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
