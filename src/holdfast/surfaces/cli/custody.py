"""Commands that run another program under a claim: their words, and their common option."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from holdfast.kernel.errors import HoldfastError
from holdfast.operations.operation import Flag, Request
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import Custody, Leftovers, Program, run_in_custody
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import remark

LeftoversOption = Annotated[
    Leftovers,
    Flag(
        "--leftovers",
        show_default=True,
        help="What to do about processes that the command leaves running: wait for them, keep "
        "the claim for them and exit, or end them.",
    ),
]


class CustodyOptions(Request, frozen=True, kw_only=True):
    """What becomes of a command's processes."""

    leftovers: LeftoversOption = "wait"


@contextmanager
def closing_quietly(hf: Holdfast) -> Iterator[Holdfast]:
    """Close the connection of a command in custody after the block. An error of the close must not
    hide the command's exit status: only counts are lost.
    """
    try:
        yield hf
    finally:
        with suppress(HoldfastError):
            hf.close()


def attended(
    words: list[str],
    attend: Callable[[Custody], int],
    *,
    unbegun: str = "nothing was locked",
    undone: str = "the lock was released",
    leftovers: str = "wait",
    bound: bool = False,
) -> int:
    """Run a command under a claim: see `run_in_custody`."""
    program = Program(say=remark, module="holdfast.surfaces.cli.entry", arguments=given().arguments)
    return run_in_custody(
        words, attend, program, unbegun=unbegun, undone=undone, leftovers=leftovers, bound=bound
    )
