"""tmux: which tmux sessions there are, and new ones for agents.

Names are always matched exactly. The server is the one that `tmux` itself would talk to here: that
of the tmux session around this process, or the user's own.

The tmux program, run with a time limit.

A tmux server that is stopped, or busy beyond measure, answers nobody, and the program that asks it
would wait for ever. Here it is ended when its time is over. What it was to do may still happen,
once the server goes on: then the outcome is unknown.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.domains.agents.ports import TmuxAddress
from holdfast.kernel.errors import Collision, InvalidValue, Unavailable, UpstreamUnavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import TMUX_ANSWER_S, TMUX_SILENCE_S, TMUX_START_S


class Said(NamedTuple):
    """What tmux answered: its exit status, the lines it printed, and what it complained of."""

    status: int
    lines: list[str]
    complaint: str


def ask(words: Sequence[str], *, limit_s: float = TMUX_ANSWER_S) -> Said:
    """Run `tmux WORDS`, and return what it says.

    Raises Unavailable when there is no tmux here (nothing was done), and UpstreamUnavailable, with
    the outcome `unknown`, when it did not answer in time.
    """
    program = shutil.which("tmux")
    if program is None:
        raise Unavailable(
            "there is no tmux on the PATH: install it, or use `holdfast agents run`", outcome="none"
        )
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UpstreamUnavailable(
            f"tmux did not answer within {limit_s:g} s: see whether its server is stopped or busy",
            outcome="unknown",
        ) from None
    except OSError as error:
        raise Unavailable(f"tmux cannot be run: {error.strerror}", outcome="none") from None
    said, complained = (
        text.decode(errors="backslashreplace").rstrip("\n") for text in (done.stdout, done.stderr)
    )
    return Said(done.returncode, said.split("\n") if said else [], " ".join(complained.split("\n")))


_NO_SERVER = ("no server running", "no such file or directory", "connection refused", "no sessions")
_ENDING = ("server exited", "lost server")
"""What tmux says when its server went away while it was asked. The next one to ask is told plainly.
"""
_TRIES = 3
_FORBIDDEN = frozenset(".:")
_COLUMNS, _ROWS = 200, 50
"""The size of a new pane: what agents draw, and what is read from it, should not be cut to the
80x24 of old.
"""
_GLANCE_S = 0.02
_NOTICE = re.compile(r"^Pane is dead[^\n]*\n?\Z", re.MULTILINE)
"""What tmux itself writes on the last line of such a pane."""


class Pane(NamedTuple):
    """A pane and the process in it."""

    id: str
    pid: int


class Ended(NamedTuple):
    """How the process of a pane ended, and what its screen showed then. No status: tmux does not
    know.
    """

    status: int | None
    screen: str


class Tmux:
    """The tmux server of this user. Nothing is started by looking, and no look takes longer than
    its limit.
    """

    def __init__(self, *, limit_s: float = TMUX_ANSWER_S) -> None:
        self._limit_s = limit_s
        self._silent_until_s: dict[Sequence[str], float] = {}

    def liveness(self, session_name: str) -> Liveness:
        """Is there a tmux session of exactly this name? UNKNOWN when tmux is not installed, or does
        not answer this user, or not in time.
        """
        if not session_name or _FORBIDDEN & set(session_name):
            # tmux gives no tmux session such a name, and takes it for a pane's.
            return Liveness.UNKNOWN
        try:
            # All of them, to compare here: tmux would take `$0`, `@1` and the like for something
            # else than a name.
            said = self._asked("list-sessions", "-F", "#{session_name}")
        except Unavailable:
            return Liveness.UNKNOWN
        if said.status == 0:
            return Liveness.ALIVE if session_name in said.lines else Liveness.DEAD
        return Liveness.DEAD if _complains(said, _NO_SERVER) else Liveness.UNKNOWN

    def panes(self, session_name: str, server: TmuxAddress | None = None) -> list[int] | None:
        """The processes of the live panes of the tmux session of exactly this name; none when there
        is no such tmux session. None when tmux is not installed, or does not answer this user, or
        not in time.
        """
        try:
            said = self._asked(
                "list-panes", "-a", "-F", "#{pane_pid} #{pane_dead} #{session_name}", server=server
            )
        except Unavailable:
            return None
        if said.status:
            return [] if _complains(said, _NO_SERVER) else None
        found = [line.split(" ", 2) for line in said.lines]
        return [int(pid) for pid, dead, name in found if name == session_name and dead != "1"]

    def current(self) -> str | None:
        """The name of the tmux session around this process; None when there is none."""
        if not os.environ.get("TMUX"):
            return None
        try:
            said = self._asked(
                "display-message", "-p", "-t", os.environ.get("TMUX_PANE", ""), "#{session_name}"
            )
        except Unavailable:
            return None
        return said.lines[0] if said.status == 0 and said.lines else None

    def start(
        self,
        session_name: str,
        command: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
    ) -> Pane:
        """Start a command in a new tmux session, in the background, in a pane that stays when the
        command ends, until `leave` or `remove`: so it can be asked for its last screen.

        Raises Collision when there is one of that name, InvalidValue for a name that tmux does not
        take, and Unavailable when tmux cannot be used, whose `outcome` says whether it may have
        started all the same.
        """
        if not session_name or _FORBIDDEN & set(session_name):
            raise InvalidValue(
                f"{session_name!r} cannot name a tmux session: leave out . and :",
                field="session_name",
            )
        words = [
            word
            for name, value in environment.items()
            for word in ("-e", _whole(f"{name}={value}"))
        ]
        size = ["-x", str(_COLUMNS), "-y", str(_ROWS)]
        told = ["-P", "-F", "#{pane_id} #{pane_pid}"]
        named = ["-s", _literal(session_name), "-c", _whole(_literal(folder))]
        begin = ["new-session", "-d", *told, *size, *named, *words, shlex.join(command)]
        # In one step: tmux looks after its children between its commands' steps, so none ends
        # before it is to stay.
        stay = ["set-option", "-p", "-t", f"={session_name}:", "remain-on-exit", "on"]
        started = _insisted([*begin, ";", *stay], TMUX_START_S)
        if "duplicate session" in started.complaint:
            raise Collision(
                f"there is a tmux session {session_name} already: choose another name with "
                "--tmux-session, or end it with "
                f"`tmux kill-session -t ={session_name}`",
                session_name=session_name,
            )
        if started.status != 0:
            why = started.complaint or "it does not say why"
            raise Unavailable(f"tmux could not start {session_name}: {why}", outcome="none")
        pane_id, pid = started.lines[0].split()
        return Pane(pane_id, int(pid))

    def leave(self, pane: Pane) -> bool:
        """Leave a pane to itself: it goes when its command ends, as the user's options have it.
        False when that has ended already, or the pane is gone. Raises UpstreamUnavailable when tmux
        does not answer.
        """
        words = [
            "set-option",
            "-pu",
            "-t",
            pane.id,
            "remain-on-exit",
            ";",
            *_display(pane, "#{pane_pid} #{pane_dead}"),
        ]
        return _insisted(words, self._limit_s).lines == [f"{pane.pid} 0"]

    def has_ended(self, pane: Pane) -> bool:
        """Has its process ended, or is it gone? False when tmux does not answer."""
        try:
            said = _insisted(_display(pane, "#{pane_pid} #{pane_dead}"), self._limit_s)
        except Unavailable:
            return False
        return said.lines != [f"{pane.pid} 0"]

    def remove(self, pane: Pane) -> Ended:
        """Remove a pane whose process has ended, and with it its tmux session if it has no other;
        say how it ended. Raises UpstreamUnavailable when tmux does not answer.
        """
        dead, status, screen = *self._death(pane), ""
        if dead:
            # Its notice on the last line has pushed the first line up into the history.
            screen = "\n".join(
                _insisted(["capture-pane", "-p", "-S", "-1", "-t", pane.id], self._limit_s).lines
            )
        over = f"#{{&&:#{{==:#{{pane_pid}},{pane.pid}}},#{{pane_dead}}}}"
        _insisted(["if-shell", "-F", "-t", pane.id, over, f"kill-pane -t {pane.id}"], self._limit_s)
        return Ended(status, _NOTICE.sub("", screen).strip("\n"))

    def _death(self, pane: Pane) -> tuple[bool, int | None]:
        """Has a pane's process ended, once tmux knows it; and its exit status, which tmux 3.3 does
        not always learn.
        """
        facts = "#{pane_pid} #{pane_dead} #{pane_dead_status} #{pane_dead_signal}"
        end_s = time.monotonic() + self._limit_s
        while time.monotonic() < end_s:
            said = _insisted(_display(pane, facts), self._limit_s)
            if said.status or not said.lines:
                break
            pid, dead, status, by_signal = said.lines[0].split(" ")
            if pid != str(pane.pid):
                break
            if dead == "1":
                return True, int(status) if status else 128 + int(by_signal) if by_signal else None
            # tmux tells nobody but an attached client.
            time.sleep(_GLANCE_S)
        return False, None

    def _asked(self, *words: str, server: TmuxAddress | None = None) -> Said:
        """What tmux says. One that was silent a moment ago is not asked again: whoever has many
        questions waits once.
        """
        address = _address(server)
        if time.monotonic() < self._silent_until_s.get(address, 0.0):
            raise UpstreamUnavailable(
                "tmux did not answer a moment ago, and was not asked again", outcome="none"
            )
        try:
            return _insisted([*address, *words], self._limit_s)
        except UpstreamUnavailable:
            self._silent_until_s[address] = time.monotonic() + TMUX_SILENCE_S
            raise


def _address(server: TmuxAddress | None) -> tuple[str, ...]:
    if server is None:
        return ()
    return (
        ("-L", server.socket_name)
        if server.socket_name
        else ("-S", server.socket_path)
        if server.socket_path
        else ()
    )


def socket_path() -> str:
    """The socket of the tmux server that `tmux` would talk to here, whether or not it runs: in a
    pane that of `$TMUX`, elsewhere where tmux looks for it.
    """
    if around := os.environ.get("TMUX", "").rsplit(",", 2)[0]:
        return around
    folders = [
        folder
        for folder in (os.environ.get("TMUX_TMPDIR"), "/tmp")
        if folder and os.path.exists(folder)
    ]
    return f"{os.path.realpath(folders[0] if folders else '/tmp')}/tmux-{os.getuid()}/default"


def _display(pane: Pane, facts: str) -> list[str]:
    return ["display-message", "-p", "-t", pane.id, facts]


def _whole(word: str) -> str:
    """A word in which tmux finds no end of its command."""
    return f"{word[:-1]}\\;" if word.endswith(";") else word


def _literal(word: str) -> str:
    """A word in which tmux finds no format to expand, nor a `#(command)` to run. It takes `#[` as
    it is, and `##` for `#`.
    """
    return re.sub(r"#+(?![#\[])", lambda found: found[0] * 2, word)


def _insisted(words: Sequence[str], limit_s: float) -> Said:
    for _ in range(_TRIES):
        said = ask(words, limit_s=limit_s)
        if not _complains(said, _ENDING):
            break
    return said


def _complains(said: Said, any_of: Sequence[str]) -> bool:
    return any(words in said.complaint.lower() for words in any_of)
