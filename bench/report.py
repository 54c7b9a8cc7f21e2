"""The page: docs/benchmarks.md, written from what a run measured and from nothing else."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import pictures
from bench.measure import Sample, Series, Spread, spread


@dataclass(frozen=True)
class Verdict:
    """A figure that is held against a target, or only told when there is none."""

    what: str
    target: str
    figure: Spread
    reached: bool | None
    missed: str = ""
    """Why it is not reached, as far as a profiler shows, for the page that says that it was not."""

    @property
    def word(self) -> str:
        """The verdict in plain words."""
        return {True: "reached", False: "NOT reached", None: "no target"}[self.reached]


@dataclass(frozen=True)
class Row:
    """One piece of work and all who did it."""

    name: str
    title: str
    says: str
    series: Sequence[Series]
    verdicts: Sequence[Verdict]
    kind: str = "rate"
    """Whether it is told by how much was done in a second, or by how long one took (`time`)."""
    column: str = "survives"
    """What the contenders' `durability` says of them."""
    logarithmic: bool = False
    """Whether the first chart is, because the contenders are orders of magnitude apart."""
    absent: Sequence[str] = ()
    """Who is not installed, or lacks a server that is not."""
    notes: str = ""
    """What else belongs on the page, below the verdicts."""


def write(
    rows: Sequence[Row], facts: dict[str, str], *, rounds: int, page: Path, folder: Path
) -> None:
    """Write the page and its pictures, and remove the pictures of rows that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench-*.svg"):
        old.unlink()
    for row in rows:
        (folder / f"bench-{row.name}.svg").write_text(pictures.draw(row.title, _charts(row)))
    parts = [
        _HEAD.format(rounds=rounds),
        _machine(facts),
        _overview(rows),
        *(_section(row, folder.name) for row in rows),
    ]
    page.write_text("\n".join(parts))


def lines(rows: Sequence[Row]) -> list[str]:
    """The tables and verdicts for the terminal."""
    out = []
    for row in rows:
        out += [row.title, *("  " + line for line in _table(row)[1:])]
        for verdict in row.verdicts:
            target = f" (to reach: {verdict.target})" if verdict.target else ""
            out.append(f"  {verdict.word}: {verdict.what} {_spread(verdict.figure)}{target}")
        out += [f"  not installed: {name}" for name in row.absent]
    return out


_HEAD = """# Benchmarks

This page is written by `make bench` and must not be edited by hand.

## How to read it

Holdfast and its peers did the same work in one run on one machine, taking turns round by round ({rounds} rounds unless a row
says otherwise). Absolute figures say much of the machine and little of the program, so every figure that is judged is a ratio:
taken within each round, and then the median of the rounds, with the least and the most in brackets. A wait is the time from
asking to having it, of every single piece of work; the worst of them is told because an average hides whoever got nothing.

Only equal durability is compared, and each table states it: *power loss* means that a change which was acknowledged
survives the machine's power going; *kill -9*, that it survives its process but not the machine. For locks, which nobody wants
to survive their holder, it states what becomes of the lock of a holder that was killed. Limits are no peers: they show what the
machine allows.
"""


def _machine(facts: dict[str, str]) -> str:
    return "\n".join(
        [
            "## The machine",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {a} | {b} |" for a, b in facts.items()),
            "",
        ]
    )


def _overview(rows: Sequence[Row]) -> str:
    out = [
        "## Verdicts",
        "",
        "| work | figure | measured | to reach | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        for verdict in row.verdicts:
            word = verdict.word if verdict.reached is not None else ""
            out.append(
                f"| {row.title} | {verdict.what} | {_spread(verdict.figure)} | {verdict.target} | "
                f"{word} |"
            )
    return "\n".join([*out, ""])


def _section(row: Row, folder: str) -> str:
    head = ["## " + row.title, "", row.says, "", *_table(row), ""]
    verdicts = [
        f"- {verdict.what}: **{_spread(verdict.figure)}**"
        + (f"; to reach: {verdict.target}: **{verdict.word}**" if verdict.target else "")
        + (f". {verdict.missed}" if verdict.missed and verdict.reached is False else "")
        for verdict in row.verdicts
    ]
    absent = [f"- {name}: not installed, so not measured" for name in row.absent]
    notes = [row.notes, ""] if row.notes else []
    return "\n".join(
        [
            *head,
            *verdicts,
            *absent,
            "",
            *notes,
            f"![{row.title}]({folder}/bench-{row.name}.svg)",
            "",
        ]
    )


def _table(row: Row) -> list[str]:
    return _times(row) if row.kind == "time" else _rates(row)


def _times(row: Row) -> list[str]:
    # Where a round is one piece of work, the most of the rounds is the worst of all.
    many = any(sample.worst_s != sample.p50_s for series in row.series for sample in series.samples)
    out = [_head(row, "median (least to most)", *(["worst of all"] if many else []))]
    for series in row.series:
        took = series.spread(lambda sample: sample.p50_s)
        cells = [
            f"{_time(took.median)} ({_time(took.low)} to {_time(took.high)})",
            *([_time(series.worst_s())] if many else []),
        ]
        out.append(_line([_name(series), series.contender.durability, *cells]))
    return out


def _rates(row: Row) -> list[str]:
    handed = any(
        not math.isnan(sample.handed_s) for series in row.series for sample in series.samples
    )
    columns = [
        "a second (least to most)",
        "wait p50",
        "worst wait, median of rounds",
        "worst of all",
        "share",
    ]
    out = [_head(row, *columns, *(["hand-over p50", "worst hand-over"] if handed else []))]
    for series in row.series:
        rate = series.spread(lambda sample: sample.rate)
        cells = [
            _name(series) + (f" (gave up {series.gave_up()} times)" if series.gave_up() else ""),
            series.contender.durability,
            f"{rate.median:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
            _time(series.spread(lambda sample: sample.p50_s).median),
            _time(series.spread(lambda sample: sample.worst_s).median),
            _time(series.worst_s()),
            f"{series.spread(lambda sample: sample.share).median:.2f}",
        ]
        if handed:
            cells += [
                _handed(series, lambda sample: sample.handed_s),
                _handed(series, lambda sample: sample.handed_worst_s),
            ]
        out.append(_line(cells))
    return out


def _head(row: Row, *columns: str) -> str:
    cells = ["", row.column, *columns]
    return _line(cells) + "\n" + _line(["---"] * len(cells))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _handed(series: Series, of: Callable[[Sample], float]) -> str:
    """The median of the rounds in which somebody handed over."""
    found = [of(sample) for sample in series.samples if not math.isnan(of(sample))]
    return _time(spread(iter(found)).median) if found else "nobody else had it"


def _charts(row: Row) -> list[pictures.Chart]:
    names = [series.contender.name for series in row.series]
    if row.kind == "time":
        took = [series.spread(lambda sample: sample.p50_s * 1000) for series in row.series]
        return [pictures.Chart("milliseconds, less is better", names, took, row.logarithmic)]
    rates = [series.spread(lambda sample: sample.rate) for series in row.series]
    waits = [series.spread(lambda sample: sample.worst_s * 1000) for series in row.series]
    return [
        pictures.Chart("a second, more is better", names, rates, row.logarithmic),
        pictures.Chart(
            "worst wait in milliseconds, less is better", names, waits, logarithmic=True
        ),
    ]


def _name(series: Series) -> str:
    return series.contender.name + (" (limit)" if series.contender.limit else "")


def _spread(figure: Spread) -> str:
    return (
        f"{pictures.number(figure.median)} ({pictures.number(figure.low)} to "
        f"{pictures.number(figure.high)})"
    )


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
