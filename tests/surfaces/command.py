"""Run the real command line as a user does."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.timeouts import PATIENCE_S

ENTRY = [sys.executable, "-m", "holdfast.surfaces.cli.entry"]


class Ran(NamedTuple):
    status: int
    out: str
    err: str


class CommandLine:
    """`holdfast` in a folder and with an environment of its own."""

    before: Sequence[str] = ()
    """The words that each command begins with, such as those that make it another user's."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            **environment,
        }
        if "PYTHONPATH" in os.environ:
            # A run of the tests on another copy of the package uses its commands too.
            self.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]

    def __call__(self, *words: str, cwd: Path | None = None, stdin: bytes | None = None) -> Ran:
        return self._ran([*ENTRY, *words], cwd or self.folder, stdin)

    def shell(self, script: str) -> Ran:
        """Run a line of shell in which `holdfast` is the command."""
        function = f'holdfast() {{ {shlex.join(ENTRY)} "$@"; }}'
        return self._ran(["bash", "-c", f"{function}\n{script}"], self.folder)

    def on_a_terminal(self, *words: str, columns: int = 80, typed: str = "") -> str:
        """What a terminal of that width is sent, at which somebody has typed that."""
        import pty

        ours, theirs = pty.openpty()
        os.write(ours, typed.encode())
        environment = {**self.environment, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        done = subprocess.Popen(
            [*ENTRY, *words],
            cwd=self.folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (piece := os.read(ours, 4096))
            except OSError:
                # The last one at the other end has gone.
                break
            if not piece:
                break
        os.close(ours)
        done.wait(PATIENCE_S)
        return shown.decode().replace("\r\n", "\n")

    def _ran(self, command: list[str], cwd: Path, stdin: bytes | None = None) -> Ran:
        done = subprocess.run(
            [*self.before, *command],
            cwd=cwd,
            env=self.environment,
            input=stdin or b"",
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        out, err = (said.decode().replace("\r\n", "\n") for said in (done.stdout, done.stderr))
        return Ran(done.returncode, out, err)

    def start(self, *words: str, **how: Any) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*self.before, *ENTRY, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            **how,
        )


Say = Callable[..., Ran]
