"""Bars, and lines over a size, as SVG from plain strings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.measure import Spread

_WIDTH = 760
_LABEL_WIDTH = 250
_VALUE_WIDTH = 90
_BAR_HEIGHT = 14
_STEP = 22
_OURS, _THEIRS, _INK, _GRID = "#2a6f97", "#a9b4bd", "#24292f", "#d8dee4"
_OUR_LINES = ("#2a6f97", "#c1666b", "#48a9a6", "#8a5a9e")
_THEIR_LINES = (
    "#5c677d",
    "#b08968",
    "#8f9a2f",
    "#a9b4bd",
    "#d08c60",
    "#6b705c",
    "#b5838d",
    "#9a8fb5",
)
_PLOT = (64, 256, 260)
"""The left and right margin of a plot, and the height of its field."""


@dataclass(frozen=True)
class Chart:
    """Bars of one figure: the median, with a whisker from the least to the most of the rounds."""

    unit: str
    names: Sequence[str]
    figures: Sequence[Spread]
    logarithmic: bool = False


@dataclass(frozen=True)
class Line:
    """One contender of a plot: a figure for each size."""

    name: str
    points: Sequence[tuple[int, Spread]]


@dataclass(frozen=True)
class Plot:
    """Lines over a size. The axis of sizes is logarithmic; that of the figures if told so, else it
    begins at zero.
    """

    axis: str
    unit: str
    lines: Sequence[Line]
    logarithmic: bool = False


def draw(title: str, parts: Sequence[Chart | Plot]) -> str:
    """A picture with the charts and plots below each other."""
    body: list[str] = []
    top = 34.0
    for part in parts:
        drawn, height = _bars(part, top) if isinstance(part, Chart) else _plotted(part, top)
        body += drawn
        top += height
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top:.0f}" '
            f'viewBox="0 0 {_WIDTH} {top:.0f}" font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{top:.0f}" fill="#ffffff"/>',
            _text(12, 22, title, size=15, weight="bold"),
            *body,
            "</svg>",
            "",
        ]
    )


def _bars(chart: Chart, top: float) -> tuple[list[str], float]:
    """A chart at a place, and its height."""
    unit = chart.unit + (" (logarithmic)" if chart.logarithmic else "")
    body = [_text(12, top + 12, unit, size=12)]
    for at, (name, figure) in enumerate(zip(chart.names, chart.figures, strict=True)):
        body += _bar(chart, name, figure, top + 22 + at * _STEP)
    return body, 22 + len(chart.names) * _STEP + 10


def _plotted(plot: Plot, top: float) -> tuple[list[str], float]:
    """A plot at a place, and its height: a line for each contender, with its name at the end."""
    left, right, height = _PLOT
    upper = top + 22
    found = sorted({size for line in plot.lines for size, _ in line.points})
    across = _axis(found[0], found[-1], left, _WIDTH - right, logarithmic=True)
    figures = [figure for line in plot.lines for _, figure in line.points]
    ticks = _ticks([value for figure in figures for value in figure], plot.logarithmic)
    up = _axis(ticks[0], ticks[-1], upper + height, upper, logarithmic=plot.logarithmic)
    unit = plot.unit + (" (logarithmic)" if plot.logarithmic else "")
    body = [_text(12, top + 12, unit, size=12)]
    for tick in ticks:
        body.append(
            f'<path d="M{left} {up(tick):.1f}H{_WIDTH - right}" stroke="{_GRID}" stroke-width="1"/>'
        )
        body.append(_text(left - 8, up(tick) + 4, number(tick), size=11, anchor="end"))
    bottom = upper + height
    for size in found:
        x = across(size)
        body.append(f'<path d="M{x:.1f} {bottom}v5" stroke="{_INK}" stroke-width="1"/>')
        body.append(_text(x, bottom + 18, f"{size:,}", size=11, anchor="middle"))
    middle = (left + _WIDTH - right) / 2
    body.append(_text(middle, bottom + 36, f"{plot.axis} (logarithmic)", size=12, anchor="middle"))
    colours = _colours([line.name for line in plot.lines])
    ends = _apart([up(line.points[-1][1].median) for line in plot.lines])
    for line, end in zip(plot.lines, ends, strict=True):
        body += _drawn(line, colours[line.name], across, up)
        size, figure = line.points[-1]
        words = f"{line.name}: {number(figure.median)}"
        words += f" at {size:,}" if size != found[-1] else ""
        body.append(_text(_WIDTH - right + 10, end + 4, words, size=11, fill=colours[line.name]))
    return body, 22 + height + 52


def _drawn(
    line: Line, colour: str, across: Callable[[float], float], up: Callable[[float], float]
) -> list[str]:
    """A line through its medians, with a dot and a whisker from the least to the most at each."""
    places = [(across(size), up(figure.median)) for size, figure in line.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    width = 3 if colour in _OUR_LINES else 1.5
    out = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>']
    for (x, y), (_, figure) in zip(places, line.points, strict=True):
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        ends = f"M{x:.1f} {up(figure.low):.1f}V{up(figure.high):.1f}"
        out.append(f'<path d="{ends}" stroke="{colour}" stroke-width="1"/>')
    return out


def _colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name: strong ones for Holdfast, quiet ones for its peers."""
    counts = {True: 0, False: 0}
    out = {}
    for name in names:
        ours = name.lower().startswith("holdfast")
        palette = _OUR_LINES if ours else _THEIR_LINES
        out[name] = palette[counts[ours] % len(palette)]
        counts[ours] += 1
    return out


def _apart(places: Sequence[float], gap: float = 15.0) -> list[float]:
    """The places of some labels, moved down where two would overlap."""
    out = list(places)
    last = -math.inf
    for at in sorted(range(len(out)), key=out.__getitem__):
        out[at] = last = max(out[at], last + gap)
    return out


def _axis(
    least: float, most: float, begin: float, end: float, *, logarithmic: bool
) -> Callable[[float], float]:
    """The place of a figure on an axis. A figure below the least is drawn at the least."""

    def place(value: float) -> float:
        if most <= least:
            return (begin + end) / 2
        part = (
            math.log(max(value, least) / least) / math.log(most / least)
            if logarithmic
            else (max(value, least) - least) / (most - least)
        )
        return begin + (end - begin) * part

    return place


def _ticks(values: Sequence[float], logarithmic: bool) -> list[float]:
    """Round figures from just below the least value (or zero) to just above the most."""
    finite = [value for value in values if math.isfinite(value)]
    most = max(finite, default=1.0) or 1.0
    if not logarithmic:
        step = 10 ** math.floor(math.log10(most))
        step *= next(part for part in (0.2, 0.5, 1, 2) if most / (step * part) <= 5)
        return [step * at for at in range(math.ceil(most / step) + 1)]
    least = min((value for value in finite if value > 0), default=most / 10)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    ticks = [part * 10.0**at for at in range(low, high + 1) for part in (1, 2, 5)]
    if high - low > 2:
        ticks = [tick for tick in ticks if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9)]
    first = max((tick for tick in ticks if tick <= least), default=ticks[0])
    last = min((tick for tick in ticks if tick >= most and tick > first), default=ticks[-1])
    return [tick for tick in ticks if first <= tick <= last]


def _bar(chart: Chart, name: str, figure: Spread, top: float) -> list[str]:
    place = _scale(chart)
    middle = top + _BAR_HEIGHT / 2
    ends = place(figure.low), place(figure.high)
    colour = _OURS if name.lower().startswith("holdfast") else _THEIRS
    return [
        _text(_LABEL_WIDTH - 8, middle + 4, name, size=12, anchor="end"),
        f'<rect x="{_LABEL_WIDTH}" y="{top:.1f}" width="{place(figure.median) - _LABEL_WIDTH:.1f}" '
        f'height="{_BAR_HEIGHT}" fill="{colour}"/>',
        f'<path d="M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}" stroke="{_INK}" stroke-width="1.5"/>',
        *(
            f'<path d="M{x:.1f} {middle - 4:.1f}v8" stroke="{_INK}" stroke-width="1.5"/>'
            for x in ends
        ),
        _text(ends[1] + 8, middle + 4, number(figure.median), size=12),
    ]


def _scale(chart: Chart) -> Callable[[float], float]:
    """The place of a figure on the picture."""
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    most = max(figure.high for figure in chart.figures)
    if not chart.logarithmic:
        return lambda value: _LABEL_WIDTH + room * value / most
    # Zero has no place on a logarithmic scale: its bar has no length.
    least = min(low for figure in chart.figures for low in figure if low > 0) / 2
    return lambda value: (
        _LABEL_WIDTH + room * math.log(max(value, least) / least) / math.log(most / least)
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = _INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" '
        f'fill="{fill}">{escape(words)}</text>'
    )


def number(figure: float) -> str:
    """Three digits, or all before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
