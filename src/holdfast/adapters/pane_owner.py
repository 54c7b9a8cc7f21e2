"""Which process of a pane is the agent, and which gateway types into the pane.

A pane outlives its programs. An agent that a person started from a shell exits to that shell, which
would run the next prompt as a command. So the process is part of the agent's identity: the process
in the agent's record or, without one, the process that was first seen ready or kept the foreground.
The gateway notes the latter in an option of the pane.

Gateways with other names and stores may use one tmux session without knowing of each other. What
they share is its tmux server, so the gateway that types is noted there, in another option. The tmux
server checks this mark in the step that pastes: of two gateways one is refused, also one that was
stopped for long and goes on.
"""

import re
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from holdfast.adapters.tmux_pane import AGENT, Screen
from holdfast.kernel.errors import Held
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.processes.procfs import Procfs, TerminalUse

_ANCESTORS_MAX = 64
_PARTS = re.compile(r"([A-Za-z0-9_-]+)/([0-9a-f]{8})/([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})\Z")


class PaneOwner(NamedTuple):
    """One gateway: the agent's name, a checksum of the gateway's folder, and the process."""

    agent: str
    home: str
    pid: int
    start_ticks: int
    pid_ns: int

    def __str__(self) -> str:
        # None of these characters has a meaning in tmux's formats.
        return "/".join(map(str, self))

    def liveness(self, processes: Processes) -> Liveness:
        """The liveness of the process. It is of this boot: a tmux server and its options end with
        the machine.
        """
        host_id, boot_id, _ = processes.here()
        process = Holder(
            host_id=host_id,
            boot_id=boot_id,
            pid_ns=self.pid_ns,
            pid=self.pid,
            start_ticks=self.start_ticks,
        )
        return probe(process, processes, embedded=True)


def own_mark(agent: str, folder: Path, processes: Processes) -> PaneOwner:
    """The mark of this process as the gateway of an agent."""
    process = processes.current()
    home = f"{crc32(bytes(folder.absolute())):08x}"
    return PaneOwner(agent, home, process.pid, process.start_ticks, process.pid_ns)


def mark_in(text: str) -> PaneOwner | None:
    """The mark in a pane's option; None for any other text."""
    found = _PARTS.match(text)
    if found is None:
        return None
    return PaneOwner(found[1], found[2], int(found[3]), int(found[4]), int(found[5]))


def marked_by(session: str, mark: PaneOwner, liveness: Liveness, unmark: str) -> Held:
    """The error for a pane that another gateway has. `unmark` is the command that removes its
    mark.
    """
    gone = f"; if that one is gone, `{unmark}`" if liveness is Liveness.UNKNOWN else ""
    return Held(
        f"the gateway of {mark.agent}, pid {mark.pid}, types into tmux session {session} already: "
        f"use that one, or stop it with `holdfast gateway detach {mark.agent}`{gone}",
        agent=mark.agent,
        pid=mark.pid,
        session=session,
    )


class PaneAgent(NamedTuple):
    """The agent's process. `process` is its pid and start time, which no later process shares.
    None: it is not in the pane, `reason` is the code and `detail` the sentence that say why.

    `ready`: it gets what is typed. `busy`: a program that it started gets it. `launched`: the
    pane's first process, such as a shell, started it.
    """

    process: str | None
    ready: bool = False
    busy: bool = False
    launched: bool = False
    reason: str = ""
    detail: str = ""


def recorded_agent(holder: Holder, screen: Screen, processes: Procfs) -> PaneAgent:
    """The process in an agent's record, if it is alive and in the pane of that screen."""
    who = f"the agent's recorded process {holder.pid}"
    if holder.place != processes.here():
        detail = f"{who} runs on another machine or in another container: serve it there"
        return PaneAgent(None, reason="target_unknown", detail=detail)
    found = processes.terminal_use(holder.pid)
    if found is None or found.start_ticks != holder.start_ticks:
        detail = f"{who} has ended: start the agent again"
        return PaneAgent(None, reason="process_dead", detail=detail)
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None or pane.terminal == 0 or found.terminal != pane.terminal:
        detail = (
            f"{who} is not in pane {screen.pane_id}, where {screen.program or 'another program'} "
            "runs: start the agent there, or publish where it is"
        )
        return PaneAgent(None, reason="process_not_in_session", detail=detail)
    return _in_pane(holder.pid, found, processes)


def foreground_agent(screen: Screen, processes: Procfs) -> PaneAgent:
    """The process that is noted as the pane's agent, if it is alive; without a note, the process in
    the foreground.
    """
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None:
        detail = f"the process {screen.pane_pid} of pane {screen.pane_id} cannot be seen from here"
        return PaneAgent(None, reason="target_unknown", detail=detail)
    current = processes.terminal_use(pane.foreground)
    # The first process of a pipeline may end before the others. Then the foreground group has no
    # leader whose start time could be read.
    process = f"{pane.foreground}.{0 if current is None else current.start_ticks}"
    foreground = PaneAgent(process, ready=True, launched=pane.foreground != pane.group)
    where, _, noted = screen.agent.partition("/")
    pid = noted.partition(".")[0]
    # A note counts only as long as the pane has the same first process.
    valid = where == f"{screen.pane_pid}.{pane.start_ticks}" and pid.isdecimal()
    if not valid or noted == process:
        return foreground
    found = processes.terminal_use(int(pid))
    if found is not None and f"{int(pid)}.{found.start_ticks}" == noted:
        return _in_pane(int(pid), found, processes)
    if foreground.launched:
        return foreground
    detail = (
        f"the agent, process {int(pid)}, has ended, and {screen.program or 'the shell'} in its "
        "pane would run what is typed: start the agent there again, or use "
        f"`{screen.tmux} set-option -pu -t {screen.pane_id} {AGENT}` if the shell is the agent"
    )
    return PaneAgent(None, reason="exited_to_shell", detail=detail)


def note_of(agent: PaneAgent, screen: Screen, processes: Procfs) -> str:
    """The value of the pane's option for that agent."""
    pane = processes.terminal_use(screen.pane_pid)
    return f"{screen.pane_pid}.{0 if pane is None else pane.start_ticks}/{agent.process}"


def _in_pane(pid: int, found: TerminalUse, processes: Procfs) -> PaneAgent:
    ready = found.in_foreground
    busy = not ready and _descends(found.foreground, pid, processes)
    return PaneAgent(f"{pid}.{found.start_ticks}", ready, busy)


def _descends(pid: int, ancestor: int, processes: Procfs) -> bool:
    for _ in range(_ANCESTORS_MAX):
        found = processes.terminal_use(pid)
        if found is None or pid == ancestor:
            return found is not None
        pid = found.parent
    return False
