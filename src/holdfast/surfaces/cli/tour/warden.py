"""Ends what a tour has started when the tour itself was killed, and clears its folder away.

A program of its own, beside the tour: it reads from a pipe that only the tour holds open, and which
the kernel closes however that ends. It knows the tour's processes, and theirs, by the folder in
their environment.
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
"""The variable that has the tour's folder in all its processes, tmux among them."""

_FAREWELL = b"all is cleared away"
_ROUNDS_MAX = 100
_PAUSE_S = 0.05


@contextmanager
def attended(folder: Path, *, keep: bool) -> Iterator[None]:
    """Have a warden for the block, which does nothing if the block ends by itself: then what the
    block left is ended here. With `keep` it leaves the folder.
    """
    command = [sys.executable, "-I", __file__, str(folder), *(["keep"] if keep else [])]
    # In a session of its own: Ctrl-C is for the tour.
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as warden:
        try:
            yield
        finally:
            # A guardian outlives the wrapper that a tour ends, for a moment.
            _end_rounds(str(folder))
            warden.communicate(_FAREWELL)


def watch(folder: str, *, keep: bool) -> None:
    """Wait for the tour's end, and clear up if it did not."""
    if sys.stdin.buffer.read() == _FAREWELL:
        return
    _end_rounds(folder)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


def _end_rounds(folder: str) -> None:
    for _ in range(_ROUNDS_MAX):
        # Again, since one may have started another meanwhile; and nothing tells when those that
        # were killed are gone.
        if not _end_all(f"{MARK}={folder}".encode()):
            return
        time.sleep(_PAUSE_S)


def _end_all(mark: bytes) -> bool:
    """Kill every process with that in its environment; False when there is none."""
    return sum(_ended(int(name), mark) for name in os.listdir("/proc") if name.isdecimal()) > 0


def _ended(pid: int, mark: bytes) -> bool:
    try:
        # By a descriptor: the number may be another's by the time it is used.
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


if __name__ == "__main__":
    watch(sys.argv[1], keep="keep" in sys.argv[2:])
