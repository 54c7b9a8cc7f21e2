"""The adoption of an agent that a person started: what runs in a tmux session gets a manifest and a
record, and nothing of it is changed.
"""

import os
from contextlib import suppress

from holdfast.adapters.pane_owner import foreground_agent, mark_in, marked_by
from holdfast.adapters.profiles import (
    GENERIC,
    profile_for,
    profile_named,
    profiles_folder,
)
from holdfast.adapters.tmux import socket_path
from holdfast.adapters.tmux_pane import MARK, Screen, TmuxServer
from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.kernel.agent_profile import Profile
from holdfast.kernel.errors import Held, HoldfastError, InvalidValue, NotFound, Refused
from holdfast.kernel.holder import Holder, Liveness
from holdfast.runtime.agent_launch import Launch
from holdfast.runtime.connection import Holdfast

_SHELL = "shell"


def join_session(
    hf: Holdfast, session_name: str, *, name: str, tool: str | None, lease_s: float | None
) -> tuple[Agent, Profile]:
    """Publish the program in the foreground of a tmux session as an agent; return its record, and
    the profile of the tool that it is. Without `tool` its command's name says that.

    Raises NotFound without such a session, Held when another agent or gateway has it, InvalidValue
    when only a shell is in the foreground, Refused when the program cannot be seen, and what
    `Agents.publish` raises.
    """
    screen = TmuxServer(TmuxAddress(socket_path=socket_path())).screen(session_name)
    if screen is None:
        raise NotFound(
            f"there is no tmux session {session_name} on this tmux server: `tmux list-sessions` "
            "shows those that are",
            session_name=session_name,
        )
    _check_free(hf, session_name, screen)
    holder = _program(hf, session_name, screen)
    words = [
        word.decode("utf-8", "replace") for word in hf.processes.words(holder.pid).split(b"\0")
    ]
    command = words[:-1] or [holder.label]
    guessed = _guessed(command, holder.label)
    if tool is None and guessed.name == _SHELL:
        raise InvalidValue(
            f"only a shell, {holder.label}, is in the foreground of tmux session {session_name}: "
            "start the agent there first, or say --tool shell if the shell is the agent",
            field="tool",
        )
    chosen = guessed.name if tool is None and guessed.name != GENERIC else tool
    launch = Launch(
        hf,
        command,
        name=name,
        session_name=session_name,
        agent_id=None,
        tool=chosen,
        session_root=None,
        agent_def_dir=None,
        lease_s=lease_s,
        take_over=False,
        adapter={},
        folder=os.path.realpath(f"/proc/{holder.pid}/cwd"),
        hooked=False,
    )
    agent = launch.publish(holder)
    try:
        launch.write_manifest()
        launch.note(agent)
    except BaseException:
        with suppress(HoldfastError):
            hf.agents.remove(agent.agent_id, agent.generation_id, token=agent.token)
            launch.clear_away()
        raise
    return agent, launch.profile


def _check_free(hf: Holdfast, session_name: str, screen: Screen) -> None:
    """Raises Held when another agent, or the gateway of one, has the tmux session."""
    for other in hf.agents.in_tmux_session(session_name):
        alive = process_liveness(other, hf.processes, embedded=hf.store.embedded)
        if alive is not Liveness.DEAD:
            raise Held(
                f"{other.agent_name} is published in tmux session {session_name} already: use that "
                "agent, or stop it",
                agent_id=other.agent_id,
                session_name=session_name,
            )
    # The agent may be in another store, of which only the pane tells.
    mark = mark_in(screen.mark)
    if mark is not None and (alive := mark.liveness(hf.processes)) is not Liveness.DEAD:
        unmark = f"{screen.tmux} set-option -pu -t {screen.pane_id} {MARK}"
        raise marked_by(session_name, mark, alive, unmark)


def _program(hf: Holdfast, session_name: str, screen: Screen) -> Holder:
    """The agent's process: the one in the foreground of the session's first pane."""
    found = foreground_agent(screen, hf.processes)
    if found.process is None:
        raise Refused(
            f"tmux session {session_name} has no agent: {found.detail}", session_name=session_name
        )
    pid = int(found.process.partition(".")[0])
    try:
        holder = hf.processes.of(pid, screen.program)
    except NotFound:
        raise Refused(
            f"the program in tmux session {session_name} is just ending, or cannot be seen: try "
            "again",
            session_name=session_name,
        ) from None
    if pid == os.getpgrp() or holder.parts in {one.parts for one in hf.processes.ancestors()}:
        raise InvalidValue(
            f"this command itself is in the foreground of tmux session {session_name}: join it "
            "from another terminal",
            field="session_name",
        )
    return holder


def _guessed(command: list[str], program: str) -> Profile:
    """The profile of a tool by its command line: some tools are scripts of an interpreter, and a
    shell that runs a script is no shell to type into.
    """
    folder = profiles_folder(os.environ)
    runs_script = any(not word.startswith("-") for word in command[1:])
    for word in (program, *command[:2]):
        # A login shell is called -bash.
        found = profile_for([word.lstrip("-")], folder)
        if found.name != GENERIC and not (found.name == _SHELL and runs_script):
            return found
    return profile_named(GENERIC, folder)
