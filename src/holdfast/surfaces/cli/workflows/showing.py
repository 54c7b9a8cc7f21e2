"""`holdfast workflows list` and `sweep`."""

import click

from holdfast.domains.workflows import Workflow
from holdfast.kernel.codec import to_json
from holdfast.kernel.store import Damage
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.output import answer, damage_told
from holdfast.surfaces.cli.render import json_document, short_moment, table
from holdfast.surfaces.cli.workflows.words import STATES

HEADINGS = ("workflow", "recipe", "state", "preemptible", "process", "ends", "token")


@click.command("list")
@json_option
@store_options
def list_(as_json: bool) -> int:
    """List live workflows, and sweep dead ones; exit status 7 if there are damaged ones, which are
    named on stderr.
    """
    damaged: Damage = []
    with connected(create=False) as hf:
        found = hf.workflows.list_workflows(damaged=damaged)
    if as_json:
        json_document(found)
    else:
        show(found)
    return damage_told(damaged)


@click.command()
@json_option
@store_options
def sweep(as_json: bool) -> None:
    """Take out workflows whose process is dead or whose time has passed, with their signal files;
    print their names.
    """
    with connected(create=False) as hf:
        swept = hf.workflows.sweep()
    if as_json:
        answer(to_json(swept))
    else:
        for workflow in swept:
            answer(workflow.name)


def show(workflows: list[Workflow]) -> None:
    """A table of workflows."""
    empty = "No workflows. Try: holdfast workflows run NAME --recipe RECIPE -- COMMAND"
    table(
        HEADINGS,
        [_row(workflow) for workflow in workflows],
        elastic=["workflow", "recipe"],
        empty=empty,
    )


def _row(workflow: Workflow) -> list[str]:
    return [
        workflow.name,
        workflow.recipe,
        STATES[workflow.preempt],
        "yes" if workflow.preemptible else "no",
        str(workflow.owner.pid),
        short_moment(workflow.lease.expires_at) if workflow.lease.explicit else "with it",
        str(workflow.token),
    ]
