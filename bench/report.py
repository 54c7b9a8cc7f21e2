"""Writes docs/benchmarks.md from the results of a run: the verdicts first, the rest in an appendix."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import pictures
from bench.measure import (
    EXTRA_S,
    WIDE,
    Failure,
    Sample,
    Series,
    Spread,
    find,
    growth,
    sizes,
    spread,
    took_s,
)

EQUAL = "Peers of equal promise"
LESS = "Peers that promise less"
OWN = "Holdfast by itself"
GROUPS = {
    EQUAL: "just as durable, as fair, or as safe when a holder is killed",
    LESS: "no fair turns, no acknowledgement, or no token that fences",
    OWN: "limits of time, growth, and the cost above a bare interpreter or server",
}
"""What a figure is compared with, in the order of the page."""


@dataclass(frozen=True)
class Verdict:
    """A figure that is compared with a target, or only shown when there is none."""

    what: str
    target: str
    figure: Spread
    reached: bool | None
    missed: str = ""
    """Why the target is missed, as far as a profiler shows."""
    against: str = OWN
    """Which of the `GROUPS` it belongs to."""
    variant: str = ""
    """Which one of several that share the work, the figure and the target: a store, a command. They
    share a line of the page.
    """

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
    """Rows of one title that follow each other share a section of the page, and the lines of their
    verdicts.
    """
    says: str
    series: Sequence[Series]
    verdicts: Sequence[Verdict]
    variant: str = ""
    """What distinguishes it from others of its title: "8 processes"."""
    size: int | None = None
    """How many work at once. If three rows of a title or more have one, the picture has lines over
    it instead of bars.
    """
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
    """More text for the appendix, below the table."""

    @property
    def full_title(self) -> str:
        """The title with the variant."""
        return f"{self.title}, {self.variant}" if self.variant else self.title

    def figure(self, sample: Sample) -> float:
        """The main figure of a sample: a second, in ms, or in the unit of the scale."""
        if self.scale is not None:
            return self.scale.of(sample)
        return sample.p50_s * 1000 if self.kind == "time" else sample.rate


@dataclass(frozen=True)
class Run:
    """All results of one run."""

    rows: Sequence[Row]
    facts: Mapping[str, str]
    took_s: Mapping[str, float]
    """The time of each family."""
    total_s: float
    failures: Sequence[Failure]
    rounds: int
    most_rounds: int


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


def write(run: Run, *, page: Path, folder: Path) -> None:
    """Write the page and its pictures, and remove the pictures of old rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench-*.svg"):
        old.unlink()
    sections = _sections(run.rows)
    for section in sections:
        (folder / _picture_name(section)).write_text(_picture(section))
    parts = [
        _summary(run),
        _verdicts(run.rows),
        _missed(run.rows),
        _failed(run.failures),
        _APPENDIX.format(
            rounds=run.rounds, most=run.most_rounds, wide=f"{WIDE:.0%}", extra=EXTRA_S
        ),
        _machine(run),
        *(_section(section, folder.name) for section in sections),
    ]
    page.write_text("\n".join(part for part in parts if part))


def lines(run: Run) -> list[str]:
    """The tables and verdicts for the terminal."""
    out = []
    for row in run.rows:
        table = [line for head in _table(row) for line in head.split("\n")]
        out += [row.full_title, *("  " + line for line in table if "| --- |" not in line)]
        for verdict in row.verdicts:
            target = f" (target: {verdict.target})" if verdict.target else ""
            out.append(f"  {verdict.word}: {_what(verdict)} {_spread(verdict.figure)}{target}")
        out += [f"  not installed: {name}" for name in row.absent]
    took = ", ".join(f"{name} {took_s:.0f}" for name, took_s in run.took_s.items())
    out.append(f"seconds: {took}; all: {run.total_s:.0f}")
    return out + [f"FAILED: {failure.row}: {failure.error}" for failure in run.failures]


_HOW = """`make bench` writes this page. Do not edit it.

- *time, A to B*: the time of A divided by the time of B, for the same work. Below 1, A is faster.
  The same for *worst wait* and *hand-over*.
- *throughput, A to B*: the work of A in a second divided by that of B. Above 1, A does more.
- *share*: what the process with the least turns got, divided by what the one with the most got.
  1 is perfectly fair.
- An aim is what a target should become later. Figures in ms or MB are those of Holdfast alone.
"""

_APPENDIX = """## Appendix: how it is measured

Holdfast and its peers do the same work on the same machine in one run. They take turns, {rounds}
rounds each, fewer where a row shows only a trend or a limit in ms, and up to {most} where a judged
ratio spreads by more than {wide} (in all rows for {extra:g} s at most). Both sides warm up before the clock starts. Absolute figures depend on the machine, so the
verdicts use ratios: a ratio is taken in each round, and the median of the rounds counts. The least
and the most are in brackets.

A wait is the time from the request until the lock or the result is there, for every piece of work.
The worst wait is shown because an average hides a process that got nothing.

Only equal durability is compared. *power loss*: an acknowledged change survives a power loss of the
machine. *kill -9*: it survives the end of its process. Locks need not survive their holder; their
tables show what happens to the lock of a killed holder. *Limits* are not peers: they show what the
machine allows.

The run clears the variables PYTHON* and HOLDFAST_* of its caller, for itself and for all that it
starts. PYTHONDONTWRITEBYTECODE, for one, would double the time of a cold start. All bytecode is
compiled before the first clock starts.
"""


def _summary(run: Run) -> str:
    judged = [
        verdict for row in run.rows for verdict in row.verdicts if verdict.reached is not None
    ]
    reached = sum(verdict.reached is True for verdict in judged)
    version, date, processor = (
        run.facts.get(name, "unknown") for name in ("Holdfast", "date", "processor")
    )
    failed = f" {len(run.failures)} rows failed." if run.failures else ""
    return (
        f"# Benchmarks\n\n**{reached} of {len(judged)} targets are reached** (Holdfast {version}, "
        f"{date}, {processor}; the run took {_minutes(run.total_s)}).{failed} {_HOW}"
    )


def _verdicts(rows: Sequence[Row]) -> str:
    """One table: a line for each figure, with all its variants."""
    out = ["## Verdicts", "", "| work | figure | measured | target | |", _line(["---"] * 5)]
    for group, says in GROUPS.items():
        found: dict[tuple[str, str, str], list[tuple[str, Verdict]]] = {}
        for row in rows:
            for verdict in row.verdicts:
                if verdict.against == group and verdict.reached is not None:
                    key = (row.title, verdict.what, verdict.target)
                    variant = " ".join(part for part in (row.variant, verdict.variant) if part)
                    found.setdefault(key, []).append((variant, verdict))
        if found:
            out.append(_line([f"**{group}**: {says}", "", "", "", ""]))
        out += [
            _line([title, what, ", ".join(map(_measured, each)), target, _words(each)])
            for (title, what, target), each in found.items()
        ]
    return "\n".join([*out, ""])


def _measured(found: tuple[str, Verdict]) -> str:
    variant, verdict = found
    return f"{variant}: {_median(verdict)}" if variant else _median(verdict)


def _words(found: Sequence[tuple[str, Verdict]]) -> str:
    missed = [variant for variant, verdict in found if not verdict.reached]
    if not missed:
        return "reached"
    return "**MISSED**" if len(missed) == len(found) else f"**MISSED**: {', '.join(missed)}"


def _missed(rows: Sequence[Row]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for verdict in row.verdicts:
            if verdict.reached is False:
                reason = verdict.missed or "not examined"
                figures = found.setdefault((row.title, reason), [])
                if verdict.what not in figures:
                    figures.append(verdict.what)
    if not found:
        return ""
    reasons = [f"- *{title}, {'; '.join(what)}*: {why}" for (title, why), what in found.items()]
    return "\n".join(["### Why targets are missed", "", *reasons, ""])


def _failed(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    said = [f"- {one.row}: {' '.join(one.error.split())}" for one in failures]
    return "\n".join(["### Rows that failed", "", *said, ""])


def _machine(run: Run) -> str:
    families = ", ".join(f"{name} {took_s:.0f} s" for name, took_s in run.took_s.items())
    facts = {**run.facts, "time of the run": f"{_minutes(run.total_s)}: {families}"}
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


def _sections(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows by title."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.title, []).append(row)
    return list(found.values())


def _section(rows: Sequence[Row], folder: str) -> str:
    """A section of the appendix: all rows of one title."""
    title = rows[0].title
    out = [f"### {title}", "", " ".join(dict.fromkeys(row.says for row in rows if row.says)), ""]
    out += [*_tables(rows), ""]
    figures = [
        f"{row.variant + ', ' if row.variant else ''}{_what(verdict)}: {_spread(verdict.figure)}"
        for row in rows
        for verdict in row.verdicts
    ]
    if figures:
        out += [f"Ratios and limits: {'; '.join(figures)}.", ""]
    absent = dict.fromkeys(name for row in rows for name in row.absent)
    if absent:
        out += [f"Not installed, so not measured: {', '.join(absent)}.", ""]
    out += [part for row in rows if row.notes for part in (row.notes, "")]
    return "\n".join([*out, f"![{title}]({folder}/{_picture_name(rows)})", ""])


def _what(verdict: Verdict) -> str:
    return f"{verdict.what}, {verdict.variant}" if verdict.variant else verdict.what


def _tables(rows: Sequence[Row]) -> list[str]:
    """The tables of some rows: one if they have the same columns."""
    out: list[str] = []
    last = ""
    for row in rows:
        head, *body = _table(row)
        if head != last:
            out += ["", head] if out else [head]
            last = head
        out += body
    return out


def _table(row: Row) -> list[str]:
    """The heading of a row's table, and its lines."""
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
        out.append(_contender_line(row, series, _name(series), cells))
    return out


def _rates(row: Row) -> list[str]:
    handed = any(
        not math.isnan(sample.handed_s) for series in row.series for sample in series.samples
    )
    columns = ["a second (least to most)", "median wait", "worst wait", "share"]
    out = [_head(row, *columns, *(["median hand-over", "worst hand-over"] if handed else []))]
    for series in row.series:
        rate = series.spread(lambda sample: sample.rate)
        name = _name(series) + (f" (gave up {series.gave_up()} times)" if series.gave_up() else "")
        cells = [
            f"{rate.median:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
            _time(series.spread(lambda sample: sample.p50_s).median),
            _time(series.spread(lambda sample: sample.worst_s).median),
            f"{series.spread(lambda sample: sample.share).median:.2f}",
        ]
        if handed:
            cells += [
                _handed(series, lambda sample: sample.handed_s),
                _handed(series, lambda sample: sample.handed_worst_s),
            ]
        out.append(_contender_line(row, series, name, cells))
    return out


def _head(row: Row, *columns: str) -> str:
    cells = [*([""] if row.variant else []), "", *_described(row, row.column), *columns]
    return _line(cells) + "\n" + _line(["---"] * len(cells))


def _contender_line(row: Row, series: Series, name: str, cells: Sequence[str]) -> str:
    variant = [row.variant] if row.variant else []
    return _line([*variant, name, *_described(row, series.contender.durability), *cells])


def _described(row: Row, cell: str) -> list[str]:
    """The cell of what a result survives, unless no contender has one."""
    return [cell] if any(series.contender.durability for series in row.series) else []


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _handed(series: Series, of: Callable[[Sample], float]) -> str:
    """The median of the rounds in which one process took over from another."""
    found = [of(sample) for sample in series.samples if not math.isnan(of(sample))]
    return _time(spread(iter(found)).median) if found else "no hand-over"


def _picture_name(rows: Sequence[Row]) -> str:
    return f"bench-{rows[0].name}.svg"


def _picture(rows: Sequence[Row]) -> str:
    """The picture of a section: all its charts, or its lines."""
    crowds = [row for row in rows if row.size is not None]
    if len(crowds) > 2:
        return pictures.draw(rows[0].title, _crowd_plots(crowds))
    return pictures.draw(rows[0].title, [part for row in rows for part in _parts(row)])


def _crowd_plots(rows: Sequence[Row]) -> list[pictures.Plot]:
    """The rates and the worst waits over the number of workers."""
    found: dict[str, list[tuple[int, Series]]] = {}
    for row in rows:
        for one in row.series:
            found.setdefault(_name(one), []).append((row.size or 0, one))

    def plot(unit: str, of: Callable[[Sample], float]) -> pictures.Plot:
        drawn = [
            pictures.Line(name, [(size, one.spread(of)) for size, one in each])
            for name, each in found.items()
        ]
        return pictures.Plot("at once", unit, drawn, logarithmic=True)

    return [
        plot("a second, more is better", lambda sample: sample.rate),
        plot("worst wait in milliseconds, less is better", lambda sample: sample.worst_s * 1000),
    ]


def _parts(row: Row) -> list[pictures.Chart | pictures.Plot]:
    if row.scale is not None:
        return [_plot(row, row.scale)]
    names = [series.contender.name for series in row.series]
    about = f"{row.variant}: " if row.variant else ""
    if row.kind == "time":
        took = [series.spread(lambda sample: sample.p50_s * 1000) for series in row.series]
        title = f"{about}milliseconds, less is better"
        return [pictures.Chart(title, names, took, row.logarithmic)]
    rates = [series.spread(lambda sample: sample.rate) for series in row.series]
    waits = [series.spread(lambda sample: sample.worst_s * 1000) for series in row.series]
    return [
        pictures.Chart(f"{about}a second, more is better", names, rates, row.logarithmic),
        pictures.Chart(
            f"{about}worst wait in milliseconds, less is better", names, waits, logarithmic=True
        ),
    ]


def _plot(row: Row, scale: Scale) -> pictures.Plot:
    drawn = [
        pictures.Line(
            name,
            tuple(
                (size, one.spread(scale.of))
                for size in sizes(row.series, name)
                if (one := find(row.series, name, size)) is not None
            ),
        )
        for name in _names(row)
    ]
    return pictures.Plot(scale.axis, scale.unit, drawn, row.logarithmic)


def _name(series: Series) -> str:
    return series.contender.name + (" (limit)" if series.contender.limit else "")


def _median(verdict: Verdict) -> str:
    return pictures.number(verdict.figure.median)


def _spread(figure: Spread) -> str:
    return (
        f"{pictures.number(figure.median)} ({pictures.number(figure.low)} to "
        f"{pictures.number(figure.high)})"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
