"""`holdfast workflows register`, `renew` and `release`."""

from shlex import quote

import click

from holdfast.domains.workflows import Workflow
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, Unavailable
from holdfast.processes.signals import interruptible
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.workflows import registered_view
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import json_option, more_than_nothing, quiet_option
from holdfast.surfaces.cli.output import answer, remark, write
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import moment
from holdfast.surfaces.cli.workflows.options import (
    name_argument,
    preemptible_option,
    recipe_option,
    signal_path_option,
    token_option,
    ttl_option,
    wait_option,
)
from holdfast.surfaces.cli.workflows.words import Telling


@click.command(short_help="Register a process's work and print the token.")
@name_argument
@recipe_option
@click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    required=True,
    help="The process that does the work, such as a script's own: $$.",
)
@ttl_option
@preemptible_option
@signal_path_option
@click.option(
    "--loaded-only",
    is_flag=True,
    help=(
        "Refuse unless its recipe is loaded, or nothing was ever loaded: for work that begins at "
        "once."
    ),
)
@wait_option
@quiet_option
@json_option
@store_options
def register(
    name: str,
    recipe: str,
    pid: int,
    ttl_s: float,
    preemptible: bool,
    signal_path: str | None,
    loaded_only: bool,
    wait_s: float,
    quiet: bool,
    as_json: bool,
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
        registered = hf.workflows.register(
            name,
            recipe,
            owner=hf.processes.of(pid),
            ttl_s=ttl_s,
            preemptible=preemptible,
            preempt_signal_path=signal_path,
            loaded_only=loaded_only,
            wait_s=wait_s,
            on_wait=Telling(quiet=quiet),
        )
        try:
            write(
                to_json(registered_view(registered)) if as_json else str(registered.workflow.token)
            )
        except OSError as error:
            raise _untold(hf, registered.workflow, error) from None
    if registered.swap_needed and not quiet:
        remark(needed(registered.workflow))


@click.command(short_help="Extend a workflow.")
@name_argument
@token_option
@click.option(
    "--ttl",
    "ttl_s",
    metavar="SECONDS",
    type=float,
    callback=more_than_nothing,
    help="Another time to live from now on.",
)
@json_option
@store_options
def renew(name: str, token: int, ttl_s: float | None, as_json: bool) -> None:
    """Extend a workflow from now by its time to live. Exit status 4 when it was swept: stop work,
    and register again.
    """
    with connected() as hf:
        workflow = hf.workflows.renew(name, token, ttl_s=ttl_s)
    ends = (
        f"at {moment(workflow.lease.expires_at)} unless renewed"
        if workflow.lease.explicit
        else "with its processes"
    )
    answer(to_json(workflow) if as_json else f"{name} ends {ends}")


@click.command(short_help="End a workflow.")
@name_argument
@token_option
@json_option
@store_options
def release(name: str, token: int, as_json: bool) -> None:
    """End a workflow, and remove its signal file. Exit status 1 when it is not there any more, 4
    when the name is another's.
    """
    with connected() as hf:
        workflow = hf.workflows.release(name, token)
    answer(to_json(workflow) if as_json else f"{name} is released")


def needed(workflow: Workflow) -> str:
    """What to do before the recipe can be used."""
    return (
        f"{workflow.recipe} is not loaded: `holdfast swap to {quote(workflow.recipe)} -- COMMAND` "
        "loads it"
    )


def _untold(hf: Holdfast, workflow: Workflow, error: OSError) -> Unavailable:
    """Nobody would know of the registration, so it is taken back."""
    untold = (
        f"{workflow.name} was registered, but its token could not be written ({error.strerror})"
    )
    try:
        hf.workflows.release(workflow.name, workflow.token)
    except HoldfastError as failed:
        return Unavailable(
            f"{untold}, and it could not be released ({failed.message})", outcome="unknown"
        )
    return Unavailable(f"{untold}: it was released again", outcome="none")
