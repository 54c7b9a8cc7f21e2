"""`holdfast agents start`: an agent in a new tmux session."""

import os
import shlex
import shutil
import sys
import time
from contextlib import suppress

import click

from holdfast.adapters.tmux import Tmux
from holdfast.app import Holdfast
from holdfast.configuration import default_store
from holdfast.domains.agents import Agent
from holdfast.domains.agents.names import canonical
from holdfast.domains.agents.owning import topic_of
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Collision, HoldfastError, InvalidValue, NotFound, Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import AGENT_START_S
from holdfast.surfaces.cli.agents.handing import handed, reading
from holdfast.surfaces.cli.agents.launch import Launch, Wish, command_of
from holdfast.surfaces.cli.agents.options import launch_options, name_argument, words_argument
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import answer

_CARRIED = ("PATH", "PYTHONPATH", "HOLDFAST_ACTOR", "HOLDFAST_HOST_ID", "XDG_STATE_HOME")


@click.command(short_help="Start a command as an agent in a new tmux session.")
@name_argument
@words_argument
@click.option("--tmux-session", "session_name", metavar="NAME", help="What to call it.  [default: as the agent]")
@launch_options
@store_options
def start(
    name: str,
    words: tuple[str, ...],
    session_name: str | None,
    agent_id: str | None,
    tool: str | None,
    session_root: str | None,
    agent_def_dir: str | None,
    lease_s: float | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Start a command as an agent in a new tmux session, in the background.

    \b
        holdfast agents start gpu -- claude
        tmux attach -t =HOLDFAST-gpu

    Its pane runs `holdfast agents run`, which keeps it resolvable and removes it when it ends. Returns once the command is
    published and about to begin; nothing is left behind when it cannot be started. Exit status 4 when the id or the tmux
    session is taken.
    """
    command = command_of(words, "start")
    if shutil.which(command[0]) is None:
        # Its pane would say so, and be gone before anybody could read it.
        raise InvalidValue(
            f"there is no command {shlex.quote(command[0])}: give a path, or one that is on your PATH", field="command"
        )
    with connected() as hf:
        if hf.store.kind == "memory":
            raise InvalidValue("an agent in tmux is another process, and cannot share a memory: store", field="store")
        session_name = canonical(name, hf.settings.agents.prefix) if session_name is None else session_name
        wish = Wish(
            name, command, agent_id, None, tool, session_name, session_root, agent_def_dir, lease_s, take_over=take_over
        )
        agent = _start(hf, Launch(hf, wish), wish, session_name)
    pid = "" if agent.holder is None else f", process {agent.holder.pid}"
    words_said = f"{agent.agent_name} runs in tmux session {session_name}{pid}: tmux attach -t ={session_name}"
    answer(to_json(agent) if as_json else words_said)


def _start(hf: Holdfast, launch: Launch, wish: Wish, session_name: str) -> Agent:
    if Tmux().liveness(session_name) is Liveness.ALIVE:
        raise Collision(
            f"there is a tmux session {session_name} already: choose another name with --tmux-session, or end it",
            session_name=session_name,
        )
    # Without a process yet. Whoever is refused is told here, and the pane resumes this generation as the process it is.
    reserved = launch.reserve(take_over=wish.take_over)
    try:
        launch.write_manifest()
        with handed(launch.root, _which_store(hf)) as path, hf.store.listen([topic_of(launch.agent_id)]) as ears:
            pane = reading(path, _pane(launch, wish))
            Tmux().start(session_name, pane, folder=os.getcwd(), environment=_environment(hf))
            deadline = time.monotonic() + AGENT_START_S
            while (left_s := deadline - time.monotonic()) > 0:
                if (agent := _came_up(hf, reserved, session_name)) is not None:
                    return agent
                ears.wait(left_s)
        raise Unavailable(
            f"{launch.name} did not come up within {AGENT_START_S:g} s: `tmux attach -t ={session_name}` shows why",
            outcome="unknown",
        )
    except BaseException:
        with suppress(HoldfastError):
            hf.agents.remove(reserved.agent_id, reserved.generation_id, token=reserved.token)
            launch.clear_away()
        raise


def _came_up(hf: Holdfast, reserved: Agent, session_name: str) -> Agent | None:
    """The record as the pane has published it; None while it has not. Raises Unavailable when it ended before."""
    lives = Tmux().liveness(session_name) is not Liveness.DEAD
    # Looked at after tmux: a pane publishes before it can end.
    with suppress(NotFound):
        agent = hf.agents.get(reserved.agent_id)
        if agent.token != reserved.token:
            return agent
        if lives:
            return None
    raise Unavailable(
        f"{reserved.agent_name} ended as soon as it had begun: see that its command stays, with `holdfast agents run`",
        outcome="none",
    )


def _pane(launch: Launch, wish: Wish) -> list[str]:
    """The command of the pane: the same agent, in the foreground."""
    options = {
        "--id": launch.agent_id,
        "--generation": launch.generation_id,
        "--tmux-session": wish.session_name,
        "--session-root": launch.root,
        "--tool": launch.tool,
        "--agent-def-dir": wish.agent_def_dir,
        "--lease": None if wish.lease_s is None else repr(wish.lease_s),
    }
    said = [word for option, value in options.items() if value is not None for word in (option, value)]
    program = [sys.executable, "-m", "holdfast.surfaces.cli.entry"]
    return [*program, "agents", "run", launch.name, *said, "--", *wish.command]


def _environment(hf: Holdfast) -> dict[str, str]:
    """What the tmux session must find as it is here: tmux gives it that of its server, which may be another's."""
    carried = {name: os.environ[name] for name in _CARRIED if os.environ.get(name)}
    # The URL of a server may have a password in it.
    return {**carried, **_which_store(hf)} if hf.store.embedded else carried


def _which_store(hf: Holdfast) -> dict[str, str]:
    store = hf.settings.store or default_store(os.environ)
    # By these libpq is told the rest, as the password that a URL should not have.
    more = {} if hf.store.embedded else {name: value for name, value in os.environ.items() if name.startswith("PG")}
    return {**more, "HOLDFAST_STORE": store, "HOLDFAST_NAMESPACE": hf.settings.namespace}
