"""A real tmux for tests, in a folder of its own, so that it meets nobody else's."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class TmuxServer:
    """A tmux server that is started by the first tmux session in it."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self._program = program
        self.environment = {"TMUX_TMPDIR": str(folder)}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `tmux WORDS` on it."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        return subprocess.run(
            [self._program, *words],
            env={**outside, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def sessions(self) -> set[str]:
        """The names of its tmux sessions."""
        return set(self("list-sessions", "-F", "#{session_name}").stdout.split())

    def pane_pid(self, session_name: str) -> int:
        """The process of the one pane of a tmux session."""
        return int(self("list-panes", "-s", "-t", f"={session_name}", "-F", "#{pane_pid}").stdout)

    def screen(self, session_name: str) -> str:
        """What the pane shows."""
        return self("capture-pane", "-p", "-t", f"={session_name}:").stdout


@contextmanager
def tmux_server() -> Iterator[TmuxServer]:
    """Have a tmux for the block; skip the test, or fail it in CI, where there is none."""
    program = shutil.which("tmux")
    if program is None:
        message = "no tmux here: apt-get install tmux"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    # Not pytest's folder, which is too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="hft-"))
    server = TmuxServer(folder, program)
    try:
        yield server
    finally:
        server("kill-server")
        shutil.rmtree(folder, ignore_errors=True)
