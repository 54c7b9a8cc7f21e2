"""Run a program under strace and keep its report."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proof.powerloss import trace as tracing
from proof.powerloss.calls import TRACED

_STRING_BYTES_MAX = 1 << 24
_COMMAND = [
    "strace",
    "-f",
    "--seccomp-bpf",
    "-y",
    "-xx",
    f"-s{_STRING_BYTES_MAX}",
    "-qq",
    "--signal=none",
    "-eraw=read",
]


class TracerMissing(Exception):
    """strace is missing, or may not trace."""


@dataclass(frozen=True)
class Recording:
    """Where a recorded program wrote: its files below `root`, its promises to `acknowledgements`;
    strace wrote to `log`.
    """

    root: Path
    acknowledgements: Path
    log: Path

    def trace(self, *, mapped: Sequence[str] = ()) -> tracing.Trace:
        """What the program did. `mapped`: endings of the names of files that are written through
        memory, and may be lost. Raises TraceError if it did something that the model does not
        follow.
        """
        with self.log.open(encoding="ascii") as lines:
            return tracing.trace(
                lines,
                root=str(self.root),
                acknowledgements=str(self.acknowledgements),
                mapped=mapped,
            )


def why_not() -> str | None:
    """Why nothing can be recorded here; None if recording works."""
    if shutil.which("strace") is None:
        return "strace is not installed: apt-get install strace"
    tried = subprocess.run(
        [*_COMMAND, "-o/dev/null", "-etrace=fsync", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        None
        if tried.returncode == 0
        else f"strace may not trace here: {tried.stderr.strip()[:200]}"
    )


def record(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> Recording:
    """Run the command, with the paths of root and acknowledgements as its last two arguments, until
    it and all it started have ended. `folder` is empty, on a disk or in memory: that makes no
    difference.

    Raises TracerMissing; CalledProcessError with the program's stderr; TimeoutExpired.
    """
    if reason := why_not():
        raise TracerMissing(reason)
    folder = folder.resolve()
    recording = Recording(folder / "root", folder / "acknowledgements", folder / "strace.log")
    recording.root.mkdir()
    recording.acknowledgements.touch()
    subprocess.run(
        [
            *_COMMAND,
            f"-o{recording.log}",
            f"-etrace={TRACED}",
            *command,
            str(recording.root),
            str(recording.acknowledgements),
        ],
        env={**os.environ, **(environment or {})},
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return recording
