"""`holdfast locks graph`: who waits for whom."""

from collections.abc import Iterator

import click

from holdfast.primitives.locks.inspect import Alive, Edge, Graph
from holdfast.primitives.locks.records import Mode
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.render import json_document

FORMATS = ("text", "dot", "json")


@click.command(short_help="Show who waits for whom.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
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
        found = hf.locks.graph()
    if shape == "json":
        json_document(found)
        return
    for line in _dot(found) if shape == "dot" else _text(found):
        click.echo(line)


def _text(graph: Graph) -> Iterator[str]:
    """A tree for each job that waits for nothing: under it those that wait for what it holds, and
    so on.
    """
    if not graph.edges:
        yield "Nothing is held and nobody waits."
    jobs = _by_job(graph)
    waiters = _waiters(graph)
    # Last, those of a cycle, which has no beginning.
    roots = sorted(jobs, key=lambda job: any(edge.position is not None for edge in jobs[job]))
    shown: set[str] = set()
    for root in roots:
        open_ones = [] if root in shown else [(0, root)]
        while open_ones:
            depth, job = open_ones.pop()
            yield printable(
                f"{'  ' * depth}{_job_line(job, jobs[job])}{', see above' if job in shown else ''}"
            )
            if job not in shown:
                shown.add(job)
                behind = [
                    other
                    for edge in jobs[job]
                    if edge.position is None
                    for other in waiters.get(edge.resource, [])
                ]
                open_ones += [
                    (depth + 1, other)
                    for other in reversed(list(dict.fromkeys(behind)))
                    if other != job
                ]
    yield from (printable(f"Deadlock: {cycle}") for cycle in graph.deadlocks)


def _by_job(graph: Graph) -> dict[str, list[Edge]]:
    found: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        found.setdefault(edge.job, []).append(edge)
    return found


def _waiters(graph: Graph) -> dict[str, list[str]]:
    """Who waits for each resource, in order, as the edges come."""
    found: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.position is not None:
            found.setdefault(edge.resource, []).append(edge.job)
    return found


def _job_line(job: str, edges: list[Edge]) -> str:
    alive = ", ".join(dict.fromkeys(edge.alive.value for edge in edges))
    held = [f"{edge.resource}{_shared(edge)}" for edge in edges if edge.position is None]
    waits = [
        f"{edge.resource}{_shared(edge)} at position {edge.position}"
        for edge in edges
        if edge.position is not None
    ]
    parts = [f"waits for {', '.join(waits)}"] if waits else []
    parts += [f"holds {', '.join(held)}"] if held else []
    return f"{job} ({alive}) {' and '.join(parts)}"


def _shared(edge: Edge) -> str:
    return " (shared)" if edge.mode is Mode.SHARED else ""


def _dot(graph: Graph) -> Iterator[str]:
    """Jobs are boxes, resources ellipses: a resource points at who holds it, and who waits at the
    resource.
    """
    jobs = {job: f"j{at}" for at, job in enumerate(_by_job(graph))}
    resources = {
        name: f"r{at}"
        for at, name in enumerate(dict.fromkeys(edge.resource for edge in graph.edges))
    }
    dead = {edge.job for edge in graph.edges if edge.alive is Alive.DEAD}
    yield "digraph locks {"
    yield "  rankdir=LR;"
    for job, node in jobs.items():
        yield f"  {node} [shape=box, label={_quoted(job)}{', color=red' if job in dead else ''}];"
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
    """A text as DOT takes it, where a backslash begins a command of the label."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
