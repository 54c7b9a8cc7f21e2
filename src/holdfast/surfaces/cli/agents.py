"""`holdfast agents`: who is alive under which name, and the control target of each."""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

import click
from msgspec.structs import replace

from holdfast.adapters.agent_files import ManifestFiles
from holdfast.adapters.profiles import GENERIC, profile_for, profile_named, profiles_folder
from holdfast.domains.agents import Agent, Manifest
from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.cleanup import CleanupItem, CleanupReport
from holdfast.domains.agents.control import Target
from holdfast.domains.agents.liveness import process_liveness, survivors_of
from holdfast.domains.agents.records import bare, canonical
from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import InvalidValue, Unavailable, status_of
from holdfast.kernel.holder import survivors_named
from holdfast.kernel.limits import AGENT_MOMENT_S
from holdfast.kernel.text import clipped, counted
from holdfast.operations import agents as operations
from holdfast.operations.agent_work import AgentWork
from holdfast.operations.operation import Flag
from holdfast.runtime.agent_pane import check_command, start_in_tmux
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.agent_life import exit_text, life
from holdfast.surfaces.cli.agent_resolve import resolve
from holdfast.surfaces.cli.agent_run import LaunchAgent, command_of, run, words_argument
from holdfast.surfaces.cli.agent_tools import tools
from holdfast.surfaces.cli.command import (
    CommandGroup,
    click_command,
    json_option,
    options_of,
    request_options,
)
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.custody import CustodyOptions
from holdfast.surfaces.cli.lock_text import span
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.render import json_document, moment, pairs, table
from holdfast.surfaces.cli.store_options import store_options

_SEND = "send"


class _Agents(CommandGroup):
    """The commands, with `send`, which is loaded when it is used: it is one of gateways."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), _SEND]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != _SEND:
            return super().get_command(ctx, cmd_name)
        from holdfast.surfaces.cli.gateway import prompt

        return prompt


@click.group(cls=_Agents)
def agents() -> None:
    """Live agents: one generation per id, found by name or id, trusted only when everything agrees.

    \b
        holdfast agents start gpu --gateway -- claude
        holdfast agents send gpu 'sort the list' --wait
        holdfast agents list
        holdfast agents restart gpu
    """


agents.add_command(run)
agents.add_command(tools)
for _command in life.commands.values():
    agents.add_command(_command)


class StartAgent(LaunchAgent, frozen=True, kw_only=True):
    """The agent that a tmux session is."""

    session_name: Annotated[
        str | None,
        Flag("--tmux-session", metavar="NAME", help="What to call it.  [default: as the agent]"),
    ] = None
    watch_s: Annotated[
        float,
        Flag(
            "--watch",
            within=(0, 3600),
            show_default=True,
            help="How long the command must run to count as started.",
        ),
    ] = AGENT_MOMENT_S
    gateway: Annotated[
        bool,
        Flag(
            "--gateway", help="See to it that it has a gateway: start a host of all if none runs."
        ),
    ] = False
    unattended: Annotated[
        bool,
        Flag(
            "--unattended",
            help="Without tmux: the gateway runs it, and talks to it in a protocol.",
        ),
    ] = False
    protocol: Annotated[
        Literal["acp", "codex_app_server"] | None,
        Flag("--protocol", help="unattended: what it speaks.  [default: as the tool's profile]"),
    ] = None
    mode: Annotated[
        str | None, Flag("--mode", metavar="MODE", help="unattended, acp: its mode, such as plan.")
    ] = None


@agents.command(short_help="Start a command as an agent in a new tmux session.")
@request_options(StartAgent)
@words_argument
@options_of(CustodyOptions)
@json_option
@store_options
def start(request: StartAgent, words: tuple[str, ...], leftovers: str, as_json: bool) -> None:
    """Start a command as an agent in a new tmux session, in the background.

    \b
        holdfast agents start gpu --gateway -- claude
        holdfast agents start gpu --tool claude
        holdfast agents start gpu --unattended --tool claude
        tmux attach -t =HOLDFAST-gpu

    Its pane, 200x50, runs `holdfast agents run`, which keeps it resolvable and removes it when it
    ends. The command gets the environment of this one. What is said by --ready-regex,
    --interrupt-key and the like goes into its manifest, for its gateway. With --gateway, it takes
    prompts when this returns: one process hosts the gateways of all agents.

    Returns once the command has run for a second (--watch). When it ends before, its exit status
    and last screen are shown, processes that it left are ended, and the exit status is 1. It is 4
    when the id or the tmux session is taken.

    With --unattended there is no tmux session: the gateway runs the command of the tool's profile,
    or that behind --, which speaks a protocol, and starts it again when it ends. This returns when
    the agent takes prompts; one that does not start is removed, and the exit status is 1.
    """
    if request.unattended:
        _start_unattended(request, words, leftovers, as_json)
        return
    _refuse_given(request, _UNATTENDED, "an agent with --unattended has that")
    command = command_of(words, request.tool, "start")
    check_command(command[0])
    with connected() as hf:
        session_name = request.session_name
        if session_name is None:
            session_name = canonical(request.name, hf.settings.agents.prefix)
        launch = request.launch(hf, command, session_name, leftovers=leftovers)
        agent = start_in_tmux(hf, launch, watch_s=request.watch_s)
        if request.gateway:
            agent = _with_gateway(hf, agent)
    pid = "" if agent.holder is None else f", process {agent.holder.pid}"
    runs = f"{agent.agent_name} runs in tmux session {session_name}{pid}"
    runs = f"{runs}: tmux attach -t ={session_name}"
    answer(to_json(agent) if as_json else runs)


_UNATTENDED = {
    "protocol": "--protocol",
    "mode": "--mode",
}
_IN_TMUX = {
    "session_name": "--tmux-session",
    "interrupt_key": "--interrupt-key",
    "quiet_ms": "--quiet-ms",
    "ready_regex": "--ready-regex",
    "settle": "--settle",
}


def _refuse_given(request: StartAgent, options: Mapping[str, str], why: str) -> None:
    """Raise InvalidValue for an option that was given and has no effect."""
    for name, option in options.items():
        owner = request if hasattr(request, name) else request.tmux
        if getattr(owner, name) is not None:
            raise InvalidValue(f"{option}: only {why}. Leave it out", field=name)


def _start_unattended(
    request: StartAgent, words: tuple[str, ...], leftovers: str, as_json: bool
) -> None:
    # Loaded here, as it brings the client of gateways.
    from holdfast.runtime.agent_unattended import (
        protocol_of,
        start_unattended,
        unattended_launch,
    )

    _refuse_given(request, _IN_TMUX, "an agent in tmux has that")
    if leftovers == "keep":
        raise InvalidValue(
            "--leftovers keep: a gateway ends all processes of its agent. Leave it out",
            field="leftovers",
        )
    if not words and request.tool is None:
        raise click.UsageError(
            "no agent is given: say --tool NAME, or `holdfast agents start NAME --unattended -- "
            "COMMAND`"
        )
    profiles = profiles_folder(os.environ)
    if request.tool is None:
        profile = profile_for(words, profiles)
    else:
        profile = profile_named(request.tool, profiles)
    kind, command = protocol_of(profile, words, request.protocol)
    if request.mode is not None and kind != "acp":
        raise InvalidValue(f"--mode: {kind} has no modes. Leave it out", field="mode")
    settings = {
        "profile": None if profile.name == GENERIC else profile.name,
        "mode": request.mode,
        "question_timeout_s": request.tmux.question_timeout,
        "answer_timeout_s": request.tmux.answer_timeout,
    }
    with connected() as hf:
        launch = unattended_launch(
            hf,
            command,
            kind=kind,
            adapter={name: value for name, value in settings.items() if value is not None},
            name=request.name,
            agent_id=request.agent_id,
            tool=request.tool,
            session_root=request.session_root,
            agent_def_dir=request.agent_def_dir,
            lease_s=request.lease_s,
            take_over=request.take_over,
        )
        agent = start_unattended(hf, launch, command)
    answer(
        to_json(agent)
        if as_json
        else f"{agent.agent_name} takes prompts: holdfast agents send {bare(agent.agent_name)} TEXT"
    )


def _with_gateway(hf: Holdfast, agent: Agent) -> Agent:
    """The record of an agent when its gateway answers. Raises Unavailable when that does not come
    up; the agent runs all the same.
    """
    # Loaded here, as it brings the client of gateways.
    from holdfast.runtime.host_process import ensure_hosted

    try:
        ensure_hosted(hf, agent.agent_id)
    except Unavailable as error:
        raise type(error)(
            f"{agent.agent_name} runs in tmux session {agent.session_name}, but has no gateway: "
            f"{error.message}",
            **error.fields,
        ) from None
    return hf.agents.get(agent.agent_id)


@agents.operation(operations.list_)
def list_(found: list[operations.ListedAgent], hf: Holdfast) -> None:
    """List agents by name, and what each does, as its gateway last published it.

    Exit status 7 if records are damaged, which are named on stderr.

    --all lists behind them those that have ended: for a week, and for the user who ran them.
    """
    now = hf.store.now()
    table(
        [
            "agent",
            "state",
            "works on",
            "idle",
            "gateway",
            "lease",
            "process",
            "tmux session",
            "tool",
        ],
        [
            [
                *(agent.agent_name, _state(agent.work, now), _about(agent.work)),
                *(_idle(agent.work, now), _gateway(agent.work), _lease(agent, now)),
                *(
                    _ended(agent) or _process(hf, agent),
                    agent.session_name or "-",
                    agent.identity.tool,
                ),
            ]
            for agent in found
        ],
        elastic=["agent", "works on", "tmux session"],
        empty="No agents. Start one: holdfast agents start NAME -- COMMAND",
    )


def _ended(agent: operations.ListedAgent) -> str:
    """How it ended; empty for one that runs."""
    return exit_text(agent.exited) if agent.exited else ""


def _state(work: AgentWork, now: datetime) -> str:
    asked = f", {counted(work.questions, 'question')}" if work.questions else ""
    if work.since is None:
        return f"{work.state.value}{asked}"
    since = span(work.since, now) if sys.stdout.isatty() else f"since {moment(work.since)}"
    return f"{work.state.value} {since}{asked}"


def _about(work: AgentWork) -> str:
    """What it works on or, where nothing says that, what a prompt waits for."""
    return clipped(work.activity or work.waits) or "-"


def _idle(work: AgentWork, now: datetime) -> str:
    if work.idle_since is None:
        return "-"
    return span(work.idle_since, now) if sys.stdout.isatty() else moment(work.idle_since)


def _gateway(work: AgentWork) -> str:
    return f"{work.gateway}, {work.queue_depth} queued" if work.queue_depth else work.gateway


def _process(hf: Holdfast, agent: Agent) -> str:
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    if agent.holder is None or alive is None:
        return "-"
    process = f"{agent.holder.pid} {alive.value}"
    left = survivors_of(agent, hf.processes, embedded=hf.store.embedded)
    return f"{process}, {len(left)} left" if left else process


def _lease(agent: Agent, now: datetime) -> str:
    if agent.lifecycle_state != "active":
        return agent.lifecycle_state
    if not sys.stdout.isatty():
        return moment(agent.lease_expires_at)
    if not agent.fresh(now):
        return f"over for {span(agent.lease_expires_at, now)}"
    return f"{span(now, agent.lease_expires_at)} left"


@agents.operation(operations.get)
def get(found: operations.AgentView, hf: Holdfast) -> None:
    """Show one agent, fresh or not, and the state of its parts: lease, process, tmux, gateway; of
    one that has ended, how.
    """
    facts: list[tuple[str, str]] = []
    for name, value in to_plain(found).items():
        if name == "liveness":
            continue
        inner = {name: value}
        if isinstance(value, dict):
            inner = {f"{name}.{part}": each for part, each in value.items()}
        facts += [(path, "-" if each is None else str(each)) for path, each in inner.items()]
    for name, value in to_plain(found.liveness).items():
        facts.append((f"is {name.replace('_', ' ')}", value or "none"))
    left = survivors_of(found, hf.processes, embedded=hf.store.embedded)
    if left:
        facts.append(("processes left", survivors_named(left)))
    pairs(facts)


agents.add_command(click_command(resolve))


@agents.operation(
    operations.control_target,
    "target",
    short_help="Check an agent's record, and print its control target.",
)
def target(found: Target) -> None:
    """Check all that an agent's record points at, and print its control target.

    Exit status 1 when there is no live agent, 4 when it is ambiguous or anything does not agree:
    manifest, backend, tmux session or definition folder. It never falls back to another target. An
    explicit --agent-def-dir beats the record's.
    """
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


@agents.command(short_help="Publish an agent that something else runs.")
@request_options(operations.Publish)
@json_option
@store_options
def publish(request: operations.Publish, as_json: bool) -> None:
    """Publish an agent, or resume its generation, for one lease.

    Nothing refreshes it but you: `holdfast agents run` and `start` do it by themselves. No process
    is recorded unless --pid names one. Exit status 4 when another generation has the id and is not
    verified to be gone.
    """
    manifest = _manifest(request.manifest_path)
    with connected() as hf:
        agent = operations.publish(hf, _completed(request, manifest))
    answer(to_json(agent) if as_json else _line(agent))


def _manifest(path: str) -> Manifest | None:
    """The manifest; None when there is none yet. Raises InvalidValue."""
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


def _completed(request: operations.Publish, manifest: Manifest | None) -> operations.Publish:
    """The request with what only the manifest says. A blank value counts as given."""
    if manifest is not None:
        found = {
            "name": manifest.agent_name,
            "backend": manifest.backend,
            "tool": manifest.tool,
            "session_name": manifest.session_name,
            "session_root": os.path.dirname(request.manifest_path),
            "agent_def_dir": manifest.agent_def_dir,
            "agent_id": manifest.agent_id,
            "generation_id": manifest.generation_id,
        }
        missing = {name: value for name, value in found.items() if getattr(request, name) is None}
        request = replace(request, **missing)
    for name, option in (
        ("name", "the argument NAME"),
        ("backend", "--backend"),
        ("tool", "--tool"),
    ):
        if getattr(request, name) is None:
            raise click.UsageError(
                f"{option} is missing: give it, or a --manifest that is there and says it"
            )
    return request


def _line(agent: Agent) -> str:
    return (
        f"{agent.agent_name} ({agent.agent_id}) is generation {agent.generation_id}'s until "
        f"{moment(agent.lease_expires_at)}, token {agent.token}"
    )


@agents.operation(operations.refresh, short_help="Extend the lease of a generation.")
def refresh(agent: Agent) -> str:
    """Extend the lease of an agent's generation from now.

    Exit status 4 when another has taken over: stand down.
    """
    return _line(agent)


@agents.operation(operations.remove, short_help="Remove a generation's record.")
def remove(done: operations.Removed) -> str:
    """Remove an agent's record, if it is this generation's.

    Exit status 4 when it is another's, 1 when there is none.
    """
    return f"removed {done.removed}"


@agents.command()
@request_options(operations.Cleanup)
@json_option
@store_options
def cleanup(request: operations.Cleanup, as_json: bool) -> int:
    """Remove what agents left behind, and say what was planned, removed, preserved and failed.

    It removes damaged records, records expired for longer than the grace, fresh records whose
    process is dead and whose tmux session is gone, folders without a record, and links in the place
    of such folders, but never what a link leads to. Each comes with its reason. Exit status 6 when
    something could not be removed.
    """
    with connected(create=not request.dry_run) as hf:
        report: CleanupReport = operations.cleanup(hf, request)
    if as_json:
        json_document(report)
    else:
        done = ("planned", report.planned) if report.dry_run else ("removed", report.removed)
        shown: list[tuple[str, Sequence[CleanupItem]]] = [
            done,
            ("preserved", report.preserved),
            ("failed", report.failed),
        ]
        rows = [
            [word, item.agent_id, item.why.value, item.detail or "-"]
            for word, found in shown
            for item in found
        ]
        table(["", "agent", "why", ""], rows, elastic=[""], empty="Nothing is left behind.")
    return status_of(Unavailable("")).exit if report.failed else 0
