"""An interactive shell on a terminal of its own."""

import os
import pty
import select
import shlex
import signal
from collections.abc import Sequence

from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import ENTRY

RUN = shlex.join([*ENTRY, "locks", "run"])


class Shell:
    """An interactive bash with job control on a terminal of its own."""

    def __init__(self, environment: dict[str, str], before: Sequence[str] = ()) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            words = [*before, "bash", "--norc", "--noprofile", "-i"]
            os.execvpe(words[0], words, {**environment, "PS1": "ready> ", "TERM": "dumb"})
        self._read = b""
        self.until("ready> ")

    def type(self, text: str) -> None:
        """Type some keys."""
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Wait until the terminal shows a text; return all up to it."""
        while text.encode() not in self._read:
            assert select.select([self._fd], [], [], PATIENCE_S)[0], (
                f"no {text!r} in {self._read!r}"
            )
            self._read += os.read(self._fd, 4096)
        before, _, self._read = self._read.partition(text.encode())
        return before.decode()

    def close(self) -> None:
        """Hang up."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._fd)
        os.waitpid(self.pid, 0)
