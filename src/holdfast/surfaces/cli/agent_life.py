"""`holdfast agents`: how agents end, start again, are looked at, and are adopted."""

import os
import sys
from typing import Annotated

from holdfast.adapters.tmux import address_of
from holdfast.domains.agents.records import bare
from holdfast.domains.agents.runs import AgentExit, RestartedAgent, StoppedAgent
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidName, InvalidValue, Unavailable
from holdfast.kernel.names import check_agent_name
from holdfast.operations import agents as operations
from holdfast.operations.agent_key import AgentKey
from holdfast.operations.operation import Flag, Positional, Request
from holdfast.runtime.agent_screen import AgentScreen, running_target
from holdfast.surfaces.cli.command import CommandGroup, json_option, request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.output import answer, remark
from holdfast.surfaces.cli.render import moment
from holdfast.surfaces.cli.store_options import store_options

life = CommandGroup()
"""The commands of this module, for the group `agents`."""


def exit_text(exited: AgentExit) -> str:
    """How an agent ended, in words."""
    if exited.ended_at is None:
        return "exited, unknown how"
    how = "" if exited.exit_status is None else f" {exited.exit_status}"
    return f"exited{how}"


@life.operation(operations.stop, short_help="End an agent, its processes and its tmux session.")
def stop(done: StoppedAgent) -> str:
    """End an agent: its process is asked to (SIGTERM, or SIGHUP where it ignores that), then all
    processes that it left and the tmux session that was made for it are ended.

    Only what is verified to be this agent's is touched; exit status 4 where that is not certain. An
    agent that has ended is no error: how it ended is said.
    """
    how = exit_text(done.exited)
    if not done.was_running:
        return f"{done.agent_name} does not run: it {how}"
    forced = ", killed after the grace" if done.killed else ""
    session = {
        "ended": "; its tmux session is ended",
        "left": "; the tmux session was not made for it, and stays",
        "none": "",
    }[done.tmux_session]
    return f"stopped {done.agent_name}: it {how}{forced}{session}"


@life.operation(operations.restart, short_help="Start an agent again, with the same conversation.")
def restart(done: RestartedAgent) -> str:
    """End an agent, if it runs, and start it again: the same command, folder and tmux session, and
    the environment of this command.

    \b
        holdfast agents restart gpu
        holdfast agents restart gpu --fresh

    It works for a while after the agent has ended, however that was. A tool whose profile says how,
    such as claude, goes on with the conversation that its hooks reported last. A prompt among the
    words of the command is given to it again.
    """
    agent = done.agent
    pid = "" if agent.holder is None else f", process {agent.holder.pid}"
    went_on = f"conversation {done.conversation} goes on"
    talk = went_on if done.conversation else f"with a new conversation ({done.why})"
    where = "" if agent.session_name is None else f" in tmux session {agent.session_name}"
    return f"{agent.agent_name} runs again{where}{pid}: {talk}"


@life.operation(operations.logs, short_help="Show an agent's screen, also of one that ended.")
def logs(found: AgentScreen) -> str:
    """Show the last lines of an agent's tmux pane: its screen, and what scrolled off it.

    Of an agent that has ended, the last screen is kept for a week; how it ended is said on stderr.
    """
    if found.exited is not None:
        when = "" if found.exited.ended_at is None else f" at {moment(found.exited.ended_at)}"
        remark(f"{found.agent_name} {exit_text(found.exited)}{when}")
    return found.text


@life.command(short_help="Look at an agent in its tmux session.")
@request_options(AgentKey)
@store_options
def attach(request: AgentKey) -> None:
    """Attach this terminal to an agent's tmux session; inside tmux, switch to it.

    Everything that the record points at is checked before. The agent goes on when you detach, with
    Ctrl-b d.
    """
    with connected(create=False) as hf:
        target = running_target(hf, request.agent)
    server = target.manifest.tmux_server
    around = os.environ.get("TMUX", "").rsplit(",", 2)[0]
    there = None if server is None else server.socket_path
    inside = bool(around) and there is not None and os.path.realpath(around) == there
    if not inside and not sys.stdin.isatty():
        raise InvalidValue("attach needs a terminal: use `holdfast agents logs` elsewhere")
    # Inside a session of another server, tmux would refuse to attach.
    environment = {name: value for name, value in os.environ.items() if inside or name != "TMUX"}
    verb = "switch-client" if inside else "attach-session"
    words = ["tmux", *address_of(server), verb, "-t", f"={target.session_name}"]
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise Unavailable(f"tmux cannot be run: {error.strerror}", outcome="none") from None


class JoinSession(Request, frozen=True, kw_only=True):
    """The tmux session with the agent, and what to call it."""

    session_name: Annotated[str, Positional("TMUX-SESSION")]
    name: Annotated[str | None, Positional("[NAME]")] = None
    tool: Annotated[
        str | None,
        Flag(
            "--tool",
            metavar="NAME",
            help="Which tool the agent is: the name of a profile, such as claude.  "
            "[default: by the command's name]",
        ),
    ] = None
    lease_s: operations.LeaseSeconds = None


@life.command(short_help="Make an agent of what runs in a tmux session.")
@request_options(JoinSession)
@json_option
@store_options
def join(request: JoinSession, as_json: bool) -> None:
    """Make an agent of the program in the foreground of a tmux session, without touching it.

    \b
        holdfast agents join work
        holdfast agents join work gpu --tool claude

    It is called as the session, unless NAME says otherwise. Its hooks are not there: of a prompt it
    is only known that it was typed, until `holdfast agents restart` starts it with them. Nothing
    refreshes its lease but its gateway. Exit status 4 when another agent has the session.
    """
    # Loaded here, as few commands look into a pane.
    from holdfast.runtime.agent_join import join_session

    name = request.session_name if request.name is None else request.name
    try:
        check_agent_name(bare(name))
    except InvalidName:
        if request.name is not None:
            raise
        raise InvalidValue(
            f"the tmux session's name {name!r} cannot name an agent: give a NAME behind it",
            field="name",
        ) from None
    with connected() as hf:
        agent, profile = join_session(
            hf, request.session_name, name=name, tool=request.tool, lease_s=request.lease_s
        )
    if as_json:
        answer(to_json(agent))
        return
    pid = "" if agent.holder is None else f" {agent.holder.pid}"
    answer(
        f"{agent.agent_name} is process{pid} in tmux session {agent.session_name}, a {profile.name}"
        f" by its profile, until {moment(agent.lease_expires_at)} or as long as its gateway runs"
    )
    if profile.reports is not None:
        remark(
            "its hooks are not there, so nobody can tell when it has answered: a prompt ends when "
            f"it is delivered. `holdfast agents restart {bare(agent.agent_name)} --conversation "
            "ID` starts it again with them"
        )
