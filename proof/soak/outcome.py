"""The plan of a soak and its outcome: in all, and for each kind of process."""

from collections import Counter
from typing import NamedTuple

COLUMNS = ("processes", "operations", "kills", "stops", "ended", "restarts", "recoveries")


class Plan(NamedTuple):
    """The plan of a soak."""

    store: str
    seconds: float
    seed: int
    pause_s: float = 0.2
    """Between two kills or stops, on average."""
    share: float = 1.0
    """The share of the processes of each part."""
    parts: tuple[str, ...] = ()
    """Only these parts; all if empty. A program that none of them needs does not run."""
    plant: str = ""
    """A bug to plant into all our processes, which must be found."""


class Tally:
    """Counts of events for each kind of process. An event is counted after it happened."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add(self, kind: str, what: str, times: int = 1) -> None:
        self._counts.setdefault(kind, Counter())[what] += times

    def of(self, kind: str, what: str) -> int:
        return self._counts.get(kind, Counter())[what]

    def total(self, what: str) -> int:
        return sum(counts[what] for counts in self._counts.values())

    def __str__(self) -> str:
        rows = [
            ("", *COLUMNS),
            *((kind, *(counts[what] for what in COLUMNS)) for kind, counts in self._counts.items()),
        ]
        width = max(len(kind) for kind in self._counts) if self._counts else 0
        return "\n".join(
            f"  {kind:{width}}" + "".join(f"{count:>12}" for count in counts)
            for kind, *counts in rows
        )


class Outcome(NamedTuple):
    """The outcome of a soak."""

    plan: Plan
    tally: Tally
    fenced: int
    unsure: int
    violations: list[str]

    def __str__(self) -> str:
        plan = self.plan
        counts = " ".join(f"{what}={self.tally.total(what)}" for what in COLUMNS[1:])
        head = (
            f"{plan.store} seed={plan.seed} seconds={plan.seconds:.0f} "
            f"processes={self.tally.total('processes')}: {counts}"
        )
        last = f" fenced={self.fenced} unsure={self.unsure} violations={len(self.violations)}"
        return "\n".join([head + last, str(self.tally), *self.violations[:20]])
