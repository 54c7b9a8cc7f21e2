"""The restart of an agent: the same command in the same folder, and the same conversation where the
tool can go on with it.
"""

import os
import shutil
from pathlib import Path

from holdfast.adapters.agent_runs import last_conversation
from holdfast.adapters.profiles import profile_for, profile_named, profiles_folder
from holdfast.adapters.tmux import Tmux, socket_path
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import run_by_gateway
from holdfast.domains.agents.runs import AgentConversation, AgentRun, RestartedAgent
from holdfast.kernel.agent_profile import Profile
from holdfast.kernel.errors import AgentEnded, Collision, InvalidValue, NotFound, Refused
from holdfast.kernel.holder import Liveness
from holdfast.runtime.agent_launch import Launch
from holdfast.runtime.agent_pane import start_in_tmux
from holdfast.runtime.agent_stop import stop_agent
from holdfast.runtime.connection import Holdfast


def restart_agent(
    hf: Holdfast,
    asked: str,
    *,
    fresh: bool,
    conversation: str | None,
    grace_s: float,
    watch_s: float,
) -> RestartedAgent:
    """Stop an agent, if it runs, and start it again as it was started, with the environment of this
    process. It goes on with `conversation`, or else the one that its tool reported last; with
    `fresh` it begins a new one.

    Everything is checked before the agent is stopped. Raises NotFound where nothing is known of its
    start, InvalidValue when it cannot be repeated, Refused when its conversation would be lost,
    Collision when its tmux session is another program's, AgentEnded when it ends at once, and what
    `stop_agent` and `start_in_tmux` raise.
    """
    run = _noted_run(hf, asked)
    profile = _profile(run)
    _check_command(run)
    if run_by_gateway(run.agent):
        # Loaded here, as it brings the client of gateways.
        from holdfast.runtime.agent_unattended import restart_unattended

        return restart_unattended(hf, run, fresh=fresh, conversation=conversation, grace_s=grace_s)
    session_name = run.agent.agent_name
    if run.own_session and run.agent.session_name is not None:
        session_name = run.agent.session_name
    server_path = _server_path(run)
    server = None if server_path is None else TmuxAddress(socket_path=server_path)
    if not run.own_session and Tmux(server=server).liveness(session_name) is Liveness.ALIVE:
        raise Collision(
            f"there is a tmux session {session_name} that was not made for {run.agent.agent_name}: "
            "rename it, since the agent gets one of this name",
            session_name=session_name,
        )
    if conversation is not None and not profile.launch.resume:
        raise InvalidValue(
            f"{profile.name} cannot go on with a conversation: leave --conversation out",
            field="conversation",
        )
    unknown = not run.hooked and _conversation(run) is None
    if profile.launch.resume and unknown and not fresh and conversation is None:
        raise Refused(
            f"the conversation of {run.agent.agent_name} is not known, since it was started "
            "without hooks: name it with --conversation, or begin a new one with --fresh",
            agent_id=run.agent.agent_id,
        )
    stop_agent(hf, run.agent.agent_id, grace_s=grace_s)
    # Read again: its end may have said more.
    run = hf.agents.last_run(run.agent.agent_id) or run
    resumed, why = conversation, ""
    if conversation is None:
        resumed, why = _resumed(run, profile, fresh=fresh)
    chosen = run.choices
    launch = Launch(
        hf,
        list(run.command),
        name=run.agent.agent_name,
        session_name=session_name,
        agent_id=run.agent.agent_id,
        tool=chosen.tool,
        session_root=chosen.session_root,
        agent_def_dir=chosen.agent_def_dir,
        lease_s=chosen.lease_s,
        take_over=False,
        adapter=chosen.adapter,
        leftovers=chosen.leftovers,
        folder=run.working_directory,
        conversation=resumed,
        own_session=True,
        server_path=server_path,
        started_by=run.started_by,
    )
    try:
        agent = start_in_tmux(hf, launch, watch_s=watch_s)
    except AgentEnded as error:
        if resumed is None:
            raise
        raise AgentEnded(
            f"{error.message}\nIt was to go on with conversation {resumed}: --fresh begins a new "
            "one",
            **error.fields,
        ) from None
    return RestartedAgent(agent=agent, conversation=resumed, why=why)


def _noted_run(hf: Holdfast, asked: str) -> AgentRun:
    run = hf.agents.last_run(asked)
    record = hf.agents.resolve(asked).record
    if run is not None and record is not None:
        # Somebody else has published it since.
        run = run if run.agent.generation_id == record.generation_id else None
    if run is not None:
        return run
    if record is None:
        hf.agents.get(hf.agents.resolve(asked).known_id())
    raise NotFound(
        f"nothing is known here of how {asked} was started: it was started by another user, or not "
        "by `holdfast agents start`, `run` or `join`",
        asked=asked,
    )


def _profile(run: AgentRun) -> Profile:
    folder = profiles_folder(os.environ)
    if run.choices.tool is not None:
        return profile_named(run.choices.tool, folder)
    return profile_for(run.command or ("",), folder)


def _check_command(run: AgentRun) -> None:
    """Raises InvalidValue when the command cannot be run again."""
    name = run.agent.agent_name
    if not run.command:
        raise InvalidValue(
            f"the command of {name} is not UTF-8, so it was not kept: use `holdfast agents start`",
            field="command",
        )
    if not os.path.isdir(run.working_directory):
        raise InvalidValue(
            f"{name} worked in {run.working_directory}, which is gone: make it again, or use "
            "`holdfast agents start` in another folder",
            field="working_directory",
        )
    program = run.command[0]
    if os.sep in program:
        program = os.path.join(run.working_directory, program)
    if shutil.which(program) is None:
        raise InvalidValue(
            f"{name} was started as {run.command[0]}, which is no command any more: install it, or "
            "put it on your PATH",
            field="command",
        )


def _server_path(run: AgentRun) -> str | None:
    """The socket of the tmux server that the agent was in; None for the one around this process,
    and where that one can never run again.
    """
    path = run.socket_path
    if path is None or path == socket_path() or not os.path.isdir(os.path.dirname(path)):
        return None
    return path


def _conversation(run: AgentRun) -> AgentConversation | None:
    """The last conversation that the tool reported: in its own folder, if that is still there."""
    root = run.agent.runtime.session_root
    return (None if root is None else last_conversation(root)) or run.conversation


def _resumed(run: AgentRun, profile: Profile, *, fresh: bool) -> tuple[str | None, str]:
    """The conversation to go on with; else None, and why."""
    if fresh:
        return None, "as asked"
    if not profile.launch.resume:
        return None, f"{profile.name} cannot go on with one"
    found = _conversation(run)
    if found is None:
        return None, "none was reported"
    # A tool that was asked nothing yet has kept nothing.
    if found.transcript and not Path(found.transcript).exists():
        return None, "in the last one nothing was said"
    return found.session_id, ""
