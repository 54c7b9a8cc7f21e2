"""`holdfast gateway serve`: the process beside an agent."""

from pathlib import Path
from typing import Any

import click

from holdfast.domains.gateway.spec import AdapterSpec, needed_by, spec_of, spec_of_manifest
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.extras import installing
from holdfast.kernel.limits import QUEUE_DEPTH_MAX
from holdfast.surfaces.cli.connection import store_options
from holdfast.surfaces.cli.gateway.options import agent_argument, settings_here
from holdfast.surfaces.cli.json_log import log_json_lines
from holdfast.surfaces.cli.tmux_options import tmux_options

_LOOPBACK = "127.0.0.1"
_FIELDS = {
    "tmux": {
        "settle": "settle_s",
        **{name: name for name in ("session", "socket_name", "socket_path", "interrupt_key", "quiet_ms", "ready_regex")},
    },
    "command": {"command": "argv", "prompt_as": "prompt_as", "working_directory": "working_directory"},
    "rest": {
        "agent_url": "url",
        **{name: name for name in ("terminal", "preset", "prefix", "interrupt_key")},
    },
    "managed": {"agent_url": "managed_api_base_url", "agent_ref": "managed_agent_ref"},
}
"""Which options each adapter has, and what its spec calls them."""
_TYPED = {"command": "a program behind --", "agent_url": "--url"}
"""What is typed otherwise than it is called here."""


@click.command()
@agent_argument
@click.option("--adapter", "kind", type=click.Choice(["tmux", "command", "rest", "managed"]), help="How the agent is reached.")
@click.option(
    "--manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Take the adapter from this file."
)
@click.option("--session", help="tmux: the tmux session's exact name.")
@click.option("--socket-name", help="tmux: as `tmux -L`.")
@click.option("--socket-path", help="tmux: as `tmux -S`.")
@tmux_options
@click.option("--prompt-as", type=click.Choice(["stdin", "argument"]), help="command: how the program gets it.  [stdin]")
@click.option("--working-directory", help="command: the folder to run it in.")
@click.option("--terminal", help="rest: the terminal's id; its server is --url.")
@click.option("--preset", type=click.Choice(["cao_rest", "houmao_server_rest"]), help="rest: which server.  [cao_rest]")
@click.option("--prefix", help="rest: the paths' prefix, if it is not the preset's.")
@click.option("--url", "--base-url", "agent_url", help="rest and managed: the server of the agent.")
@click.option("--agent-ref", help="managed: the agent's name there.")
@click.option("--host", default=_LOOPBACK, show_default=True, help="The address to serve at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 for a free one.  [0]")
@click.option(
    "--allow-host", "more_hosts", multiple=True, metavar="HOST:PORT", help="Another name it is served under; repeatable."
)
@click.option(
    "--queue-max",
    type=click.IntRange(1),
    default=QUEUE_DEPTH_MAX,
    show_default=True,
    help="How many requests may be unfinished.",
)
@click.option("--log-json", is_flag=True, help="Log to stderr as JSON, one line per event.")
@click.argument("command", metavar="[-- COMMAND [ARGUMENT]...]", nargs=-1)
@store_options
def serve(
    agent: str,
    kind: str | None,
    manifest: Path | None,
    host: str,
    port: int,
    more_hosts: tuple[str, ...],
    queue_max: int,
    log_json: bool,
    command: tuple[str, ...],
    **adapter: Any,
) -> None:
    """Put a gateway in front of an agent, until Ctrl-C, SIGTERM or `detach`.

    It prints its address when it is ready, and writes it into the agent's record. A live agent's manifest says how
    it is reached; for another, say it with --adapter. For --adapter command, the program and its arguments follow after `--`.
    """
    from holdfast.reaching import to_be_served

    spec = _spec(kind, manifest, command, adapter)
    settings = settings_here()
    served = to_be_served(agent, settings, by_manifest=spec is None)
    reach = spec or served.spec
    assert reach is not None
    # Here, so that no other command loads a server.
    try:
        from holdfast.surfaces.cli.gateway.process import run
    except ImportError as error:
        raise Unavailable(f"serving needs {error.name}: {installing('server')}", outcome="none") from None
    if log_json:
        log_json_lines()
    run(agent, served, reach, settings, host=host, port=port, more_hosts=more_hosts, depth_max=queue_max)


def _spec(kind: str | None, manifest: Path | None, command: tuple[str, ...], given: dict[str, Any]) -> AdapterSpec | None:
    """How the agent is reached, as the options say; None when its own manifest is to say it."""
    from holdfast.reaching import document_in

    if kind is not None and manifest is not None:
        raise InvalidValue("--adapter and --manifest both say how the agent is reached: give one of them")
    said = {name: value for name, value in given.items() if value is not None}
    if command:
        said["command"] = list(command)
    if kind is None:
        _refuse_foreign("--manifest" if manifest is not None else "the agent's manifest", said, {})
        return None if manifest is None else spec_of_manifest(document_in(manifest))
    fields = {**_FIELDS[kind], "answer_timeout": "answer_timeout_s"}
    _refuse_foreign(f"--adapter {kind}", said, fields)
    _refuse_incomplete(kind, said)
    return spec_of({"kind": kind, **{fields[name]: value for name, value in said.items()}})


def _refuse_foreign(chosen: str, said: dict[str, Any], fields: dict[str, str]) -> None:
    """An option of another adapter is more likely a mistake than meant for nobody."""
    for name in said:
        if name not in fields:
            way_out = "leave it out" if chosen.startswith("-") else "leave it out, or say which --adapter it is for"
            raise InvalidValue(f"{_option(name)} means nothing beside {chosen}: {way_out}", field=name)


def _refuse_incomplete(kind: str, said: dict[str, Any]) -> None:
    """Named as the user would type it, where the spec would name its own field."""
    needed = needed_by(kind)
    missing = [name for name, field in _FIELDS[kind].items() if field in needed and name not in said]
    if missing:
        what = " and ".join(_option(name) for name in missing)
        raise InvalidValue(f"--adapter {kind} needs {what}: say it too", field=missing[0])


def _option(name: str) -> str:
    return _TYPED.get(name) or f"--{name.replace('_', '-')}"
