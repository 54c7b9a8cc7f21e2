"""Run the real command line as a user does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ENTRY = [sys.executable, "-m", "holdfast.surfaces.cli.entry"]


class Ran(NamedTuple):
    status: int
    out: str
    err: str


class CommandLine:
    """`holdfast` in a folder and with an environment of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **environment}

    def __call__(self, *words: str, cwd: Path | None = None) -> Ran:
        done = subprocess.run(
            [*ENTRY, *words],
            cwd=cwd or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*ENTRY, *words], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
