"""What a soak is to be, and what it came to: in all, and for each kind of process."""

from collections import Counter
from typing import NamedTuple

COLUMNS = ("processes", "operations", "kills", "stops", "ended", "restarts", "recoveries")


class Plan(NamedTuple):
    """What a soak is to be."""

    store: str
    seconds: float
    seed: int
    pause_s: float = 0.2
    """Between two blows, on average."""
    share: float = 1.0
    """Of the processes of each part."""
    parts: tuple[str, ...] = ()
    """These alone; all if none is named. Without anybody who needs it a program does not run."""
    plant: str = ""
    """A fault to plant into all processes that are ours, to see that it is found."""


class Tally:
    """How often what happened to which kind of process. Each is counted when it has happened."""

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
    """What a soak came to."""

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
