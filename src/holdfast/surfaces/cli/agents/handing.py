"""What passes between `agents start` and its pane past tmux: the environment of the caller, and how the pane ended.

tmux gives a pane the environment of its server, which may be another's. The words of a command are everybody's to see, and
those that start a tmux server stay in the list of processes for as long as it runs; what a tmux session is told with `-e`,
every window of it finds. So it goes through memory that only its owner can read. And tmux does not always learn the exit
status of a pane: the pane tells it by a FIFO.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from holdfast.kernel.errors import HoldfastError, Unavailable, status_of
from holdfast.surfaces.cli.agents import pane_program

_STATUS_BYTES_MAX = 16


@contextmanager
def handed(environment: Mapping[bytes, bytes]) -> Iterator[str]:
    """The path of a file with these variables, for the block. It is in memory: whoever kills this process leaves no secret on a
    disk. Its owner alone can open it."""
    fd = os.memfd_create("holdfast-pane")
    try:
        with open(fd, "wb", closefd=False) as file:
            # A variable can hold anything but a zero.
            file.write(b"\0".join(name + b"=" + value for name, value in environment.items()))
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


def reading(path: str, command: Sequence[str]) -> list[str]:
    """The command, begun in the same process once the file's variables are read."""
    # Isolated and without site packages: nothing of the tmux server's environment leads it astray, and it begins at once.
    return [sys.executable, "-I", "-S", os.path.abspath(pane_program.__file__), path, *command]


class ExitStatus:
    """The reader's end of a FIFO by which a pane tells its exit status; to be closed. Raises Unavailable."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, f".exit-{os.getpid()}")
        try:
            os.mkfifo(self.path, 0o600)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise Unavailable(
                f"{self.path} cannot be made ({error.strerror}): name another folder with --session-root", outcome="none"
            ) from None

    def read(self) -> int | None:
        """What was told; None when nothing was."""
        try:
            return int(os.read(self._fd, _STATUS_BYTES_MAX) or b"-")
        except (BlockingIOError, ValueError):
            return None

    def close(self) -> None:
        """Listen no more."""
        os.close(self._fd)
        with suppress(FileNotFoundError):
            os.unlink(self.path)


@contextmanager
def told(path: str | None) -> Iterator[Callable[[int], None]]:
    """In the pane: what tells an exit status to whoever listens there still. A command that is begun meanwhile has no part in
    it."""
    fd = None
    if path is not None:
        with suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def tell(status: int) -> None:
        with suppress(OSError):
            if fd is not None:
                os.write(fd, b"%d" % status)

    try:
        yield tell
    except HoldfastError as error:
        tell(status_of(error).exit)
        raise
    finally:
        if fd is not None:
            os.close(fd)
