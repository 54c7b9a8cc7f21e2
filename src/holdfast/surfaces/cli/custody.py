"""Commands that run another program under a claim: their words, and their common option."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from holdfast.kernel.errors import HoldfastError
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import LEFTOVERS, Custody, Program, run_in_custody
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import remark

_SEPARATOR = "--"

leftovers_option = click.option(
    "--leftovers",
    type=click.Choice(LEFTOVERS),
    default=LEFTOVERS[0],
    show_default=True,
    help="What to do about processes that the command leaves running: wait for them, keep the "
    "claim for them and exit, or end them.",
)


class Wrapper(click.Command):
    """A command that takes names, then `--`, then the words of another command.

    Where no name stands before the first `--`, that one ends the options as everywhere, so that a
    name may begin with a dash, and the next one behind a name begins the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names, command = args, list[str]()
        if _SEPARATOR in args:
            at = args.index(_SEPARATOR)
            names, command = args[:at], args[at + 1 :]
            if not self._has_names(ctx, names):
                at = command.index(_SEPARATOR, 1) if _SEPARATOR in command[1:] else len(command)
                names, command = [*names, _SEPARATOR, *command[:at]], command[at + 1 :]
        left = super().parse_args(ctx, names)
        ctx.params["words"] = tuple(command)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), _SEPARATOR, "COMMAND [ARGUMENT]..."]

    def _has_names(self, ctx: click.Context, args: list[str]) -> bool:
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.params:
            if isinstance(parameter, click.Argument):
                value = options.get(parameter.name)
                # An empty word is a name, if a wrong one, as of a variable that is not set.
                if isinstance(value, str) or (isinstance(value, tuple | list) and value):
                    return True
        return False


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
    leftovers: str = LEFTOVERS[0],
    bound: bool = False,
) -> int:
    """Run a command under a claim: see `run_in_custody`."""
    program = Program(say=remark, module="holdfast.surfaces.cli.entry", arguments=given().arguments)
    return run_in_custody(
        words, attend, program, unbegun=unbegun, undone=undone, leftovers=leftovers, bound=bound
    )
