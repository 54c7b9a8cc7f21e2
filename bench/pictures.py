"""Bars as SVG, from plain strings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.measure import Spread

_WIDTH = 760
_LABEL_WIDTH = 250
_VALUE_WIDTH = 90
_BAR_HEIGHT = 18
_STEP = 28
_OURS, _THEIRS, _INK = "#2a6f97", "#a9b4bd", "#24292f"


@dataclass(frozen=True)
class Chart:
    """Bars of one figure: the median, with a whisker from the least to the most of the rounds."""

    unit: str
    names: Sequence[str]
    figures: Sequence[Spread]
    logarithmic: bool = False


def draw(title: str, charts: Sequence[Chart]) -> str:
    """A picture with the charts below each other."""
    body: list[str] = []
    top = 34.0
    for chart in charts:
        body.append(
            _text(
                12, top + 12, chart.unit + (" (logarithmic)" if chart.logarithmic else ""), size=12
            )
        )
        top += 22
        for number, (name, figure) in enumerate(zip(chart.names, chart.figures, strict=True)):
            body += _bar(chart, name, figure, top + number * _STEP)
        top += len(chart.names) * _STEP + 10
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
    x: float, y: float, words: str, *, size: int, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" '
        f'fill="{_INK}">{escape(words)}</text>'
    )


def number(figure: float) -> str:
    """Three digits, or all before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
