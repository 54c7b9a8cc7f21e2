"""`holdfast locks explain`: for whoever must know at three in the morning why a resource is not
free.
"""

from collections.abc import Iterator
from shlex import quote

import click
from msgspec.structs import replace

from holdfast.kernel.text import counted
from holdfast.primitives.locks.inspect import Alive, Explanation, HoldStatus, LockStatus, WaitStatus
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.locks.words import process_words, span
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.render import json_document, moment

_QUEUE_SHOWN = 20


@click.command(short_help="Tell why something is not free, and what to do.")
@click.argument("name")
@json_option
@store_options
def explain(name: str, as_json: bool) -> None:
    """Tell why NAME is not free: who holds it, what that one waits for in turn, who is in line, and
    what to do.
    """
    with connected(create=False) as hf:
        explanation = hf.locks.explain(name)
    explanation = replace(explanation, advice=tuple(completed(line) for line in explanation.advice))
    if as_json:
        json_document(explanation)
        return
    for line in _lines(explanation):
        heading = line and not line.startswith(" ")
        click.echo(click.style(printable(line), bold=True) if heading else printable(line))


def _lines(explanation: Explanation) -> Iterator[str]:
    status = explanation.status
    yield _summary(status)
    if status.holds:
        yield from ("", "Held by")
        yield from (f"  {line}" for hold in status.holds for line in _hold(hold, status))
    if status.queue:
        yield from ("", "In line")
        yield from _columns([_wait(wait, status) for wait in status.queue[:_QUEUE_SHOWN]])
        if len(status.queue) > _QUEUE_SHOWN:
            yield completed(
                f"  and {len(status.queue) - _QUEUE_SHOWN} more: holdfast locks status "
                f"{quote(status.name)}"
            )
    if status.holds or explanation.blockages:
        yield from ("", "Chain")
        yield from (f"  {line}" for line in _chain(explanation))
    yield from ("", "What to do")
    yield from (f"  - {line}" for line in explanation.advice)
    if not status.holds and not status.queue:
        # Another folder may have another holdfast.toml, and a store that is not there is read as an
        # empty one.
        yield completed(
            "  - if it should be held: holdfast store info shows which store, and which part of "
            "it, was looked at"
        )


def _summary(status: LockStatus) -> str:
    waiting = sum(wait.alive is not Alive.DEAD for wait in status.queue)
    line = counted(waiting, "waits", "wait") if waiting else "nobody waits"
    if not status.holds:
        return f"{status.name} is free; {line} for it"
    first = status.holds[0]
    if all(hold.reclaimable for hold in status.holds):
        why = "whose process is dead" if first.alive is Alive.DEAD else "whose time is over"
        return f"{status.name} was held by {first.by}, {why}; {line} for it"
    if len(status.holds) > 1:
        return f"{status.name} is shared by {counted(len(status.holds), 'job')}; {line} for it"
    return (
        f"{status.name} is held by {first.by} ({first.mode.value}) for "
        f"{span(first.since, status.now)}; {line} for it"
    )


def _hold(hold: HoldStatus, status: LockStatus) -> Iterator[str]:
    yield f"{hold.by}, {hold.mode.value}, since {moment(hold.since)} ({span(hold.since, status.now)})"
    yield f"    {process_words(hold.process, hold.alive)}"
    yield f"    {_end(hold, status)}; token {hold.token}"
    others = [name for name in hold.names if name != status.name]
    if others:
        yield f"    taken together with {', '.join(others)}"


def _end(hold: HoldStatus, status: LockStatus) -> str:
    if hold.reclaimable:
        return "is over: whoever is next gets it"
    at = f"{moment(hold.expires_at)} (in {span(status.now, hold.expires_at)})"
    if hold.has_ttl:
        return f"ends {at} unless renewed"
    if hold.alive is Alive.UNKNOWN:
        return f"believed until {at}, and longer with each sign of life"
    return "ends with its process"


def _wait(wait: WaitStatus, status: LockStatus) -> list[str]:
    facts = [
        str(wait.position),
        wait.by,
        "only looks" if wait.looks else wait.mode.value,
        span(wait.since, status.now),
    ]
    others = [name for name in wait.names if name != status.name]
    more = [f"priority {wait.priority}"] if wait.priority else []
    more += [f"wants {', '.join(others)} too"] if others else []
    return [*facts, "; ".join([process_words(wait.process, wait.alive), *more])]


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield (
            "  "
            + "  ".join(
                f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        )


def _chain(explanation: Explanation) -> Iterator[str]:
    """Each holder, or each in line where there is none, and who is behind it down to its process;
    under it what that job waits for, who holds that, and so on to the end.
    """
    status = explanation.status
    seen: set[str] = set()

    def told(by: str, depth: int) -> Iterator[str]:
        if by in seen:
            return
        seen.add(by)
        for blockage in explanation.blockages:
            if blockage.by != by:
                continue
            begin = (
                f"{'  ' * depth}{by} waits for {blockage.waits_for} "
                f"({span(blockage.since, status.now)})"
            )
            for other in blockage.holds:
                yield f"{begin} <- {_holder(other, explanation)}"
                yield from told(other.by, depth + 1)

    for hold in status.holds:
        yield f"{status.name} <- {_holder(hold, explanation)}"
        yield from told(hold.by, 1)
    if not status.holds:
        yield f"{status.name} <- nobody"
        for wait in status.queue:
            yield from told(wait.by, 1)


def _holder(hold: HoldStatus, explanation: Explanation) -> str:
    return " <- ".join(
        (hold.by, *explanation.behind.get(hold.by, ()), process_words(hold.process, hold.alive))
    )
