"""`holdfast swap to`."""

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import click

from holdfast.domains.workflows import Policy, Swap
from holdfast.kernel.errors import EXIT_DONE, HoldfastError
from holdfast.kernel.limits import SWAP_GRACE_S, SWAP_TIMEOUT_S
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import LEAVE, Custody, attended
from holdfast.surfaces.cli.locks.options import no_less_than_nothing, quiet_option
from holdfast.surfaces.cli.locks.running import Wrapper
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.workflows.words import Telling

_POLICIES = [policy.value for policy in Policy]


class _Wish(NamedTuple):
    """What the swap is to be."""

    recipe: str
    grace_s: float
    timeout_s: float
    policy: str
    reload: bool
    quiet: bool


@click.command(cls=Wrapper, short_help="Load another recipe when no work needs the old one.")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=float,
    callback=no_less_than_nothing,
    default=SWAP_GRACE_S,
    show_default=True,
    help="How long preemptible work is given to yield before it is treated as any other.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=float,
    callback=no_less_than_nothing,
    default=SWAP_TIMEOUT_S,
    show_default=True,
    help="How long to wait for another swap and for running work, with exit status 5 after that.",
)
@click.option(
    "--policy",
    type=click.Choice(_POLICIES),
    default=_POLICIES[0],
    show_default=True,
    help=(
        "About work that cannot be preempted, or does not yield: wait for it, or refuse the swap "
        "at once."
    ),
)
@click.option(
    "--reload",
    is_flag=True,
    help=(
        "Load it again if it is loaded already, once the work that uses it has ended or yielded "
        "too."
    ),
)
@quiet_option
@store_options
def to(
    recipe: str,
    words: tuple[str, ...],
    grace_s: float,
    timeout_s: float,
    policy: str,
    reload: bool,
    quiet: bool,
) -> int:
    """Run the command that loads a recipe, once no work with another recipe is left.

    \b
        holdfast swap to llama-70b -- ./load.sh llama-70b
        holdfast swap to qwen-7b --policy refuse -- ./load.sh qwen-7b

    If the recipe is loaded already, nothing is done, and the exit status is 0. Until the command
    has ended nothing can be registered with another recipe. Preemptible work is asked to yield;
    work is waited for, and never killed. Whom it waits for goes to stderr. If the command succeeds,
    its recipe is the current one. If it fails, it is unknown what is loaded, and no work begins
    before the next swap. Processes that the command leaves running, such as a model server, live
    on.

    If this process is killed, the command and all processes that it started are ended: SIGTERM, and
    SIGKILL after 10 seconds. Until the last of them is gone, no other swap loads and no work
    begins. Then the next one who looks clears what was left; if the command had begun, it is
    unknown what is loaded.

    The command finds HOLDFAST_SWAP_RECIPE and HOLDFAST_SWAP_TOKEN in its environment, and signals
    are passed on to it. Exit status: the command's, 128+N when signal N ended it, 126 or 127 when
    it cannot be run, 4 when the swap was refused or lost, 5 when it could not begin in time.
    """
    if not words:
        raise click.UsageError("no command is given: say `holdfast swap to RECIPE -- COMMAND`")
    attend = partial(_swap, _Wish(recipe, grace_s, timeout_s, policy, reload, quiet))
    return attended(
        list(words),
        attend,
        unbegun="no swap was begun",
        undone="the swap has failed, and nothing was loaded",
        # A load mostly leaves the model server running.
        leftovers=LEAVE,
        bound=True,
    )


def _swap(wish: _Wish, custody: Custody) -> int:
    hf = connected()
    try:
        with hf.workflows.swap(
            wish.recipe,
            grace_s=wish.grace_s,
            timeout_s=wish.timeout_s,
            policy=wish.policy,
            reload=wish.reload,
            on_wait=Telling(quiet=wish.quiet),
            tree=custody.command.enter(hf.processes.trees),
        ) as swap:
            if not swap.needed:
                if not wish.quiet:
                    remark(
                        f"{swap.recipe} is loaded already: nothing was done. --reload loads it "
                        "again"
                    )
                return EXIT_DONE
            try:
                return _load(hf, swap, custody)
            finally:
                if not custody.command.began:
                    # As by a signal that came before it could.
                    swap.cancel("the command was not run")
    finally:
        with suppress(HoldfastError):
            hf.close()


def _load(hf: Holdfast, swap: Swap, custody: Custody) -> int:
    swap.when_lost(lambda: _stop(custody))
    status = custody.run(
        hf, {"HOLDFAST_SWAP_RECIPE": swap.recipe, "HOLDFAST_SWAP_TOKEN": str(swap.token)}
    )
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
            "what is loaded now, and no "
            "work begins until a swap has succeeded"
        )
    return status


def _stop(custody: Custody) -> None:
    remark(
        "the swap is lost: its session with the database has ended. The command and all its "
        "processes are sent SIGTERM"
    )
    custody.command.end_tree()
