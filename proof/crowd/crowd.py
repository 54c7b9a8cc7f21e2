"""Starts the processes of a crowd, kills and stops some of them by its seed, and waits for the end."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from proof.crowd.plan import Crowd, Plan

_END_S = 120.0
"""How long a process may run after its time is over."""


class Blow(NamedTuple):
    """An action on a process: `killing`, `died`, `stopping` or `continued`, and its time."""

    kind: str
    process: str
    at: float


class Run(NamedTuple):
    """What happened to a crowd."""

    began_s: float
    ended_s: float
    blows: list[Blow]
    processes: list[str]
    """The names of those that were not killed."""
    failed: dict[str, str]
    """The processes among them that ended by an error, with the error."""

    @property
    def kills(self) -> int:
        return sum(blow.kind == "killing" for blow in self.blows)


class _Process:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.process
        self._errors = Path(plan.folder, f"{plan.process}.errors")
        with self._errors.open("w") as errors:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "proof.crowd.worker", json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.pidfd = os.pidfd_open(self.child.pid)

    def wait_until_ready(self) -> None:
        assert self.child.stdout is not None
        if self.child.stdout.readline() != "ready\n":
            raise AssertionError(f"process {self.name} did not start: {self.error()}")

    def begin(self, until: float) -> None:
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):
            self.child.stdin.write(f"{until}\n")
            self.child.stdin.flush()

    def error(self) -> str:
        """The traceback that it printed, without the warnings before."""
        return "".join(self._errors.read_text().partition("Traceback")[1:])[-3000:]

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(_END_S)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        os.close(self.pidfd)


def run(store: str, folder: Path, crowd: Crowd) -> Run:
    """Start a crowd on a store and wait for its end. Raises AssertionError if a process ends before
    its time.
    """
    # With the seed, so that a failure can be repeated.
    print(f"{crowd}", flush=True)
    blows: list[Blow] = []
    with _processes(store, folder, crowd) as processes:
        began_s = time.monotonic()
        until = began_s + crowd.lasts_s
        for process in processes:
            process.begin(until)
        if crowd.kills:
            _disturb(processes, crowd, until, blows)
        failed = {}
        for process in processes:
            status = process.child.wait(_END_S)
            if status:
                failed[process.name] = f"status {status}: {process.error()}"
        return Run(began_s, until, blows, [process.name for process in processes], failed)


@contextmanager
def _processes(store: str, folder: Path, crowd: Crowd) -> Iterator[list[_Process]]:
    processes: list[_Process] = []
    try:
        for number in range(crowd.processes):
            processes.append(_Process(Plan(store, str(folder), f"{number}.0", crowd)))
        for process in processes:
            process.wait_until_ready()
        yield processes
    finally:
        for process in processes:
            process.close()


def _disturb(processes: list[_Process], crowd: Crowd, until: float, blows: list[Blow]) -> None:
    """Kill some processes and replace them, and stop some for a while."""
    draw = random.Random(f"{crowd.seed}/crowd")

    def note(kind: str, process: _Process) -> None:
        blows.append(Blow(kind, process.name, time.monotonic()))

    while not _over(processes, draw.uniform(0.4, 1.6) * crowd.pause_s, until):
        at = draw.randrange(len(processes))
        process = processes[at]
        # The first action is a kill: a busy machine may leave no time for a second one.
        if not blows or draw.random() < crowd.killed:
            note("killing", process)
            process.child.kill()
            process.close()
            note("died", process)
            number, _, incarnation = process.name.partition(".")
            processes[at] = _Process(
                process.plan._replace(process=f"{number}.{int(incarnation) + 1}")
            )
            processes[at].begin(until)
        else:
            note("stopping", process)
            process.child.send_signal(signal.SIGSTOP)
            ended = _over(processes, draw.uniform(0.2, 1.2) * crowd.pause_s, until)
            process.child.send_signal(signal.SIGCONT)
            note("continued", process)
            if ended:
                return


def _over(processes: Sequence[_Process], seconds: float, until: float) -> bool:
    """Wait; return True when the time of the crowd is over. Raises AssertionError if a process
    ended before that.
    """
    left_s = until - time.monotonic()
    ended, _, _ = select.select(
        [process.pidfd for process in processes], [], [], max(min(seconds, left_s), 0.0)
    )
    # If a busy machine wakes it late, processes have already ended on schedule.
    if left_s <= seconds or time.monotonic() >= until:
        return True
    failed = {process.name: process.error() for process in processes if process.pidfd in ended}
    assert not failed, f"processes ended by themselves: {failed}"
    return False
