"""`holdfast workflows`: work that needs a recipe on the GPU."""

from functools import partial

import click

from holdfast.domains.workflows import Workflow
from holdfast.domains.workflows.messages import STATES
from holdfast.kernel.codec import to_json
from holdfast.operations import workflows as operations
from holdfast.operations.operation import Wait
from holdfast.processes.signals import interruptible
from holdfast.surfaces.cli.command import CommandGroup, json_option, quiet_option, request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.output import issue, remark
from holdfast.surfaces.cli.render import moment, short_moment, table
from holdfast.surfaces.cli.store_options import store_options
from holdfast.surfaces.cli.workflow_run import (
    RecipeWaitNotes,
    run,
    signal_path_option,
    swap_advice,
)


@click.group(cls=CommandGroup)
def workflows() -> None:
    """Work that needs a recipe on the GPU.

    For a script, `run` is all it takes:

    \b
        holdfast workflows run nightly --recipe llama-70b -- ./evaluate.sh
        holdfast workflows list
    """


workflows.add_command(run)


@workflows.command(short_help="Register a process's work and print the token.")
@request_options(operations.RegisterWorkflow)
@signal_path_option
@quiet_option
@json_option
@store_options
def register(
    request: operations.RegisterWorkflow, signal_path: str | None, quiet: bool, as_json: bool
) -> None:
    """Register the work of a process, and print the token that renewing and releasing it needs.

    \b
        token=$(holdfast workflows register nightly --recipe llama-70b --pid $$)
        holdfast workflows release nightly --token "$token"

    It is over with that process, or when it was not renewed in time. Refused (exit status 4) while
    a swap to another recipe is under way, and when the name is another process's. Without
    --loaded-only it says on stderr when the recipe is yet to be loaded: work must not begin before
    a swap then. Where one command is all there is to the work, `holdfast workflows run` is simpler.
    """
    with interruptible(), connected() as hf:
        wait = Wait(on_wait=RecipeWaitNotes(quiet=quiet))
        done = operations.register_with_signal(hf, request, wait, signal_path)
        name, token = done.workflow.name, done.workflow.token
        issue(
            token,
            to_json(operations.view_of(done)) if as_json else str(token),
            None if done.renewed else partial(hf.workflows.release, name, token),
            f"{name} was registered",
            f"holdfast workflows release {name} --token {token}",
        )
    if done.swap_needed and not quiet:
        remark(swap_advice(done.workflow.recipe))


@workflows.operation(operations.renew, short_help="Extend a workflow.")
def renew(workflow: Workflow) -> str:
    """Extend a workflow from now by its time to live.

    Exit status 4 when it was swept: stop work, and register again.
    """
    ends = "with its processes"
    if workflow.lease.explicit:
        ends = f"at {moment(workflow.lease.expires_at)} unless renewed"
    return f"{workflow.name} ends {ends}"


@workflows.operation(operations.release, short_help="End a workflow.")
def release(workflow: Workflow) -> str:
    """End a workflow, and remove its signal file.

    Exit status 1 when it is not there any more, 4 when the name is another's.
    """
    return f"{workflow.name} is released"


@workflows.operation(operations.list_)
def list_(found: list[Workflow]) -> None:
    """List live workflows, and sweep dead ones.

    Exit status 7 if there are damaged ones, which are named on stderr.
    """
    table(
        ("workflow", "recipe", "state", "preemptible", "process", "ends", "token"),
        [
            [
                *(workflow.name, workflow.recipe, STATES[workflow.preempt]),
                "yes" if workflow.preemptible else "no",
                str(workflow.owner.pid),
                short_moment(workflow.lease.expires_at) if workflow.lease.explicit else "with it",
                str(workflow.token),
            ]
            for workflow in found
        ],
        elastic=["workflow", "recipe"],
        empty="No workflows. Try: holdfast workflows run NAME --recipe RECIPE -- COMMAND",
    )


@workflows.operation(operations.sweep, create=False)
def sweep(swept: list[Workflow]) -> str | None:
    """Remove workflows whose process is dead or whose time has passed, with their signal files.

    Prints their names.
    """
    return "\n".join(workflow.name for workflow in swept) or None
