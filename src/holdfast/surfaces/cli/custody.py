"""The option and the defaults of commands that run another program under a claim."""

from collections.abc import Callable

import click

from holdfast.processes.command import LEFTOVERS
from holdfast.runtime.custody import LEAVE, Custody, Program, run_in_custody
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import remark

__all__ = ["LEAVE", "Custody", "attended", "leftovers_option"]

leftovers_option = click.option(
    "--leftovers",
    type=click.Choice(LEFTOVERS),
    default=LEFTOVERS[0],
    show_default=True,
    help="What to do about processes that the command leaves running: wait for them, keep the claim for them and exit, or end "
    "them.",
)


def attended(
    words: list[str],
    attend: Callable[[Custody], int],
    *,
    unbegun: str = "nothing was locked",
    undone: str = "the lock was released",
    leftovers: str = LEFTOVERS[0],
    bound: bool = False,
) -> int:
    """Run a command under a claim: see `run_in_custody`."""
    program = Program(say=remark, module="holdfast.surfaces.cli.entry", arguments=given().arguments)
    return run_in_custody(
        words, attend, program, unbegun=unbegun, undone=undone, leftovers=leftovers, bound=bound
    )
