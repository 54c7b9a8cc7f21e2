"""`holdfast gateway serve`: the process beside an agent."""

from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.domains.gateway.adapter import (
    AdapterSpec,
    TmuxSpec,
    needed_by,
    spec_of,
    spec_of_manifest,
)
from holdfast.kernel.agent_adapter import SETTLE_S
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.limits import QUEUE_DEPTH_MAX
from holdfast.kernel.text import installing
from holdfast.surfaces.cli.command import request_options
from holdfast.surfaces.cli.connection import settings_here, store_options
from holdfast.surfaces.cli.json_log import log_json_lines
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.tmux_settings import TmuxSettings

_LOOPBACK = "127.0.0.1"
_FIELDS = {
    "tmux": {
        **{
            name: name
            for name in (
                "session",
                "socket_name",
                "socket_path",
                "quiet_ms",
                "ready_regex",
            )
        },
        "interrupt_key": "interrupt",
        "settle": "settle_s",
    },
    "command": {
        "command": "command",
        "prompt_as": "prompt_as",
        "working_directory": "working_directory",
    },
    "rest": {
        "agent_url": "base_url",
        "terminal": "terminal_id",
        **{name: name for name in ("preset", "prefix", "interrupt_key")},
    },
    "managed": {"agent_url": "managed_api_base_url", "agent_ref": "managed_agent_ref"},
}
"""Which options each adapter has, and what its spec calls them."""
_TYPED = {"command": "a program behind --", "agent_url": "--url"}
"""What is typed otherwise than it is called here."""


@click.command()
@click.argument("agent")
@click.option(
    "--adapter",
    "kind",
    type=click.Choice(["tmux", "command", "rest", "managed"]),
    help="How the agent is reached.",
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the adapter from this file.",
)
@click.option("--session", help="tmux: the tmux session's exact name.")
@click.option("--socket-name", help="tmux: as `tmux -L`.")
@click.option("--socket-path", help="tmux: as `tmux -S`.")
@request_options(TmuxSettings)
@click.option(
    "--prompt-as",
    type=click.Choice(["stdin", "argument"]),
    help="command: how the program gets it.  [stdin]",
)
@click.option("--working-directory", help="command: the folder to run it in.")
@click.option("--terminal", help="rest: the terminal's id; its server is --url.")
@click.option(
    "--preset",
    type=click.Choice(["cao_rest", "houmao_server_rest"]),
    help="rest: which server.  [cao_rest]",
)
@click.option("--prefix", help="rest: the paths' prefix, if it is not the preset's.")
@click.option("--url", "--base-url", "agent_url", help="rest and managed: the server of the agent.")
@click.option("--agent-ref", help="managed: the agent's name there.")
@click.option("--host", default=_LOOPBACK, show_default=True, help="The address to serve at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 for a free one.  [0]"
)
@click.option(
    "--allow-host",
    "more_hosts",
    multiple=True,
    metavar="HOST:PORT",
    help="Another name it is served under; repeatable.",
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
    request: TmuxSettings,
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

    It prints its address when it is ready, and writes it into the agent's record. A live agent's
    manifest says how it is reached; options override what it says. For another agent, say it with
    --adapter. For --adapter command, the program and its arguments follow after `--`.
    """
    from holdfast.runtime.gateway_address import document_in, resolve_served

    if kind is not None and manifest is not None:
        raise InvalidValue(
            "--adapter and --manifest both say how the agent is reached: give one of them"
        )
    given = {name: value for name, value in adapter.items() if value is not None} | request.given()
    if command:
        given["command"] = list(command)
    adapt = partial(_overridden, given=given if kind is None else {})
    spec = None
    if kind is not None:
        spec = _spec(kind, given)
    elif manifest is not None:
        spec = adapt(spec_of_manifest(document_in(manifest)))
    settings = settings_here()
    served = resolve_served(agent, settings, by_manifest=spec is None, adapt=adapt)
    reach = spec or served.spec
    assert reach is not None
    # Here, so that no other command loads a server.
    try:
        from holdfast.surfaces.cli.gateway_process import run
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        raise Unavailable(
            f"serving needs {library}: {installing('server')}", outcome="none"
        ) from None
    if log_json:
        log_json_lines()
    if kind is None and given:
        remark(f"the manifest of {agent} is overridden by {', '.join(map(_option, given))}")
    if isinstance(reach, TmuxSpec) and reach.ready_regex is None:
        remark(
            "no --ready-regex is set, so nobody can tell when the agent has finished: a request "
            "ends when it is delivered, and the next prompt waits until nothing was written for "
            f"{reach.settle_s or SETTLE_S:g} s (--settle)"
        )
    run(
        agent,
        served,
        reach,
        settings,
        adapt=adapt,
        host=host,
        port=port,
        more_hosts=more_hosts,
        depth_max=queue_max,
    )


def _spec(kind: str, given: dict[str, Any]) -> AdapterSpec:
    """How the agent is reached, as the options say."""
    _refuse_foreign(f"--adapter {kind}", given, kind)
    _refuse_incomplete(kind, given)
    return spec_of({"kind": kind, **_settings(kind, given)})


def _overridden(spec: AdapterSpec, *, given: dict[str, Any]) -> AdapterSpec:
    """How the agent is reached by its manifest, but for what the options say."""
    kind = str(spec.__struct_config__.tag)
    _refuse_foreign(f"a manifest whose adapter is {kind}", given, kind)
    return spec_of({**msgspec.to_builtins(spec), **_settings(kind, given)}) if given else spec


def _settings(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    return {_fields(kind)[name]: value for name, value in given.items()}


def _fields(kind: str) -> dict[str, str]:
    return {
        **_FIELDS[kind],
        "answer_timeout": "timeout_s" if kind == "command" else "answer_timeout_s",
    }


def _refuse_foreign(chosen: str, given: dict[str, Any], kind: str) -> None:
    """An option of another adapter is more likely a mistake than meant for nobody."""
    for name in given:
        if name not in _fields(kind):
            raise InvalidValue(
                f"{_option(name)} means nothing beside {chosen}: leave it out", field=name
            )


def _refuse_incomplete(kind: str, given: dict[str, Any]) -> None:
    """Named as the user would type it, where the spec would name its own field."""
    needed = needed_by(kind)
    missing = [
        name for name, field in _FIELDS[kind].items() if field in needed and name not in given
    ]
    if missing:
        what = " and ".join(_option(name) for name in missing)
        raise InvalidValue(f"--adapter {kind} needs {what}: say it too", field=missing[0])


def _option(name: str) -> str:
    return _TYPED.get(name) or f"--{name.replace('_', '-')}"
