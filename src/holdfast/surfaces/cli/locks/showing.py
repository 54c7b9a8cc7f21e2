"""`holdfast locks status`."""

import sys
from collections.abc import Iterator

import click

from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.inspect import HoldStatus, LockStatus, WaitStatus
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.locks.words import span
from holdfast.surfaces.cli.render import json_document, moment, table

_HEADINGS = ("resource", "state", "job", "mode", "for", "process", "ends", "token")
_ON_A_TERMINAL = (0, 1, 2, 4, 5, 6)


@click.command(short_help="Show who holds and who waits.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@store_options
def status(names: tuple[str, ...], as_json: bool) -> None:
    """Show who holds and who waits: of these names, or of all that are held or waited for.

    A line for each holder and each one in line, with its position. What ends `with it` lasts as
    long as its process. Where the output is no terminal, tabs separate the columns, and mode and
    token are there too.
    """
    with connected(create=False) as hf:
        found = [hf.locks.status(name) for name in names] if names else hf.locks.list_held()
    if as_json:
        json_document(found)
        return
    rows = [row for one in found for row in _rows(one)]
    if sys.stdout.isatty():
        # Two of them are left to `explain`, for room.
        rows = [[row[at] for at in _ON_A_TERMINAL] for row in rows]
    headings = [_HEADINGS[at] for at in _ON_A_TERMINAL] if sys.stdout.isatty() else _HEADINGS
    empty = "Nothing is held and nobody waits. Try: holdfast locks run NAME -- COMMAND"
    table(headings, rows, elastic=["resource", "job"], empty=empty)


def _rows(status: LockStatus) -> Iterator[list[str]]:
    if not status.holds:
        yield [status.name, "free", *["-"] * (len(_HEADINGS) - 2)]
    for hold in status.holds:
        held = [
            status.name,
            _state("held", hold.mode),
            hold.by,
            hold.mode.value,
            span(hold.since, status.now),
        ]
        yield [*held, _process(hold), _end(hold, status), str(hold.token)]
    for wait in status.queue:
        state = _state(f"waits {wait.position}", wait.mode)
        mode = "only looks" if wait.looks else wait.mode.value
        yield [
            status.name,
            state,
            wait.by,
            mode,
            span(wait.since, status.now),
            _process(wait),
            "-",
            "-",
        ]


def _state(word: str, mode: Mode) -> str:
    return f"{word}, shared" if mode is Mode.SHARED and sys.stdout.isatty() else word


def _process(one: HoldStatus | WaitStatus) -> str:
    if one.process is None:
        return "none"
    return f"{one.process.pid} {one.alive.value}"


def _end(hold: HoldStatus, status: LockStatus) -> str:
    if hold.reclaimable:
        return "over"
    if not hold.has_ttl:
        return "with it"
    return (
        f"in {span(status.now, hold.expires_at)}"
        if sys.stdout.isatty()
        else moment(hold.expires_at)
    )
