"""What a new pane runs first: it reads the environment that it was handed, and becomes its command.

Run as a script, without the package around it. The variables that tell a program of its terminal
are the pane's own.
"""

import os
import select
import sys
from collections.abc import Mapping

OF_PANE = (b"TMUX", b"TMUX_PANE", b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION")
"""What tmux tells a pane of itself."""
OF_TERMINAL = frozenset((*OF_PANE, b"COLUMNS", b"LINES"))
"""What tells of a terminal, which is another for the pane than for whoever starts it."""

_WAIT_S = 20.0


def environment_in(data: bytes, around: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that a file holds, with those of the terminal around."""
    given = dict(entry.split(b"=", 1) for entry in data.split(b"\0") if entry)
    return {**given, **{name: around[name] for name in OF_PANE if name in around}}


def handed(path: str) -> bytes:
    """What is read from the FIFO.

    Whoever writes there may have been killed: that is not waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not select.select([fd], [], [], _WAIT_S)[0]:
        sys.exit("`holdfast agents start` has ended before the agent began")
    os.set_blocking(fd, True)
    with open(fd, "rb") as file:
        return file.read()


def main(path: str, *command: str) -> None:
    os.execve(command[0], command, environment_in(handed(path), os.environb))


if __name__ == "__main__":
    main(*sys.argv[1:])
