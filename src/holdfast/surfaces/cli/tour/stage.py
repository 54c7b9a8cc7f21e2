"""The tour's stage: a connection, real child processes, and statements that must hold."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.tour.warden import MARK

PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.03
_WIDTH_MAX = 110
_COMPLAINTS = "complaints"
_COMPLAINTS_MAX = 8
_FOREIGN = ("HOLDFAST_", "MQTT_", "DELEGATE_", "TMUX")
"""How variables begin that would lead a process of the tour elsewhere than to the tour's own store
and tmux.
"""

Process = subprocess.Popen[bytes]

TELLING = """
import threading

class Telling:
    '''Prints when there is nothing to do but sleep, and what ended the sleep.'''
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def __enter__(self):
        return self
    def __exit__(self, *how):
        return self.inner.__exit__(*how)
    def listen(self, *topics):
        return Telling(self.inner.listen(*topics))
    def wait(self, timeout_s, **more):
        if threading.current_thread() is not threading.main_thread():
            return self.inner.wait(timeout_s, **more)
        print('asleep', flush=True)
        woken = self.inner.wait(timeout_s, **more)
        print('woken' if woken.notified or woken.ready else 'looks again', flush=True)
        return woken
"""
"""For a program whose sleep is part of the story: what it wraps its store in."""


def was_woken(printed: str) -> bool:
    """Was the last sleep of such a program ended by another? How soon it goes on then is its
    machine's affair.
    """
    return [line for line in printed.splitlines() if line in ("woken", "looks again")][-1:] == [
        "woken"
    ]


class BrokenStep(Exception):
    """A statement of the tour did not hold."""


class Stage:
    """Where a chapter plays. Whatever it starts is gone when it is closed."""

    def __init__(self, hf: Holdfast, url: str, folder: Path) -> None:
        self.hf = hf
        self.url = url
        self.folder = folder
        self.told = 0
        self.last_said = ""
        around = {
            name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)
        }
        self.environment = {
            **around,
            "HOLDFAST_STORE": url,
            "XDG_STATE_HOME": str(folder),
            MARK: str(folder),
        }
        self._started: list[Process] = []

    def title(self, text: str, why: str) -> None:
        """Begin a chapter: what it is called, and why anybody wants it."""
        click.secho(f"\n{text}", bold=True)
        click.secho(filled(why, "  "), dim=True)

    def say(self, text: str) -> None:
        """Tell what is about to happen."""
        self.last_said = text
        click.echo(filled(text, "  · "))

    def holds(self, true: bool, text: str) -> None:
        """State what must be true now. Raises BrokenStep if it is not."""
        if not true:
            raise BrokenStep(text)
        self.told += 1
        mark = click.style("✓", fg="green")
        click.echo(f"  {mark}{filled(text, '  ✓ ')[3:]}")

    def start(self, *words: str) -> Process:
        """Start `holdfast WORDS` as a process of its own, on the tour's store."""
        return self._start([sys.executable, "-m", "holdfast.surfaces.cli.entry", *words])

    def start_script(self, script: str, *words: str) -> Process:
        """Start a Python program of its own; it finds the store's URL and the words in its
        arguments.
        """
        return self._start([sys.executable, "-c", script, self.url, *words])

    def line(self, process: Process) -> str:
        """The next line that a process prints; empty when it has ended."""
        return process.stdout.readline().decode(errors="replace").strip() if process.stdout else ""

    def monotonic(self) -> float:
        """A time that all processes of this machine agree on."""
        return time.monotonic()

    def outcome(self, process: Process) -> tuple[int, str]:
        """Wait for a process; return its exit status and what it printed after the lines that were
        read.
        """
        printed, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, printed.decode(errors="replace").strip()

    def until(self, true: Callable[[], bool], text: str) -> None:
        """Wait for what other programs do, which tell nobody. Raises BrokenStep when it does not
        come about.
        """
        end = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end:
                raise BrokenStep(text)
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        """End every process that is left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _start(self, command: Sequence[str]) -> Process:
        # In the tour's folder: the settings of wherever the user is must not lead it elsewhere.
        with open(self.folder / _COMPLAINTS, "ab") as complaints:
            # Unbuffered: what `line` read ahead would be missing from the `outcome`, which reads
            # from the pipe itself.
            process = subprocess.Popen(
                command,
                bufsize=0,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=self.environment,
                cwd=self.folder,
            )
        self._started.append(process)
        return process


def complaints(folder: Path) -> list[str]:
    """The last that the processes of a tour complained of, of which some belongs to the tour."""
    path = folder / _COMPLAINTS
    return path.read_text(errors="replace").splitlines()[-_COMPLAINTS_MAX:] if path.exists() else []


def filled(text: str, lead: str = "") -> str:
    """The text within the terminal's width, with its further lines below its first word."""
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX)
    words = textwrap.wrap(
        text, max(width - len(lead), 30), break_long_words=False, break_on_hyphens=False
    )
    return lead + ("\n" + " " * len(lead)).join(words)
