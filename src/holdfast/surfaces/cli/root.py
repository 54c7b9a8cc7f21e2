"""The command line: its areas, each loaded when it is used."""

import logging
import os
import re
from collections.abc import Sequence
from importlib import import_module

import click
from click.exceptions import NoArgsIsHelpError

from holdfast import __version__
from holdfast.surfaces.cli.command import CommandGroup, click_command
from holdfast.surfaces.cli.connection import begin, given
from holdfast.surfaces.cli.hints import ALONE, AREAS
from holdfast.surfaces.cli.logs import WARNINGS, listen
from holdfast.surfaces.cli.output import say
from holdfast.surfaces.cli.quick import QuickCommand, collect_garbage
from holdfast.surfaces.cli.store_options import store_options


class Areas(CommandGroup):
    """A group that knows its commands' names without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(AREAS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        area, verb = (*args, "")[:2]
        found: tuple[str | None, click.Command | None, list[str]]
        if (area, verb) in ALONE:
            command = getattr(import_module(f"holdfast.surfaces.cli.{ALONE[area, verb]}"), verb)
            if isinstance(command, QuickCommand):
                command = click_command(command)
            found = area, CommandGroup(area, commands={verb: command}), args[1:]
        else:
            found = super().resolve_command(ctx, args)
        if given().arguments is not None:
            collect_garbage()
        return found

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in AREAS:
            return None
        command: click.Command = getattr(
            import_module(f"holdfast.surfaces.cli.{cmd_name}"), cmd_name
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Areas"):
            formatter.write_dl(list(AREAS.items()))


@click.group(
    cls=Areas, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log what happens to stderr; twice for more.")
@store_options
def holdfast(verbose: int) -> None:
    """Keeps agents, jobs and shared resources from stepping on each other.

    New here? Try `holdfast tour`. Exit statuses: 0 done, 1 not found or not possible, 2 usage, 3
    nothing to take, 4 refused or lost, 5 timed out, 6 unavailable, 7 corrupt, 70 a bug in Holdfast.
    """
    if not verbose:
        listen()
    else:
        given().verbose = True
        level = logging.DEBUG if verbose > 1 else logging.INFO
        logging.basicConfig(
            level=level, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
        )


_COMPLETE_ENV = "_HOLDFAST_COMPLETE"
"""By this variable a shell requests completions. Click's scripts for shells use the name."""


def run(arguments: Sequence[str], *, alone: bool = False) -> int:
    """Run the command line and return its exit status. Raises HoldfastError.

    `alone` says that this process runs nothing else, so that it may execute another program.
    """
    if instruction := os.environ.get(_COMPLETE_ENV):
        return _complete(instruction)
    begin(arguments if alone else None)
    try:
        # Not click's own main(), which handles a closed pipe and Ctrl-C in another way.
        with holdfast.make_context("holdfast", list(arguments)) as context:
            status = holdfast.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        say(_in_a_line(error))
        return error.exit_code
    finally:
        if WARNINGS.waiting:
            WARNINGS.flush()
    return status if isinstance(status, int) else 0


_NUMBER = r"is not a valid (float|integer)(?: range)?"
_NUMBERS = {"float": "is not a number such as 30 or 0.5", "integer": "is not a whole number"}
"""What click says of a number that is none, and what people call it."""


def _in_a_line(error: click.ClickException) -> str:
    """What was wrong with a command, and where to read how it is used."""
    words = " ".join(error.format_message().split()).rstrip(".")
    words = re.sub(_NUMBER, lambda found: _NUMBERS[found[1]], words[:1].lower() + words[1:])
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and isinstance(error, click.NoSuchOption) and _runs_a_command(context):
        words = f"no such option {error.option_name!r}"
        words = f"{words}: if it is one of the command's own, put `--` before that command"
    return words if context is None else f"{words} (see `{context.command_path} --help`)"


def _runs_a_command(context: click.Context) -> bool:
    return "-- COMMAND" in " ".join(context.get_usage().split())


def _complete(instruction: str) -> int:
    """Print the completion script for a shell, or the words that may come next."""
    from click.shell_completion import shell_complete

    return shell_complete(holdfast, {}, "holdfast", _COMPLETE_ENV, instruction)
