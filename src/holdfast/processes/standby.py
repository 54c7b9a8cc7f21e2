"""A wrapper on standby: a slim program that waits in the place of the whole one.

A wrapper may wait for its command for days. After a few seconds it executes this program, which
needs a quarter of the memory. The process stays the same, and with it its children, its signal
mask, and its pending signals. The slim program only waits: for a descriptor, for a signal, or until
the tree's FIFO is gone. Then it executes the whole program again, which does the rest.
"""

from __future__ import annotations

import os
import select
import sys

from holdfast.processes import syscalls

# Type checkers know this name. Importing `typing` takes as long as everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

_EXIT_SIGNALLED = 128
# The status of a command that was killed. The guardian was, and nobody knows how the command ended.
_EXIT_UNSEEN = 137
_SIGNAL_SET_BYTES = 128
_PR_SET_NAME = 15
_NAME = "holdfast"
_PROGRAM = os.path.join(os.path.dirname(__file__), "standby_program.py")


def stand_by(
    module: str,
    arguments: Sequence[str],
    *,
    reports: int,
    fds: Sequence[int],
    numbers: Iterable[int],
    path: str,
    every_s: float,
    status: int | None,
) -> NoReturn:
    """Wait on standby, and then execute a module of Python with these arguments.

    The wait ends when the guardian reports something, when the first of `fds` is readable, at one
    of the signals `numbers`, which must be blocked, and when `path` is missing, which is checked
    `every_s`. All `fds` stay open. If the module cannot be executed, this process ends as the
    command did, with `status` if that is known.
    """
    for fd in (reports, *fds):
        os.set_inheritable(fd, True)
    words = [
        str(reports),
        str(fds[0]),
        ",".join(str(int(number)) for number in numbers),
        path,
        str(every_s),
        "" if status is None else str(status),
        module,
        # The list of processes then shows the command as it was typed.
        _NAME,
        *arguments,
    ]
    try:
        os.execv(sys.executable, [sys.executable, "-I", "-S", _PROGRAM, *words])
    except OSError:
        # There is no memory for it, or the program was removed. This one can wait as well.
        main(words)


def main(arguments: list[str]) -> NoReturn:
    """Wait, and execute the whole program again."""
    reports, listener = int(arguments[0]), int(arguments[1])
    numbers = [int(number) for number in arguments[2].split(",") if number]
    path, every_s, known, module = arguments[3], float(arguments[4]), arguments[5], arguments[6]
    syscalls.call("prctl", _PR_SET_NAME, _NAME.encode(), 0, 0, 0)
    # Readable while one of the signals is pending. Nothing is read from it: the signals stay
    # pending for the whole program, with what the kernel says about their senders.
    mask = sum(1 << (number - 1) for number in numbers).to_bytes(_SIGNAL_SET_BYTES, "little")
    signal_fd = syscalls.call("signalfd", -1, mask, os.O_CLOEXEC)
    poll = select.poll()
    for fd in (reports, listener, signal_fd):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    # Without the FIFO, some observers can only go by the lease, which the whole program renews.
    while not poll.poll(every_s * 1000) and os.path.lexists(path):
        pass
    try:
        # A command may remove the very program that runs it: `make clean` does so to a venv.
        os.stat(_PROGRAM)
        # -P: the working folder may have a module of any name.
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments[8:]])
    except OSError:
        _say("the program was removed while it waited. The lock ends with its command all the same")
    os._exit(_status_without_program(reports, int(known) if known else None))


def _say(text: str) -> None:
    try:
        os.write(2, f"holdfast: {text}\n".encode())
    except OSError:
        # Nobody reads it.
        return


def _status_without_program(reports: int, status: int | None) -> int:
    """Wait for the end of the tree; return the command's exit status as a shell shows it."""
    lines = b""
    while more := os.read(reports, 4096):
        lines += more
    for line in lines.splitlines():
        if line.startswith(b"ended "):
            status = os.waitstatus_to_exitcode(int(line[6:]))
    if status is None:
        return _EXIT_UNSEEN
    return status if status >= 0 else _EXIT_SIGNALLED - status
