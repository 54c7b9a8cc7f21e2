"""`holdfast agents start`: an agent in a new tmux session."""

import os
import shlex
import shutil
import signal
import sys
from contextlib import closing, suppress
from typing import Annotated

import click

from holdfast.adapters.tmux import Ended, Pane, Tmux
from holdfast.domains.agents import Agent
from holdfast.domains.agents.ownership import topic_of
from holdfast.domains.agents.records import canonical
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import AgentEnded, Collision, HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import AGENT_MOMENT_S
from holdfast.operations.operation import Flag
from holdfast.processes.scan import MARK
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.runtime.configuration import default_store
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.agent_launch import Launch, LaunchAgent, command_of, words_argument
from holdfast.surfaces.cli.agent_startup import Startup
from holdfast.surfaces.cli.command import json_option, request_options
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import leftovers_option
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.pane_environment import ExitStatus, hand_over, reading_command
from holdfast.surfaces.cli.pane_program import OF_TERMINAL

_CARRIED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "HOLDFAST_ACTOR",
    "HOLDFAST_HOST_ID",
    "XDG_STATE_HOME",
)
"""What every window of the tmux session finds as it is here.

None of it is a secret, for `ps` shows it.
"""


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
            help="How long the command must have run before it is said to.",
        ),
    ] = AGENT_MOMENT_S


@click.command(short_help="Start a command as an agent in a new tmux session.")
@request_options(StartAgent)
@words_argument
@leftovers_option
@json_option
@store_options
def start(request: StartAgent, words: tuple[str, ...], leftovers: str, as_json: bool) -> None:
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
        if hf.store.ephemeral:
            raise InvalidValue(
                "an agent in tmux is another process, and cannot share a memory: store",
                field="store",
            )
        session_name = request.session_name
        if session_name is None:
            session_name = canonical(request.name, hf.settings.agents.prefix)
        launch = Launch(hf, request, command, session_name=session_name)
        agent = _start(hf, launch, request, command, session_name, leftovers)
    pid = "" if agent.holder is None else f", process {agent.holder.pid}"
    runs = f"{agent.agent_name} runs in tmux session {session_name}{pid}"
    runs = f"{runs}: tmux attach -t ={session_name}"
    answer(to_json(agent) if as_json else runs)


def _start(
    hf: Holdfast,
    launch: Launch,
    request: StartAgent,
    command: list[str],
    session_name: str,
    leftovers: str,
) -> Agent:
    if Tmux().liveness(session_name) is Liveness.ALIVE:
        raise Collision(
            f"there is a tmux session {session_name} already: choose another name with "
            "--tmux-session, or end it",
            session_name=session_name,
        )
    # Without a process yet. Whoever is refused is told here, and the pane resumes this generation
    # as the process it is.
    reserved = launch.reserve()
    tmux, pane = Tmux(), None
    try:
        launch.write_manifest()
        with closing(ExitStatus(launch.root)) as told:
            with (
                hand_over(_handed_environment(hf), launch.root) as path,
                hf.store.listen([topic_of(launch.agent_id)]) as ears,
            ):
                inside = _pane_command(launch, request, command, session_name, leftovers, told.path)
                pane = tmux.start(
                    session_name,
                    reading_command(path, inside),
                    folder=os.getcwd(),
                    environment=_session_environment(hf),
                )
                agent = Startup(hf, tmux, pane, reserved).outlived(ears, request.watch_s)
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


def _pane_command(
    launch: Launch,
    request: StartAgent,
    command: list[str],
    session_name: str,
    leftovers: str,
    exit_status_to: str,
) -> list[str]:
    """The command of the pane: the same agent, in the foreground."""
    options = {
        "--id": launch.agent_id,
        "--generation": launch.generation_id,
        "--tmux-session": session_name,
        "--session-root": launch.root,
        "--tool": launch.tool,
        "--agent-def-dir": request.agent_def_dir,
        "--lease": None if request.lease_s is None else repr(request.lease_s),
        "--leftovers": leftovers,
        "--exit-status-to": exit_status_to,
    }
    said = [
        word for option, value in options.items() if value is not None for word in (option, value)
    ]
    program = [sys.executable, "-m", "holdfast.surfaces.cli.entry"]
    return [*program, "agents", "run", launch.name, *said, *request.tmux.words(), "--", *command]


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
