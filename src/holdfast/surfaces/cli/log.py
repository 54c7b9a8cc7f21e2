"""`holdfast log`: the journal."""

import sys
from collections.abc import Iterator
from datetime import datetime

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.store import Entry
from holdfast.kernel.text import counted
from holdfast.operations import log as operations
from holdfast.primitives.journal import matches
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.outage import Outage
from holdfast.surfaces.cli.command import request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.output import answer, printable, remark
from holdfast.surfaces.cli.render import moment
from holdfast.surfaces.cli.store_options import store_options


@click.command()
@request_options(operations.ReadLog)
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries as they come.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line an entry.")
@click.option(
    "--prune",
    is_flag=True,
    help="Drop entries beyond the configured bounds, and print how many.",
)
@store_options
def log(request: operations.ReadLog, follow: bool, as_json: bool, prune: bool) -> None:
    """Show the journal: every change, in the order in which they took effect."""
    tail = operations.tail_of(request, every=0)
    # Following waits for the program that makes the store, and pruning is a change.
    with connected(create=follow or prune) as hf:
        if prune:
            done: operations.Dropped = operations.prune(hf)
            words = f"{counted(done.dropped, 'entry', 'entries')} dropped"
            answer(to_json(done) if as_json else words)
            return
        begin = _since(hf, request)
        silent = True
        for entry in _entries(hf, follow, begin, request.subject, tail):
            click.echo(to_json(entry) if as_json else _line(entry))
            silent = False
        if silent and not as_json and sys.stdout.isatty():
            click.echo(
                completed("No entries. Every change is shown here, as by `holdfast jobs register`.")
            )


def _entries(
    hf: Holdfast, follow: bool, begin: datetime | None, subject: str | None, tail: int
) -> Iterator[Entry]:
    """The chosen entries. The tail counts what is left after the filters."""
    entries, cursor = hf.log.chosen(begin=begin, subject=subject, limit=tail or None)
    yield from entries
    outage = Outage(remark)
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


def _since(hf: Holdfast, request: operations.ReadLog) -> datetime | None:
    try:
        return operations.since_of(hf, request)
    except InvalidValue as error:
        raise click.BadParameter(error.message, param_hint="--since") from None
