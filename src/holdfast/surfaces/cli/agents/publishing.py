"""`holdfast agents publish`, `refresh` and `remove`: for agents that something else runs."""

import os

import click

from holdfast.adapters.agent_files import ManifestFiles
from holdfast.domains.agents import Agent, Manifest
from holdfast.domains.agents import manifest as manifests
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue
from holdfast.surfaces.answers.agents import Removed, id_of
from holdfast.surfaces.cli.agents.options import (
    agent_argument,
    def_dir_option,
    generation_option,
    id_option,
    json_option,
    lease_option,
    session_root_option,
    take_over_option,
    token_option,
)
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import moment


@click.command(short_help="Publish an agent that something else runs.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--manifest",
    "manifest_path",
    required=True,
    metavar="PATH",
    help="Its manifest; what it says need not be said here.",
)
@click.option("--backend", help="What it runs on, such as local_interactive or claude_headless.")
@click.option("--tool", metavar="NAME", help="Which tool the agent is, such as claude.")
@click.option("--tmux-session", "session_name", metavar="NAME", help="The tmux session it runs in.")
@session_root_option
@def_dir_option
@id_option
@click.option(
    "--generation",
    "generation_id",
    metavar="ID",
    help="Resume this one.  [default: the manifest's, else a new one]",
)
@click.option(
    "--pid", type=click.IntRange(1, PID_MAX), help="The agent's own process, such as its pane's."
)
@lease_option
@take_over_option
@json_option
@store_options
def publish(
    name: str | None,
    manifest_path: str,
    backend: str | None,
    tool: str | None,
    session_name: str | None,
    session_root: str | None,
    agent_def_dir: str | None,
    agent_id: str | None,
    generation_id: str | None,
    pid: int | None,
    lease_s: float | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Publish an agent, or resume its generation, for one lease.

    Nothing refreshes it but you: `holdfast agents run` and `start` do it by themselves. No process
    is recorded unless --pid names one. Exit status 4 when another generation has the id and is not
    proved to be gone.
    """
    said = _manifest(manifest_path)
    with connected() as hf:
        agent = hf.agents.publish(
            _needed("NAME", name, said.agent_name if said else None),
            backend=_needed("--backend", backend, said.backend if said else None),
            tool=_needed("--tool", tool, said.tool if said else None),
            manifest_path=manifest_path,
            session_name=_chosen(session_name, said.session_name if said else None),
            session_root=_chosen(session_root, os.path.dirname(manifest_path) if said else None),
            agent_def_dir=_chosen(agent_def_dir, said.agent_def_dir if said else None),
            agent_id=_chosen(agent_id, said.agent_id if said else None),
            generation_id=_chosen(generation_id, said.generation_id if said else None),
            holder=None if pid is None else hf.processes.of(pid),
            lease_s=lease_s,
            take_over=take_over,
        )
    answer(to_json(agent) if as_json else _line(agent))


@click.command(short_help="Extend the lease of a generation.")
@agent_argument
@generation_option
@token_option
@lease_option
@json_option
@store_options
def refresh(
    asked: str, generation_id: str, token: int | None, lease_s: float | None, as_json: bool
) -> None:
    """Extend the lease of an agent's generation from now; exit status 4 when another has taken
    over: stand down.
    """
    with connected() as hf:
        agent = hf.agents.refresh(id_of(hf, asked), generation_id, token=token, lease_s=lease_s)
    answer(to_json(agent) if as_json else _line(agent))


@click.command(short_help="Take a generation's record out.")
@agent_argument
@generation_option
@token_option
@json_option
@store_options
def remove(asked: str, generation_id: str, token: int | None, as_json: bool) -> None:
    """Take an agent's record out, if it is this generation's; exit status 4 when it is another's, 1
    when there is none.
    """
    with connected() as hf:
        agent_id = id_of(hf, asked)
        hf.agents.remove(agent_id, generation_id, token=token)
    answer(
        to_json(Removed(removed=agent_id, generation_id=generation_id))
        if as_json
        else f"removed {agent_id}"
    )


def _manifest(path: str) -> Manifest | None:
    """What the manifest says; None when it is not there yet. Raises InvalidValue."""
    if not os.path.isabs(path):
        raise InvalidValue(
            f"manifest_path is {path!r}, which is not absolute: give the whole path",
            field="manifest_path",
        )
    try:
        data = ManifestFiles().read(path)
    except (OSError, ValueError) as error:
        raise InvalidValue(
            f"the manifest {path!r} cannot be read: {error}", field="manifest_path"
        ) from None
    return None if data is None else manifests.from_json(data)


def _chosen(given: str | None, said: str | None) -> str | None:
    """What was given, blank or not, as an unset variable of a shell leaves it; else what the
    manifest says.
    """
    return said if given is None else given


def _needed(option: str, given: str | None, said: str | None) -> str:
    chosen = _chosen(given, said)
    if chosen is None:
        raise click.UsageError(
            f"{option} is missing: give it, or a --manifest that is there and says it"
        )
    return chosen


def _line(agent: Agent) -> str:
    return (
        f"{agent.agent_name} ({agent.agent_id}) is generation {agent.generation_id}'s until "
        f"{moment(agent.lease_expires_at)}, "
        f"token {agent.token}"
    )
