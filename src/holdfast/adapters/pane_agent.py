"""Which process of a pane is the agent, and whether it gets what is typed there.

A pane outlives its programs. An agent that a person started from a shell exits to that shell, which would run the next prompt
as a command. So the process belongs to the agent's identity: the one on the agent's record, or else the one that was first seen
ready, or stayed in the foreground, which the gateway notes in an option of the pane.
"""

from typing import NamedTuple

from holdfast.adapters.tmux_screen import AGENT, Screen
from holdfast.kernel.holder import Holder
from holdfast.processes.procfs import Procfs, TerminalUse

_ANCESTORS_MAX = 64


class PaneAgent(NamedTuple):
    """The agent's process. `process` is its pid and start, which no later process shares. None: it is not in the pane;
    `reason` says why in a word, `detail` in a sentence.

    `ready` says that it gets what is typed, `busy` that a program which it started gets it, and `launched` that the pane's own
    process started it, as a shell does.
    """

    process: str | None
    ready: bool = False
    busy: bool = False
    launched: bool = False
    reason: str = ""
    detail: str = ""


def recorded_agent(holder: Holder, screen: Screen, processes: Procfs) -> PaneAgent:
    """The process on an agent's record, if it is alive and in the pane of that screen."""
    who = f"the agent's recorded process {holder.pid}"
    if holder.place != processes.here():
        return PaneAgent(
            None, reason="target_unknown", detail=f"{who} runs on another machine or in another container: serve it there"
        )
    found = processes.terminal_use(holder.pid)
    if found is None or found.start_ticks != holder.start_ticks:
        return PaneAgent(None, reason="process_dead", detail=f"{who} has ended: start the agent again")
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None or pane.terminal == 0 or found.terminal != pane.terminal:
        runs = screen.program or "another program"
        detail = f"{who} is not in pane {screen.pane_id}, where {runs} runs: start the agent there, or publish where it is"
        return PaneAgent(None, reason="process_not_in_session", detail=detail)
    return _in_pane(holder.pid, found, processes)


def foreground_agent(screen: Screen, processes: Procfs) -> PaneAgent:
    """The process that is noted as the pane's agent, if it is still there; where none is, the one in the foreground."""
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None:
        detail = f"the process {screen.pane_pid} of pane {screen.pane_id} cannot be seen from here"
        return PaneAgent(None, reason="target_unknown", detail=detail)
    current = processes.terminal_use(pane.foreground)
    # The first process of a pipeline may end before the others: then the group has no leader to tell the start of.
    process = f"{pane.foreground}.{0 if current is None else current.start_ticks}"
    named = PaneAgent(process, ready=True, launched=pane.foreground != pane.group)
    noted = _noted(screen, pane)
    if noted is None or noted == named.process:
        return named
    pid = int(noted.partition(".")[0])
    found = processes.terminal_use(pid)
    if found is not None and f"{pid}.{found.start_ticks}" == noted:
        return _in_pane(pid, found, processes)
    if named.launched:
        return named
    shell, forget = screen.program or "the shell", f"{screen.tmux} set-option -pu -t {screen.pane_id} {AGENT}"
    return PaneAgent(
        None,
        reason="exited_to_shell",
        detail=f"the agent, process {pid}, has ended, and {shell} in its pane would run what is typed: start the agent there "
        f"again, or say `{forget}` if the shell is the agent",
    )


def note_of(agent: PaneAgent, screen: Screen, processes: Procfs) -> str:
    """The value of the pane's option for that agent. It counts only as long as the pane has the same first process."""
    pane = processes.terminal_use(screen.pane_pid)
    return f"{screen.pane_pid}.{0 if pane is None else pane.start_ticks}/{agent.process}"


def _noted(screen: Screen, pane: TerminalUse) -> str | None:
    where, _, process = screen.agent.partition("/")
    pid = process.partition(".")[0]
    return process if where == f"{screen.pane_pid}.{pane.start_ticks}" and pid.isdecimal() else None


def _in_pane(pid: int, found: TerminalUse, processes: Procfs) -> PaneAgent:
    ready = found.in_foreground
    return PaneAgent(f"{pid}.{found.start_ticks}", ready, not ready and _descends(found.foreground, pid, processes))


def _descends(pid: int, ancestor: int, processes: Procfs) -> bool:
    for _ in range(_ANCESTORS_MAX):
        found = processes.terminal_use(pid)
        if found is None or pid == ancestor:
            return found is not None
        pid = found.parent
    return False
