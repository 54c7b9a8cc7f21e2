"""The option and the defaults of commands that run another program under a claim."""

from collections.abc import Callable

import click

from holdfast.runtime.custody import LEAVE, LEFTOVERS, Custody, Program, run_in_custody
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import remark

__all__ = ["LEAVE", "Custody", "Wrapper", "attended", "leftovers_option"]

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
        before, found, command = _split_words(args)
        if found and not self._has_names(ctx, before):
            first, (more, _, rest) = command[:1], _split_words(command[1:])
            before, command = [*before, _SEPARATOR, *first, *more], rest
        left = super().parse_args(ctx, before)
        ctx.params["words"] = tuple(command)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), _SEPARATOR, "COMMAND [ARGUMENT]..."]

    def _has_names(self, ctx: click.Context, args: list[str]) -> bool:
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        arguments = [
            parameter.name for parameter in self.params if isinstance(parameter, click.Argument)
        ]
        given = [options.get(name) for name in arguments]
        # An empty word is a name, if a wrong one, as of a variable that is not set.
        return any(isinstance(one, str) or (isinstance(one, tuple | list) and one) for one in given)


def _split_words(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if _SEPARATOR not in words:
        return words, False, []
    at = words.index(_SEPARATOR)
    return words[:at], True, words[at + 1 :]


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
