"""A group of commands."""

from difflib import get_close_matches

import click

_SENTENCE_CHARS = 1000
"""More than any has: click would cut it where the line ends."""


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added, each with its whole first sentence, and names them
    to whoever asks for another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        asked, known = args[0], self.list_commands(ctx)
        if asked not in known and not asked.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(asked, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
            ctx.fail(f"No such command {asked!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_SENTENCE_CHARS)) for name, one in commands if one])
