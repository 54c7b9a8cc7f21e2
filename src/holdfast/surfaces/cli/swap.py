"""`holdfast swap`: the recipe that is loaded, and loading another."""

from functools import partial
from typing import Annotated

import click
from msgspec.structs import asdict, replace

from holdfast.domains.workflows import Policy, Swap, SwapEvent, SwapMarker
from holdfast.domains.workflows.messages import STATES, describe_orphan_load, describe_unknown
from holdfast.domains.workflows.records import waits_for, who
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import EXIT_DONE
from holdfast.kernel.limits import LIST_MAX, SWAP_GRACE_S, SWAP_TIMEOUT_S
from holdfast.operations import workflows as operations
from holdfast.operations.operation import Flag, Positional, Request
from holdfast.operations.page.workflows import advice
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import LEAVE, Custody
from holdfast.surfaces.cli.command import (
    CommandGroup,
    Wrapper,
    json_option,
    quiet_option,
    request_options,
)
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.custody import attended, closing_quietly
from holdfast.surfaces.cli.output import printable, remark
from holdfast.surfaces.cli.render import moment, pairs
from holdfast.surfaces.cli.store_options import store_options
from holdfast.surfaces.cli.workflow_run import RecipeWaitNotes


class SwapTo(Request, frozen=True, kw_only=True):
    """The swap that a command is."""

    recipe: Annotated[str, Positional()]
    grace_s: Annotated[
        float,
        Flag(
            "--grace",
            show_default=True,
            help="How long preemptible work is given to yield before it is treated as any other.",
        ),
    ] = SWAP_GRACE_S
    timeout_s: Annotated[
        float,
        Flag(
            "--timeout",
            show_default=True,
            help="How long to wait for another swap and for running work, "
            "with exit status 5 after that.",
        ),
    ] = SWAP_TIMEOUT_S
    policy: Annotated[
        Policy,
        Flag(
            "--policy",
            show_default=True,
            help="About work that cannot be preempted, or does not yield: wait for it, or refuse "
            "the swap at once.",
        ),
    ] = next(iter(Policy))
    reload: Annotated[
        bool,
        Flag(
            "--reload",
            help="Load it again if it is loaded already, once the work that uses it has ended or "
            "yielded too.",
        ),
    ] = False


@click.group(cls=CommandGroup)
def swap() -> None:
    """The recipe that is loaded, and loading another when nobody needs it any more.

    \b
        holdfast swap to llama-70b -- ./load.sh llama-70b
        holdfast swap status
    """


@swap.command(cls=Wrapper, short_help="Load another recipe when no work needs the old one.")
@request_options(SwapTo)
@quiet_option
@store_options
def to(request: SwapTo, words: tuple[str, ...], quiet: bool) -> int:
    """Run the command that loads a recipe, once no work with another recipe is left.

    \b
        holdfast swap to llama-70b -- ./load.sh llama-70b
        holdfast swap to qwen-7b --policy refuse -- ./load.sh qwen-7b

    If the recipe is loaded already, nothing is done, and the exit status is 0. Until the command
    has ended nothing can be registered with another recipe. Preemptible work is asked to yield;
    work is waited for, and never killed. Stderr names what it waits for. If the command succeeds,
    its recipe is the current one. If it fails, it is unknown what is loaded, and no work begins
    before the next swap. Processes that the command leaves running, such as a model server, live
    on.

    If this process is killed, the command and all processes that it started are ended: SIGTERM, and
    SIGKILL after 10 seconds. Until the last of them is gone, no other swap loads and no work
    begins. Then the next command clears what was left; if the load had begun, it is unknown what is
    loaded.

    The command finds HOLDFAST_SWAP_RECIPE and HOLDFAST_SWAP_TOKEN in its environment, and signals
    are forwarded to it. Exit status: the command's, 128+N when signal N ended it, 126 or 127 when
    it cannot be run, 4 when the swap was refused or lost, 5 when it could not begin in time.
    """
    if not words:
        raise click.UsageError("no command is given: say `holdfast swap to RECIPE -- COMMAND`")
    return attended(
        list(words),
        partial(_swap, request, quiet),
        unbegun="no swap was begun",
        undone="the swap has failed, and nothing was loaded",
        # A load mostly leaves the model server running.
        leftovers=LEAVE,
        bound=True,
    )


def _swap(request: SwapTo, quiet: bool, custody: Custody) -> int:
    with (
        closing_quietly(connected()) as hf,
        hf.workflows.swap(
            **asdict(request),
            on_wait=RecipeWaitNotes(quiet=quiet),
            tree=custody.command.enter(hf.processes.trees),
        ) as swap,
    ):
        if not swap.needed:
            if not quiet:
                remark(
                    f"{swap.recipe} is loaded already: nothing was done. --reload loads it again"
                )
            return EXIT_DONE
        try:
            return _load(hf, swap, custody)
        finally:
            if not custody.command.began:
                # As by a signal that came before it could.
                swap.cancel("the command was not run")


def _load(hf: Holdfast, swap: Swap, custody: Custody) -> int:
    def stop() -> None:
        remark(
            "the swap is lost: its session with the database has ended. The command and all its "
            "processes are sent SIGTERM"
        )
        custody.command.end_tree()

    swap.when_lost(stop)
    environment = {
        "HOLDFAST_SWAP_RECIPE": swap.recipe,
        "HOLDFAST_SWAP_TOKEN": str(swap.token),
    }
    status = custody.run(hf, environment)
    if swap.lost.is_set():
        # Another machine may load as soon as this swap is over.
        custody.command.wait_for_tree()
        swap.check()
    if custody.command.unfit is not None:
        swap.cancel("the command could not be run")
    elif status:
        swap.fail(f"the command's exit status was {status}", exit_status=status)
        remark(
            f"{swap.recipe} was not loaded: the command's exit status was {status}. It is unknown "
            "what is loaded now, and no work begins until a swap has succeeded"
        )
    return status


@swap.operation(operations.swap_status)
def status(found: operations.SwapView, hf: Holdfast) -> None:
    """Show what is loaded, the swap that is under way, and the workflows.

    Clears what a dead swap left behind.
    """
    current, under_way = "none", "none"
    if found.unknown is not None:
        current = f"unknown: {describe_unknown(found.unknown)}"
    elif found.current is not None:
        current = f"{found.current.recipe}, loaded {moment(found.current.loaded_at)}"
    if found.swap is not None:
        remains = hf.workflows.orphan_load(found.swap)
        under_way = _marker(found.swap) if remains is None else describe_orphan_load(remains)
    facts = [("current", current), ("swap", under_way)]
    for workflow in found.workflows:
        words = f"{workflow.name}: {workflow.recipe}, process {workflow.owner.pid}, "
        words += STATES[workflow.preempt]
        if found.swap is not None and waits_for(found.swap, workflow):
            words += f". The swap waits for it: {advice(workflow, in_the_way=True)}"
        facts.append(("workflow", words))
    pairs(facts)


@swap.operation(operations.swap_reconcile, create=False)
def reconcile(found: operations.SwapReconciled, hf: Holdfast) -> str:
    """Clear the marker of a dead swap. Every other command does the same when it meets one.

    The marker of a killed swap stays as long as processes of its load live: those are named.
    """
    if found.cleared is not None:
        return f"cleared what was left of {_marker(found.cleared)}"
    if found.swap is None:
        return "no swap is under way"
    remains = hf.workflows.orphan_load(found.swap)
    return (
        f"{_marker(found.swap)} is under way" if remains is None else describe_orphan_load(remains)
    )


@swap.command()
@request_options(operations.SwapLog)
@json_option
@store_options
def log(request: operations.SwapLog, as_json: bool) -> None:
    """Show what happened to swaps, oldest first. `holdfast log` has it too."""
    with connected(create=False) as hf:
        events = operations.swap_log(hf, replace(request, tail=request.tail or LIST_MAX))
    for event in events:
        click.echo(to_json(event) if as_json else _line(event))


def _marker(marker: SwapMarker) -> str:
    swap = "reload of" if marker.reload else "swap to"
    begun = moment(marker.begun_at)
    return f"a {swap} {marker.recipe} by {who(marker.holder)}, begun {begun}"


def _line(event: SwapEvent) -> str:
    data = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    line = f"{moment(event.at)}  {event.event:<22} {event.recipe:<12} {event.who}  {data}"
    return printable(line.replace("\n", " ").rstrip())
