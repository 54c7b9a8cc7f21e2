"""Which process of a pane is the agent, and whether it gets what is typed there.

A pane outlives its programs. An agent that a person started from a shell exits to that shell, which
would run the next prompt as a command. So the process belongs to the agent's identity: the one on
the agent's record, or else the one that was first seen ready, or stayed in the foreground, which
the gateway notes in an option of the pane.

A tmux server and what its panes show.

Whose a pane is: the gateway that types into it is noted in tmux itself, beside the pane.

Gateways with other names and other stores may be told of one tmux session and know nothing of each
other; what they have in common is its tmux server. It sets the mark and checks it in the same step
in which it pastes, so that of two gateways one is refused, also one that was stopped for long and
goes on.

Has the program in a pane switched bracketed paste on?

Newer versions of tmux say so. Of an older one it is learned as a terminal would: by attaching,
read-only and without a say in the size, and seeing whether tmux switches it on for us, as it does
for the pane that the session shows.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from holdfast.adapters.tmux import ask
from holdfast.kernel.errors import Held, Unavailable, UpstreamUnavailable
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.limits import TMUX_ANSWER_S
from holdfast.processes.procfs import Procfs, TerminalUse

MARK = "@holdfast_gateway"
"""The option of a pane that names the gateway which types into it."""

_PARTS = re.compile(r"([A-Za-z0-9_-]+)/([0-9a-f]{8})/([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})\Z")


class Mark(NamedTuple):
    """One gateway: the agent's name with the folder it is kept in, and the process."""

    agent: str
    home: str
    pid: int
    start_ticks: int
    pid_ns: int

    def __str__(self) -> str:
        # Nothing in it means anything to tmux.
        return "/".join(map(str, self))

    def liveness(self, processes: Processes) -> Liveness:
        """Of the process: a tmux server and its options end with the machine, so it is one of this
        boot.
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


def own_mark(agent: str, folder: Path, processes: Processes) -> Mark:
    """The mark of this process, as the gateway of an agent that is kept in a folder."""
    process = processes.current()
    home = f"{crc32(bytes(folder.absolute())):08x}"
    return Mark(agent, home, process.pid, process.start_ticks, process.pid_ns)


def mark_in(text: str) -> Mark | None:
    """The mark that an option shows; None where there is none, or nobody's."""
    found = _PARTS.match(text)
    return (
        None
        if found is None
        else Mark(found[1], found[2], int(found[3]), int(found[4]), int(found[5]))
    )


def served(session: str, by: Mark, liveness: Liveness, unmark: str) -> Held:
    """Another gateway has the pane. `unmark` is the command that takes its mark away."""
    gone = f"; if that one is gone, `{unmark}`" if liveness is Liveness.UNKNOWN else ""
    return Held(
        f"the gateway of {by.agent}, pid {by.pid}, types into tmux session {session} already: use "
        "that one, or stop it with "
        f"`holdfast gateway detach {by.agent}`{gone}",
        agent=by.agent,
        pid=by.pid,
        session=session,
    )


UNSENT = "@holdfast_unsent"
"""The option of a pane that names the paste behind which no Enter was sent yet, with the agent's
process.
"""
AGENT = "@holdfast_agent"
"""The option of a pane that names the process which is the agent."""

_FIELDS = (
    *(
        "pid",
        "session_id",
        "session_created",
        "pane_id",
        "pane_pid",
        "pane_dead",
        "pane_active",
        "window_active",
    ),
    *(
        "pane_input_off",
        "history_size",
        "history_limit",
        "cursor_x",
        "cursor_y",
        "alternate_on",
        "bracket_paste_flag",
    ),
    # Last, since a program's name may have any character.
    *("version", UNSENT, MARK, AGENT, "pane_current_command"),
)
_FORMAT = "|".join(f"#{{{name}}}" for name in _FIELDS)


class Screen(NamedTuple):
    """A pane at one moment."""

    tmux: str
    """How its tmux server is called on a command line, for what people are to run."""
    server_pid: int
    session_id: str
    session_created: str
    pane_id: str
    pane_pid: int
    current: bool
    input_off: bool
    bracketed: bool | None
    history: int
    history_limit: int
    cursor_y: int
    alternate: bool
    program: str
    """The name of the program in the foreground."""
    unsent: str
    """The paste behind which no Enter was sent, and the agent's process that got it."""
    mark: str
    agent: str
    version: str
    content: tuple[str, ...]
    """Its lines, with where the cursor is and how much has scrolled away: if this stays the same,
    nothing was written.
    """

    @property
    def last_line(self) -> str:
        """The last line with something on it."""
        return next((line for line in reversed(self.content[:-1]) if line.strip()), "")


class TmuxServer:
    """The tmux server behind a socket. No call takes longer than its limit."""

    def __init__(
        self, socket_name: str | None, socket_path: str | None, *, limit_s: float = TMUX_ANSWER_S
    ) -> None:
        self.address = (
            ["-L", socket_name] if socket_name else ["-S", socket_path] if socket_path else []
        )
        self._limit_s = limit_s

    def run(self, *words: str, limit_s: float | None = None) -> list[str]:
        """Run a tmux command, and return the lines that it prints.

        Raises UpstreamUnavailable: with the outcome `none` when tmux refuses, and `unknown` when it
        does not answer in time.
        """
        try:
            said = ask(
                [*self.address, *words], limit_s=self._limit_s if limit_s is None else limit_s
            )
        except UpstreamUnavailable:
            raise
        except Unavailable as error:
            raise UpstreamUnavailable(error.message, outcome="none") from None
        if said.status:
            raise UpstreamUnavailable(f"tmux {words[0]}: {said.complaint[:500]}", outcome="none")
        return said.lines

    def screen(self, session: str) -> Screen | None:
        """The first pane of the session of exactly that name, if it lives. Raises
        UpstreamUnavailable when tmux does not answer in time: then it may or may not be there.
        """
        try:
            lines = self.run("list-panes", "-s", "-t", f"={session}:", "-F", _FORMAT)
            panes = [line.split("|", len(_FIELDS) - 1) for line in lines]
            fields = [
                dict(zip(_FIELDS, pane, strict=True)) for pane in panes if len(pane) == len(_FIELDS)
            ]
            if not fields:
                return None
            # By its number, which only grows: what people open beside it, or switch to, is not the
            # agent.
            first = min(fields, key=lambda pane: int(pane["pane_id"].removeprefix("%")))
            if first["pane_dead"] == "1":
                return None
            return _screen(
                shlex.join(["tmux", *self.address]),
                first,
                self.run("capture-pane", "-p", "-t", first["pane_id"]),
            )
        except UpstreamUnavailable as error:
            if silent(error):
                raise
            return None

    def text_since(self, before: Screen, after: Screen) -> str:
        """What was written since: from the cursor's line before on, as far as it is kept; of a
        program that draws the whole screen, that.
        """
        begin = before.history + before.cursor_y - after.history
        lost = (
            after.alternate
            or before.alternate
            or after.history < before.history
            or after.history >= after.history_limit
        )
        start = [] if lost else ["-S", str(begin)]
        try:
            lines = self.run("capture-pane", "-p", "-J", "-t", after.pane_id, *start)
        except UpstreamUnavailable:
            lines = list(after.content[:-1])
        return "\n".join(line.rstrip() for line in lines).strip("\n")


def silent(error: UpstreamUnavailable) -> bool:
    """Did tmux not answer in time, so that what it was asked to do may still happen?"""
    return error.fields.get("outcome") == "unknown"


def _screen(tmux: str, pane: dict[str, str], lines: list[str]) -> Screen:
    place = f"{pane['cursor_x']},{pane['cursor_y']},{pane['history_size']}"
    return Screen(
        tmux=tmux,
        server_pid=int(pane["pid"]),
        session_id=pane["session_id"],
        session_created=pane["session_created"],
        pane_id=pane["pane_id"],
        pane_pid=int(pane["pane_pid"]),
        current=pane["pane_active"] == "1" and pane["window_active"] == "1",
        input_off=pane["pane_input_off"] == "1",
        bracketed={"0": False, "1": True}.get(pane["bracket_paste_flag"]),
        history=int(pane["history_size"]),
        history_limit=int(pane["history_limit"]),
        cursor_y=int(pane["cursor_y"]),
        alternate=pane["alternate_on"] == "1",
        program=pane["pane_current_command"],
        unsent=pane[UNSENT],
        mark=pane[MARK],
        agent=pane[AGENT],
        version=pane["version"],
        content=(*lines, place),
    )


_ANCESTORS_MAX = 64


class PaneAgent(NamedTuple):
    """The agent's process. `process` is its pid and start, which no later process shares. None: it
    is not in the pane; `reason` says why in a word, `detail` in a sentence.

    `ready` says that it gets what is typed, `busy` that a program which it started gets it, and
    `launched` that the pane's own process started it, as a shell does.
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
            None,
            reason="target_unknown",
            detail=f"{who} runs on another machine or in another container: serve it there",
        )
    found = processes.terminal_use(holder.pid)
    if found is None or found.start_ticks != holder.start_ticks:
        return PaneAgent(
            None, reason="process_dead", detail=f"{who} has ended: start the agent again"
        )
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None or pane.terminal == 0 or found.terminal != pane.terminal:
        runs = screen.program or "another program"
        detail = (
            f"{who} is not in pane {screen.pane_id}, where {runs} runs: start the agent there, or "
            "publish where it is"
        )
        return PaneAgent(None, reason="process_not_in_session", detail=detail)
    return _in_pane(holder.pid, found, processes)


def foreground_agent(screen: Screen, processes: Procfs) -> PaneAgent:
    """The process that is noted as the pane's agent, if it is still there; where none is, the one
    in the foreground.
    """
    pane = processes.terminal_use(screen.pane_pid)
    if pane is None:
        detail = f"the process {screen.pane_pid} of pane {screen.pane_id} cannot be seen from here"
        return PaneAgent(None, reason="target_unknown", detail=detail)
    current = processes.terminal_use(pane.foreground)
    # The first process of a pipeline may end before the others: then the group has no leader to
    # tell the start of.
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
    shell, forget = (
        screen.program or "the shell",
        f"{screen.tmux} set-option -pu -t {screen.pane_id} {AGENT}",
    )
    return PaneAgent(
        None,
        reason="exited_to_shell",
        detail=(
            f"the agent, process {pid}, has ended, and {shell} in its pane would run what is "
            f"typed: start the agent there again, or say `{forget}` if the shell is the agent"
        ),
    )


def note_of(agent: PaneAgent, screen: Screen, processes: Procfs) -> str:
    """The value of the pane's option for that agent. It counts only as long as the pane has the
    same first process.
    """
    pane = processes.terminal_use(screen.pane_pid)
    return f"{screen.pane_pid}.{0 if pane is None else pane.start_ticks}/{agent.process}"


def _noted(screen: Screen, pane: TerminalUse) -> str | None:
    where, _, process = screen.agent.partition("/")
    pid = process.partition(".")[0]
    return process if where == f"{screen.pane_pid}.{pane.start_ticks}" and pid.isdecimal() else None


def _in_pane(pid: int, found: TerminalUse, processes: Procfs) -> PaneAgent:
    ready = found.in_foreground
    return PaneAgent(
        f"{pid}.{found.start_ticks}",
        ready,
        not ready and _descends(found.foreground, pid, processes),
    )


def _descends(pid: int, ancestor: int, processes: Procfs) -> bool:
    for _ in range(_ANCESTORS_MAX):
        found = processes.terminal_use(pid)
        if found is None or pid == ancestor:
            return found is not None
        pid = found.parent
    return False


_ON, _OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_ATTACH_S = 2.0
_QUIET_S = 0.1


def pastes_bracketed(server: TmuxServer, session: str, screen: Screen) -> bool:
    """True when it surely has."""
    if screen.bracketed is not None:
        return screen.bracketed
    if not screen.current:
        return False
    drawn = _drawn(
        [
            "tmux",
            *server.address,
            "attach-session",
            "-f",
            "read-only,ignore-size",
            "-t",
            f"={session}",
        ]
    )
    return drawn.rfind(_ON) > drawn.rfind(_OFF)


def _drawn(command: list[str]) -> bytes:
    """What tmux sends to a terminal that attaches, until it has drawn the screen."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"} | {
            "TERM": "xterm-256color"
        }
        client = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environment,
        )
    finally:
        os.close(theirs)
    try:
        return _read(ours)
    finally:
        # Not in good order: it would take leave of its server, which may be one that does not
        # answer.
        client.kill()
        os.close(ours)
        client.wait()


def _read(terminal: int) -> bytes:
    seen, end_s = b"", time.monotonic() + _ATTACH_S
    with contextlib.suppress(OSError):
        while time.monotonic() < end_s:
            # Quiet for a moment after the first lines: it has drawn all there is.
            if not select.select([terminal], [], [], _QUIET_S if b"\r\n" in seen else _ATTACH_S)[0]:
                break
            piece = os.read(terminal, 65536)
            if not piece:
                break
            seen += piece
    return seen
