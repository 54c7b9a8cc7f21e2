"""A process that is stopped (SIGSTOP) inside a transaction: it keeps every other writer out until it goes on or is killed."""

import os
import signal
import subprocess
import sys
from types import TracebackType

_SCRIPT = """
import os, signal, sys, holdfast
from holdfast.spaces import all_spaces
hf = holdfast.connect(sys.argv[1], namespace=sys.argv[2])
scope = [space for space in all_spaces() if space.name in sys.argv[4:]]
def body(tx):
    for space in scope:
        tx.range(space, limit=1)
    os.kill(os.getpid(), signal.SIGSTOP)
getattr(hf.store, sys.argv[3])(body, scope=scope)
"""


class StoppedInside:
    """A process that stands still inside `transact`, or `read`, over these spaces, for the block of a `with`."""

    def __init__(self, url: str, *spaces: str, namespace: str = "default", call: str = "transact") -> None:
        words = [sys.executable, "-c", _SCRIPT, url, namespace, call, *spaces]
        self._process = subprocess.Popen(words)
        self.pid = self._process.pid

    def __enter__(self) -> "StoppedInside":
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended instead ({status})"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def go_on(self) -> None:
        """Let it go on, and wait for its end."""
        os.kill(self.pid, signal.SIGCONT)
        assert self._process.wait() == 0
