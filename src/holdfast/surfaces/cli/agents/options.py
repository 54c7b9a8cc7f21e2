"""What several commands of `holdfast agents` ask for."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.surfaces.cli.custody import leftovers_option
from holdfast.surfaces.cli.locks.options import more_than_nothing
from holdfast.surfaces.cli.tmux_options import tmux_options

F = TypeVar("F", bound=Callable[..., Any])

GENERATION_VARIABLE = "HOLDFAST_AGENT_GENERATION"
"""What a command under `agents run` finds its generation in."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
agent_argument = click.argument("asked", metavar="AGENT")
name_argument = click.argument("name", metavar="NAME")
words_argument = click.argument(
    "words", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED
)
lease_option = click.option(
    "--lease",
    "lease_s",
    metavar="SECONDS",
    type=float,
    callback=more_than_nothing,
    help="How long it is believed without a sign of life.  [default: agents.lease_s, a day]",
)
take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Replace whoever has the id, on your word that it is over. Told in the journal.",
)
id_option = click.option(
    "--id", "agent_id", metavar="ID", help="The agent's id.  [default: it follows from the name]"
)
def_dir_option = click.option(
    "--agent-def-dir", metavar="FOLDER", help="The agent's definition folder, as an absolute path."
)
session_root_option = click.option(
    "--session-root",
    metavar="FOLDER",
    help="Where the manifest is.  [default for run and start: one of its own]",
)
generation_option = click.option(
    "--generation",
    "generation_id",
    metavar="ID",
    required=True,
    envvar=GENERATION_VARIABLE,
    help=f"The generation whose record it must be.  [{GENERATION_VARIABLE}]",
)
token_option = click.option(
    "--token", type=int, help="Refused (exit status 4) when the generation was resumed since."
)
tool_option = click.option(
    "--tool",
    metavar="NAME",
    help="Which tool the agent is, such as claude.  [default: the command's name]",
)


def launch_options(command: F) -> F:
    """What `run` and `start` have in common."""
    command = tmux_options(command)
    options = (
        json_option,
        take_over_option,
        lease_option,
        leftovers_option,
        def_dir_option,
        session_root_option,
        tool_option,
        id_option,
    )
    for option in options:
        command = option(command)
    return command
