"""A program in a terminal of its own, behind this one: every byte that is typed is logged as it
comes, and passed on.

    python typed_program.py LOG PROGRAM [ARGUMENT]...
"""

import fcntl
import os
import pty
import select
import signal
import sys
import termios
import tty
from typing import NoReturn


def main(log: str, words: list[str]) -> NoReturn:
    size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
    before = termios.tcgetattr(0)
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.execvp(words[0], words)

    def resize(*_: object) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))

    signal.signal(signal.SIGWINCH, resize)
    resize()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    tty.setraw(0)
    try:
        with open(log, "ab", buffering=0) as typed:
            pass_on(terminal, typed.fileno())
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


def pass_on(terminal: int, log: int) -> None:
    """Copy both ways until the program's end closes its terminal."""
    sources = [0, terminal]
    while True:
        ready, _, _ = select.select(sources, [], [])
        for fd in ready:
            try:
                data = os.read(fd, 65536)
            except OSError:
                return
            if fd == terminal:
                if not data:
                    return
                write_all(1, data)
            elif data:
                write_all(log, data)
                write_all(terminal, data)
            else:
                sources.remove(0)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
