"""`holdfast agents run`: a command as an agent, which stays resolvable as long as it runs."""

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import click

from holdfast.adapters.tmux import Tmux
from holdfast.domains.agents import Agent
from holdfast.domains.agents.renewal import AgentRenewal
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, LeaseLost, Lost, NotFound, status_of
from holdfast.kernel.holder import Holder, Liveness
from holdfast.processes.command import Claim, Command
from holdfast.processes.signals import Interrupted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.agents.handing import told
from holdfast.surfaces.cli.agents.launch import Launch, Wish, command_of
from holdfast.surfaces.cli.agents.options import (
    GENERATION_VARIABLE,
    launch_options,
    name_argument,
    words_argument,
)
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import Custody, attended
from holdfast.surfaces.cli.locks.losing import ON_LOST
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.tmux_options import manifest_settings


@click.command(short_help="Run a command as an agent, and keep it resolvable.")
@name_argument
@words_argument
@click.option(
    "--tmux-session",
    "session_name",
    metavar="NAME",
    help="The tmux session it runs in.  [default: the one around it]",
)
@click.option(
    "--generation",
    "generation_id",
    metavar="ID",
    help="Resume this generation instead of a new one.",
)
@click.option(
    "--on-lost",
    type=click.Choice(ON_LOST),
    default=ON_LOST[0],
    show_default=True,
    help=(
        "What to do with the command when another takes the id over: end it with SIGTERM, or "
        "nothing."
    ),
)
@click.option(
    "--exit-status-to",
    "told_to",
    hidden=True,
    help="For `start`: the FIFO to tell the exit status by.",
)
@launch_options
@store_options
def run(
    name: str,
    words: tuple[str, ...],
    session_name: str | None,
    generation_id: str | None,
    agent_id: str | None,
    tool: str | None,
    session_root: str | None,
    agent_def_dir: str | None,
    lease_s: float | None,
    on_lost: str,
    take_over: bool,
    leftovers: str,
    told_to: str | None,
    as_json: bool,
    **adapter: Any,
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
    HOLDFAST_AGENT_TOKEN and HOLDFAST_AGENT_MANIFEST in its environment. --json tells of the record
    on stderr. Signals are passed on. Exit status: the command's, 128+N when signal N ended it, 126
    or 127 when it cannot be run, 4 when another has the id or took it over.
    """
    command = command_of(words, "run")
    session_name = Tmux().current() if session_name is None else session_name
    wish = Wish(
        name,
        command,
        agent_id,
        generation_id,
        tool,
        session_name,
        session_root,
        agent_def_dir,
        lease_s,
        take_over=take_over,
        adapter=manifest_settings(adapter),
        leftovers=leftovers,
    )
    with told(told_to) as tell:
        attend = partial(_as_agent, wish, on_lost=on_lost, as_json=as_json, tell=tell)
        undone = "the agent was removed"
        status = attended(
            command, attend, unbegun="no agent was published", undone=undone, leftovers=leftovers
        )
        tell(status)
    return status


def _as_agent(
    wish: Wish, custody: Custody, *, on_lost: str, as_json: bool, tell: Callable[[int], None]
) -> int:
    with connected() as hf:
        launch = Launch(hf, wish)
        holder = custody.holder(hf)
        try:
            agent = launch.publish(holder, take_over=wish.take_over)
        except Interrupted:
            _withdraw(hf, launch.agent_id, holder)
            raise
        try:
            # Not before it is known whose it is: in a folder that the user named, this replaces the
            # last one's.
            launch.write_manifest()
            if as_json:
                click.echo(to_json(agent), err=True)
            return _kept(hf, agent, launch, custody, wish.lease_s, on_lost, tell)
        finally:
            custody.drop_signals()
            if not custody.kept:
                _remove(hf, agent)
                launch.clear_away()


def _kept(
    hf: Holdfast,
    agent: Agent,
    launch: Launch,
    custody: Custody,
    lease_s: float | None,
    on_lost: str,
    tell: Callable[[int], None],
) -> int:
    losing = _Losing(hf, agent, custody.command, on_lost)
    keeping = AgentRenewal(hf.agents, agent, lease_s=lease_s, on_lost=losing)
    try:
        status = custody.run(
            hf, _environment(agent, launch), _claim(hf, agent, lease_s, on_lost), on_end=tell
        )
    finally:
        custody.drop_signals()
        keeping.close()
    return status_of(LeaseLost("")).exit if losing.told else status


class _Losing:
    """Says that another has taken over, and ends the command unless it is to be left alone."""

    def __init__(self, hf: Holdfast, agent: Agent, command: Command, on_lost: str) -> None:
        self._hf = hf
        self._agent = agent
        self._command = command
        self._term = on_lost == "term"
        self.told = False

    def __call__(self) -> None:
        # A tree that has ended is a dead holder, whose id the next may take before this process can
        # remove it. That is no loss.
        if self._command.ended() and not self._tree_lives():
            return
        self.told = True
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
        # The command has ended, and what came of it must not be hidden by this.
        remark(
            f"{error.message}. The record ends with its lease, or when the next one finds its "
            "process dead"
        )


def _withdraw(hf: Holdfast, agent_id: str, holder: Holder) -> None:
    """Take out what may have been published just before a signal ended it; its process never
    becomes the command.
    """
    with suppress(HoldfastError):
        agent = hf.agents.get(agent_id)
        if agent.holder == holder:
            hf.agents.remove(agent_id, agent.generation_id, token=agent.token)


def _claim(hf: Holdfast, agent: Agent, lease_s: float | None, on_lost: str) -> Claim:
    return Claim(
        kind="agent",
        token=agent.token,
        lease_s=hf.settings.agents.lease_s if lease_s is None else lease_s,
        name=agent.agent_id,
        generation_id=agent.generation_id,
        by_lease=True,
        ends_when_lost=on_lost == "term",
    )


def _environment(agent: Agent, launch: Launch) -> dict[str, str]:
    return {
        "HOLDFAST_AGENT_ID": agent.agent_id,
        "HOLDFAST_AGENT_NAME": agent.agent_name,
        GENERATION_VARIABLE: agent.generation_id,
        "HOLDFAST_AGENT_TOKEN": str(agent.token),
        "HOLDFAST_AGENT_MANIFEST": launch.manifest_path,
    }
