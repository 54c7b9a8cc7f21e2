"""A crowd of processes on one store, some of them killed or stopped while it lasts, and the history
that they leave.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.kernel.store import Row
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.runtime.connection import Holdfast
from tests.harness.crowds import over
from tests.harness.timeouts import PATIENCE_S
from tests.model.lock_history import Event, History
from tests.model.lock_worker import NAMES, Plan


class Crowd(NamedTuple):
    """How many, for how long, and what befalls them."""

    seed: int
    lasts_s: float
    processes: int = 10
    jobs: int = 10
    """Threads of each process."""
    kills: bool = True
    habit: str = "mixed"
    bug: str = ""


class Ran(NamedTuple):
    """What a crowd left behind."""

    history: History
    granted_at: dict[int, float]
    """When each token that had been waited for was granted, by the store's clock, as an instant of
    the history.
    """
    left: list[str]
    """Rows that nobody cleared away."""


class _Process:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.process
        command = [sys.executable, "-m", "tests.model.lock_worker", json.dumps(plan._asdict())]
        self._errors = Path(plan.folder, f"{plan.process}.errors")
        with self._errors.open("w") as errors:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.pidfd = os.pidfd_open(self.child.pid)

    def begin(self, until: float) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{until}\n")
        self.child.stdin.flush()

    def wait_until_ready(self) -> None:
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n", (
            f"process {self.plan.process} did not begin"
        )

    def told(self) -> str:
        """What it failed with, without what it only warned of."""
        return "".join(self._errors.read_text().partition("Traceback")[1:])[:3000]

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(PATIENCE_S)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.pidfd)


def run(store: str, folder: Path, crowd: Crowd) -> Ran:
    """Let a crowd loose on a store and wait until all of it is done."""
    draw = random.Random(crowd.seed)
    events: list[Event] = []
    with holdfast.connect(store) as hf:
        # The first one of all makes the store, which is no part of this.
        hf.locks.release(hf.locks.acquire(NAMES, by="first"))
        with _crowd(store, folder, crowd) as processes:
            until = time.monotonic() + crowd.lasts_s
            for process in processes:
                process.begin(until)
            _disturb(processes, crowd, until, draw, events)
            for process in processes:
                status = process.child.wait(PATIENCE_S)
                assert status == 0, (
                    f"process {process.plan.process} ended with {status}: {process.told()}"
                )
        left = _sweep(hf)
        granted_at = _grants(hf)
    for path in sorted(folder.glob("*.events")):
        events += _read(
            path, torn=any(e["kind"] == "killing" and e["process"] == path.stem for e in events)
        )
    return Ran(History(events), granted_at, left)


@contextmanager
def _crowd(store: str, folder: Path, crowd: Crowd) -> Iterator[list[_Process]]:
    processes: list[_Process] = []
    try:
        for number in range(crowd.processes):
            plan = Plan(
                store, str(folder), f"{number}.0", crowd.seed, crowd.jobs, crowd.habit, crowd.bug
            )
            processes.append(_Process(plan))
        for process in processes:
            process.wait_until_ready()
        yield processes
    finally:
        for process in processes:
            process.close()


def _disturb(
    processes: list[_Process], crowd: Crowd, until: float, draw: random.Random, events: list[Event]
) -> None:
    """Kill some and put others in their place, and stop some for a while."""

    def tell(kind: str, process: _Process) -> None:
        events.append({"at": time.monotonic(), "kind": kind, "process": process.plan.process})

    while crowd.kills:
        if over(processes, draw.uniform(0.2, 0.8), until):
            return
        at = draw.randrange(len(processes))
        process = processes[at]
        if draw.random() < 0.5:
            tell("killing", process)
            process.child.kill()
            process.close()
            tell("died", process)
            number, _, life = process.plan.process.partition(".")
            processes[at] = _Process(process.plan._replace(process=f"{number}.{int(life) + 1}"))
            processes[at].begin(until)
        else:
            tell("stopping", process)
            process.child.send_signal(signal.SIGSTOP)
            done = over(processes, draw.uniform(0.05, 0.6), until)
            process.child.send_signal(signal.SIGCONT)
            tell("continued", process)
            if done:
                return


def _sweep(hf: Holdfast) -> list[str]:
    """Ask for everything, as the next that comes would, until what the dead left is cleared away;
    return what never is.
    """
    for _ in range(1000):
        hf.locks.release(hf.locks.acquire(NAMES, by="sweeper", timeout_s=PATIENCE_S))
        rows: list[Row[Any]] = hf.store.read(
            lambda tx: [*tx.range(LOCKS), *tx.range(LOCK_WAITS)], scope=[LOCKS, LOCK_WAITS]
        )
        if not rows:
            break
    return [f"{row.key}: {row.record}" for row in rows]


def _grants(hf: Holdfast) -> dict[int, float]:
    if not hf.store.embedded:
        # A database dates a change by the begin of its transaction, which may have waited long for
        # its own turn.
        return {}
    ahead_s = time.time() - time.monotonic()
    return {
        entry.revision: entry.at.timestamp() - ahead_s
        for batch in hf.log.since()
        for entry in batch.entries
        if entry.kind == "lock.granted" and "waited_s" in entry.data
    }


def _read(path: Path, *, torn: bool) -> list[Event]:
    *lines, rest = path.read_bytes().split(b"\n")
    assert torn or not rest, f"{path.name} ends in the middle of a line"
    return [json.loads(line) for line in lines]
