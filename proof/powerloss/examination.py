"""Build thousands of states and check each, on all cores; the same seed builds the same states."""

import multiprocessing
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from proof.powerloss.disk import Disk
from proof.powerloss.operations import Acknowledged
from proof.powerloss.points import Points
from proof.powerloss.states import State
from proof.powerloss.trace import Trace

_MEMORY = Path("/dev/shm")
_SHOWN_MAX = 5


@dataclass(frozen=True)
class Verdict:
    """What a check found: `wrong` is empty for a good state; `seen` is counted up in the report."""

    wrong: Sequence[str] = ()
    seen: Sequence[str] = ()


class Check(Protocol):
    """Opens a state as after a reboot and reports what is wrong with it. It may change the folder,
    which is then deleted. It is pickled, so that several processes can check states.
    """

    def __call__(self, root: Path, acknowledged: Sequence[bytes], rng: random.Random) -> Verdict:
        """`acknowledged` is what the program had promised before the power loss, in order; `rng`
        selects a sample for costly checks.
        """
        ...


@dataclass(frozen=True)
class Failure:
    """A state that the check refused. `examine` with the same trace, seed and `only=[state]` builds
    it again.
    """

    state: int
    point: int
    line: int
    wrong: tuple[str, ...]


@dataclass
class Report:
    """The result of an examination."""

    seed: int
    states: int = 0
    lossy: int = 0
    """States that lack something the running programs saw."""
    torn: int = 0
    """States that contain a part of a write."""
    unnamed: int = 0
    """States that lack a change of a folder."""
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        self.states += other.states
        self.lossy += other.lossy
        self.torn += other.torn
        self.unnamed += other.unnamed
        self.seen += other.seen
        self.failures = sorted([*self.failures, *other.failures], key=lambda failure: failure.state)

    def summary(self) -> str:
        """A short report, with what is needed to repeat a failure."""
        lines = [
            f"seed {self.seed}: {self.states} states ({self.lossy} lost something, {self.torn} "
            f"torn, {self.unnamed} without "
            f"a name), {len(self.failures)} failed; {dict(self.seen)}"
        ]
        for failure in self.failures[:_SHOWN_MAX]:
            lines.append(
                f"  state {failure.state}, after operation {failure.point} (line {failure.line}): "
                f"{'; '.join(failure.wrong)}"
            )
        return "\n".join(lines)


def examine(
    trace: Trace,
    check: Check,
    *,
    states: int,
    seed: int,
    jobs: int | None = None,
    only: Sequence[int] | None = None,
) -> Report:
    """Build that many states and check each. `jobs` processes share the work, one a core unless
    told; `only` these of the states are built.
    """
    numbers = list(range(states)) if only is None else list(only)
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(len(numbers) // 50, 1))
    if jobs == 1:
        return _examine(trace, check, seed, numbers)
    report = Report(seed)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        parts = [(trace, check, seed, numbers[i::jobs]) for i in range(jobs)]
        for part in pool.starmap(_examine, parts, chunksize=1):
            report.add(part)
    return report


def _examine(trace: Trace, check: Check, seed: int, numbers: Sequence[int]) -> Report:
    """One walk through the trace, stopping at the points of its states."""
    report = Report(seed)
    points = Points(trace)
    stops = []
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        stops.append((points.choose(rng), number, rng))
    disk = Disk(trace.kinds)
    acknowledged: list[bytes] = []
    place = 0
    with _workshop() as workshop:
        for point, number, rng in sorted(stops, key=lambda stop: stop[:2]):
            for operation in trace.operations[place:point]:
                disk.apply(operation)
                if isinstance(operation, Acknowledged):
                    acknowledged.append(operation.message)
            place = point
            root = workshop / str(number)
            root.mkdir()
            state = State(disk, rng, noise=trace.noise)
            state.build(root)
            verdict = check(root, acknowledged, rng)
            _count(report, state, verdict)
            if verdict.wrong:
                line = trace.operations[point - 1].begun + 1 if point else 0
                report.failures.append(Failure(number, point, line, tuple(verdict.wrong)))
            shutil.rmtree(root)
    report.failures.sort(key=lambda failure: failure.state)
    return report


def _count(report: Report, state: State, verdict: Verdict) -> None:
    report.states += 1
    report.lossy += bool(state.loss)
    report.torn += bool(state.loss.torn)
    report.unnamed += bool(state.loss.unnamed)
    report.seen.update(verdict.seen)


@contextmanager
def _workshop() -> Iterator[Path]:
    """A folder for states, in memory where there is such a place."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-powerloss-", dir=place) as folder:
        yield Path(folder)
