"""Standard output: what may be shown there, and what happens when it cannot be written."""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from holdfast.kernel.errors import Corrupt, HoldfastError, status_of
from holdfast.kernel.text import shown
from holdfast.surfaces.cli.hints import completed

printable = shown
"""What goes to a terminal goes through this."""


def write(line: str | bytes) -> None:
    """Write a line to standard output, through to whoever reads it.

    Raises OSError when that cannot be done.
    """
    if isinstance(line, bytes):
        # JSON is UTF-8 in every locale.
        sys.stdout.buffer.write(line + b"\n")
    else:
        print(line)
    sys.stdout.flush()


def answer(line: str | bytes) -> None:
    """Write what a command that changed something has to say.

    Raises HoldfastError when nobody can read it.
    """
    try:
        write(line)
    except OSError as error:
        raise HoldfastError(
            f"the change was made, but its answer could not be written: {error.strerror}"
        ) from None


def abandon(stream: TextIO | None = None) -> None:
    """Give up what could not be written to standard output, or another stream, so that the
    interpreter does not stumble over it once more when it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def remark(text: str) -> None:
    """Say something on standard error, if anybody can read it there; unless the library's own
    warning of it was just said.
    """
    # Whoever has not loaded `logging` has heard no warning; loading it costs a short command dear.
    warned = sys.modules.get("holdfast.surfaces.cli.warning_log")
    if warned is None or warned.WARNINGS.tells(text):
        say(text)


def say(text: str) -> None:
    """Say something on standard error, if anybody can read it there."""
    try:
        # A print to no file at all would go to standard output.
        if sys.stderr is not None:
            print(f"holdfast: {printable(completed(text))}", file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def damage_told(damaged: Sequence[Corrupt]) -> int:
    """Say which records a list had to leave out, and return the exit status: that of the first, or
    0 when there are none.
    """
    for error in damaged:
        remark(error.message)
    return status_of(damaged[0]).exit if damaged else 0
