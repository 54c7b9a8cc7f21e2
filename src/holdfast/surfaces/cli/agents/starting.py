"""`holdfast agents start`: an agent in a new tmux session."""

import os
import shlex
import shutil
import signal
import sys
from contextlib import closing, suppress
from typing import Any

import click

from holdfast.adapters.tmux import Ended, Pane, Tmux
from holdfast.domains.agents import Agent
from holdfast.domains.agents.ownership import topic_of
from holdfast.domains.agents.records import canonical
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import AgentEnded, Collision, HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import AGENT_MOMENT_S
from holdfast.processes.scan import MARK
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.runtime.configuration import default_store
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.agents.handing import ExitStatus, handed, reading
from holdfast.surfaces.cli.agents.launch import Launch, Wish, command_of
from holdfast.surfaces.cli.agents.options import launch_options, name_argument, words_argument
from holdfast.surfaces.cli.agents.pane_program import OF_TERMINAL
from holdfast.surfaces.cli.agents.start_watch import StartWatch
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import no_less_than_nothing
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.tmux_options import manifest_settings, words_of

_CARRIED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "HOLDFAST_ACTOR",
    "HOLDFAST_HOST_ID",
    "XDG_STATE_HOME",
)
"""What every window of the tmux session finds as it is here. None of it is a secret, for `ps` shows
it.
"""


@click.command(short_help="Start a command as an agent in a new tmux session.")
@name_argument
@words_argument
@click.option(
    "--tmux-session",
    "session_name",
    metavar="NAME",
    help="What to call it.  [default: as the agent]",
)
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=AGENT_MOMENT_S,
    show_default=True,
    callback=no_less_than_nothing,
    help="How long the command must have run before it is said to.",
)
@launch_options
@store_options
def start(
    name: str,
    words: tuple[str, ...],
    session_name: str | None,
    watch_s: float,
    agent_id: str | None,
    tool: str | None,
    session_root: str | None,
    agent_def_dir: str | None,
    lease_s: float | None,
    take_over: bool,
    leftovers: str,
    as_json: bool,
    **adapter: Any,
) -> None:
    """Start a command as an agent in a new tmux session, in the background.

    \b
        holdfast agents start gpu -- claude
        holdfast agents start gpu --interrupt-key Escape -- claude
        tmux attach -t =HOLDFAST-gpu

    Its pane, 200x50, runs `holdfast agents run`, which keeps it resolvable and removes it when it
    ends. The command gets the environment of this one. What is said by --ready-regex,
    --interrupt-key and the like goes into its manifest, for its gateway.

    Returns once the command has run for a second (--watch). When it ends before, its exit status
    and last screen are told, processes that it left are ended, and the exit status is 1. It is 4
    when the id or the tmux session is taken.
    """
    command = command_of(words, "start")
    if shutil.which(command[0]) is None:
        # Its pane would say so, and be gone before anybody could read it.
        raise InvalidValue(
            f"there is no command {shlex.quote(command[0])}: give a path, or one that is on your "
            "PATH",
            field="command",
        )
    with connected() as hf:
        if hf.store.kind == "memory":
            raise InvalidValue(
                "an agent in tmux is another process, and cannot share a memory: store",
                field="store",
            )
        session_name = (
            canonical(name, hf.settings.agents.prefix) if session_name is None else session_name
        )
        wish = Wish(
            name,
            command,
            agent_id,
            None,
            tool,
            session_name,
            session_root,
            agent_def_dir,
            lease_s,
            take_over=take_over,
            adapter=manifest_settings(adapter),
            leftovers=leftovers,
        )
        agent = _start(hf, Launch(hf, wish), wish, session_name, watch_s)
    pid = "" if agent.holder is None else f", process {agent.holder.pid}"
    words_said = (
        f"{agent.agent_name} runs in tmux session {session_name}{pid}: tmux attach -t "
        f"={session_name}"
    )
    answer(to_json(agent) if as_json else words_said)


def _start(hf: Holdfast, launch: Launch, wish: Wish, session_name: str, watch_s: float) -> Agent:
    if Tmux().liveness(session_name) is Liveness.ALIVE:
        raise Collision(
            f"there is a tmux session {session_name} already: choose another name with "
            "--tmux-session, or end it",
            session_name=session_name,
        )
    # Without a process yet. Whoever is refused is told here, and the pane resumes this generation
    # as the process it is.
    reserved = launch.reserve(take_over=wish.take_over)
    tmux, pane = Tmux(), None
    try:
        launch.write_manifest()
        with closing(ExitStatus(launch.root)) as told:
            with (
                handed(_handed_environment(hf), launch.root) as path,
                hf.store.listen([topic_of(launch.agent_id)]) as ears,
            ):
                command = reading(path, _pane_command(launch, wish, told.path))
                pane = tmux.start(
                    session_name, command, folder=os.getcwd(), environment=_session_environment(hf)
                )
                agent = StartWatch(hf, tmux, pane, reserved).outlived(ears, watch_s)
            if agent is None:
                raise _ended(reserved, tmux, pane, told.read())
        return agent
    except AgentEnded:
        # Whoever removes it was perhaps killed with it.
        with suppress(HoldfastError):
            hf.agents.remove(reserved.agent_id, reserved.generation_id)
        launch.clear_away()
        raise
    except BaseException:
        with suppress(HoldfastError):
            if pane is not None:
                tmux.leave(pane)
            hf.agents.remove(reserved.agent_id, reserved.generation_id, token=reserved.token)
            launch.clear_away()
        raise


def _ended(reserved: Agent, tmux: Tmux, pane: Pane, status: int | None) -> AgentEnded:
    """What to say of an agent that has ended, with the exit status that its pane told; that is
    removed.
    """
    try:
        ended = tmux.remove(pane)
    except Unavailable:
        ended = Ended(None, "")
    status = ended.status if status is None else status
    how = "nobody knows how" if status is None else f"with exit status {status}"
    if status is not None and status > EXIT_SIGNALLED:
        with suppress(ValueError):
            how = f"{how} ({signal.Signals(status - EXIT_SIGNALLED).name})"
    advice = "An agent's command must stay in the foreground. " if status == 0 else ""
    seen = f"Its last screen:\n{ended.screen}" if ended.screen.strip() else "Its screen was empty"
    return AgentEnded(
        f"{reserved.agent_name} ended as soon as it had begun, {how}. Its record and tmux session "
        f"are removed. {advice}{seen}",
        agent_id=reserved.agent_id,
        exit_status=status,
        screen=ended.screen,
    )


def _pane_command(launch: Launch, wish: Wish, told_to: str) -> list[str]:
    """The command of the pane: the same agent, in the foreground."""
    options = {
        "--id": launch.agent_id,
        "--generation": launch.generation_id,
        "--tmux-session": wish.session_name,
        "--session-root": launch.root,
        "--tool": launch.tool,
        "--agent-def-dir": wish.agent_def_dir,
        "--lease": None if wish.lease_s is None else repr(wish.lease_s),
        "--leftovers": wish.leftovers,
        "--exit-status-to": told_to,
    }
    said = [
        word for option, value in options.items() if value is not None for word in (option, value)
    ]
    program = [sys.executable, "-m", "holdfast.surfaces.cli.entry"]
    return [
        *program,
        "agents",
        "run",
        launch.name,
        *said,
        *words_of(wish.adapter),
        "--",
        *wish.command,
    ]


def _session_environment(hf: Holdfast) -> dict[str, str]:
    """What every window of the tmux session must find as it is here: tmux gives it that of its
    server.
    """
    carried = {name: os.environ[name] for name in _CARRIED if os.environ.get(name)}
    # The URL of a server may have a password in it.
    return {**carried, **_which_store(hf)} if hf.store.embedded else carried


def _handed_environment(hf: Holdfast) -> dict[bytes, bytes]:
    """What the agent finds: the environment of this process, but for what tells of its terminal;
    and the chosen store.

    The mark of custody is left out: the pane is no part of the process tree that this command runs
    in, and goes on after it.
    """
    left_out = {*OF_TERMINAL, MARK.encode()}
    around = {name: value for name, value in os.environb.items() if name and name not in left_out}
    return {
        **around,
        **{name.encode(): os.fsencode(value) for name, value in _which_store(hf).items()},
    }


def _which_store(hf: Holdfast) -> dict[str, str]:
    store = hf.settings.store or default_store(os.environ)
    return {"HOLDFAST_STORE": store, "HOLDFAST_NAMESPACE": hf.settings.namespace}
