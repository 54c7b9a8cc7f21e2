"""The steps of a tour: real child processes, and statements that must be true."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.kernel.errors import HoldfastError
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.tour.cleanup import MARK

PATIENCE_S = 30.0
_POLL_S = 0.03
_WIDTH_MAX = 110
_ERRORS = "errors"
_ERRORS_MAX = 8
_FOREIGN = ("HOLDFAST_", "MQTT_", "DELEGATE_", "TMUX")
"""Variables that begin so would lead a process of the tour away from its own store and tmux."""

Process = subprocess.Popen[bytes]

REPORTING = """
import threading

class Reporting:
    '''A store that prints when this process falls asleep, and what ended the sleep.'''
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def __enter__(self):
        return self
    def __exit__(self, *how):
        return self.inner.__exit__(*how)
    def listen(self, *topics):
        return Reporting(self.inner.listen(*topics))
    def wait(self, timeout_s, **more):
        # A wait for a lock begins with a moment in which it watches nobody.
        moment = timeout_s is not None and timeout_s < 0.1
        if moment or threading.current_thread() is not threading.main_thread():
            return self.inner.wait(timeout_s, **more)
        print('asleep', flush=True)
        woken = self.inner.wait(timeout_s, **more)
        print('woken' if woken.notified or woken.ready else 'timeout', flush=True)
        return woken
"""
"""For a script whose sleep is part of the story: it wraps its store in this."""


def was_woken(printed: str) -> bool:
    """Was the last sleep of such a script ended by another process? How soon it runs after that is
    up to the machine.
    """
    return [line for line in printed.splitlines() if line in ("woken", "timeout")][-1:] == ["woken"]


class BrokenStep(Exception):
    """A statement of the tour is not true."""


class Tour:
    """What a chapter works with. `close` ends every process that it started."""

    def __init__(self, hf: Holdfast, url: str, folder: Path) -> None:
        self.hf = hf
        self.url = url
        self.folder = folder
        self.checked = 0
        self.last_said = ""
        around = {
            name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)
        }
        own = {"HOLDFAST_STORE": url, "XDG_STATE_HOME": str(folder), MARK: str(folder)}
        self.environment = {**around, **own}
        self._started: list[Process] = []

    def say(self, text: str) -> None:
        """Say what happens next."""
        self.last_said = text
        click.echo(filled(text, "  · "))

    def check(self, true: bool, text: str) -> None:
        """State what must be true now. Raises BrokenStep if it is not."""
        if not true:
            raise BrokenStep(text)
        self.checked += 1
        mark = click.style("✓", fg="green")
        click.echo(f"  {mark}{filled(text, '  ✓ ')[3:]}")

    def start(self, *words: str) -> Process:
        """Start `holdfast WORDS` as a process on the tour's store."""
        return self._start("-m", "holdfast.surfaces.cli.entry", *words)

    def start_script(self, script: str, *words: str) -> Process:
        """Start a Python script. Its arguments are the store's URL and the words."""
        return self._start("-c", script, self.url, *words)

    def run(self, *words: str) -> tuple[int, str]:
        """Run `holdfast WORDS`; return its exit status and output."""
        return self.outcome(self.start(*words))

    def line(self, process: Process) -> str:
        """The next line that a process prints; empty when it has ended."""
        return process.stdout.readline().decode(errors="replace").strip() if process.stdout else ""

    def outcome(self, process: Process) -> tuple[int, str]:
        """Wait for a process; return its exit status and its output after the lines that were read
        before.
        """
        printed, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, printed.decode(errors="replace").strip()

    def refusal(
        self, error: type[HoldfastError], call: Callable[..., object], *words: Any, **more: Any
    ) -> HoldfastError | None:
        """The error with which a call is refused; None when it is not refused."""
        try:
            call(*words, **more)
        except error as refused:
            return refused
        return None

    def until(self, true: Callable[[], bool], text: str) -> None:
        """Wait for what another program does without notice. Raises BrokenStep after 30 s."""
        end_s = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end_s:
                raise BrokenStep(text)
            time.sleep(_POLL_S)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _start(self, *words: str) -> Process:
        with open(self.folder / _ERRORS, "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *words],
                # Unbuffered: `outcome` reads from the pipe itself, and would miss what `line` had
                # read ahead.
                bufsize=0,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment,
                # Otherwise the settings of the user's folder would count.
                cwd=self.folder,
            )
        self._started.append(process)
        return process


def last_errors(folder: Path) -> list[str]:
    """The last lines that processes of a tour wrote to standard error. Some belong to the tour."""
    path = folder / _ERRORS
    return path.read_text(errors="replace").splitlines()[-_ERRORS_MAX:] if path.exists() else []


def filled(text: str, lead: str = "") -> str:
    """The text within the terminal's width, with further lines below its first word."""
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX)
    lines = textwrap.wrap(
        text, max(width - len(lead), 30), break_long_words=False, break_on_hyphens=False
    )
    return lead + ("\n" + " " * len(lead)).join(lines)
