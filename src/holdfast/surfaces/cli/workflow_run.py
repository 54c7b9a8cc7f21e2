"""`holdfast workflows run`: a command as a workflow; and workflows and swaps in words."""

import os
import signal
from collections.abc import Sequence
from functools import partial
from shlex import quote
from typing import Annotated, Literal

import click
from msgspec import Meta

from holdfast.domains.workflows import CurrentRecipe, SwapMarker, UnknownRecipe, Work, Workflow
from holdfast.domains.workflows.messages import (
    describe_conflicts,
    describe_loaded,
    describe_orphan_load,
)
from holdfast.domains.workflows.records import Loaded, Obstacle, OrphanLoad, who
from holdfast.kernel.errors import LeaseLost, status_of
from holdfast.kernel.limits import WORKFLOW_TTL_S
from holdfast.operations.operation import Flag, Positional, Request
from holdfast.operations.workflows import preemptible_flag, recipe_flag, wait_flag
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import Claim, Custody
from holdfast.surfaces.cli.command import Wrapper, options_of, quiet_option, request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.custody import CustodyOptions, attended, closing_quietly
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.store_options import store_options

signal_path_option = click.option(
    "--signal-path",
    metavar="PATH",
    help="Where its signal file is to appear: absolute, and nothing there yet.",
)


class RunWorkflow(Request, frozen=True, kw_only=True):
    """The workflow that a command is."""

    name: Annotated[str, Positional()]
    recipe: Annotated[str, recipe_flag]
    ttl_s: Annotated[
        float,
        Meta(gt=0),
        Flag(
            "--ttl",
            show_default=True,
            help="Where its processes cannot be seen, as from another machine, it ends this long "
            "after its last renewal.",
        ),
    ] = WORKFLOW_TTL_S
    preemptible: Annotated[bool, preemptible_flag] = False
    signal_name: Annotated[
        Literal["USR1", "USR2", "HUP", "INT", "TERM", "none"],
        Flag(
            "--signal",
            show_default=True,
            help="What the command is sent when it is to yield, beside the file, if it has a "
            "handler for it.",
        ),
    ] = "USR1"
    any_recipe: Annotated[bool, Flag("--any-recipe", help="Run it on whatever is loaded.")] = False
    wait_s: Annotated[float, wait_flag] = 0.0


@click.command(cls=Wrapper, short_help="Run a command as a workflow.")
@request_options(RunWorkflow)
@signal_path_option
@options_of(CustodyOptions)
@quiet_option
@store_options
def run(
    request: RunWorkflow,
    words: tuple[str, ...],
    signal_path: str | None,
    leftovers: str,
    quiet: bool,
) -> int:
    """Run a command as a workflow, and exit as it does.

    \b
        holdfast workflows run nightly --recipe llama-70b -- ./evaluate.sh
        holdfast workflows run tuning --recipe qwen-7b -- python tune.py

    The owner is the command with all processes that it starts. The workflow is over when the last
    of them has ended, also if this process or the command itself is killed. --leftovers says what
    is done about processes that the command leaves, such as a model server that a swap inside it
    started. The workflow is renewed at a third of its time to live.

    Refused (exit status 4) while a swap is under way, while another recipe is loaded, and after a
    failed load, when it is unknown what is loaded. --wait waits until its recipe is loaded,
    --any-recipe runs it on whatever is. Where nothing was ever loaded, it runs, and says so.

    A preemptible command finds the path of its signal file in HOLDFAST_PREEMPT_FILE. When that file
    is there, it should stop where that is safe, and end. It is sent a signal too, but only if it
    has a handler: work is asked, never killed. HOLDFAST_WORKFLOW and HOLDFAST_WORKFLOW_TOKEN are
    its name and token.

    Signals are forwarded to it. Exit status: the command's, 128+N when signal N ended it, 126 or
    127 when it cannot be run, 4 when it was refused, or was swept while it ran.
    """
    if not words:
        raise click.UsageError(
            "no command is given: say `holdfast workflows run NAME --recipe RECIPE -- COMMAND`"
        )
    return attended(
        list(words),
        partial(_as_workflow, request, signal_path, quiet),
        unbegun="no workflow was registered",
        undone="the workflow was released",
        leftovers=leftovers,
    )


def _as_workflow(
    request: RunWorkflow, signal_path: str | None, quiet: bool, custody: Custody
) -> int:
    try:
        with (
            closing_quietly(connected()) as hf,
            _work(hf, request, signal_path, quiet, custody) as work,
        ):
            workflow = work.workflow
            if work.swap_needed and not quiet:
                remark(swap_advice(workflow.recipe))
            claim = Claim(
                kind="workflow",
                name=workflow.name,
                token=workflow.token,
                lease_s=workflow.ttl_seconds,
            )
            environment = {
                "HOLDFAST_WORKFLOW": workflow.name,
                "HOLDFAST_WORKFLOW_TOKEN": str(workflow.token),
            }
            if workflow.preempt_signal_path is not None:
                path = os.fspath(workflow.preempt_signal_path)
                environment["HOLDFAST_PREEMPT_FILE"] = path
            status = custody.run(hf, environment, claim)
            if custody.kept:
                work.leave()
        return status
    except LeaseLost as lost:
        # It was said at once.
        return status_of(lost).exit


def _work(
    hf: Holdfast, request: RunWorkflow, signal_path: str | None, quiet: bool, custody: Custody
) -> Work:
    command = custody.command

    def preempt() -> bool:
        """Signal the command; False as long as it has no handler, which it may yet install."""
        if request.signal_name == "none":
            return True
        number = getattr(signal, f"SIG{request.signal_name}")
        caught = hf.processes.catches(command.pid, number)
        if caught:
            command.send(number)
        return caught

    def lost() -> None:
        remark(
            f"workflow {request.name} was swept, since it was not renewed in time: "
            "its recipe may be swapped under the command"
        )

    return hf.workflows.running(
        request.name,
        request.recipe,
        owner=custody.holder(hf),
        ttl_s=request.ttl_s,
        preemptible=request.preemptible,
        preempt_signal_path=signal_path,
        any_recipe=request.any_recipe,
        wait_s=request.wait_s,
        on_wait=RecipeWaitNotes(quiet=quiet),
        on_preempt=preempt,
        on_lost=lost,
    )


def waiting_line(in_the_way: Sequence[Obstacle]) -> str:
    """What a swap, or a registration, waits for."""
    loads = [one for one in in_the_way if isinstance(one, OrphanLoad)]
    if loads:
        return f"waiting: {describe_orphan_load(loads[0])}"
    swaps = [one for one in in_the_way if isinstance(one, SwapMarker)]
    if swaps:
        return f"waiting for a swap to {swaps[0].recipe} by {who(swaps[0].holder)} to end"
    for one in in_the_way:
        if isinstance(one, CurrentRecipe | UnknownRecipe):
            loaded = Loaded(one, None) if isinstance(one, CurrentRecipe) else Loaded(None, one)
            return f"waiting for its recipe to be loaded: {describe_loaded(loaded)}"
    return (
        f"waiting: {describe_conflicts([one for one in in_the_way if isinstance(one, Workflow)])}"
    )


class RecipeWaitNotes:
    """Says on stderr what a command waits for, each time that this has changed."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._said = ""

    def __call__(self, in_the_way: Sequence[Obstacle]) -> None:
        line = waiting_line(in_the_way)
        if line != self._said and not self._quiet:
            remark(line)
        self._said = line


def swap_advice(recipe: str) -> str:
    """How to load a recipe before it is used."""
    return f"{recipe} is not loaded: `holdfast swap to {quote(recipe)} -- COMMAND` loads it"
