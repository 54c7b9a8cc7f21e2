"""Writes docs/benchmarks.md from the results of a run: the verdicts first, the rest in an appendix."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import pictures
from bench.measure import Sample, Series, Spread, find, growth, sizes, spread, took_s


@dataclass(frozen=True)
class Verdict:
    """A figure that is compared with a target, or only shown when there is none."""

    what: str
    target: str
    figure: Spread
    reached: bool | None
    missed: str = ""
    """Why the target is missed, as far as a profiler shows."""

    @property
    def word(self) -> str:
        """The verdict in plain words."""
        return {True: "reached", False: "MISSED", None: "no target"}[self.reached]


@dataclass(frozen=True)
class Scale:
    """The axes of a row of kind `scale`."""

    axis: str
    """What grows, as a plural: "hosts", "pending jobs". The axis of sizes is logarithmic."""
    unit: str
    """The unit of the figures, with what is better: "ms, less is better"."""
    of: Callable[[Sample], float]
    """The figure of a sample in that unit, such as `lambda sample: sample.p50_s * 1000`."""


@dataclass(frozen=True)
class Row:
    """One piece of work and all who did it."""

    name: str
    title: str
    says: str
    series: Sequence[Series]
    verdicts: Sequence[Verdict]
    kind: str = "rate"
    """`rate`: how much was done in a second. `time`: how long one piece of work took. `scale`: how a
    figure grows with a size; the picture has lines, one for each name among the contenders.
    """
    scale: Scale | None = None
    """Its axes, if it is of kind `scale`. Each contender then has a `size`."""
    column: str = "survives"
    """The heading of the contenders' `durability`."""
    logarithmic: bool = False
    """Whether the first chart has a logarithmic scale: contenders orders of magnitude apart."""
    absent: Sequence[str] = ()
    """The peers that are not installed, or whose server is not."""
    notes: str = ""
    """More text for the appendix, below the verdicts."""


def growth_verdict(
    row_scale: Scale,
    series: Sequence[Series],
    name: str,
    *,
    since: int,
    at_most: float | None,
    of: Callable[[Sample], float] = took_s,
    missed: str = "",
) -> Verdict:
    """The verdict on the growth of one contender: its cost at the largest size divided by its cost
    at the size `since`. `at_most` None shows the figure without a target. `of` is the cost of a
    sample, and less must be better.
    """
    figure = growth(series, name, since, of)
    largest = sizes(series, name)[-1]
    return Verdict(
        f"growth from {since:,} to {largest:,} {row_scale.axis}, {name}",
        "" if at_most is None else f"at most {at_most:g}",
        figure,
        None if at_most is None else figure.median <= at_most,
        missed,
    )


def write(
    rows: Sequence[Row], facts: dict[str, str], *, rounds: int, page: Path, folder: Path
) -> None:
    """Write the page and its pictures, and remove the pictures of old rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench-*.svg"):
        old.unlink()
    for row in rows:
        (folder / f"bench-{row.name}.svg").write_text(_picture(row))
    parts = [
        _summary(rows, facts),
        _missed(rows),
        _reached(rows),
        _APPENDIX.format(rounds=rounds),
        _machine(facts),
        *(_section(row, folder.name) for row in rows),
    ]
    page.write_text("\n".join(parts))


def lines(rows: Sequence[Row]) -> list[str]:
    """The tables and verdicts for the terminal."""
    out = []
    for row in rows:
        out += [row.title, *("  " + line for line in _table(row)[1:])]
        for verdict in row.verdicts:
            target = f" (target: {verdict.target})" if verdict.target else ""
            out.append(f"  {verdict.word}: {verdict.what} {_spread(verdict.figure)}{target}")
        out += [f"  not installed: {name}" for name in row.absent]
    return out


_HOW = """`make bench` writes this page. Do not edit it.

How to read a figure:

- *time, A to B*: the time of A divided by the time of B, for the same work. Below 1, A is faster.
  The same for *worst wait* and *hand-over*.
- *throughput, A to B*: the work of A in a second divided by that of B. Above 1, A does more.
- *share, least to most*: what the process with the least turns got, divided by what the one with
  the most got. 1 is perfectly fair.
- Figures in ms or MB are those of Holdfast alone.
"""

_APPENDIX = """## Appendix: how it is measured

Holdfast and its peers do the same work on the same machine in one run. They take turns, {rounds}
rounds each unless the text says otherwise. Absolute figures depend on the machine, so the verdicts
use ratios: a ratio is taken in each round, and the median of the rounds counts. The least and the
most are in brackets.

A wait is the time from the request until the lock or the result is there, for every piece of work.
The worst wait is shown because an average hides a process that got nothing.

Only equal durability is compared. *power loss*: an acknowledged change survives a power loss of the
machine. *kill -9*: it survives the end of its process. Locks need not survive their holder; their
tables show what happens to the lock of a killed holder. *Limits* are not peers: they show what the
machine allows.
"""


def _summary(rows: Sequence[Row], facts: dict[str, str]) -> str:
    judged = [verdict for row in rows for verdict in row.verdicts if verdict.reached is not None]
    reached = sum(verdict.reached is True for verdict in judged)
    version, date = (facts.get(name, "unknown") for name in ("Holdfast", "date"))
    return (
        f"# Benchmarks\n\n**{reached} of {len(judged)} targets are reached** (Holdfast {version}, "
        f"{date}, {facts.get('processor', 'unknown processor')}).\n{_HOW}"
    )


def _missed(rows: Sequence[Row]) -> str:
    out = [
        "## Missed targets",
        "",
        "| work | figure | measured | target | why |",
        "| --- | --- | --- | --- | --- |",
        *(
            _line([row.title, verdict.what, _median(verdict), verdict.target, verdict.missed])
            for row in rows
            for verdict in row.verdicts
            if verdict.reached is False
        ),
    ]
    return "\n".join([*out, ""]) if len(out) > 4 else ""


def _reached(rows: Sequence[Row]) -> str:
    """One line for the same figure on several stores."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for verdict in row.verdicts:
            if verdict.reached:
                figure, _, store = verdict.what.partition(", Holdfast, ")
                measured = f"{store} {_median(verdict)}".strip()
                lines.setdefault((row.title, figure, verdict.target), []).append(measured)
    return "\n".join(
        [
            "## Reached targets",
            "",
            "| work | figure | measured | target |",
            "| --- | --- | --- | --- |",
            *(
                _line([title, figure, ", ".join(measured), target])
                for (title, figure, target), measured in lines.items()
            ),
            "",
        ]
    )


def _machine(facts: dict[str, str]) -> str:
    return "\n".join(
        [
            "## Appendix: the machine",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {a} | {b} |" for a, b in facts.items()),
            "",
            "## Appendix: every measurement",
            "",
        ]
    )


def _section(row: Row, folder: str) -> str:
    head = ["### " + row.title, "", row.says, "", *_table(row), ""]
    verdicts = [
        f"- {verdict.what}: **{_spread(verdict.figure)}**"
        + (f"; target: {verdict.target}: **{verdict.word}**" if verdict.target else "")
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
    if row.scale is not None:
        return _sizes(row, row.scale)
    return _times(row) if row.kind == "time" else _rates(row)


def _sizes(row: Row, scale: Scale) -> list[str]:
    """A line for each size, a column for each name."""
    names = _names(row)
    heads = [f"{scale.axis} ({scale.unit})", *names.values()]
    out = [_line(heads) + "\n" + _line(["---"] * len(heads))]
    for size in sizes(row.series):
        cells = [f"{size:,}"]
        for name in names:
            one = find(row.series, name, size)
            cells.append(_spread(one.spread(scale.of)) if one else "")
        out.append(_line(cells))
    return out


def _names(row: Row) -> dict[str, str]:
    """The names of the contenders, once each, with the heading of each one's column."""
    return {
        one.contender.name: ", ".join(
            part for part in (_name(one), one.contender.durability) if part
        )
        for one in row.series
    }


def _times(row: Row) -> list[str]:
    # If a round is one piece of work, the slowest round is the worst of all.
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
        "median wait",
        "worst wait, median of rounds",
        "worst of all",
        "share",
    ]
    out = [_head(row, *columns, *(["median hand-over", "worst hand-over"] if handed else []))]
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
    """The median of the rounds in which one process took over from another."""
    found = [of(sample) for sample in series.samples if not math.isnan(of(sample))]
    return _time(spread(iter(found)).median) if found else "no hand-over"


def _picture(row: Row) -> str:
    if row.scale is None:
        return pictures.draw(row.title, _charts(row))
    lines = [
        pictures.Line(
            name,
            tuple(
                (size, one.spread(row.scale.of))
                for size in sizes(row.series, name)
                if (one := find(row.series, name, size)) is not None
            ),
        )
        for name in _names(row)
    ]
    plot = pictures.Plot(row.scale.axis, row.scale.unit, lines, row.logarithmic)
    return pictures.draw_plot(row.title, plot)


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


def _median(verdict: Verdict) -> str:
    return pictures.number(verdict.figure.median)


def _spread(figure: Spread) -> str:
    return (
        f"{pictures.number(figure.median)} ({pictures.number(figure.low)} to "
        f"{pictures.number(figure.high)})"
    )


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
