"""The tmux program with a time limit, the user's tmux sessions, and new ones for agents.

Session names are always matched exactly. The server is the one that `tmux` itself would talk to
here: the server around this process, or the user's own.

A tmux server that is stopped or overloaded answers nobody, and its client would wait for ever. Here
the client is killed when its time is over. The server may still do what it was asked once it goes
on: then the outcome is unknown.
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

NO_SERVER = ("no server running", "no such file or directory", "connection refused", "no sessions")
_ENDING = ("server exited", "lost server")
"""tmux says this when its server ended during the command. A second try gets a clear answer."""
_TRIES = 3
_FORBIDDEN = frozenset(".:")
_COLUMNS, _ROWS = 200, 50
"""The size of a new pane. The default of 80x24 would cut what agents draw and what is read back."""
_GLANCE_S = 0.02
_OWN_S = 2.0
_NOTICE = re.compile(r"^Pane is dead[^\n]*\n?\Z", re.MULTILINE)
"""tmux writes this on the last line of a pane whose process has ended."""


class TmuxAnswer(NamedTuple):
    """The exit status of a tmux command, the lines that it printed, and its error message."""

    status: int
    lines: list[str]
    complaint: str

    def complains(self, any_of: Sequence[str]) -> bool:
        return any(words in self.complaint.lower() for words in any_of)


class Pane(NamedTuple):
    id: str
    pid: int


class Ended(NamedTuple):
    """How the process of a pane ended, and the last screen. The status is None when tmux does not
    know it.
    """

    status: int | None
    screen: str


def ask(words: Sequence[str], *, limit_s: float = TMUX_ANSWER_S) -> TmuxAnswer:
    """Run `tmux WORDS`.

    Raises Unavailable when tmux cannot be run (nothing was done), and UpstreamUnavailable, with the
    outcome `unknown`, when it did not answer in time.
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
            f"tmux did not answer within {limit_s:g} s: check whether its server is stopped or "
            "busy",
            outcome="unknown",
        ) from None
    except OSError as error:
        raise Unavailable(f"tmux cannot be run: {error.strerror}", outcome="none") from None
    printed, complaint = (
        text.decode(errors="backslashreplace").rstrip("\n") for text in (done.stdout, done.stderr)
    )
    lines = printed.split("\n") if printed else []
    return TmuxAnswer(done.returncode, lines, " ".join(complaint.split("\n")))


def _ask_again(words: Sequence[str], limit_s: float) -> TmuxAnswer:
    for _ in range(_TRIES):
        answer = ask(words, limit_s=limit_s)
        if not answer.complains(_ENDING):
            break
    return answer


class Tmux:
    """A tmux server, by default this user's, as the port `TmuxSessions` says. Reading never starts
    a server, and takes no longer than its limit.
    """

    def __init__(
        self, *, server: TmuxAddress | None = None, limit_s: float = TMUX_ANSWER_S
    ) -> None:
        self._address = tuple(address_of(server))
        self._limit_s = limit_s
        self._silent_until_s: dict[Sequence[str], float] = {}

    def liveness(self, session_name: str) -> Liveness:
        if not session_name or _FORBIDDEN & set(session_name):
            # No session has such a name: tmux would take it for a window or a pane.
            return Liveness.UNKNOWN
        try:
            # All names are listed and compared here: in a target, tmux would take `$0`, `@1` and
            # the like for an id.
            answer = self._look("list-sessions", "-F", "#{session_name}")
        except Unavailable:
            return Liveness.UNKNOWN
        if answer.status == 0:
            return Liveness.ALIVE if session_name in answer.lines else Liveness.DEAD
        return Liveness.DEAD if answer.complains(NO_SERVER) else Liveness.UNKNOWN

    def panes(self, session_name: str, server: TmuxAddress | None = None) -> list[int] | None:
        try:
            answer = self._look(
                "list-panes", "-a", "-F", "#{pane_pid} #{pane_dead} #{session_name}", server=server
            )
        except Unavailable:
            return None
        if answer.status:
            return [] if answer.complains(NO_SERVER) else None
        found = [line.split(" ", 2) for line in answer.lines]
        return [int(pid) for pid, dead, name in found if name == session_name and dead != "1"]

    def current(self) -> str | None:
        """The name of the tmux session around this process; None when there is none."""
        if not os.environ.get("TMUX"):
            return None
        try:
            answer = self._look(
                "display-message", "-p", "-t", os.environ.get("TMUX_PANE", ""), "#{session_name}"
            )
        except Unavailable:
            return None
        return answer.lines[0] if answer.status == 0 and answer.lines else None

    def start(
        self,
        session_name: str,
        command: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
    ) -> Pane:
        """Start a command in a new tmux session, in the background. The pane stays when the command
        ends, so that its last screen can be read, until `leave` or `remove`.

        Raises Collision when there is a session of that name, InvalidValue for a name that tmux
        does not take, and Unavailable when tmux cannot be used, whose `outcome` says whether the
        command may have started all the same.
        """
        if not session_name or _FORBIDDEN & set(session_name):
            raise InvalidValue(
                f"{session_name!r} cannot name a tmux session: leave out . and :",
                field="session_name",
            )
        variables = [
            word
            for name, value in environment.items()
            for word in ("-e", _whole(f"{name}={value}"))
        ]
        size = ["-x", str(_COLUMNS), "-y", str(_ROWS)]
        printed = ["-P", "-F", "#{pane_id} #{pane_pid}"]
        named = ["-s", _literal(session_name), "-c", _whole(_literal(folder))]
        begin = ["new-session", "-d", *printed, *size, *named, *variables, shlex.join(command)]
        # In the same step: tmux notices ended children between its steps, so even a command that
        # ends at once does so after the option was set.
        stay = ["set-option", "-p", "-t", f"={session_name}:", "remain-on-exit", "on"]
        answer = _ask_again([*self._address, *begin, ";", *stay], TMUX_START_S)
        if "duplicate session" in answer.complaint:
            raise Collision(
                f"there is a tmux session {session_name} already: choose another name with "
                f"--tmux-session, or end it with `tmux kill-session -t ={session_name}`",
                session_name=session_name,
            )
        if answer.status != 0:
            why = answer.complaint or "it does not say why"
            raise Unavailable(f"tmux could not start {session_name}: {why}", outcome="none")
        pane_id, pid = answer.lines[0].split()
        return Pane(pane_id, int(pid))

    def leave(self, pane: Pane) -> bool:
        """Let a pane close when its command ends, as the user's options say. False when the command
        has ended already or the pane is gone. Raises UpstreamUnavailable without an answer of tmux.
        """
        unset = ["set-option", "-pu", "-t", pane.id, "remain-on-exit", ";"]
        return self._display(pane, "#{pane_pid} #{pane_dead}", unset).lines == [f"{pane.pid} 0"]

    def has_ended(self, pane: Pane) -> bool:
        """Has its process ended, or is the pane gone? False when tmux does not answer."""
        try:
            return self._display(pane, "#{pane_pid} #{pane_dead}").lines != [f"{pane.pid} 0"]
        except Unavailable:
            return False

    def remove(self, pane: Pane) -> Ended:
        """Remove a pane whose process has ended, and with its last pane the tmux session; return
        how the process ended. Raises UpstreamUnavailable when tmux does not answer.
        """
        dead, status, screen = *self._death(pane), ""
        if dead:
            # The notice on the last line has pushed the first line into the history.
            capture = ["capture-pane", "-p", "-S", "-1", "-t", pane.id]
            screen = "\n".join(self._ask(capture).lines)
        # tmux itself checks that it is still this pane: a new server gives the same ids again.
        over = f"#{{&&:#{{==:#{{pane_pid}},{pane.pid}}},#{{pane_dead}}}}"
        kill = ["if-shell", "-F", "-t", pane.id, over, f"kill-pane -t {pane.id}"]
        self._ask(kill)
        return Ended(status, _NOTICE.sub("", screen).strip("\n"))

    def _death(self, pane: Pane) -> tuple[bool, int | None]:
        """Wait until tmux knows that a pane's process has ended. Returns whether it does, and the
        exit status, which tmux 3.3 does not always learn.
        """
        facts = "#{pane_pid} #{pane_dead} #{pane_dead_status} #{pane_dead_signal}"
        end_s = time.monotonic() + self._limit_s
        while time.monotonic() < end_s:
            answer = self._display(pane, facts)
            if answer.status or not answer.lines:
                break
            pid, dead, status, by_signal = answer.lines[0].split(" ")
            if pid != str(pane.pid):
                break
            if dead == "1":
                return True, int(status) if status else 128 + int(by_signal) if by_signal else None
            # tmux notifies attached clients only.
            time.sleep(_GLANCE_S)
        return False, None

    def _display(self, pane: Pane, facts: str, before: Sequence[str] = ()) -> TmuxAnswer:
        words = [*before, "display-message", "-p", "-t", pane.id, facts]
        return self._ask(words)

    def _ask(self, words: Sequence[str]) -> TmuxAnswer:
        return _ask_again([*self._address, *words], self._limit_s)

    def _look(self, *words: str, server: TmuxAddress | None = None) -> TmuxAnswer:
        """Ask a server. One that was silent a moment ago is not asked again, so that a caller with
        many questions waits only once.
        """
        address = self._address if server is None else tuple(address_of(server))
        if time.monotonic() < self._silent_until_s.get(address, 0.0):
            raise UpstreamUnavailable(
                "tmux did not answer a moment ago, and was not asked again", outcome="none"
            )
        try:
            return _ask_again([*address, *words], self._limit_s)
        except UpstreamUnavailable:
            self._silent_until_s[address] = time.monotonic() + TMUX_SILENCE_S
            raise


def own_screen(lines: int) -> str:
    """The screen of the pane around this process, and so many lines that scrolled off it; empty
    when it is gone, or tmux does not answer at once.
    """
    if not (pane := os.environ.get("TMUX_PANE")):
        return ""
    try:
        answer = ask(["capture-pane", "-p", "-J", "-S", f"-{lines}", "-t", pane], limit_s=_OWN_S)
    except Unavailable:
        return ""
    return "\n".join(line.rstrip() for line in answer.lines).strip("\n")


def address_of(server: TmuxAddress | None) -> list[str]:
    """The options of the `tmux` program that choose a server."""
    if server is not None and server.socket_name:
        return ["-L", server.socket_name]
    return ["-S", server.socket_path] if server is not None and server.socket_path else []


def socket_path() -> str:
    """The socket of the tmux server that `tmux` would talk to here, whether or not it runs: in a
    pane that of `$TMUX`, elsewhere the default one.
    """
    if around := os.environ.get("TMUX", "").rsplit(",", 2)[0]:
        return around
    folders = (os.environ.get("TMUX_TMPDIR"), "/tmp")
    folder = next((one for one in folders if one and os.path.exists(one)), "/tmp")
    return f"{os.path.realpath(folder)}/tmux-{os.getuid()}/default"


def _whole(word: str) -> str:
    """Escape a `;` at the end of a word, which would end the tmux command."""
    return f"{word[:-1]}\\;" if word.endswith(";") else word


def _literal(word: str) -> str:
    """Escape a word so that tmux expands no format in it, and runs no `#(command)`. tmux takes `#[`
    as it is, and `##` for `#`.
    """
    return re.sub(r"#+(?![#\[])", lambda found: found[0] * 2, word)
