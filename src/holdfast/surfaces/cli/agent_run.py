"""`holdfast agents run`: a command as an agent, which stays resolvable as long as it runs."""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import click

from holdfast.adapters.tmux import Tmux, own_screen
from holdfast.domains.agents import Agent
from holdfast.domains.agents.renewal import AgentRenewal
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, LeaseLost, Lost, NotFound, status_of
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.limits import AGENT_SCREEN_LINES
from holdfast.operations.agents import (
    GENERATION_VARIABLE,
    DefDir,
    IdOption,
    LeaseSeconds,
    SessionRoot,
    TakeOver,
)
from holdfast.operations.operation import Flag, Positional, Request
from holdfast.processes.command import Command
from holdfast.processes.signals import Interrupted
from holdfast.runtime.agent_launch import Launch, tool_program
from holdfast.runtime.agent_pane import exit_status_reporter
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import Claim, Custody
from holdfast.surfaces.cli.command import json_option, options_of, request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.custody import CustodyOptions, attended
from holdfast.surfaces.cli.gateway_serve import TmuxSettings
from holdfast.surfaces.cli.lock_run import LossPolicy
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.store_options import store_options

words_argument = click.argument(
    "words", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED
)


class LaunchAgent(Request, frozen=True, kw_only=True):
    """What `run` and `start` have in common."""

    name: Annotated[str, Positional()]
    agent_id: IdOption = None
    tool: Annotated[
        str | None,
        Flag(
            "--tool",
            metavar="NAME",
            help="Which tool the agent is: the name of a profile, such as claude.  "
            "[default: by the command's name]",
        ),
    ] = None
    session_root: SessionRoot = None
    agent_def_dir: DefDir = None
    lease_s: LeaseSeconds = None
    take_over: TakeOver = False
    tmux: TmuxSettings = TmuxSettings()

    def launch(
        self,
        hf: Holdfast,
        command: list[str],
        session_name: str | None,
        **more: Any,
    ) -> Launch:
        """The agent of this request; `more` is what Launch takes beside it. Raises InvalidName and
        InvalidValue.
        """
        return Launch(
            hf,
            command,
            name=self.name,
            session_name=session_name,
            agent_id=self.agent_id,
            tool=self.tool,
            session_root=self.session_root,
            agent_def_dir=self.agent_def_dir,
            lease_s=self.lease_s,
            take_over=self.take_over,
            adapter=self.tmux.in_manifest(),
            **more,
        )


def command_of(words: tuple[str, ...], tool: str | None, verb: str) -> list[str]:
    """The command's words; without any, the program of the tool. Raises UsageError when there is
    neither, and NotFound for an unknown tool.
    """
    program = () if words or tool is None else tool_program(tool)
    if not words and not program:
        raise click.UsageError(f"no command is given: say `holdfast agents {verb} NAME -- COMMAND`")
    return list(words or program)


class RunAgent(LaunchAgent, frozen=True, kw_only=True):
    """The agent that a command is."""

    session_name: Annotated[
        str | None,
        Flag(
            "--tmux-session",
            metavar="NAME",
            help="The tmux session it runs in.  [default: the one around it]",
        ),
    ] = None
    generation_id: Annotated[
        str | None,
        Flag("--generation", metavar="ID", help="Resume this generation instead of a new one."),
    ] = None
    on_lost: Annotated[
        LossPolicy,
        Flag(
            "--on-lost",
            show_default=True,
            help="What to do with the command when another takes the id over: end it with SIGTERM, "
            "or nothing.",
        ),
    ] = "term"


@click.command(short_help="Run a command as an agent, and keep it resolvable.")
@request_options(RunAgent)
@words_argument
@click.option("--exit-status-to", hidden=True, help="For `start`: the FIFO for the exit status.")
@click.option("--resume", hidden=True, help="For `restart`: the conversation to go on with.")
@click.option("--started-by", hidden=True, help="For `start`: the agent that starts it.")
@options_of(CustodyOptions)
@json_option
@store_options
def run(
    request: RunAgent,
    words: tuple[str, ...],
    exit_status_to: str | None,
    resume: str | None,
    started_by: str | None,
    leftovers: str,
    as_json: bool,
) -> int:
    """Run a command in the foreground as an agent, and exit as it does.

    \b
        holdfast agents run gpu -- claude
        holdfast agents run gpu --lease 600 -- ./agent.sh

    It is published before the command begins, with the command's process tree as the holder,
    refreshed at a third of the lease, and removed when the last process of the tree ends;
    --leftovers says what is done about processes that the command leaves. Only the command itself
    is the agent: once it has ended, nothing is typed to it any more. If this process is killed, the
    record stays until its lease is over, or until the tree is dead and the tmux session gone: then
    the next one takes over at once.

    The command finds HOLDFAST_AGENT_ID, HOLDFAST_AGENT_NAME, HOLDFAST_AGENT_GENERATION,
    HOLDFAST_AGENT_TOKEN and HOLDFAST_AGENT_MANIFEST in its environment. --json prints the record
    on stderr. Signals are forwarded. Exit status: the command's, 128+N when signal N ended it, 126
    or 127 when it cannot be run, 4 when another has the id or took it over.
    """
    command = command_of(words, request.tool, "run")
    session_name = Tmux().current() if request.session_name is None else request.session_name
    launching = partial(
        request.launch,
        command=command,
        session_name=session_name,
        generation_id=request.generation_id,
        leftovers=leftovers,
        conversation=resume,
        own_session=exit_status_to is not None,
        started_by=started_by,
    )
    with exit_status_reporter(exit_status_to) as report:
        status = attended(
            command,
            partial(_as_agent, request, launching, as_json, report),
            unbegun="no agent was published",
            undone="the agent was removed",
            leftovers=leftovers,
        )
        report(status)
    return status


def _as_agent(
    request: RunAgent,
    launching: Callable[[Holdfast], Launch],
    as_json: bool,
    report: Callable[[int], None],
    custody: Custody,
) -> int:
    with connected() as hf:
        launch = launching(hf)
        holder = custody.holder(hf)
        try:
            agent = launch.publish(holder)
        except Interrupted:
            _withdraw(hf, launch.agent_id, holder)
            raise
        launch.note(agent)
        ending = _Ending(hf, launch, agent, report)
        try:
            # Not before it is known whose it is: in a folder that the user named, this replaces the
            # last one's.
            tool = launch.prepare()
            custody.command.become(tool.command)
            launch.write_manifest()
            if as_json:
                click.echo(to_json(agent), err=True)
            return _kept(hf, agent, launch, tool.environment, request, custody, ending)
        finally:
            custody.drop_signals()
            ending.note()
            if not custody.kept:
                _remove(hf, agent)
                launch.clear_away()


def _kept(
    hf: Holdfast,
    agent: Agent,
    launch: Launch,
    tool: Mapping[str, str],
    request: RunAgent,
    custody: Custody,
    on_end: Callable[[int], None],
) -> int:
    lease_s = hf.settings.agents.lease_s if request.lease_s is None else request.lease_s
    loss = _TakeOver(hf, agent, custody.command, request.on_lost)
    keeping = AgentRenewal(hf.agents, agent, lease_s=request.lease_s, on_lost=loss)
    claim = Claim(
        kind="agent",
        token=agent.token,
        lease_s=lease_s,
        name=agent.agent_id,
        generation_id=agent.generation_id,
        by_lease=True,
        ends_when_lost=request.on_lost == "term",
    )
    environment = {
        **tool,
        "HOLDFAST_AGENT_ID": agent.agent_id,
        "HOLDFAST_AGENT_NAME": agent.agent_name,
        GENERATION_VARIABLE: agent.generation_id,
        "HOLDFAST_AGENT_TOKEN": str(agent.token),
        "HOLDFAST_AGENT_MANIFEST": launch.manifest_path,
    }
    try:
        status = custody.run(hf, environment, claim, on_end=on_end)
    finally:
        custody.drop_signals()
        keeping.close()
    return status_of(LeaseLost("")).exit if loss.happened else status


class _Ending:
    """The end of an agent. Called with the exit status as soon as the command has ended, while its
    screen is still there.
    """

    def __init__(
        self, hf: Holdfast, launch: Launch, agent: Agent, report: Callable[[int], None]
    ) -> None:
        self._hf = hf
        self._agent = agent
        # What scrolled off in a person's own pane is not the agent's.
        self._lines = AGENT_SCREEN_LINES if launch.own_session else 0
        self._report = report
        self._status: int | None = None
        self._screen = ""

    def __call__(self, status: int) -> None:
        self._status = status
        if self._agent.session_name is not None:
            self._screen = own_screen(self._lines)
        self._report(status)

    def note(self) -> None:
        """Keep it. Without a store it is only missed."""
        with suppress(HoldfastError):
            self._hf.agents.note_end(self._agent, self._status, self._screen)


class _TakeOver:
    """Says that another agent has the id, and ends the command unless --on-lost is ignore."""

    def __init__(self, hf: Holdfast, agent: Agent, command: Command, on_lost: LossPolicy) -> None:
        self._hf = hf
        self._agent = agent
        self._command = command
        self._term = on_lost == "term"
        self.happened = False

    def __call__(self) -> None:
        # A tree that has ended is a dead holder, whose id the next may take before this process can
        # remove it. That is no loss.
        if self._command.ended() and not self._tree_lives():
            return
        self.happened = True
        remark(f"{self._agent.agent_name} is another generation's by now: this one has lost it")
        if not self._term:
            return
        if self._command.ended():
            # Only processes that it left are there.
            self._command.end_tree()
        else:
            self._command.send(signal.SIGTERM)

    def _tree_lives(self) -> bool:
        return (
            self._hf.processes.trees.liveness(self._command.tree, in_sight=True) is Liveness.ALIVE
        )


def _remove(hf: Holdfast, agent: Agent) -> None:
    try:
        with suppress(NotFound, Lost):
            hf.agents.remove(agent.agent_id, agent.generation_id, token=agent.token)
    except HoldfastError as error:
        # The command has ended, and this must not hide its exit status.
        remark(
            f"{error.message}. The record ends with its lease, or when the next one finds its "
            "process dead"
        )


def _withdraw(hf: Holdfast, agent_id: str, holder: Holder) -> None:
    """Remove what may have been published just before a signal came: its process never becomes the
    command.
    """
    with suppress(HoldfastError):
        agent = hf.agents.get(agent_id)
        if agent.holder == holder:
            hf.agents.remove(agent_id, agent.generation_id, token=agent.token)
