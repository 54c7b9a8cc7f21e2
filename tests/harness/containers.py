"""Python programs in containers of one kernel: with a boot id, pids, a /proc or a clock since boot
of their own.

Made by `unshare`, which takes root: mark a test with `needs_containers`, and elsewhere it is
skipped by name.
"""

import functools
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.processes import children
from tests.harness.timeouts import PATIENCE_S

_ROOT = Path(__file__).parent.parent.parent
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNT_BOOT_ID = f'mount --bind "$1" {_BOOT_ID} && shift && exec "$@"'


class Container(NamedTuple):
    """What is a container's own. The rest it shares with the host: files, network, users and the
    kernel.
    """

    boot_id: Path | None = None
    """A file whose content the container sees as the kernel's boot id (LXC and systemd-nspawn do
    this).
    """
    own_pids: bool = False
    """A pid namespace: its first process is number 1."""
    own_proc: bool = True
    """With `own_pids`: a /proc that shows that namespace. False leaves the parent's, whose numbers
    mean nothing inside.
    """
    boot_shift_s: int | None = None
    """A time namespace whose clock since boot is ahead by so many seconds, and with it every start
    time in its /proc.
    """

    def words(self, *words: str) -> list[str]:
        """The command that runs another one inside."""
        outside = ["unshare", "--mount"]
        if self.own_pids:
            outside += ["--pid"]
            outside += ["--mount-proc"] if self.own_proc else []
        if self.boot_shift_s is not None:
            outside += ["--time", "--boottime", str(self.boot_shift_s)]
        if self._forks:
            outside += ["--fork", "--kill-child=KILL"]
        if self.boot_id is not None:
            outside += ["sh", "-c", _MOUNT_BOOT_ID, "sh", str(self.boot_id)]
        return [*outside, *words]

    def start(self, code: str, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
        """Begin a program in Python; its text in and out are pipes. It may import what is in `src`
        and `tests`.
        """
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "cwd": _ROOT,
        }
        words = self.words(sys.executable, "-c", code, *map(str, arguments))
        return subprocess.Popen(words, **{**pipes, **options})

    def run(self, code: str, *arguments: object) -> str:
        """Run a program in Python to its end; return what it wrote, without the white space around
        it.
        """
        words = self.words(sys.executable, "-c", code, *map(str, arguments))
        ended = subprocess.run(
            words, capture_output=True, text=True, cwd=_ROOT, timeout=PATIENCE_S, check=False
        )
        assert ended.returncode == 0, (
            f"exit status {ended.returncode}: {ended.stdout}{ended.stderr}"
        )
        return ended.stdout.strip()

    def pid(self, started: "subprocess.Popen[str]") -> int:
        """The host's pid of a program that was started here, after its first output. With its own
        pids or clock, `unshare` is its parent, and ends with it.
        """
        return children(started.pid)[0] if self._forks else started.pid

    @property
    def _forks(self) -> bool:
        # The namespaces of pids and of time are entered by children alone.
        return self.own_pids or self.boot_shift_s is not None


HOST = Container()
"""Nothing of its own: a plain process in the same harness."""


def own_boot_id(folder: Path) -> Path:
    """A file with a new boot id, for `Container(boot_id=...)`."""
    path = folder / f"boot_id-{uuid.uuid4().hex[:8]}"
    path.write_text(f"{uuid.uuid4()}\n")
    return path


@functools.cache
def _missing() -> str:
    """Why there are no containers here; empty when there are."""
    if os.geteuid() != 0:
        return "containers take root (unshare)"
    tried = Container(boot_id=Path("/dev/null"), own_pids=True, boot_shift_s=1).words("true")
    try:
        ended = subprocess.run(
            tried, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except OSError as error:
        return f"containers take unshare ({error.strerror})"
    return (
        ""
        if ended.returncode == 0
        else f"this machine makes no containers ({ended.stderr.strip()})"
    )


needs_containers = pytest.mark.skipif(bool(_missing()), reason=_missing() or "there are containers")
