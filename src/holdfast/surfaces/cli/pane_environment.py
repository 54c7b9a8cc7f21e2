"""What passes between `agents start` and its pane past tmux: the environment of the caller, and how
the pane ended.

tmux gives a pane the environment of its server, which may be another's. The words of a command are
everybody's to see, and those that start a tmux server stay in the list of processes for as long as
it runs; what a tmux session is told with `-e`, every window of it finds. So it goes through a FIFO
that only its owner can open: none of it is ever on a disk. And tmux does not always learn the exit
status of a pane: the pane tells it by another FIFO.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from holdfast.kernel.errors import HoldfastError, Unavailable, status_of
from holdfast.surfaces.cli import pane_program

_STATUS_BYTES_MAX = 16


@contextmanager
def hand_over(environment: Mapping[bytes, bytes], folder: str) -> Iterator[str]:
    """The path of a FIFO from which these variables can be read once, for the block.

    Not an open file of this process: the tmux server may run under another group, and is then kept
    from those. Raises Unavailable.
    """
    path = os.path.join(folder, f".environment-{os.getpid()}")
    _make_fifo(path)
    # A variable can hold anything but a zero.
    data = b"\0".join(name + b"=" + value for name, value in environment.items())
    threading.Thread(
        target=_write_once, args=(path, data), name="holdfast-environment", daemon=True
    ).start()
    try:
        yield path
    finally:
        # Whoever waits for a reader that never came finds one, which goes at once.
        with suppress(OSError):
            end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.unlink(path)
            os.close(end)


def _write_once(path: str, data: bytes) -> None:
    # Without O_CREAT: when the FIFO is gone, nothing comes into its place.
    with (
        suppress(OSError),
        open(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as file,
    ):
        file.write(data)


def _make_fifo(path: str) -> None:
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be made ({error.strerror}): name another folder with --session-root",
            outcome="none",
        ) from None


def reading_command(path: str, command: Sequence[str]) -> list[str]:
    """The command, begun in the same process once the file's variables are read."""
    # Isolated and without site packages: nothing of the tmux server's environment leads it astray,
    # and it begins at once.
    return [sys.executable, "-I", "-S", os.path.abspath(pane_program.__file__), path, *command]


class ExitStatus:
    """The reader's end of a FIFO by which a pane tells its exit status; to be closed.

    Raises Unavailable.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, f".exit-{os.getpid()}")
        _make_fifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

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
def exit_status_reporter(path: str | None) -> Iterator[Callable[[int], None]]:
    """In the pane: what tells an exit status, once, to `start` if that still listens.

    A command that is begun meanwhile has no part in it.
    """
    fd = None
    if path is not None:
        with suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    said = False

    def tell(status: int) -> None:
        nonlocal said
        with suppress(OSError):
            if fd is not None and not said:
                said = True
                os.write(fd, b"%d" % status)

    try:
        yield tell
    except HoldfastError as error:
        tell(status_of(error).exit)
        raise
    finally:
        if fd is not None:
            os.close(fd)
