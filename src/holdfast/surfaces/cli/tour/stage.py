"""The tour's stage: a connection, real child processes, and statements that must hold."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import click

from holdfast.app import Holdfast

PATIENCE_S = 30.0


class BrokenStep(Exception):
    """A statement of the tour did not hold."""


class Stage:
    """Where a chapter plays."""

    def __init__(self, hf: Holdfast, url: str) -> None:
        self.hf = hf
        self.url = url
        self.told = 0

    def title(self, text: str) -> None:
        """Begin a chapter."""
        click.secho(f"\n{text}", bold=True)

    def say(self, text: str) -> None:
        """Tell what is about to happen."""
        click.echo(f"  · {text}")

    def holds(self, true: bool, text: str) -> None:
        """State what must be true now. Raises BrokenStep if it is not."""
        if not true:
            raise BrokenStep(text)
        self.told += 1
        click.echo(f"  {click.style('✓', fg='green')} {text}")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `holdfast WORDS` as a process of its own, on the tour's store."""
        return self._start([sys.executable, "-m", "holdfast.surfaces.cli.entry", *words])

    def start_script(self, script: str, *words: str) -> subprocess.Popen[str]:
        """Start a Python program of its own; it finds the store's URL and the words in its arguments."""
        return self._start([sys.executable, "-c", script, self.url, *words])

    def line(self, process: subprocess.Popen[str]) -> str:
        """The next line that a process prints; empty when it has ended."""
        return process.stdout.readline().strip() if process.stdout else ""

    def monotonic(self) -> float:
        """A time that all processes of this machine agree on."""
        return time.monotonic()

    def outcome(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a process; return its exit status and what it printed."""
        printed, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, printed.strip()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        # Whatever it leaves goes with the tour's folder, and the tmux session around the tour is not its own.
        around = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        folder = os.path.dirname(self.url.partition(":")[2])
        environment = {**around, "HOLDFAST_STORE": self.url, "XDG_STATE_HOME": folder}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
