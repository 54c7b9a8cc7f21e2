"""Ordinary users of this machine, for tests that root runs.

Root's Python may lie in a folder that only root can enter. So the users work in a mount namespace
in which everyone can reach Python, the package and the folder of the test. /proc can be mounted
there with `hidepid`. All processes are in the pid namespace of the test, so the test sees them as
they are.
"""

import functools
import grp
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.command import CommandLine
from tests.surfaces.locking import Process, put_down

ONE, TWO = 65534, 61_001
"""The first is `nobody`, which su(1) knows. The second has no name on any machine."""
GROUP = grp.getgrgid(1)
"""A group that every machine has. Both users are in it."""
_ROOT = Path(__file__).parent.parent.parent


class User(CommandLine):
    """`holdfast` as one user runs it."""

    def __init__(self, room: "Room", uid: int, url: str) -> None:
        home = room.folder / f"home-{uid}"
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        super().__init__(home, HOLDFAST_STORE=url, HOLDFAST_GROUP=GROUP.gr_name)
        ids = (
            ["--reuid", str(uid), "--regid", str(uid), "--groups", str(GROUP.gr_gid)] if uid else []
        )
        # A process that enters a mount namespace is in its root folder then.
        self.before = [
            *room.words,
            *(["setpriv", *ids] if ids else []),
            "env",
            "--chdir",
            str(home),
        ]
        self._started: list[Process] = []

    def begin(self, *words: str, stdin: int = subprocess.PIPE, **how: Any) -> Process:
        """Start `holdfast WORDS`; its input is ours to end."""
        process = self.start(*words, stdin=stdin, **how)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            put_down(process)


class Room:
    """A mount namespace for users, which lasts as long as the process that made it."""

    def __init__(self, folder: Path, hidepid: str) -> None:
        self.folder = folder
        folder.chmod(0o711)
        store = folder / "state"
        store.mkdir()
        os.chown(store, ONE, GROUP.gr_gid)
        store.chmod(0o2775)
        lines = [
            *_opened([Path(sys.base_prefix), Path(sys.prefix), _ROOT, folder]),
            "echo ready",
            "read end",
        ]
        if hidepid:
            lines.insert(-2, f"mount -t proc -o hidepid={hidepid} proc /proc")
        script = "set -e\n" + "\n".join(lines)
        self._maker = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._maker.stdout is not None
        assert self._maker.stdout.readline() == "ready\n"
        self.words = ["nsenter", f"--mount=/proc/{self._maker.pid}/ns/mnt"]
        self._users: list[User] = []

    def user(self, uid: int, store: str = "sqlite") -> User:
        """One more user of the store of this room."""
        made = User(self, uid, f"{store}:{self.folder}/state/store")
        self._users.append(made)
        return made

    def close(self) -> None:
        for user in self._users:
            user.close()
        self._maker.communicate()


@contextmanager
def room(folder: Path, hidepid: str = "") -> Iterator[Room]:
    """A room, and the end of what the users started in it."""
    made = Room(folder, hidepid)
    try:
        yield made
    finally:
        made.close()


def _opened(paths: Sequence[Path]) -> list[str]:
    """Lines of shell that let everyone reach these folders: those that only root may enter are
    covered by new ones.
    """
    closed = {path: top for path in paths if (top := _closed(path)) is not None}
    lines = []
    for number, path in enumerate(closed):
        # On a file system of its own: what covers one folder must not cover the next one's.
        aside = f"/mnt/{number}"
        lines += ["mount -t tmpfs -o mode=755 none /mnt"] if not number else []
        lines += [f"mkdir {aside}", f"mount --bind {shlex.quote(str(path))} {aside}"]
    lines += [
        f"mount -t tmpfs -o mode=755 none {shlex.quote(str(top))}"
        for top in sorted({*closed.values()})
    ]
    for number, path in enumerate(closed):
        lines += [
            f"mkdir -p {shlex.quote(str(path))}",
            f"mount --bind /mnt/{number} {shlex.quote(str(path))}",
        ]
    return lines


def _closed(path: Path) -> Path | None:
    """The highest folder on the way to a path that only its owner may enter."""
    return next((one for one in reversed(path.parents) if not one.stat().st_mode & 0o001), None)


@functools.cache
def _missing() -> str:
    """Why there are no other users here; empty when there are."""
    if os.geteuid() != 0:
        return "only root can become another user"
    with suppress(OSError):
        words = [
            "unshare",
            "--mount",
            "setpriv",
            "--reuid",
            str(ONE),
            "--regid",
            str(ONE),
            "--clear-groups",
            "true",
        ]
        tried = subprocess.run(words, capture_output=True, text=True, check=False)
        return (
            ""
            if tried.returncode == 0
            else f"this machine makes no mount namespace ({tried.stderr.strip()})"
        )
    return "this takes unshare and setpriv"


needs_users = pytest.mark.skipif(bool(_missing()), reason=_missing() or "there are users")
