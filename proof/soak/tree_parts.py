"""Commands under claims: `holdfast locks run` and `holdfast jobs run`, and kills among all
processes of their trees.

A claim must last as long as any process of the tree, whatever else was killed. Wrappers and
guardians are also stopped, and later continued or killed. That may delay others, and must not let
them in. `tree_process.py` is the command, and its own witness.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.runtime.connection import Holdfast
from proof.soak import tree_process
from proof.soak.child import Child, settle
from proof.soak.invocation import environment, program

NAMES = [f"tree-{number}" for number in range(4)]
QUEUE = "trees"
WITNESSES = "trees"
"""The folder of the witnesses."""
_KEPT = ("both", "mark", "fifo", "none")
_WRAPPER, _GUARDIAN, _COMMAND = "wrapper", "guardian", "command"
_WAIT_S = 5
_END_S = 60.0
_HELD, _LOST, _NO_STORE = 5, 4, 6
"""Exit statuses of `locks run`: not acquired in time; lost; the database is down."""
_JOB_DONE = (0, 1, 3, _HELD)
"""Those of `jobs run`. A process of the soak that is stopped inside a change keeps a files store
busy for all others.
"""
_FIRST_LIFE_S, _LIFE_S = 0.4, 1.5
"""The longest life of the first process of a tree, and of the others: those that outlive it matter
most.
"""
_EARLY = 0.25
_STOPPED = 0.3
"""The share of the kills of a wrapper or a guardian that only stop it."""
_STOP_S = 0.6
"""The longest additional time that a process stays stopped."""
_CONTINUE = """
import os, signal, sys
process, soak = map(int, sys.argv[1:])
os.read(soak, 1)
try:
    signal.pidfd_send_signal(process, signal.SIGCONT)
except ProcessLookupError:
    pass
"""
"""Continues a process when the soak's process closes its end of a pipe, or dies. A guardian that
stays stopped would keep its claim for ever.
"""


class _Shape:
    """The plan of a tree, and which of its processes may be killed."""

    def __init__(self, child: Child, *, adopts: bool) -> None:
        draw = child.draw
        kept = [draw.choice(_KEPT) for _ in range(draw.choice([0, 1, 2, 2]))]
        hows = [draw.choice(["plain", "daemon", "deaf"]) for _ in kept]
        self.others = [
            f"{one}:{how}:{draw.uniform(0.1, _LIFE_S):.3f}"
            for one, how in zip(kept, hows, strict=True)
        ]
        self.seconds = f"{draw.uniform(0.0, _FIRST_LIFE_S):.3f}"
        self.spared = ""
        if "none" in kept:
            # Only its ancestors show that such a process belongs to the tree, so one of the two
            # must stay. It is the guardian where the wrapper adopts no orphans, as in `jobs run`,
            # or does not stay.
            self.spared = draw.choice([_WRAPPER, _GUARDIAN]) if adopts else _GUARDIAN

    def words(self, witness: Path) -> list[str]:
        """The command."""
        return [
            sys.executable,
            "-I",
            "-S",
            tree_process.__file__,
            str(witness),
            tree_process.FIRST,
            self.seconds,
            *self.others,
        ]


class _Tree:
    """A wrapper, its guardian and its command, as they start and end."""

    def __init__(self, child: Child, words: list[str], shape: _Shape) -> None:
        self._child = child
        self._shape = shape
        self._words = words
        self.struck = False
        # Where the wrapper must not be killed, it does not end with this process either. Its tree
        # ends by itself.
        with (child.folder / "trees.log").open("a") as log:
            self._wrapper = subprocess.Popen(
                [*program(child.plant), *words],
                env=environment(child.plant),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=None if shape.spared == _WRAPPER else settle,
            )
        self._found: dict[int, int] = {}
        self._stopped: dict[int, subprocess.Popen[bytes]] = {}
        """The stopped processes, and what continues each of them if this process dies."""
        self._open(self._wrapper.pid)

    def strike(self) -> int | None:
        """Kill or stop some of its processes at some time; return the wrapper's exit status, None
        if it was killed.
        """
        self._ends, self._lives = os.pipe()
        try:
            # Most are killed while the command works, and some while they still start or wait for
            # their turn.
            if self._child.draw.random() >= _EARLY:
                self._wait_for_work()
            for _ in range(self._child.draw.choice([0, 2, 3, 4, 5])):
                self._child.pause(0.12)
                self._look()
                self._blow()
            if self._stopped:
                self._child.pause(_STOP_S)
                for pid in [*self._stopped]:
                    self._continue_or_kill(pid)
            return self.end()
        finally:
            os.close(self._lives)
            os.close(self._ends)
            for fd in self._found.values():
                os.close(fd)

    def end(self) -> int | None:
        """Wait for the wrapper's end."""
        try:
            status = self._wrapper.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._look()
            states = "; ".join(f"{pid} {_state(pid)}" for pid in self._found)
            self._child.wrong(
                f"stuck: {self._wrapper.args!r} has not ended after {_END_S:.0f} s: {states}"
            )
            self._wrapper.kill()
            status = self._wrapper.wait()
        return None if status == -signal.SIGKILL else status

    def _wait_for_work(self) -> None:
        while self._wrapper.poll() is None:
            self._look()
            if any(self._kind(pid) == _COMMAND for pid in self._found):
                return
            time.sleep(0.005)

    def _look(self) -> None:
        """Find the descendants of the known processes. One whose parent was killed was found
        before, or never is.
        """
        below = list(self._found)
        for pid in below:
            with contextlib.suppress(OSError):
                for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    if int(word) not in self._found:
                        self._open(int(word))
                        below.append(int(word))

    def _open(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._found[pid] = os.pidfd_open(pid)

    def _blow(self) -> None:
        """Kill a process, or stop it, or continue a stopped one."""
        living = {
            pid: kind
            for pid, fd in self._found.items()
            if not _ended(fd) and (kind := self._kind(pid)) is not None
        }
        kinds = sorted({*living.values()})
        if not kinds:
            return
        kind = self._child.draw.choice(kinds)
        pid = self._child.draw.choice(sorted(pid for pid in living if living[pid] == kind))
        if pid in self._stopped:
            self._continue_or_kill(pid)
        elif kind != _COMMAND and (
            self._child.draw.random() < _STOPPED or kind == self._shape.spared
        ):
            self._stop(pid, kind)
        elif kind != self._shape.spared:
            self._kill(pid, kind)

    def _kill(self, pid: int, kind: str) -> None:
        if self._send(pid, signal.SIGKILL):
            self._child.count("kills")
            self._record_strike("tree-kills", pid, kind)

    def _stop(self, pid: int, kind: str) -> None:
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _CONTINUE,
            str(self._found[pid]),
            str(self._ends),
        ]
        self._stopped[pid] = subprocess.Popen(words, pass_fds=(self._found[pid], self._ends))
        if self._send(pid, signal.SIGSTOP):
            self._child.count("stops")
            self._record_strike("tree-stops", pid, kind)

    def _continue_or_kill(self, pid: int) -> None:
        continues = self._stopped.pop(pid)
        kind = _WRAPPER if pid == self._wrapper.pid else _GUARDIAN
        if kind != self._shape.spared and self._child.draw.random() < 0.5:
            self._kill(pid, kind)
        else:
            self._send(pid, signal.SIGCONT)
        continues.kill()
        continues.wait()

    def _record_strike(self, log: str, pid: int, kind: str) -> None:
        self._child.tell(
            log, at=time.time(), kind=kind, pid=pid, wrapper=self._wrapper.pid, words=self._words
        )

    def _send(self, pid: int, number: int) -> bool:
        try:
            signal.pidfd_send_signal(self._found[pid], number)
        except ProcessLookupError:
            return False
        self.struck = True
        return True

    def _kind(self, pid: int) -> str | None:
        """The role of a process; None if it has just ended. A process that is not known to belong
        to the command counts as the guardian.
        """
        if pid == self._wrapper.pid:
            return _WRAPPER
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        return _COMMAND if os.fsencode(tree_process.__file__) in words.split(b"\0") else _GUARDIAN


def lock_tree(child: Child, hf: Holdfast) -> bool:
    """A tree under a lock: no other tree has it before the last process of this one has ended."""
    if child.draining:
        return False
    [name] = child.draw.choices(NAMES, [4, 2, 1, 1])
    leftovers = child.draw.choice(["wait", "wait", "keep", "end"])
    # With `keep` the wrapper leaves the tree to the guardian.
    shape = _Shape(child, adopts=leftovers != "keep")
    words = [
        "locks",
        "run",
        name,
        "-q",
        "-w",
        str(_WAIT_S),
        "--leftovers",
        leftovers,
        "--store",
        child.url,
    ]
    tree = _Tree(child, [*words, "--", *shape.words(child.folder / WITNESSES / name)], shape)
    status = tree.strike()
    away = () if hf.store.embedded else (_LOST, _NO_STORE)
    if status == _HELD:
        child.count("refused")
    elif not tree.struck and status is not None and status not in (0, *away):
        child.wrong(f"`locks run` ended with {status}, and nobody struck it")
    child.did()
    return True


def job_tree(child: Child, hf: Holdfast) -> bool:
    """A tree for an attempt of a job: no other attempt begins before the last process of this one
    has ended.
    """
    if child.draining and not _left(hf):
        return False
    if not child.draining and not hf.jobs.list_jobs(status="pending", agent_session=QUEUE, limit=1):
        hf.jobs.register_job(
            "work", agent="a", agent_session=QUEUE, max_attempts=1000, timeout_sec=3600
        )
    shape = _Shape(child, adopts=False)
    words = [
        "jobs",
        "run",
        "--agent-session",
        QUEUE,
        "--once",
        "--wait",
        "1",
        "-q",
        "--store",
        child.url,
    ]
    tree = _Tree(child, [*words, "--", *shape.words(child.folder / WITNESSES)], shape)
    status = tree.end() if child.draining else tree.strike()
    away = () if hf.store.embedded else (_LOST, _NO_STORE)
    if not tree.struck and status is not None and status not in (*_JOB_DONE, *away):
        child.wrong(f"`jobs run` ended with {status}, and nobody struck it")
    child.did()
    return True


def _left(hf: Holdfast) -> bool:
    # One list of all: a job whose worker has died goes from running to pending between two.
    return any(not job.status.ended for job in hf.jobs.list_jobs(agent_session=QUEUE))


def _state(pid: int) -> str:
    """What a process and its threads wait for, in the kernel's words."""
    try:
        threads = [
            f"{path.parent.name} {path.read_text().rpartition(')')[2].split()[0]} "
            f"{(path.parent / 'wchan').read_text()}"
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except OSError:
        return "gone"
    return ", ".join(threads) or "gone"


def _ended(fd: int) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(0))
