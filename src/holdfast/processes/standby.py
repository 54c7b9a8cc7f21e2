"""A wrapper on standby: a slim program that waits in the place of the whole one, in the same
process.

A wrapper may wait for its command for days. After a few seconds it executes this program, which
needs a quarter of the memory. The process stays the same, and with it its children, its signal
mask, and the signals that are pending. The slim program only waits: for one of its descriptors, for
a signal, or until the tree's FIFO is gone. Then it executes the whole program again, which does the
rest.
"""

from __future__ import annotations

import os
import select
import sys

from holdfast.processes import libc

# As in the guardian: what takes long to load is left out.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

EXIT_SIGNALLED = 128
EXIT_UNSEEN = 137
"""As of a command that was killed: its guardian was, and nobody knows how the command ended."""
_SIGNAL_SET_BYTES = 128
_PR_SET_NAME = 15
_NAME = "holdfast"
_PROGRAM = os.path.join(os.path.dirname(__file__), "standby_program.py")


def stand_by(
    module: str,
    arguments: Sequence[str],
    *,
    said: int,
    fds: Sequence[int],
    numbers: Iterable[int],
    path: str,
    every_s: float,
    status: int | None,
) -> NoReturn:
    """Wait on standby, and then execute a module of Python with these arguments: when the guardian
    says something (`said`), at a notice (the first of `fds`, which all stay open), at one of the
    signals, which must be blocked, and when `path` is found missing at a look `every_s`. If it
    cannot be executed, this process ends as the command did, with `status` if that is known.
    """
    for fd in (said, *fds):
        os.set_inheritable(fd, True)
    known = "" if status is None else str(status)
    told = [
        str(said),
        str(fds[0]),
        ",".join(str(int(n)) for n in numbers),
        path,
        str(every_s),
        known,
        module,
    ]
    # Who looks for a command in the list of processes finds it as it was typed.
    told += [_NAME, *arguments]
    try:
        os.execv(sys.executable, [sys.executable, "-I", "-S", _PROGRAM, *told])
    except OSError:
        # There is no memory for it, or the program was removed. This one can wait as well.
        main(told)


def main(arguments: list[str]) -> NoReturn:
    """Wait, and execute the whole program again."""
    said, listener = int(arguments[0]), int(arguments[1])
    numbers = [int(number) for number in arguments[2].split(",") if number]
    path, every_s, known, module = arguments[3], float(arguments[4]), arguments[5], arguments[6]
    libc.call("prctl", _PR_SET_NAME, _NAME.encode(), 0, 0, 0)
    waiting = select.poll()
    for fd in (said, listener, _signal_fd(numbers)):
        if fd >= 0:
            waiting.register(fd, select.POLLIN)
    # Without the FIFO, some observers can only go by the lease, which the whole program renews.
    while not waiting.poll(every_s * 1000) and os.path.lexists(path):
        pass
    try:
        # A command may remove the very program that runs it: `make clean` does so to a venv.
        os.stat(_PROGRAM)
        # -P: the working folder may have a module of any name.
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments[8:]])
    except OSError:
        _say("the program was removed while it waited. The lock ends with its command all the same")
    os._exit(_status_without_program(said, int(known) if known else None))


def _say(text: str) -> None:
    try:
        os.write(2, f"holdfast: {text}\n".encode())
    except OSError:
        # Nobody reads it.
        return


def _signal_fd(numbers: list[int]) -> int:
    """A descriptor that is readable while one of the signals is pending. Nothing is read from it:
    the signals stay pending for the whole program, with what the kernel says of their senders.
    """
    mask = sum(1 << (number - 1) for number in numbers).to_bytes(_SIGNAL_SET_BYTES, "little")
    return libc.call("signalfd", -1, mask, os.O_CLOEXEC)


def _status_without_program(said: int, status: int | None) -> int:
    """Wait for the end of the tree; return the command's exit status as a shell tells it. The lock
    ends with its tree.
    """
    words = b""
    while more := os.read(said, 4096):
        words += more
    for line in words.splitlines():
        if line.startswith(b"ended "):
            status = os.waitstatus_to_exitcode(int(line[6:]))
    if status is None:
        return EXIT_UNSEEN
    return status if status >= 0 else EXIT_SIGNALLED - status
