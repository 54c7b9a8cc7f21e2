"""A real tmux for tests, in a folder of its own, so that it meets no other; with a small program in
it that takes input.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.requirements import skip_or_fail
from tests.harness.timeouts import PATIENCE_S, until

LISTENER = Path(__file__).parent.parent / "agents" / "listener.py"


class TmuxServer:
    """A tmux server that is started by the first tmux session in it."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self._program = program
        self.environment = {"TMUX_TMPDIR": str(folder)}
        self.socket = folder / f"tmux-{os.getuid()}" / "default"
        self._log = folder / "heard"
        self._stopped: int | None = None

    def __call__(self, *words: str, check: bool = True) -> str:
        """Run `tmux WORDS` on it, and return what it prints."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        done = subprocess.run(
            [self._program, "-f", "/dev/null", *words],
            env={**outside, **self.environment, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def sessions(self) -> set[str]:
        """The names of its tmux sessions."""
        return set(self("list-sessions", "-F", "#{session_name}", check=False).split())

    def pane_pid(self, session_name: str) -> int:
        """The process of the one pane of a tmux session."""
        return int(self("list-panes", "-s", "-t", f"={session_name}", "-F", "#{pane_pid}"))

    def screen(self, session_name: str) -> str:
        """What the pane shows."""
        return self("capture-pane", "-p", "-t", f"={session_name}:")

    def listen(self, name: str = "claude", *options: str) -> None:
        """A new tmux session with a program that logs its input."""
        words = [sys.executable, str(LISTENER), str(self._log), *options]
        self("new-session", "-d", "-s", name, "-x", "100", "-y", "30", *words)
        until(lambda: "ready>" in self.screen(name))

    def replace(self, name: str = "claude") -> None:
        """Put another tmux session of the same name in its place."""
        self("new-session", "-d", "-s", "keeps-the-server")
        self("kill-session", "-t", f"={name}")
        self.listen(name)
        self("kill-session", "-t", "=keeps-the-server")

    def heard(self) -> list[bytes]:
        """What the program got, a piece for each Enter; an Enter behind nothing is an empty
        piece.
        """
        if not self._log.exists():
            return []
        return [
            b"!" if line == "interrupted" else bytes.fromhex(line)
            for line in self._log.read_text().splitlines()
        ]

    def typed(self) -> bytes:
        """Every byte that was typed into the program, as it came, once every timer that the server
        has started has fired.
        """
        # Timers fire in order, and this one is later than any that a gateway starts.
        self("run-shell", "-d", "2")
        raw = Path(f"{self._log}.raw")
        return raw.read_bytes() if raw.exists() else b""

    def stop(self) -> None:
        """Stop the server (SIGSTOP): it answers nobody until `go_on`."""
        self._stopped = int(self("display-message", "-p", "#{pid}"))
        os.kill(self._stopped, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped server go on."""
        if self._stopped is not None:
            os.kill(self._stopped, signal.SIGCONT)
            self._stopped = None


def delivered(*prompts: bytes) -> bytes:
    """The bytes of these prompts: each one paste in brackets and one Enter."""
    return b"".join(b"\x1b[200~" + prompt + b"\x1b[201~\r" for prompt in prompts)


@contextmanager
def tmux_server() -> Iterator[TmuxServer]:
    """Have a tmux for the block; skip the test, or fail it in CI, where there is none."""
    program = shutil.which("tmux")
    if program is None:
        skip_or_fail("no tmux here: apt-get install tmux")
    # Not pytest's folder, which is too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="hft-"))
    server = TmuxServer(folder, program)
    try:
        yield server
    finally:
        server.go_on()
        server("kill-server", check=False)
        shutil.rmtree(folder, ignore_errors=True)
