"""The program that a new pane runs first: it reads the environment of `agents start` from a FIFO,
and becomes its command.

It runs as a script, without the package. The variables about the terminal are the pane's own.
"""

import os
import select
import sys
from collections.abc import Mapping

OF_PANE = (b"TMUX", b"TMUX_PANE", b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION")
"""The variables in which tmux describes itself to a pane."""
OF_TERMINAL = frozenset((*OF_PANE, b"COLUMNS", b"LINES"))
"""The variables about a terminal. The pane has another terminal than `agents start`."""

_WAIT_S = 20.0


def environment_in(data: bytes, around: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables in the data, with those of the terminal of this process."""
    given = dict(entry.split(b"=", 1) for entry in data.split(b"\0") if entry)
    return {**given, **{name: around[name] for name in OF_PANE if name in around}}


def read_fifo(path: str) -> bytes:
    """The content of the FIFO. A writer that was killed is not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not select.select([fd], [], [], _WAIT_S)[0]:
        sys.exit("`holdfast agents start` has ended before the agent began")
    os.set_blocking(fd, True)
    with open(fd, "rb") as file:
        return file.read()


def main(path: str, *command: str) -> None:
    os.execve(command[0], command, environment_in(read_fifo(path), os.environb))


if __name__ == "__main__":
    main(*sys.argv[1:])
