"""Locks in words: spans of time, explanations and graphs."""

from collections.abc import Iterator
from datetime import datetime
from shlex import quote

from holdfast.kernel.text import counted
from holdfast.primitives.locks.inspect import (
    Alive,
    Edge,
    Explanation,
    Graph,
    HoldStatus,
    LockStatus,
    WaitStatus,
    describe_process,
)
from holdfast.primitives.locks.records import Mode
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.render import moment

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_QUEUE_SHOWN = 20


def span(begin: datetime, end: datetime) -> str:
    """A span of time in its two largest units: `4 s`, `3 min`, `2 h 5 min`."""
    left = max(int((end - begin).total_seconds()), 0)
    for at, (size, unit) in enumerate(_SPANS):
        if left >= size:
            text = f"{left // size} {unit}"
            # Nobody needs the seconds of an hour, nor those of a few minutes.
            if at < 2 and (rest := left % size // _SPANS[at + 1][0]):
                text += f" {rest} {_SPANS[at + 1][1]}"
            return text
    return "0 s"


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Why a resource is not free, who waits, what to do. A heading begins with no space."""
    status = explanation.status
    yield _summary(status)
    if status.holds:
        yield from ("", "Held by")
        yield from (f"  {line}" for hold in status.holds for line in _hold(hold, status))
    if status.queue:
        yield from ("", "In line")
        yield from _columns([_wait(wait, status) for wait in status.queue[:_QUEUE_SHOWN]])
        if len(status.queue) > _QUEUE_SHOWN:
            more = len(status.queue) - _QUEUE_SHOWN
            yield completed(f"  and {more} more: holdfast locks status {quote(status.name)}")
    if status.holds or explanation.blockages:
        yield from ("", "Chain")
        yield from (f"  {line}" for line in _chain(explanation))
    yield from ("", "What to do")
    yield from (f"  - {line}" for line in explanation.advice)
    if not status.holds and not status.queue:
        # Another folder may have another holdfast.toml, and a store that is not there reads as
        # empty.
        yield completed(
            "  - if it should be held: holdfast store info shows which store, and which part of "
            "it, was read"
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
    since = span(first.since, status.now)
    return f"{status.name} is held by {first.by} ({first.mode.value}) for {since}; {line} for it"


def _hold(hold: HoldStatus, status: LockStatus) -> Iterator[str]:
    since = f"since {moment(hold.since)} ({span(hold.since, status.now)})"
    yield f"{hold.by}, {hold.mode.value}, {since}"
    yield f"    {describe_process(hold.process, hold.alive)}"
    yield f"    {_end(hold, status)}; token {hold.token}"
    others = [name for name in hold.names if name != status.name]
    if others:
        yield f"    taken together with {', '.join(others)}"


def _end(hold: HoldStatus, status: LockStatus) -> str:
    if hold.reclaimable:
        return "is over: the next in line gets it"
    at = f"{moment(hold.expires_at)} (in {span(status.now, hold.expires_at)})"
    if hold.has_ttl:
        return f"ends {at} unless renewed"
    if hold.alive is Alive.UNKNOWN:
        return f"presumed alive until {at}, and longer with each sign of life"
    if hold.process is not None and hold.process.tree:
        return "ends with the last process of its command"
    return "ends with its process"


def _wait(wait: WaitStatus, status: LockStatus) -> list[str]:
    mode = "only waits" if wait.looks else wait.mode.value
    others = [name for name in wait.names if name != status.name]
    more = [f"priority {wait.priority}"] if wait.priority else []
    more += [f"wants {', '.join(others)} too"] if others else []
    words = "; ".join([describe_process(wait.process, wait.alive), *more])
    return [str(wait.position), wait.by, mode, span(wait.since, status.now), words]


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()


def _chain(explanation: Explanation) -> Iterator[str]:
    """Each holder, or each waiter where there is none, with what is behind it down to its process.

    Under it is what that job waits for, who holds that, and so on to the end.
    """
    status = explanation.status
    seen: set[str] = set()

    def under(by: str, depth: int) -> Iterator[str]:
        if by in seen:
            return
        seen.add(by)
        for blockage in explanation.blockages:
            if blockage.by != by:
                continue
            waited = span(blockage.since, status.now)
            begin = f"{'  ' * depth}{by} waits for {blockage.waits_for} ({waited})"
            for other in blockage.holds:
                yield f"{begin} <- {_holder(other, explanation)}"
                yield from under(other.by, depth + 1)

    for hold in status.holds:
        yield f"{status.name} <- {_holder(hold, explanation)}"
        yield from under(hold.by, 1)
    if not status.holds:
        yield f"{status.name} <- nobody"
        for wait in status.queue:
            yield from under(wait.by, 1)


def _holder(hold: HoldStatus, explanation: Explanation) -> str:
    behind = explanation.behind.get(hold.by, ())
    return " <- ".join((hold.by, *behind, describe_process(hold.process, hold.alive)))


def graph_lines(graph: Graph) -> Iterator[str]:
    """A tree for each job that waits for nothing: under it the jobs that wait for what it holds."""
    if not graph.edges:
        yield "Nothing is held and nobody waits."
    jobs = _by_job(graph)
    waiters: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.position is not None:
            waiters.setdefault(edge.resource, []).append(edge.job)
    # Last, those of a cycle, which has no beginning.
    roots = sorted(jobs, key=lambda job: any(edge.position is not None for edge in jobs[job]))
    shown: set[str] = set()
    for root in roots:
        open_ones = [] if root in shown else [(0, root)]
        while open_ones:
            depth, job = open_ones.pop()
            again = ", see above" if job in shown else ""
            yield printable(f"{'  ' * depth}{_job_line(job, jobs[job])}{again}")
            if job not in shown:
                shown.add(job)
                held = [edge.resource for edge in jobs[job] if edge.position is None]
                behind = dict.fromkeys(other for name in held for other in waiters.get(name, []))
                later = [(depth + 1, other) for other in behind if other != job]
                open_ones += reversed(later)
    yield from (printable(f"Deadlock: {cycle}") for cycle in graph.deadlocks)


def _by_job(graph: Graph) -> dict[str, list[Edge]]:
    found: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        found.setdefault(edge.job, []).append(edge)
    return found


def _job_line(job: str, edges: list[Edge]) -> str:
    alive = ", ".join(dict.fromkeys(edge.alive.value for edge in edges))
    held, waits = [], []
    for edge in edges:
        name = f"{edge.resource} (shared)" if edge.mode is Mode.SHARED else edge.resource
        if edge.position is None:
            held.append(name)
        else:
            waits.append(f"{name} at position {edge.position}")
    parts = [f"waits for {', '.join(waits)}"] if waits else []
    parts += [f"holds {', '.join(held)}"] if held else []
    return f"{job} ({alive}) {' and '.join(parts)}"


def graph_dot(graph: Graph) -> Iterator[str]:
    """Jobs are boxes, resources ellipses. A resource points at its holder, a waiter at it."""
    jobs = {job: f"j{at}" for at, job in enumerate(_by_job(graph))}
    names = dict.fromkeys(edge.resource for edge in graph.edges)
    resources = {name: f"r{at}" for at, name in enumerate(names)}
    dead = {edge.job for edge in graph.edges if edge.alive is Alive.DEAD}
    yield "digraph locks {"
    yield "  rankdir=LR;"
    for job, node in jobs.items():
        colour = ", color=red" if job in dead else ""
        yield f"  {node} [shape=box, label={_quoted(job)}{colour}];"
    for name, node in resources.items():
        yield f"  {node} [shape=ellipse, label={_quoted(name)}];"
    for edge in graph.edges:
        job, name = jobs[edge.job], resources[edge.resource]
        if edge.position is None:
            yield f"  {name} -> {job} [label={_quoted(edge.mode.value)}];"
        else:
            yield f"  {job} -> {name} [label={_quoted(f'waits {edge.position}')}, style=dashed];"
    yield "}"


def _quoted(text: str) -> str:
    # A backslash begins a command of a label in DOT.
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
