"""A group of commands."""

from collections import Counter
from difflib import get_close_matches

import click

_SENTENCE_CHARS = 1000
"""More than any has: click would cut it where the line ends."""


_ELSEWHERE = {"ls": "list", "rm": "remove", "show": "get"}
"""What other programs call some commands, too unlike ours to be found by their letters."""


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added, each with its whole
    first sentence, names them to whoever asks for another, and refuses an option that is given
    twice where it takes one value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _check_once(ctx, args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        asked, known = args[0], self.list_commands(ctx)
        if asked not in known and not asked.startswith("-") and not ctx.resilient_parsing:
            meant = _meant(asked, known)
            hint = f"Did you mean {meant!r}?" if meant else f"There are {', '.join(known)}."
            ctx.fail(f"No such command {asked!r}. {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, InOrder) and not ctx.resilient_parsing:
            # Here, once for all commands, since each is a class of click's own.
            _check_once(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(_SENTENCE_CHARS)) for name, one in commands if one]
            )


def _check_once(ctx: click.Context, args: list[str]) -> None:
    """Raises UsageError for an option with one value that is given more often: click would take the
    last without a word.
    """
    if ctx.resilient_parsing:
        return
    _, _, order = ctx.command.make_parser(ctx).parse_args(list(args))
    for parameter, number in Counter(order).items():
        single = isinstance(parameter, click.Option) and not (
            parameter.multiple or parameter.count or parameter.is_flag
        )
        if single and number > 1:
            raise click.UsageError(
                f"{max(parameter.opts, key=len)} is given {number} times, and takes one value", ctx
            )


def _meant(asked: str, known: list[str]) -> str | None:
    """The command that was likely meant."""
    elsewhere = _ELSEWHERE.get(asked)
    if elsewhere in known:
        return elsewhere
    close = get_close_matches(asked, known, n=1)
    return close[0] if close else None
