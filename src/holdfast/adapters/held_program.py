"""A program that is there, with a number of its own, and does nothing until it is told to.

So whoever starts it can write down its number first. What waits in its place is a small process that reads from a pipe and then
becomes the program, under the same number. Should the one who started it be killed before it has told it to begin, the pipe
ends, and so does what waits: the program was never begun.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

_WAITS = """
import os, signal, sys
go, said = int(sys.argv[1]), int(sys.argv[2])
if not os.read(go, 1):
    os._exit(125)
os.set_inheritable(go, False)
os.set_inheritable(said, False)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except (OSError, ValueError) as error:
    os.write(said, str(error).encode("utf-8", "replace"))
os._exit(126)
"""
_SAID_BYTES_MAX = 4096


class HeldProgram:
    """A program that waits, in a session and process group of its own. `begin` or `drop` it. Raises OSError and ValueError when
    there cannot be one."""

    def __init__(self, argv: Sequence[str], *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], cwd: str | None) -> None:
        heard, self._go = os.pipe()
        self._said, told = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAITS, str(heard), str(told), *argv],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                pass_fds=(heard, told),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._go)
            os.close(self._said)
            raise
        finally:
            os.close(heard)
            os.close(told)

    def begin(self) -> None:
        """Let it begin. Raises OSError when there is no such program, or it cannot be run: then it never was."""
        os.write(self._go, b"!")
        # The other end is closed by the kernel in the moment in which the program begins.
        if complaint := os.read(self._said, _SAID_BYTES_MAX):
            raise OSError(complaint.decode("utf-8", "replace"))
        os.close(self._go)
        os.close(self._said)

    def drop(self) -> None:
        """Let it go without having begun."""
        os.close(self._go)
        os.close(self._said)
        self.process.wait()
