"""Tables for people, JSON for programs."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.kernel.codec import to_json


def json_document(value: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(to_json(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A table with colour on a terminal; columns apart by tabs elsewhere, so that cut and awk read them."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))
        return
    if not rows:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values, a line each."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def moment(at: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")


def clipped(text: str, width: int = 60) -> str:
    """One line of a text, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
