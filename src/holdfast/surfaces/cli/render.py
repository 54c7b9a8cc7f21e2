"""Tables for people, JSON for programs."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.kernel.codec import to_json
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.output import printable


def json_document(value: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(to_json(value))


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    empty: str,
    elastic: Sequence[str] = (),
) -> None:
    """A table with colour on a terminal, a line a row; columns apart by tabs elsewhere, so that cut
    and awk read them.

    Where the terminal is too narrow, the `elastic` columns are cut first.
    """
    rows = [[_cell(text) for text in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    if not rows:
        click.echo(printable(completed(empty)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        # Rich takes width from columns that may wrap; the cells themselves then refuse to.
        drawn.add_column(heading, no_wrap=heading not in elastic)
    for row in rows:
        cells = zip(headings, row, strict=True)
        drawn.add_row(
            *(
                Text(cell, _style(heading, cell), no_wrap=True, overflow="ellipsis")
                for heading, cell in cells
            )
        )
    Console().print(drawn)


_STATE_COLUMNS = ("status", "state", "lease", "process", "ends")
"""The columns that show a state."""
_STYLES = {
    **dict.fromkeys(("error", "failed", "dead", "over"), "red"),
    **dict.fromkeys(("waits", "asked", "yielding", "yielded", "unknown"), "yellow"),
    **dict.fromkeys(("running", "runs", "held"), "cyan"),
    "completed": "green",
    "cancelled": "bright_black",
}
"""By a word; what is not among them has the terminal's own colour."""


def _style(heading: str, cell: str) -> str:
    if heading not in _STATE_COLUMNS:
        return ""
    words = cell.replace(",", " ").split()
    return next((_STYLES[word] for word in words if word in _STYLES), "")


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values, a line each; the further lines of a value are indented, so that none can be
    taken for a name.
    """
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        lines = printable(value).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{name:<{width}}  {lines}")


def value_text(value: object) -> str:
    """A value for people; `-` where there is none."""
    if value is None or value == "" or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def moment(at: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")


def short_moment(at: datetime) -> str:
    """An instant for a table: on a terminal, which is narrow, without its year and seconds."""
    return at.strftime("%m-%d %H:%MZ") if sys.stdout.isatty() else moment(at)


def _cell(text: str) -> str:
    return printable(text.replace("\t", " ").replace("\n", " "))
