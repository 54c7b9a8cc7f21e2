"""`holdfast swap status`, `reconcile` and `log`."""

import click

from holdfast.domains.workflows import SwapEvent, SwapMarker, SwapStatus
from holdfast.domains.workflows.description import describe_orphan_load, describe_unknown
from holdfast.domains.workflows.records import OrphanLoad, waits_for, who
from holdfast.kernel.codec import to_json
from holdfast.kernel.limits import LIST_MAX
from holdfast.operations.page.workflows import advice
from holdfast.surfaces.answers.workflows import reconciled_view, swap_view
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.output import answer, printable
from holdfast.surfaces.cli.render import json_document, moment, pairs
from holdfast.surfaces.cli.workflows.words import STATES


@click.command()
@json_option
@store_options
def status(as_json: bool) -> None:
    """Show what is loaded, the swap that is under way, and the workflows. Clears what a dead swap
    left behind.
    """
    with connected(create=False) as hf:
        found = hf.workflows.swap_status()
        remains = None if found.marker is None else hf.workflows.orphan_load(found.marker)
    if as_json:
        json_document(swap_view(found))
    else:
        pairs(_facts(found, remains))


@click.command()
@json_option
@store_options
def reconcile(as_json: bool) -> None:
    """Clear the marker of a swap that nobody stands behind. Every other command does the same when
    it meets one.

    The marker of a killed swap stays as long as processes of its load live: those are named.
    """
    with connected(create=False) as hf:
        found = hf.workflows.reconcile_swap_marker()
        remains = None if found.live is None else hf.workflows.orphan_load(found.live)
    if as_json:
        answer(to_json(reconciled_view(found)))
    elif found.cleared is not None:
        answer(f"cleared what was left of {_swap(found.cleared)}")
    elif remains is not None:
        answer(describe_orphan_load(remains))
    else:
        answer(
            "no swap is under way" if found.live is None else f"{_swap(found.live)} is under way"
        )


@click.command()
@click.option(
    "-n", "--tail", type=click.IntRange(0), default=0, help="How many of the last; 0 for all."
)
@json_option
@store_options
def log(tail: int, as_json: bool) -> None:
    """Show what happened to swaps, oldest first. `holdfast log` has it too, among everything
    else.
    """
    with connected(create=False) as hf:
        events = hf.workflows.swap_log(tail or LIST_MAX)
    for event in events:
        click.echo(to_json(event) if as_json else _line(event))


def _facts(found: SwapStatus, remains: OrphanLoad | None) -> list[tuple[str, str]]:
    facts = [
        ("current", _current(found)),
        ("swap", "none" if found.marker is None else _swap(found.marker)),
    ]
    if remains is not None:
        facts[1] = ("swap", describe_orphan_load(remains))
    for workflow in found.workflows:
        words = (
            f"{workflow.name}: {workflow.recipe}, process {workflow.owner.pid}, "
            f"{STATES[workflow.preempt]}"
        )
        if found.marker is not None and waits_for(found.marker, workflow):
            words += f". The swap waits for it: {advice(workflow, in_the_way=True)}"
        facts.append(("workflow", words))
    return facts


def _current(found: SwapStatus) -> str:
    if found.unknown is not None:
        return f"unknown: {describe_unknown(found.unknown)}"
    return (
        "none"
        if found.current is None
        else f"{found.current.recipe}, loaded {moment(found.current.loaded_at)}"
    )


def _swap(marker: SwapMarker) -> str:
    swap = "reload of" if marker.reload else "swap to"
    return f"a {swap} {marker.recipe} by {who(marker.holder)}, begun {moment(marker.begun_at)}"


def _line(event: SwapEvent) -> str:
    data = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    return printable(
        f"{moment(event.at)}  {event.event:<22} {event.recipe:<12} {event.who}  {data}".replace(
            "\n", " "
        ).rstrip()
    )
