"""`holdfast log`: the journal."""

import sys
from collections.abc import Iterator
from datetime import datetime

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.store import Entry
from holdfast.kernel.text import counted
from holdfast.primitives.journal import matches
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.log import TAIL, Dropped, since_of
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.outage import Outage
from holdfast.surfaces.cli.output import answer, printable
from holdfast.surfaces.cli.render import moment


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries as they come.")
@click.option(
    "--since",
    metavar="WHEN",
    help="An instant (2026-01-31T12:00:00Z) or an age (90s, 15m, 2h, 7d).",
)
@click.option("--subject", help="Only entries about this, such as a job's id.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0),
    help=f"How many of the last; 0 for all.  [default: {TAIL}; all with --since]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line an entry.")
@click.option(
    "--prune",
    is_flag=True,
    help="Drop what is beyond the configured bounds, and say how much that was.",
)
@store_options
def log(
    follow: bool,
    since: str | None,
    subject: str | None,
    tail: int | None,
    as_json: bool,
    prune: bool,
) -> None:
    """Show the journal: every change, in the order in which they took effect."""
    begin = None if since is None else _instant(since)
    if tail is None:
        tail = TAIL if begin is None else 0
    # Following waits for whoever makes the store, and pruning is a change.
    with connected(create=follow or prune) as hf:
        if prune:
            dropped = hf.log.prune()
            answer(
                to_json(Dropped(dropped=dropped))
                if as_json
                else f"{counted(dropped, 'entry', 'entries')} dropped"
            )
            return
        silent = True
        for entry in _entries(hf, follow, begin, subject, tail):
            click.echo(to_json(entry) if as_json else _line(entry))
            silent = False
        if silent and not as_json and sys.stdout.isatty():
            click.echo(
                completed(
                    "No entries. Every change is told here, such as `holdfast jobs register` makes."
                )
            )


def _entries(
    hf: Holdfast, follow: bool, begin: datetime | None, subject: str | None, tail: int
) -> Iterator[Entry]:
    """The entries asked for. The tail counts what is left after the filters."""
    entries, cursor = hf.log.chosen(begin=begin, subject=subject, limit=tail or None)
    yield from entries
    outage = Outage()
    while follow:
        try:
            for batch in hf.log.follow(cursor):
                outage.over()
                cursor = batch.cursor
                yield from (entry for entry in batch.entries if matches(entry, begin, subject))
        except Unavailable as error:
            outage.wait(error)


def _line(entry: Entry) -> str:
    data = " ".join(f"{name}={_value(value)}" for name, value in entry.data.items())
    line = f"{moment(entry.at)}  {entry.kind:<20} {entry.subject:<12} {data}  by {entry.actor}"
    return printable(line.replace("\n", " "))


def _value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else to_json(value).decode()


def _instant(text: str) -> datetime:
    try:
        return since_of(text)
    except InvalidValue as error:
        raise click.BadParameter(error.message, param_hint="--since") from None
