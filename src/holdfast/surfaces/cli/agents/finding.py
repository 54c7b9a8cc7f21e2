"""`holdfast agents resolve` and `target`."""

import click

from holdfast.kernel.errors import HoldfastError, status_of
from holdfast.surfaces.cli.agents.options import agent_argument, def_dir_option, json_option
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.render import json_document, pairs


@click.command(short_help="Print the id of a live agent.")
@agent_argument
@json_option
@store_options
def resolve(asked: str, as_json: bool) -> int:
    """Print the id of the live agent of a name or an id; with --json its record, or the reason why
    there is none.

    Exit status 1 when it is missing, malformed, schema_invalid, expired or known by another name, 4
    when it is ambiguous; the reason goes to stderr.
    """
    with connected(create=False) as hf:
        found = hf.agents.resolve(asked)
    if as_json:
        json_document(found)
    elif found.record is not None:
        click.echo(found.record.agent_id)
    try:
        found.unwrap()
    except HoldfastError as error:
        if not as_json:
            remark(f"{error.fields['reason']}: {error.message}")
        return status_of(error).exit
    return 0


@click.command(short_help="Say what may be controlled under a name, trusting nothing.")
@agent_argument
@def_dir_option
@click.option(
    "--needs-agent-def-dir", is_flag=True, help="Refuse it unless it has a definition folder."
)
@json_option
@store_options
def target(asked: str, agent_def_dir: str | None, needs_agent_def_dir: bool, as_json: bool) -> None:
    """Check all that an agent's record points at, and print what may be controlled by it.

    Exit status 1 when there is no live agent, 4 when it is ambiguous or anything does not agree:
    manifest, backend, tmux session or definition folder. It never falls back to another target. An
    explicit --agent-def-dir beats the record's.
    """
    with connected(create=False) as hf:
        found = hf.agents.control_target(
            asked, agent_def_dir, needs_agent_def_dir=needs_agent_def_dir
        )
    if as_json:
        json_document(found)
        return
    pairs(
        [
            ("agent", found.record.agent_name),
            ("id", found.record.agent_id),
            ("generation", found.record.generation_id),
            ("tmux session", found.session_name),
            ("manifest", found.record.runtime.manifest_path),
            ("working folder", found.manifest.working_directory),
            ("definition folder", found.agent_def_dir or "-"),
        ]
    )
