"""The stop of an agent: it is asked to end, then its whole process tree is ended, and then the tmux
session that was made for it.

Only what is verified to be this generation's is touched: a process by its start time, a tree by its
mark, a pane by the process in it, a tmux session by its id and its server.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

from holdfast.adapters.tmux import Tmux
from holdfast.adapters.tmux_pane import Screen, TmuxServer
from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import process_liveness, survivors_of
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import run_by_gateway, tmux_backed
from holdfast.domains.agents.runs import AgentExit, AgentRun, StoppedAgent
from holdfast.kernel.errors import (
    InvalidValue,
    Lost,
    NotFound,
    Refused,
    TargetUnknown,
    TmuxSessionGone,
    UpstreamUnavailable,
)
from holdfast.kernel.holder import Holder, Liveness
from holdfast.processes.scan import MARK, descendants
from holdfast.processes.syscalls import readable
from holdfast.runtime.agent_screen import last_record
from holdfast.runtime.connection import Holdfast

_KILLED_S = 5.0
"""How long the kernel may take to end killed processes."""


def stop_agent(hf: Holdfast, asked: str, *, grace_s: float) -> StoppedAgent:
    """Stop an agent by its name or id, and return what was done. It has `grace_s` to end by itself.
    Harmless for an agent that has ended.

    Raises NotFound for one that never was, Ambiguous, Untrusted where it is not certain what is the
    agent's, InvalidValue for a caller that is a part of the agent, and Refused for another user's.
    """
    agent, exited = last_record(hf, asked)
    try:
        published = hf.agents.get(agent.agent_id)
    except NotFound:
        return _result(hf, agent, was_running=False)
    if exited is None and run_by_gateway(published):
        # Loaded here, as it brings the client of gateways.
        from holdfast.runtime.agent_unattended import stop_unattended

        return stop_unattended(hf, published, grace_s=grace_s)
    if exited is None:
        return _Stop(hf, published).run(grace_s)
    left = bool(survivors_of(agent, hf.processes, embedded=hf.store.embedded))
    if left and agent.holder is not None:
        _check_may_end(hf, agent, agent.holder)
        _end_tree(hf, agent, agent.holder, grace_s)
    _remove_record(hf, agent)
    return _result(hf, agent, was_running=left, killed=False)


class _Stop:
    """The stop of an agent whose process may be alive. Raises Untrusted where it is not certain."""

    def __init__(self, hf: Holdfast, agent: Agent) -> None:
        self._hf = hf
        self._agent = agent
        self._server: TmuxServer | None = None
        self._screen: Screen | None = None
        holder = agent.holder
        alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
        if holder is None or alive is not Liveness.ALIVE:
            raise TargetUnknown(
                f"{agent.agent_name} names no process that is seen from here, so nothing can be "
                "ended: stop it where it runs, or `holdfast agents remove` its record",
                agent_id=agent.agent_id,
            )
        _check_may_end(hf, agent, holder)
        self._holder = holder
        run = hf.agents.last_run(agent.agent_id)
        self._run = run if run and run.agent.generation_id == agent.generation_id else None
        self._in_session = tmux_backed(agent.identity.backend)
        if self._in_session:
            self._check_session()

    def _check_session(self) -> None:
        try:
            target = self._hf.agents.control_target(self._agent.agent_id)
        except TmuxSessionGone:
            # Its tmux server was killed, and it has not ended of that. Its tree is still known by
            # its mark.
            if not self._holder.tree:
                raise
            self._in_session = False
            return
        if self._run is not None and self._run.own_session:
            self._server = TmuxServer(target.manifest.tmux_server or TmuxAddress())
            self._screen = self._server.screen(target.session_name)

    def run(self, grace_s: float) -> StoppedAgent:
        # While it is certain that the caller is not in there.
        caller_inside = Tmux().current() == self._agent.session_name
        with _family(self._holder) as family:
            killed = _end_leader(self._hf, self._holder, grace_s)
            rest_s = 0.0 if killed else grace_s
            if self._holder.tree:
                _end_tree(self._hf, self._agent, self._holder, rest_s)
            else:
                _end_all(family, rest_s)
        # Its runner removes the record, unless it was killed or never was.
        _remove_record(self._hf, self._agent)
        session: Literal["ended", "left", "none"] = "none"
        if self._in_session:
            session = "left" if caller_inside else self._end_session()
        return _result(self._hf, self._agent, was_running=True, killed=killed, session=session)

    def _end_session(self) -> Literal["ended", "left"]:
        """End the tmux session that was made for the agent, with all windows in it."""
        server, screen = self._server, self._screen
        if server is None or screen is None:
            return "left"
        same = (
            f"#{{&&:#{{==:#{{pid}},{screen.server_pid}}},"
            f"#{{==:#{{session_created}},{screen.session_created}}}}}"
        )
        kill = f"kill-session -t {screen.session_id}"
        # It fails when the session ended with its last pane.
        with suppress(UpstreamUnavailable):
            server.run("if-shell", "-F", "-t", f"{screen.session_id}:", same, kill)
        return "ended"


def _check_may_end(hf: Holdfast, agent: Agent, holder: Holder) -> None:
    """Raises InvalidValue for a caller that is a part of the agent, and Refused for another user's
    agent.
    """
    inside = {one.parts for one in (hf.processes.current(), *hf.processes.ancestors())}
    if holder.parts in inside or (holder.tree or "") in os.environ.get(MARK, " ").split(":"):
        raise InvalidValue(
            f"{agent.agent_name} cannot stop itself: exit, or stop it from another terminal",
            field="agent",
        )
    try:
        owner = os.stat(f"/proc/{holder.pid}").st_uid
    except OSError:
        return
    if os.geteuid() not in (0, owner):
        raise Refused(
            f"{agent.agent_name} runs as user {owner}: that user can stop it",
            agent_id=agent.agent_id,
            uid=owner,
        )


def _end_leader(hf: Holdfast, holder: Holder, grace_s: float) -> bool:
    """Ask the agent's own process to end. Returns True when it is alive after the grace."""
    fd = hf.processes.death(holder.leader)
    if fd is None:
        return False
    # An interactive shell ignores SIGTERM, and ends when its terminal is closed.
    deaf = hf.processes.ignores(holder.pid, signal.SIGTERM)
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGHUP if deaf else signal.SIGTERM)
            signal.pidfd_send_signal(fd, signal.SIGCONT)
        return not readable(fd, grace_s)
    finally:
        os.close(fd)


def _end_tree(hf: Holdfast, agent: Agent, holder: Holder, grace_s: float) -> None:
    """End all that is left of an agent. Raises TargetUnknown when some of it cannot be ended."""
    if holder.tree and not hf.processes.end_tree(holder.tree, grace_s):
        raise TargetUnknown(
            f"not all processes of {agent.agent_name} could be ended or seen: `holdfast agents get "
            f"{agent.agent_id}` names them. Its record stays",
            agent_id=agent.agent_id,
        )


@contextmanager
def _family(holder: Holder) -> Iterator[list[int]]:
    """Descriptors of the processes below one that is no tree of ours, for the block: when it ends,
    nothing tells any more that they were its own.
    """
    with ExitStack() as stack:
        opened: dict[int, int] = {}
        for pid in [] if holder.tree else [holder.pid, *descendants([holder.pid])]:
            with suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
                stack.callback(os.close, opened[pid])
        # Checked after they were opened: the kernel may give a pid to another process in between.
        still = {holder.pid, *(descendants([holder.pid]) if opened else ())}
        yield [fd for pid, fd in opened.items() if pid in still]


def _end_all(fds: Sequence[int], grace_s: float) -> None:
    """End processes: SIGTERM, and SIGKILL after the grace."""
    end_s = time.monotonic() + grace_s
    for number, until_s in ((signal.SIGTERM, end_s), (signal.SIGKILL, end_s + _KILLED_S)):
        for fd in fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
        for fd in fds:
            readable(fd, max(until_s - time.monotonic(), 0.0))


def _remove_record(hf: Holdfast, agent: Agent) -> None:
    """Remove the record of an agent that is dead, if its runner did not."""
    with suppress(NotFound, Lost):
        hf.agents.remove(agent.agent_id, agent.generation_id, token=agent.token)
        hf.agents.clear_after(agent)


def _result(
    hf: Holdfast,
    agent: Agent,
    *,
    was_running: bool,
    killed: bool = False,
    session: Literal["ended", "left", "none"] = "none",
) -> StoppedAgent:
    run: AgentRun | None = hf.agents.last_run(agent.agent_id)
    same = run is not None and run.agent.generation_id == agent.generation_id
    return StoppedAgent(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        generation_id=agent.generation_id,
        was_running=was_running,
        killed=killed,
        tmux_session=session,
        exited=(run.end if run is not None and same else None) or AgentExit(),
    )
