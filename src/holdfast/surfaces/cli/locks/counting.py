"""`holdfast locks stats`: what the locks have been through."""

import sys
from collections.abc import Iterator, Mapping, Sequence

import click

from holdfast.primitives.locks.statistics import LockStatistics
from holdfast.surfaces.answers.locks import chosen, statistics_view, times
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.render import json_document, table

_COUNTS = ("grants", "waits", "timeouts", "deaths", "expiries", "deadlocks", "kicks")
_TIMES = ("mean", "p50", "p95")


@click.command(short_help="Show counts, waits and holds of each resource.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@store_options
def stats(names: tuple[str, ...], as_json: bool) -> None:
    """Show how often each resource was granted, waited for, lost and deadlocked, and how long waits
    and holds took.

    Processes add their counts every few seconds and when they end. The time that half (p50) and
    nearly all (p95) stayed within comes from a histogram: it is the upper bound of a bucket. Where
    the output is no terminal, each has one line, with tabs between: resource, grants, waits,
    timeouts, deaths, expiries, deadlocks, kicks, then mean, p50 and p95 of waits and of holds.
    """
    with connected(create=False) as hf:
        found = hf.locks.statistics()
    wanted = chosen(found, names)
    if as_json:
        json_document([statistics_view(name, one) for name, one in wanted.items()])
        return
    if sys.stdout.isatty():
        for line in _lines(wanted):
            click.echo(printable(line))
    else:
        table((), [_row(name, one) for name, one in wanted.items()], empty="")


def _lines(wanted: Mapping[str, LockStatistics]) -> Iterator[str]:
    """As many columns as there are would fit no terminal."""
    if not wanted:
        yield completed("Nothing was locked here yet. Try: holdfast locks run NAME -- COMMAND")
    for name, one in wanted.items():
        yield name
        yield "  " + ", ".join(f"{getattr(one, what)} {what}" for what in _COUNTS)
        for what, (total_s, counts) in _times_of(one).items():
            if sum(counts):
                parts = (
                    f"{time} {_shown(value)}"
                    for time, value in zip(_TIMES, times(total_s, counts), strict=True)
                )
                yield f"  {what}: {', '.join(parts)}"


def _times_of(one: LockStatistics) -> dict[str, tuple[float, Sequence[int]]]:
    return {"wait": (one.wait_s, one.wait_counts), "hold": (one.hold_s, one.hold_counts)}


def _row(name: str, one: LockStatistics) -> list[str]:
    counts = [str(getattr(one, what)) for what in _COUNTS]
    return [
        name,
        *counts,
        *(_shown(time) for what in _times_of(one).values() for time in times(*what)),
    ]


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
