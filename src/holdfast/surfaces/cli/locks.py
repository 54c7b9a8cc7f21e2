"""`holdfast locks`: who holds which resource, and who is next."""

import sys
from collections.abc import Callable, Iterator
from shlex import quote

import click
from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import STATUS
from holdfast.kernel.text import clipped
from holdfast.operations import locks as operations
from holdfast.operations.operation import Operation, Wait
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.inspect import Explanation, HoldStatus, LockStatus, WaitStatus
from holdfast.primitives.locks.policy import Obstruction, describe_obstruction
from holdfast.processes.signals import interruptible
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.command import (
    CommandGroup,
    click_command,
    json_option,
    nonblock_option,
    quiet_option,
    request_options,
)
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.lock_acquire import acquire
from holdfast.surfaces.cli.lock_notes import WaitNotes, own_job
from holdfast.surfaces.cli.lock_run import run
from holdfast.surfaces.cli.lock_text import explanation_lines, graph_dot, graph_lines, span
from holdfast.surfaces.cli.output import answer, printable, remark
from holdfast.surfaces.cli.render import json_document, moment, table
from holdfast.surfaces.cli.store_options import store_options

_HEADINGS = ("resource", "state", "job", "mode", "for", "process", "ends", "token")
_ON_A_TERMINAL = (0, 1, 2, 4, 5, 6)
_COUNTS = ("grants", "waits", "timeouts", "deaths", "expiries", "deadlocks", "kicks")
_TIMES = ("mean", "p50", "p95")
_FORMATS = ("text", "dot", "json")


@click.group(cls=CommandGroup)
def locks() -> None:
    """Locks on resources of any name: one holder, or many that share.

    For a script, `run` is all it takes, and works as flock(1) does:

    \b
        holdfast locks run router-1 -- ./flash.sh router-1
        holdfast locks explain router-1
    """


locks.add_command(click_command(run))


locks.add_command(click_command(acquire))


@locks.operation(operations.renew, short_help="Extend a lock by its token.")
def renew(done: operations.Renewed) -> str:
    """Extend the lock that has TOKEN, from now; exit status 4 when it is lost.

    \b
        holdfast locks renew "$token" --ttl 600

    It never ends earlier than it would have.
    """
    return f"{', '.join(done.names)} held by {done.by} until {moment(done.expires_at)}"


@locks.command(short_help="Release a lock by its token or name.")
@click.argument("words", metavar="TOKEN | NAME...", nargs=-1, required=True)
@click.option(
    "--by", metavar="JOB", help="Release by name what this job holds, instead of by token."
)
@json_option
@store_options
def release(words: tuple[str, ...], by: str | None, as_json: bool) -> int:
    """Release the lock that has TOKEN, or what a job holds of some names.

    \b
        holdfast locks release "$token"
        holdfast locks release router-1 router-2 --by job-7

    Exit status 4 when no lock has that token any more, 1 when the job does not hold all of the
    names.
    """
    if by is not None:
        request = operations.FreeNames(names=list(words), by=by)
        return release_names(operations.free, request, as_json=as_json)
    try:
        (word,) = words
        token = int(word)
    except ValueError:
        raise click.UsageError(
            f"{clipped(' '.join(words))!a} is no token: give the number that `acquire` printed, "
            "or names and --by"
        ) from None
    with connected() as hf:
        done = operations.release(hf, operations.Release(token=token))
    answer(to_json(done) if as_json else f"released {token}")
    return 0


def release_names(operation: Operation, request: operations.FreeNames, *, as_json: bool) -> int:
    """Release what a job holds of some names; return the exit status."""
    with connected() as hf:
        done: operations.Freed = operation(hf, request)
    answer(to_json(done) if as_json else printable(f"released {', '.join(done.released)}"))
    kept = [name for name in dict.fromkeys(request.names) if name not in done.released]
    if kept:
        remark(operations.not_held(kept, request.by).message)
    return STATUS["not_found"].exit if kept else 0


@locks.command(short_help="Wait until names are free, and take nothing.")
@request_options(operations.WaitFor)
@nonblock_option
@quiet_option
@json_option
@store_options
def wait(request: operations.WaitFor, nonblock: bool, quiet: bool, as_json: bool) -> int:
    """Wait until all the names are free at once, and take nothing.

    \b
        holdfast locks wait router-1 --timeout 60 && echo free

    Exit status 5 when they are not free in time. Another may take them in the next instant: to
    have them, `run` or `acquire`.
    """
    return wait_until_free(
        operations.wait_for, request, nonblock=nonblock, quiet=quiet, as_json=as_json
    )


def wait_until_free(
    wait_for: Callable[[Holdfast, operations.WaitFor, Wait], Obstruction | None],
    request: operations.WaitFor,
    *,
    nonblock: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wait until names are free; return the exit status."""
    by = own_job("wait") if request.by is None else request.by
    timeout_s = 0 if nonblock else request.timeout_s
    request = replace(request, by=by, timeout_s=timeout_s)
    names = tuple(request.names)
    with (
        interruptible(),
        connected() as hf,
        WaitNotes(hf, names, by, request.mode, quiet=quiet) as notes,
    ):
        why = wait_for(hf, request, Wait(on_wait=notes.begin))
    if as_json:
        answer(to_json(operations.free_view(why)))
    if why is None:
        return 0
    first = why.holders[0].resource if why.holders else names[0]
    remark(
        f"{', '.join(names)} not free within {timeout_s:g} s: {describe_obstruction(why, names)}. "
        f"`holdfast locks explain {quote(first)}` shows more"
    )
    return STATUS["lock_timeout"].exit


def status_command(read: Callable[[Holdfast, tuple[str, ...]], list[LockStatus]]) -> click.Command:
    """The command that shows who holds and who waits. `read` gets the names, or none for all."""

    @click.command(short_help="Show who holds and who waits.")
    @click.argument("names", metavar="[NAME]...", nargs=-1)
    @json_option
    @store_options
    def status(names: tuple[str, ...], as_json: bool) -> None:
        """Show who holds and who waits: of these names, or of all that are held or waited for.

        A line for each holder and each one in line, with its position. What ends `with it` lasts as
        long as its process. Where the output is no terminal, tabs separate the columns, and mode
        and token are there too.
        """
        with connected(create=False) as hf:
            found = read(hf, names)
        json_document(found) if as_json else _show_status(found)

    return status


def _statuses(hf: Holdfast, names: tuple[str, ...]) -> list[LockStatus]:
    found = [operations.status(hf, operations.ResourceName(name=name)) for name in names]
    return found if names else operations.list_(hf)


locks.add_command(status_command(_statuses))


def _show_status(found: list[LockStatus]) -> None:
    rows = [row for one in found for row in _status_rows(one)]
    headings = list(_HEADINGS)
    if sys.stdout.isatty():
        # Two columns are left to `explain`, for room.
        rows = [[row[at] for at in _ON_A_TERMINAL] for row in rows]
        headings = [headings[at] for at in _ON_A_TERMINAL]
    empty = "Nothing is held and nobody waits. Try: holdfast locks run NAME -- COMMAND"
    table(headings, rows, elastic=["resource", "job"], empty=empty)


def _status_rows(status: LockStatus) -> Iterator[list[str]]:
    if not status.holds:
        yield [status.name, "free", *["-"] * (len(_HEADINGS) - 2)]
    for hold in status.holds:
        yield [
            *(status.name, _state("held", hold.mode), hold.by, hold.mode.value),
            *(span(hold.since, status.now), _process(hold), _end(hold, status), str(hold.token)),
        ]
    for wait in status.queue:
        mode = "only waits" if wait.looks else wait.mode.value
        yield [
            *(status.name, _state(f"waits {wait.position}", wait.mode), wait.by, mode),
            *(span(wait.since, status.now), _process(wait), "-", "-"),
        ]


def _state(word: str, mode: Mode) -> str:
    return f"{word}, shared" if mode is Mode.SHARED and sys.stdout.isatty() else word


def _process(one: HoldStatus | WaitStatus) -> str:
    return "none" if one.process is None else f"{one.process.pid} {one.alive.value}"


def _end(hold: HoldStatus, status: LockStatus) -> str:
    if hold.reclaimable:
        return "over"
    if not hold.has_ttl:
        return "with it"
    left = f"in {span(status.now, hold.expires_at)}"
    return left if sys.stdout.isatty() else moment(hold.expires_at)


@locks.command(short_help="Show why something is not free, and what to do.")
@request_options(operations.ResourceName)
@json_option
@store_options
def explain(request: operations.ResourceName, as_json: bool) -> None:
    """Show why NAME is not free: its holder, what that one waits for, the queue, and what to do."""
    with connected(create=False) as hf:
        found: Explanation = operations.explain(hf, request)
    found = replace(found, advice=tuple(completed(line) for line in found.advice))
    if as_json:
        json_document(found)
        return
    for line in explanation_lines(found):
        heading = line and not line.startswith(" ")
        click.echo(click.style(printable(line), bold=True) if heading else printable(line))


@locks.command(short_help="Show who waits for whom.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="How to write it.",
)
@click.option("--json", "shape", flag_value="json", help="The same as --format json.")
@store_options
def graph(shape: str) -> None:
    """Show who waits for whom, over all resources.

    \b
        holdfast locks graph --format dot | dot -Tsvg > locks.svg
    """
    with connected(create=False) as hf:
        found = operations.graph(hf)
    if shape == "json":
        json_document(found)
        return
    for line in graph_dot(found) if shape == "dot" else graph_lines(found):
        click.echo(line)


@locks.command(short_help="Show counts, waits and holds of each resource.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@store_options
def stats(names: tuple[str, ...], as_json: bool) -> None:
    """Show how often each resource was granted, waited for, lost and deadlocked, and for how long.

    Processes add their counts every few seconds and when they end. The time that half (p50) and
    nearly all (p95) stayed within comes from a histogram: it is the upper bound of a bucket. Where
    the output is no terminal, each has one line, with tabs between: resource, grants, waits,
    timeouts, deaths, expiries, deadlocks, kicks, then mean, p50 and p95 of waits and of holds.
    """
    with connected(create=False) as hf:
        found = operations.statistics_of(hf, names)
    if as_json:
        json_document(found)
    elif sys.stdout.isatty():
        # As many columns as there are would fit no terminal.
        for line in _statistics_lines(found):
            click.echo(printable(line))
    else:
        rows = [
            [
                one.resource,
                *(str(getattr(one, what)) for what in _COUNTS),
                *(_seconds(value) for what in ("wait", "hold") for value in _times(one, what)),
            ]
            for one in found
        ]
        table((), rows, empty="")


def _statistics_lines(found: list[operations.StatisticsView]) -> Iterator[str]:
    if not found:
        yield completed("Nothing was locked here yet. Try: holdfast locks run NAME -- COMMAND")
    for one in found:
        yield one.resource
        yield "  " + ", ".join(f"{getattr(one, what)} {what}" for what in _COUNTS)
        for what in ("wait", "hold"):
            if sum(getattr(one, f"{what}_counts")):
                values = map(_seconds, _times(one, what))
                parts = (f"{name} {value}" for name, value in zip(_TIMES, values, strict=True))
                yield f"  {what}: {', '.join(parts)}"


def _times(one: operations.StatisticsView, what: str) -> list[float | None]:
    return [getattr(one, f"{what}_{time}_s") for time in _TIMES]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


@locks.operation(operations.kick, short_help="Take a lock away from its holder.")
def kick(done: operations.Kicked) -> str:
    """Take NAME away from its holder, with all that was taken together with it.

    \b
        holdfast locks kick router-1 --why 'flash.sh has hung since noon'

    The next in line gets it at once. The holder is notified, and its token is refused from then on,
    but its processes go on. --end-tree ends them first, on this machine.
    """
    return "\n".join(
        f"took {', '.join(hold.names)} from {hold.by} (token {hold.token})" for hold in done.kicked
    )
