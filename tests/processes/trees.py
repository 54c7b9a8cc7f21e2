"""Commands with children of every kind, and the raw facts about them: which processes live."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.processes import cgroup
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import ENTRY
from tests.surfaces.locking import Bench, Process

KEPT = ("both", "mark", "fifo", "none")
"""What a grandchild keeps of the two things by which it is known to belong to its tree."""

_PARENT = """
import os, subprocess, sys
kept = sys.argv[1]
child = subprocess.Popen(
    ["sleep", "infinity"],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
    close_fds=kept in ("mark", "none"),
    env=None if kept in ("both", "mark") else {"PATH": os.environ["PATH"]},
)
print(os.getpid(), child.pid, flush=True)
sys.stdin.read()
"""

FORKING = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
print(os.getpid(), flush=True)
null = os.open("/dev/null", os.O_RDWR)
for fd in range(3): os.dup2(null, fd)
while True:
    time.sleep(0.003)
    if os.fork(): os._exit(0)
    os.setsid()
"""
"""Ignores signals, and starts a process and ends every 3 ms, so that each search finds another."""


def _makes_groups() -> bool:
    folder = cgroup.below_own(f"{os.getpid()}-trial")
    try:
        if folder is None:
            return False
        os.mkdir(folder)
        os.rmdir(folder)
    except OSError:
        return False
    return True


needs_groups = pytest.mark.skipif(
    not _makes_groups(), reason="this user may not make control groups here"
)
needs_mounts = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="this user may not make a mount namespace here",
)


_READ_ONLY = " && ".join(
    [*(f"mount -o remount,bind,ro {point}" for _, point in cgroup._mounts()), 'exec "$@"']
)
READ_ONLY_GROUPS = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh"]
"""What begins a command for which control groups are mounted read-only, as in most containers."""


def without_groups(bench: Bench, *words: str) -> Process:
    """Start `holdfast locks run WORDS` where no control group can be made."""
    command = [*READ_ONLY_GROUPS, *ENTRY, "locks", "run", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=bench.folder,
        env=bench.environment,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def tree_of(hf: Holdfast, name: str) -> str:
    """The tree that holds a lock."""
    [hold] = hf.locks.status(name).holds
    assert hold.process is not None and hold.process.tree
    return hold.process.tree


def groups_of(tree: str) -> list[str]:
    """The control groups of a tree."""
    return cgroup.find(tree, os.geteuid())


def parent(kept: str) -> list[str]:
    """A command that starts a daemon which keeps this much, prints both pids, and ends when its
    input does.
    """
    return [sys.executable, "-c", _PARENT, kept]


def report(pids: Sequence[int]) -> list[str]:
    """A command that prints which of these processes live when it begins."""
    program = (
        "import os, sys\n"
        "def lives(pid):\n"
        "    try: return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] not in "
        "'ZX'\n"
        "    except OSError: return False\n"
        "print([pid for pid in map(int, sys.argv[1:]) if lives(pid)])\n"
    )
    return [sys.executable, "-c", program, *map(str, pids)]


def runs(pid: int, program: str) -> bool:
    """Does a process run this program of Python? Another one may have its pid."""
    try:
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def guardian_of(wrapper: Process) -> int:
    """The guardian that a wrapper has."""
    [found] = [
        int(word)
        for word in Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()
    ]
    return found


class Death:
    """A process whose end is waited for by its descriptor, whatever its parent does."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """Kill it, if it lives, and wait until it has ended."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended."""
        assert self._ended(PATIENCE_S), f"process {self.pid} still lives"

    @property
    def lives(self) -> bool:
        return not self._ended(0)

    def _ended(self, timeout_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1000))

    def close(self) -> None:
        """End it if it lives, and close it."""
        self.send(signal.SIGKILL)
        os.close(self._fd)


def end_left(pid: int, folder: Path) -> None:
    """Kill a process that a test left, unless its pid is another's by now: it has to do with the
    folder of the test.
    """
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            around = (
                Path(f"/proc/{pid}/environ").read_bytes() + os.readlink(f"/proc/{pid}/cwd").encode()
            )
            if os.fspath(folder).encode() in around:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


@contextmanager
def deaths(pids: Sequence[int]) -> Iterator[list[Death]]:
    """Some processes, none of which outlives the block."""
    found = [Death(pid) for pid in pids]
    try:
        yield found
    finally:
        for one in found:
            one.close()


@contextmanager
def bench_on(url: str, folder: Path) -> Iterator[Bench]:
    """`holdfast` on a store."""
    with connect(url) as hf:
        bench = Bench(folder, hf, url)
        try:
            yield bench
        finally:
            bench.close()


def fifos(hf: Holdfast) -> list[str]:
    """The FIFOs that lie beside a store."""
    folder = hf.processes.trees._folder
    return sorted(os.listdir(folder)) if folder is not None and folder.is_dir() else []


def quiet(process: "subprocess.Popen[str]") -> None:
    """End the input of a command."""
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


DAEMON = """
import os
told, tell = os.pipe()
if os.fork():
    # It ends when the daemon has told its pid, and not before.
    os.read(told, 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.write(tell, b".")
null = os.open("/dev/null", os.O_RDWR)
for fd in range(3): os.dup2(null, fd)
import signal
signal.pause()
"""
