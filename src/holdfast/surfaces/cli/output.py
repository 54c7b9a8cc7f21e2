"""The standard streams: answers, remarks, long texts of a command, and what is said while a command
waits or works.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from holdfast.kernel.errors import Corrupt, HoldfastError, InvalidValue, Unavailable, status_of
from holdfast.kernel.text import shown
from holdfast.surfaces.cli.hints import completed

printable = shown
"""Everything that goes to a terminal goes through this."""
STDIN = "-"
"""Stands for standard input, as for other programs."""
_PROGRESS_EVERY_S = 1.0


def write(line: str | bytes) -> None:
    """Write a line to standard output, and flush it. Raises OSError."""
    if isinstance(line, bytes):
        # JSON is UTF-8 in every locale.
        sys.stdout.buffer.write(line + b"\n")
    else:
        print(line)
    sys.stdout.flush()


def answer(line: str | bytes) -> None:
    """Write the answer of a command that changed something. Raises HoldfastError when nobody can
    read it.
    """
    try:
        write(line)
    except OSError as error:
        raise HoldfastError(
            f"the change was made, but its answer could not be written: {error.strerror}"
        ) from None


def issue(
    token: int, line: str | bytes, undo: Callable[[], object] | None, done: str, undoing: str
) -> None:
    """Write the token of a claim. `done` says what was made, and `undoing` which command undoes it.

    Raises Unavailable when it cannot be written. Nobody has the token of a new claim then, so
    `undo` ends it, also when the command is interrupted before this returns. `undo` is None for a
    claim that was there before: it stays.
    """
    try:
        write(line)
    except OSError as error:
        untold = f"{done}, but the token could not be written ({error.strerror})"
        if undo is None:
            raise Unavailable(f"{untold}: it stays, as it was before", outcome="none") from None
        try:
            undo()
        except HoldfastError as failed:
            raise Unavailable(
                f"{untold}, and it could not be released ({failed.message}): `{undoing}` does it",
                token=token,
                outcome="unknown",
            ) from None
        raise Unavailable(f"{untold}: it was released again", outcome="none") from None
    except BaseException:
        if undo is not None:
            undo()
        raise


def abandon(stream: TextIO | None = None) -> None:
    """Drop what could not be written to standard output, or another stream, so that the interpreter
    does not try again when it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def remark(text: str) -> None:
    """Say something on standard error, unless the library's own warning just said it."""
    # Without `logging` there were no warnings, and loading it costs a short command too much.
    logs = sys.modules.get("holdfast.surfaces.cli.logs")
    if logs is None or logs.WARNINGS.is_new(text):
        say(text)


def say(text: str) -> None:
    """Say something on standard error, if anybody can read it there."""
    try:
        # A print to no file at all would go to standard output.
        if sys.stderr is not None:
            print(f"holdfast: {printable(completed(text))}", file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def report_damage(damaged: Sequence[Corrupt]) -> int:
    """Say which records a list had to leave out; return the exit status: that of the first, or 0
    when there are none.
    """
    for error in damaged:
        remark(error.message)
    return status_of(damaged[0]).exit if damaged else 0


def read_file(path: str, what: str) -> str:
    """A long text from a file, or from standard input for `-`, without its last line break: Linux
    takes no argument longer than 128 kB. Raises InvalidValue when it cannot be read.
    """
    if path == STDIN and sys.stdin is None:
        raise InvalidValue(f"there is no {what}: standard input is closed", field=what)
    try:
        content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidValue(
            f"the {what} is not UTF-8: {error.reason} at byte {error.start}", field=what
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidValue(
            f"the {what} cannot be read from {ascii(path)[:200]}: {why}", field=what
        ) from None


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal that the work of the block goes on, and for how long, if it takes longer
    than a second. The line is removed when the block ends.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_show_progress, args=(stream, what, over), name="holdfast-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_progress(stream: TextIO, what: str, over: threading.Event) -> None:
    started_s, line = time.monotonic(), ""
    try:
        while not over.wait(_PROGRESS_EVERY_S):
            line = f"holdfast: {what}: {time.monotonic() - started_s:.0f} s so far"
            stream.write(f"\r{line}")
            stream.flush()
        stream.write(f"\r{' ' * len(line)}\r" if line else "")
        stream.flush()
    except OSError:
        # The terminal is gone; the work is not.
        return
