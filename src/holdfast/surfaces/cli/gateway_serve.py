"""`holdfast gateway serve`: the process beside an agent."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta
from msgspec.structs import asdict

from holdfast.domains.gateway.adapter import (
    AdapterSpec,
    TmuxSpec,
    needed_by,
    spec_of,
    spec_of_manifest,
)
from holdfast.kernel.agent_adapter import (
    ANSWER_TIMEOUT_S,
    QUESTION_FIRST_S,
    QUESTION_TIMEOUT_S,
    QUIET_MS,
    SETTLE_S,
)
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import QUEUE_DEPTH_MAX
from holdfast.operations.operation import Flag, Request
from holdfast.surfaces.cli.command import request_options
from holdfast.surfaces.cli.connection import settings_here
from holdfast.surfaces.cli.logs import log_json_lines
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.serve import (
    allow_host_option,
    check_host,
    expose_option,
    host_option,
    log_json_option,
    server_libraries,
)
from holdfast.surfaces.cli.store_options import store_options

_TMUX = ("session", "socket_name", "socket_path", "quiet_ms", "ready_regex")
_TIMEOUT = {"answer_timeout": "answer_timeout_s"}
_PROTOCOL = {
    "command": "command",
    "working_directory": "working_directory",
    "tool": "profile",
    "session_id": "session_id",
    "question_timeout": "question_timeout_s",
    **_TIMEOUT,
}
_FIELDS = {
    "tmux": {
        **{name: name for name in _TMUX},
        "interrupt_key": "interrupt",
        "settle": "settle_s",
        "question_timeout": "question_timeout_s",
        **_TIMEOUT,
    },
    "command": {
        "command": "command",
        "prompt_as": "prompt_as",
        "working_directory": "working_directory",
        "answer_timeout": "timeout_s",
    },
    "acp": {**_PROTOCOL, "mode": "mode"},
    "codex_app_server": _PROTOCOL,
    "rest": {
        "agent_url": "base_url",
        "terminal": "terminal_id",
        **{name: name for name in ("preset", "prefix", "interrupt_key")},
        **_TIMEOUT,
    },
    "managed": {
        "agent_url": "managed_api_base_url",
        "agent_ref": "managed_agent_ref",
        **_TIMEOUT,
    },
}
"""The options of each adapter, and the names of its settings."""
_TYPED = {"command": "a program behind --", "agent_url": "--url"}
"""Options that have another name for the user."""


class TmuxSettings(Request, frozen=True, kw_only=True):
    """Settings of an agent's adapter; None where the user gave none."""

    interrupt_key: Annotated[
        str | None,
        Flag("--interrupt-key", metavar="KEY", help="tmux: C-c or Escape; rest: any key.  [C-c]"),
    ] = None
    quiet_ms: Annotated[
        int | None,
        Flag(
            "--quiet-ms",
            metavar="MS",
            within=(1, None),
            help="tmux: with --ready-regex, ready only when nothing was written for so long.  "
            f"[{QUIET_MS}]",
        ),
    ] = None
    ready_regex: Annotated[
        str | None,
        Flag(
            "--ready-regex",
            metavar="REGEX",
            help="tmux: the agent is ready only when the last line matches this. "
            "Without it, no end is known.",
        ),
    ] = None
    settle: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Flag(
            "--settle",
            help="tmux: without --ready-regex, the next prompt waits until nothing was written "
            f"for so long.  [{SETTLE_S:g}]",
        ),
    ] = None
    answer_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Flag("--answer-timeout", help=f"Seconds for one answer.  [{ANSWER_TIMEOUT_S:g}]"),
    ] = None
    question_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Flag(
            "--question-timeout",
            help="tmux, acp, codex_app_server: how long a question waits for an operator; then "
            "the agent's own dialog decides, or the answer is no.  "
            f"[{QUESTION_TIMEOUT_S:g}; {QUESTION_FIRST_S:g} if a dialog opens only then]",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Those that the user gave, by the names of the options."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def in_manifest(self) -> dict[str, Any]:
        """Those that the user gave, by the names of a manifest."""
        return {_FIELDS["tmux"][name]: value for name, value in self.given().items()}


@click.command()
@click.argument("agent", required=False)
@click.option(
    "--all",
    "all_agents",
    is_flag=True,
    help="Serve every live agent of this machine, also those that appear later.",
)
@click.option(
    "--adapter",
    "kind",
    type=click.Choice(["tmux", "command", "acp", "codex_app_server", "rest", "managed"]),
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
@click.option(
    "--working-directory", help="command, acp, codex_app_server: the folder to run it in."
)
@click.option(
    "--tool",
    metavar="PROFILE",
    help="acp, codex_app_server: run the command of this tool's profile, such as claude.",
)
@click.option("--mode", help="acp: the agent's mode, such as plan.")
@click.option("--session-id", help="acp, codex_app_server: the conversation to go on with.")
@click.option("--terminal", help="rest: the terminal's id; its server is --url.")
@click.option(
    "--preset",
    type=click.Choice(["cao_rest", "houmao_server_rest"]),
    help="rest: which server.  [cao_rest]",
)
@click.option("--prefix", help="rest: the paths' prefix, if it is not the preset's.")
@click.option("--url", "--base-url", "agent_url", help="rest and managed: the server of the agent.")
@click.option("--agent-ref", help="managed: the agent's name there.")
@host_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 for a free one.  [0]"
)
@allow_host_option
@expose_option
@click.option(
    "--queue-max",
    type=click.IntRange(1),
    default=QUEUE_DEPTH_MAX,
    show_default=True,
    help="How many requests may be unfinished.",
)
@log_json_option
@click.argument("command", metavar="[-- COMMAND [ARGUMENT]...]", nargs=-1)
@store_options
def serve(
    agent: str | None,
    all_agents: bool,
    request: TmuxSettings,
    kind: str | None,
    manifest: Path | None,
    host: str,
    port: int,
    more_hosts: tuple[str, ...],
    expose: bool,
    queue_max: int,
    log_json: bool,
    command: tuple[str, ...],
    **adapter: Any,
) -> None:
    """Put a gateway in front of an agent, until Ctrl-C, SIGTERM or `detach`.

    \b
        holdfast gateway serve gpu
        holdfast gateway serve --all

    It prints its address when it is ready, and writes it into the agent's record. A live agent's
    manifest says how it is reached; options override what it says. For another agent, say it with
    --adapter. For the adapters command, acp and codex_app_server, the program and its arguments
    follow after `--`; with --tool, they are those of the tool's profile.
    """
    from holdfast.runtime.gateway_identity import document_in, resolve_served

    if all_agents:
        _refuse_all_but(("all_agents", "log_json"))
        _serve_all(log_json=log_json)
        return
    if agent is None:
        raise click.UsageError("name an AGENT, or say --all for every agent of this machine")
    if kind is not None and manifest is not None:
        raise InvalidValue(
            "--adapter and --manifest both say how the agent is reached: give one of them"
        )
    check_host(host, expose=expose)
    given = {name: value for name, value in adapter.items() if value is not None} | request.given()
    if command:
        given["command"] = list(command)
    kind = _add_tool(kind, manifest, given)
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
    # Loaded here, so that no other command loads a server.
    with server_libraries():
        from holdfast.surfaces.cli.gateway_process import serve_gateway
    if log_json:
        log_json_lines()
    if kind is None and given:
        remark(f"the manifest of {agent} is overridden by {', '.join(map(_option, given))}")
    if isinstance(reach, TmuxSpec) and not reach.profile and reach.ready_regex is None:
        remark(
            "no --ready-regex is set, so nobody can tell when the agent has finished: a request "
            "ends when it is delivered, and the next prompt waits until nothing was written for "
            f"{reach.settle_s or SETTLE_S:g} s (--settle)"
        )
    serve_gateway(
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


def _serve_all(*, log_json: bool) -> None:
    with server_libraries():
        from holdfast.surfaces.cli.gateway_host_process import serve_all
    if log_json:
        log_json_lines()
    serve_all(settings_here())


def _refuse_all_but(allowed: tuple[str, ...]) -> None:
    """Raise InvalidValue for what was given beside --all: it is about one agent."""
    context = click.get_current_context()
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is ParameterSource.COMMANDLINE:
            what = "AGENT" if name == "agent" else _option(name)
            raise InvalidValue(
                f"--all serves every agent as its manifest says, and {what} is about one: leave "
                "one of both out",
                field=name,
            )


def _add_tool(kind: str | None, manifest: Path | None, given: dict[str, Any]) -> str | None:
    """The kind of adapter. A tool that is given without one brings its own, with its command.
    Raises InvalidValue, and NotFound for an unknown tool.
    """
    tool = given.get("tool")
    if tool is None or manifest is not None or kind not in (None, "acp", "codex_app_server"):
        return kind
    from holdfast.adapters.profiles import profile_named, profiles_folder

    launch = profile_named(tool, profiles_folder(os.environ)).launch
    if "command" not in given:
        if not launch.protocol or kind not in (None, launch.protocol_kind):
            adapter = f" for --adapter {kind}" if launch.protocol else ""
            raise InvalidValue(
                f"the profile {tool} has no command that speaks a protocol{adapter}: give one "
                "behind --",
                field="tool",
            )
        given["command"] = list(launch.protocol)
    return kind or launch.protocol_kind


def _spec(kind: str, given: dict[str, Any]) -> AdapterSpec:
    """How the agent is reached by the options alone."""
    settings = _settings(f"--adapter {kind}", kind, given)
    # Checked here, since the spec would name its own fields and not the options.
    needed = needed_by(kind)
    missing = [name for name, field in _FIELDS[kind].items() if field in needed - settings.keys()]
    if missing:
        what = " and ".join(map(_option, missing))
        raise InvalidValue(f"--adapter {kind} needs {what}: say it too", field=missing[0])
    return spec_of({"kind": kind, **settings})


def _overridden(spec: AdapterSpec, *, given: dict[str, Any]) -> AdapterSpec:
    """How the agent is reached by its manifest, with the options in place of what it says."""
    kind = str(spec.__struct_config__.tag)
    settings = _settings(f"a manifest whose adapter is {kind}", kind, given)
    return spec_of({**msgspec.to_builtins(spec), **settings}) if settings else spec


def _settings(chosen: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The settings by their names in a spec. Raises InvalidValue for an option of another adapter:
    it is more likely a mistake than meant for nobody.
    """
    for name in given:
        if name not in _FIELDS[kind]:
            raise InvalidValue(
                f"{_option(name)} means nothing beside {chosen}: leave it out", field=name
            )
    return {_FIELDS[kind][name]: value for name, value in given.items()}


def _option(name: str) -> str:
    return _TYPED.get(name) or f"--{name.replace('_', '-')}"
