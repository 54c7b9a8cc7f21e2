"""`holdfast workflows run`: a command as a workflow."""

import os
import signal
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import click

from holdfast.domains.workflows import Work
from holdfast.kernel.errors import HoldfastError, LeaseLost, status_of
from holdfast.processes.command import Claim
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import Custody, attended, leftovers_option
from holdfast.surfaces.cli.locks.options import quiet_option
from holdfast.surfaces.cli.locks.running import Wrapper
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.workflows.options import (
    name_argument,
    preemptible_option,
    recipe_option,
    signal_path_option,
    ttl_of_tree_option,
    wait_option,
)
from holdfast.surfaces.cli.workflows.registering import needed
from holdfast.surfaces.cli.workflows.words import Telling

SIGNALS = ("USR1", "USR2", "HUP", "INT", "TERM", "none")


class _Wish(NamedTuple):
    """What the workflow is to be."""

    name: str
    recipe: str
    ttl_s: float
    preemptible: bool
    signal_path: str | None
    signal_name: str
    any_recipe: bool
    wait_s: float
    quiet: bool


@click.command(cls=Wrapper, short_help="Run a command as a workflow.")
@name_argument
@recipe_option
@ttl_of_tree_option
@preemptible_option
@signal_path_option
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(SIGNALS),
    default=SIGNALS[0],
    show_default=True,
    help=(
        "What the command is sent when it is to yield, beside the file, if it has a handler for it."
    ),
)
@click.option("--any-recipe", is_flag=True, help="Run it on whatever is loaded.")
@wait_option
@leftovers_option
@quiet_option
@store_options
def run(
    name: str,
    words: tuple[str, ...],
    recipe: str,
    ttl_s: float,
    preemptible: bool,
    signal_path: str | None,
    signal_name: str,
    any_recipe: bool,
    wait_s: float,
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

    Signals are passed on to it. Exit status: the command's, 128+N when signal N ended it, 126 or
    127 when it cannot be run, 4 when it was refused, or was swept while it ran.
    """
    if not words:
        raise click.UsageError(
            "no command is given: say `holdfast workflows run NAME --recipe RECIPE -- COMMAND`"
        )
    wish = _Wish(
        name, recipe, ttl_s, preemptible, signal_path, signal_name, any_recipe, wait_s, quiet
    )
    return attended(
        list(words),
        partial(_as_workflow, wish),
        unbegun="no workflow was registered",
        undone="the workflow was released",
        leftovers=leftovers,
    )


def _as_workflow(wish: _Wish, custody: Custody) -> int:
    hf = connected()
    try:
        with _work(hf, wish, custody) as work:
            if work.swap_needed and not wish.quiet:
                remark(needed(work.workflow))
            status = custody.run(hf, _environment(work), _claim(work))
            if custody.kept:
                work.leave()
        return status
    except LeaseLost as lost:
        # It was told of at once.
        return status_of(lost).exit
    finally:
        with suppress(HoldfastError):
            hf.close()


def _claim(work: Work) -> Claim:
    workflow = work.workflow
    return Claim(
        kind="workflow", name=workflow.name, token=workflow.token, lease_s=workflow.ttl_seconds
    )


def _work(hf: Holdfast, wish: _Wish, custody: Custody) -> Work:
    command = custody.command

    def preempt() -> bool:
        """Tell the command; False as long as it has no handler, which it may be about to
        install.
        """
        if wish.signal_name == "none":
            return True
        number = getattr(signal, f"SIG{wish.signal_name}")
        caught = hf.processes.catches(command.pid, number)
        if caught:
            command.send(number)
        return caught

    def lost() -> None:
        remark(
            f"workflow {wish.name} was swept, since it was not renewed in time: its recipe may be "
            "swapped under the command"
        )

    return hf.workflows.running(
        wish.name,
        wish.recipe,
        owner=custody.holder(hf),
        ttl_s=wish.ttl_s,
        preemptible=wish.preemptible,
        preempt_signal_path=wish.signal_path,
        any_recipe=wish.any_recipe,
        wait_s=wish.wait_s,
        on_wait=Telling(quiet=wish.quiet),
        on_preempt=preempt,
        on_lost=lost,
    )


def _environment(work: Work) -> dict[str, str]:
    path = work.workflow.preempt_signal_path
    own = {
        "HOLDFAST_WORKFLOW": work.workflow.name,
        "HOLDFAST_WORKFLOW_TOKEN": str(work.workflow.token),
    }
    return own if path is None else {**own, "HOLDFAST_PREEMPT_FILE": os.fspath(path)}
