"""A crowd of real processes on one store, some of them killed or stopped while it lasts, and the
history that they leave.
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
from typing import NamedTuple

from proof.crowd.worker import Plan
from proof.histories import Operation, died, read
from tests.harness.crowds import over
from tests.harness.timeouts import PATIENCE_S


class Crowd(NamedTuple):
    """How many, for how long, and what befalls them."""

    kind: str
    seed: int
    lasts_s: float
    processes: int = 4
    threads: int = 2
    part_s: float = 0.25
    kills: bool = True
    bug: str = ""


class Ran(NamedTuple):
    """What a crowd left behind."""

    operations: list[Operation]
    kills: int
    failed: list[str]
    """The processes that ended by an error, which a planted bug may bring about."""


class _Process:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.process
        command = [sys.executable, "-m", "proof.crowd.worker", json.dumps(plan._asdict())]
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pidfd = os.pidfd_open(self.child.pid)

    def begin(self, until: float) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{until}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass

    def wait_until_ready(self) -> None:
        assert self.child.stdout is not None
        if self.child.stdout.readline() != "ready\n":
            raise AssertionError(f"process {self.plan.process} did not begin: {self.told()}")

    def told(self) -> str:
        assert self.child.stderr is not None
        return self.child.stderr.read()[-3000:]

    def wait_until_over(self) -> str:
        """What it failed with; "" when it ended well."""
        _, errors = self.child.communicate(timeout=PATIENCE_S)
        return errors[-3000:] if self.child.returncode else ""

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(PATIENCE_S)
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self.pidfd)


def run(store: str, folder: Path, crowd: Crowd) -> Ran:
    """Let a crowd loose on a store and return its history."""
    deaths: list[Operation] = []
    failed: list[str] = []
    with _crowd(store, folder, crowd) as processes:
        until = time.monotonic() + crowd.lasts_s
        for process in processes:
            process.begin(until)
        _disturb(processes, crowd, until, deaths)
        for process in processes:
            if error := process.wait_until_over():
                failed.append(f"{process.plan.process}: {error}")
                # What it began and did not end is as that of one that was killed, and so is what it
                # held.
                deaths.append(died(process.plan.process, until - crowd.lasts_s))
            else:
                # An orderly end frees nothing by itself, but its process is gone.
                deaths.append(died(process.plan.process, until))
    return Ran(
        [*read(sorted(folder.glob("*.history"))), *deaths], len(deaths) - len(processes), failed
    )


@contextmanager
def _crowd(store: str, folder: Path, crowd: Crowd) -> Iterator[list[_Process]]:
    processes: list[_Process] = []
    try:
        for number in range(crowd.processes):
            plan = Plan(
                store,
                str(folder),
                f"{number}.0",
                crowd.seed,
                crowd.kind,
                crowd.threads,
                crowd.part_s,
                crowd.bug,
            )
            processes.append(_Process(plan))
        for process in processes:
            process.wait_until_ready()
        yield processes
    finally:
        for process in processes:
            process.close()


def _disturb(
    processes: list[_Process], crowd: Crowd, until: float, deaths: list[Operation]
) -> None:
    """Kill some and put others in their place, and stop some for a while."""
    draw = random.Random(f"{crowd.seed}/crowd")
    while crowd.kills and not over(processes, draw.uniform(0.1, 0.4), until):
        at = draw.randrange(len(processes))
        process = processes[at]
        # The first is killed: a machine that is busy may leave no time for a second.
        if not deaths or draw.random() < 0.75:
            deaths.append(died(process.plan.process, time.monotonic()))
            process.child.kill()
            process.close()
            number, _, life = process.plan.process.partition(".")
            processes[at] = _Process(process.plan._replace(process=f"{number}.{int(life) + 1}"))
            processes[at].begin(until)
        else:
            process.child.send_signal(signal.SIGSTOP)
            ended = over(processes, draw.uniform(0.05, 0.3), until)
            process.child.send_signal(signal.SIGCONT)
            if ended:
                return
