"""The page: docs/benchmarks.md, written from what a run measured and from nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import pictures
from bench.measure import Series, Spread


@dataclass(frozen=True)
class Verdict:
    """A figure that is held against a target, or only told when there is none."""

    what: str
    target: str
    figure: Spread
    reached: bool | None

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


def write(rows: Sequence[Row], facts: dict[str, str], *, rounds: int, page: Path, folder: Path) -> None:
    """Write the page and its pictures, and remove the pictures of rows that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench-*.svg"):
        old.unlink()
    for row in rows:
        (folder / f"bench-{row.name}.svg").write_text(pictures.draw(row.title, _charts(row)))
    parts = [_HEAD.format(rounds=rounds), _machine(facts), _overview(rows), *(_section(row, folder.name) for row in rows)]
    page.write_text("\n".join(parts))


def lines(rows: Sequence[Row]) -> list[str]:
    """The tables and verdicts for the terminal."""
    out = []
    for row in rows:
        out += [row.title, *("  " + line for line in _table(row)[2:])]
        for verdict in row.verdicts:
            target = f" (to reach: {verdict.target})" if verdict.target else ""
            out.append(f"  {verdict.word}: {verdict.what} {_spread(verdict.figure)}{target}")
    return out


_HEAD = """# Benchmarks

This page is written by `make bench` and must not be edited by hand.

## How to read it

Holdfast and its peers did the same work in one run on one machine, taking turns round by round ({rounds} rounds unless a row
says otherwise). Absolute figures say much of the machine and little of the program, so every figure that is judged is a ratio:
taken within each round, and then the median of the rounds, with the least and the most in brackets. A wait is the time from
asking to having it, of every single piece of work; the worst of them is told because an average hides whoever got nothing.

Only equal durability is compared, and each table states it: *power loss* means that a change which was acknowledged
survives the machine's power going; *kill -9*, that it survives its process but not the machine. Limits are no peers: they show
what the machine allows.
"""


def _machine(facts: dict[str, str]) -> str:
    return "\n".join(["## The machine", "", "| | |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in facts.items()), ""])


def _overview(rows: Sequence[Row]) -> str:
    out = ["## Verdicts", "", "| work | figure | measured | to reach | |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        for verdict in row.verdicts:
            word = verdict.word if verdict.reached is not None else ""
            out.append(f"| {row.title} | {verdict.what} | {_spread(verdict.figure)} | {verdict.target} | {word} |")
    return "\n".join([*out, ""])


def _section(row: Row, folder: str) -> str:
    head = ["## " + row.title, "", row.says, "", *_table(row), ""]
    verdicts = [
        f"- {verdict.what}: **{_spread(verdict.figure)}**"
        + (f"; to reach: {verdict.target}: **{verdict.word}**" if verdict.target else "")
        for verdict in row.verdicts
    ]
    return "\n".join([*head, *verdicts, "", f"![{row.title}]({folder}/bench-{row.name}.svg)", ""])


def _table(row: Row) -> list[str]:
    if row.kind == "time":
        out = ["| | survives | median (least to most) |", "| --- | --- | --- |"]
        for series in row.series:
            took = series.spread(lambda sample: sample.p50_s)
            survives = series.contender.durability
            out.append(f"| {_name(series)} | {survives} | {_time(took.median)} ({_time(took.low)} to {_time(took.high)}) |")
        return out
    out = [
        "| | survives | a second (least to most) | wait p50 | worst wait, median of rounds | worst of all | share |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for series in row.series:
        rate = series.spread(lambda sample: sample.rate)
        share = series.spread(lambda sample: sample.share).median
        cells = [
            _name(series) + (f" (gave up {series.gave_up()} times)" if series.gave_up() else ""),
            series.contender.durability,
            f"{rate.median:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
            _time(series.spread(lambda sample: sample.p50_s).median),
            _time(series.spread(lambda sample: sample.worst_s).median),
            _time(series.worst_s()),
            f"{share:.2f}",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _charts(row: Row) -> list[pictures.Chart]:
    names = [series.contender.name for series in row.series]
    if row.kind == "time":
        took = [series.spread(lambda sample: sample.p50_s * 1000) for series in row.series]
        return [pictures.Chart("milliseconds, less is better", names, took)]
    rates = [series.spread(lambda sample: sample.rate) for series in row.series]
    waits = [series.spread(lambda sample: sample.worst_s * 1000) for series in row.series]
    return [
        pictures.Chart("a second, more is better", names, rates),
        pictures.Chart("worst wait in milliseconds, less is better", names, waits, logarithmic=True),
    ]


def _name(series: Series) -> str:
    return series.contender.name + (" (limit)" if series.contender.limit else "")


def _spread(figure: Spread) -> str:
    return f"{pictures.number(figure.median)} ({pictures.number(figure.low)} to {pictures.number(figure.high)})"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
