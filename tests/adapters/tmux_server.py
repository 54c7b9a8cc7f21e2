"""A real tmux server of a test's own, with a small interactive program in its sessions."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LISTENER = Path(__file__).with_name("listener.py")


class Tmux:
    """A tmux server, by a socket in the test's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "tmux"
        self.log = folder / "heard"

    def __call__(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.socket), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str = "claude", *options: str) -> None:
        """A new session in which the listener is ready."""
        self("new-session", "-d", "-s", name, "-x", "100", "-y", "30", sys.executable, str(LISTENER), str(self.log), *options)
        until(lambda: "ready>" in self("capture-pane", "-p", "-t", f"={name}:"))

    def replace(self, name: str = "claude") -> None:
        """Put another session of the same name in its place."""
        self("new-session", "-d", "-s", "keeps-the-server")
        self("kill-session", "-t", f"={name}")
        self.start(name)
        self("kill-session", "-t", "=keeps-the-server")

    def heard(self) -> list[bytes]:
        """What the program got, a piece for each Enter."""
        if not self.log.exists():
            return []
        return [b"!" if line == "interrupted" else bytes.fromhex(line) for line in self.log.read_text().split()]


@contextmanager
def running(folder: Path) -> Iterator[Tmux]:
    """A server for the block; without tmux a skip by name, or a failure in CI."""
    if shutil.which("tmux") is None:
        message = "no tmux here: apt-get install tmux"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    tmux = Tmux(folder)
    try:
        yield tmux
    finally:
        tmux("kill-server", check=False)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for what another process does, of which nothing tells."""
    ticks = threading.Event()
    for _ in range(int(seconds * 50)):
        if condition():
            return
        ticks.wait(0.02)
    raise AssertionError("it never came")
