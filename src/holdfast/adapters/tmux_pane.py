"""A tmux server, what its panes show, and how a prompt gets into one: its buffer, and the commands
of the tmux server that paste it and send the one Enter.

A condition is a tmux format, for `if-shell -F`. A command is a text of tmux's command language. No
other command of any client comes between the parts of one step.
"""

import contextlib
import fcntl
import os
import pty
import re
import secrets
import select
import shlex
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters.tmux import address_of, ask
from holdfast.adapters.tmux_list import PaneList, recent_list
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.kernel.errors import Fenced, Unavailable, UpstreamUnavailable
from holdfast.kernel.limits import TMUX_ANSWER_S
from holdfast.system.access import in_folder, open_file

MARK = "@holdfast_gateway"
"""The option of a pane that names the gateway which types into it."""
UNSENT = "@holdfast_unsent"
"""The option of a pane that names a paste whose Enter was not sent yet, and the agent's process."""
AGENT = "@holdfast_agent"
"""The option of a pane that names the process which is the agent."""

_FIELDS = (
    *("pid", "session_id", "session_created", "pane_id", "pane_pid", "pane_dead", "pane_active"),
    *("window_active", "pane_input_off", "history_size", "history_limit", "cursor_x", "cursor_y"),
    *("alternate_on", "bracket_paste_flag", "version", UNSENT, MARK, AGENT),
    *("window_activity", "pane_width", "pane_height"),
    # The last one, since a program's name may have any character.
    "pane_current_command",
)
_FORMAT = "|".join(f"#{{{name}}}" for name in _FIELDS)
_BRACKETED_ON, _BRACKETED_OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_ATTACH_S = 2.0
_QUIET_S = 0.1

_BUFFER_PREFIX = "holdfast-"
_KEY_BUFFER = "holdfast_key"
"""The buffer that carries a key. It exists only within one step of the tmux server."""
_KEY_BYTES = {
    "C-c": r"\003",
    "C-u": r"\025",
    "BSpace": r"\177",
    "Escape": r"\033",
    "Enter": r"\015",
}
"""The byte that a terminal sends for a key, as tmux writes it between quotes."""
_ENTER_AFTER_S = 0.3
"""The delay of Enter after a paste: some programs take an Enter that comes at once for a part of
the paste.
"""
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")
"""A program's name without a meaning in tmux's formats."""


class Screen(NamedTuple):
    """A pane at one moment."""

    tmux: str
    """The command line that reaches its tmux server, for messages to people."""
    server_pid: int
    session_id: str
    session_created: str
    pane_id: str
    pane_pid: int
    current: bool
    input_off: bool
    width: int
    bracketed: bool | None
    history: int
    history_limit: int
    cursor_x: int
    cursor_y: int
    alternate: bool
    program: str
    """The name of the program in the foreground."""
    unsent: str
    """The paste whose Enter was not sent, and the agent's process that got it."""
    mark: str
    agent: str
    version: str
    content: tuple[str, ...]
    """The lines, then the position of the cursor and of the history. While this stays the same,
    nothing was written.
    """
    facts: str = ""
    """All of the above but the lines, as tmux wrote it."""
    settled: bool = False
    """Was it read in a later second than anything that was written to the window? Then the lines
    are the same as long as the facts are.
    """

    @property
    def last_line(self) -> str:
        """The last line with something on it."""
        return next((line for line in reversed(self.content[:-1]) if line.strip()), "")


class TmuxServer:
    """The tmux server at an address. No call takes longer than its limit."""

    def __init__(self, address: TmuxAddress, *, limit_s: float = TMUX_ANSWER_S) -> None:
        self._address = address_of(address)
        self._limit_s = limit_s
        self._seen_list: PaneList | None = None

    def run(self, *words: str, limit_s: float | None = None) -> list[str]:
        """Run a tmux command, and return the lines that it prints.

        Raises UpstreamUnavailable: with the outcome `none` when tmux refuses, and `unknown` when it
        does not answer in time.
        """
        try:
            answer = ask(
                [*self._address, *words], limit_s=self._limit_s if limit_s is None else limit_s
            )
        except UpstreamUnavailable:
            raise
        except Unavailable as error:
            raise UpstreamUnavailable(error.message, outcome="none") from None
        if answer.status:
            raise UpstreamUnavailable(f"tmux {words[0]}: {answer.complaint[:500]}", outcome="none")
        return answer.lines

    def screen(self, session: str) -> Screen | None:
        """The first pane of the session of exactly that name, if it is alive. Raises
        UpstreamUnavailable when tmux does not answer in time: the pane may or may not be there.
        """
        try:
            looked_s = int(time.time())
            lines = self.run("list-panes", "-s", "-t", f"={session}:", "-F", _FORMAT)
            panes = [line.split("|", len(_FIELDS) - 1) for line in lines]
            found = [
                dict(zip(_FIELDS, pane, strict=True)) for pane in panes if len(pane) == len(_FIELDS)
            ]
            if not found:
                return None
            # The lowest number, as numbers only grow: a pane that a person opens beside it, or
            # switches to, is not the agent's.
            pane = min(found, key=lambda one: int(one["pane_id"].removeprefix("%")))
            if pane["pane_dead"] == "1":
                return None
            content = self.run("capture-pane", "-p", "-t", pane["pane_id"])
        except UpstreamUnavailable as error:
            if is_silent(error):
                raise
            return None
        place = f"{pane['cursor_x']},{pane['cursor_y']},{pane['history_size']}"
        return Screen(
            tmux=shlex.join(["tmux", *self._address]),
            server_pid=int(pane["pid"]),
            session_id=pane["session_id"],
            session_created=pane["session_created"],
            pane_id=pane["pane_id"],
            pane_pid=int(pane["pane_pid"]),
            current=pane["pane_active"] == "1" and pane["window_active"] == "1",
            input_off=pane["pane_input_off"] == "1",
            width=int(pane["pane_width"]),
            bracketed={"0": False, "1": True}.get(pane["bracket_paste_flag"]),
            history=int(pane["history_size"]),
            history_limit=int(pane["history_limit"]),
            cursor_x=int(pane["cursor_x"]),
            cursor_y=int(pane["cursor_y"]),
            alternate=pane["alternate_on"] == "1",
            program=pane["pane_current_command"],
            unsent=pane[UNSENT],
            mark=pane[MARK],
            agent=pane[AGENT],
            version=pane["version"],
            content=(*content, place),
            facts=lines[panes.index(list(pane.values()))],
            settled=looked_s > int(pane["window_activity"]),
        )

    def last_lines(self, session: str, lines: int) -> str | None:
        """The last lines of the first pane of a session: its screen, and before it what scrolled
        off. None when the pane is gone. Raises UpstreamUnavailable.
        """
        if (screen := self.screen(session)) is None:
            return None
        capture = ["capture-pane", "-p", "-J", "-S", f"-{lines}", "-t", screen.pane_id]
        text = "\n".join(line.rstrip() for line in self.run(*capture)).strip("\n")
        return "\n".join(text.split("\n")[-lines:])

    def glance(self, session: str, last: Screen | None) -> Screen | None:
        """As `screen`, but it may be a quarter of a second old, and mostly it costs a part of one
        tmux command: one list of all panes is shared by all gateways of this process, and the
        screen is read only when something was written since `last`.
        """
        if last is None or not last.settled:
            return self.screen(session)
        self._seen_list = listed = recent_list(
            self._address, _FORMAT, unlike=self._seen_list, limit_s=self._limit_s
        )
        return last if last.facts in listed.panes_of(session) else self.screen(session)

    def text_since(self, before: Screen, after: Screen) -> str:
        """The text written since `before`: from its cursor line on, as far as tmux keeps it. For a
        program that draws the whole screen: the screen.
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

    def pastes_bracketed(self, session: str, screen: Screen) -> bool:
        """Is it certain that the program in the pane has switched bracketed paste on?

        Newer versions of tmux report it. With an older one this attaches as a terminal would, read
        only and without an effect on the size: tmux switches the mode on for the attached terminal
        if the pane that the session shows has it on.
        """
        if screen.bracketed is not None:
            return screen.bracketed
        if not screen.current:
            return False
        flags = ["-f", "read-only,ignore-size"]
        drawn = _drawn(["tmux", *self._address, "attach-session", *flags, "-t", f"={session}"])
        return drawn.rfind(_BRACKETED_ON) > drawn.rfind(_BRACKETED_OFF)


def is_silent(error: UpstreamUnavailable) -> bool:
    """Did tmux not answer in time? Then it may still do what it was asked."""
    return error.fields.get("outcome") == "unknown"


def _drawn(command: list[str]) -> bytes:
    """The bytes that tmux sends to a terminal that attaches, until it has drawn the screen."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        # With $TMUX set, tmux refuses to attach inside another session.
        environment.pop("TMUX", None)
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
        seen, end_s = b"", time.monotonic() + _ATTACH_S
        with contextlib.suppress(OSError):
            while time.monotonic() < end_s:
                # Quiet for a moment after the first lines: the screen is drawn.
                wait_s = _QUIET_S if b"\r\n" in seen else _ATTACH_S
                if not select.select([ours], [], [], wait_s)[0]:
                    break
                piece = os.read(ours, 65536)
                if not piece:
                    break
                seen += piece
        return seen
    finally:
        # Killed, not detached: a detach talks to the server, which may not answer.
        client.kill()
        os.close(ours)
        client.wait()


def is_pane(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, and takes input."""
    process = (
        f"#{{&&:#{{==:#{{pid}},{screen.server_pid}}},#{{==:#{{pane_pid}},{screen.pane_pid}}}}}"
    )
    return f"#{{&&:{process},#{{!=:#{{pane_input_off}},1}}}}"


def runs_same(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, with a program of the same name in the
    foreground.
    """
    if not _PLAIN.fullmatch(screen.program):
        # The name would be part of the condition's syntax. The process was checked a moment ago.
        return is_pane(screen)
    return f"#{{&&:{is_pane(screen)},#{{==:#{{pane_current_command}},{screen.program}}}}}"


def has_mark(mark: str) -> str:
    """The condition that a pane has this mark."""
    return f"#{{==:#{{{MARK}}},{mark}}}"


def is_unsent(paste: str) -> str:
    """The condition that no Enter was sent behind a paste."""
    return f"#{{==:#{{{UNSENT}}},{paste}}}"


def enter_later(screen: Screen, paste: str, condition: str) -> str:
    """The tmux command that starts the timer for the Enter behind a paste, and signals when the
    Enter was sent.
    """
    # run-shell expands formats when it starts the timer. Doubled, they are expanded when it fires.
    later = f"{enter_once(screen, paste, condition)} ; wait-for -S {paste}".replace("#", "##")
    # As one word of a tmux command.
    quoted = later.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'run-shell -b -d {_ENTER_AFTER_S} -C "{quoted}"'


def enter_once(screen: Screen, paste: str, condition: str) -> str:
    """The tmux command that sends Enter for a paste: once, only under a condition, and only to the
    program that got the paste. The shell that an agent exits to would run the paste as a command.
    """
    pane = f"-t {screen.pane_id}"
    owed = f"#{{&&:{condition},#{{&&:{runs_same(screen)},{is_unsent(paste)}}}}}"
    return (
        f"if-shell -F {pane} '{owed}' 'set-option -pu {pane} {UNSENT} ; {press(screen, 'Enter')}'"
    )


def shows(pattern: str) -> str:
    """The condition that some line of a pane's screen matches a pattern of a profile, which has no
    character with a meaning in tmux's formats and commands.
    """
    return f"#{{!=:#{{C/r:{pattern}}},0}}"


def lacks(pattern: str) -> str:
    """The condition that no line matches it."""
    return f"#{{==:#{{C/r:{pattern}}},0}}"


def cursor_at(screen: Screen) -> str:
    """The condition that the cursor is where it was on that screen: nothing was typed since."""
    x, y = f"#{{==:#{{cursor_x}},{screen.cursor_x}}}", f"#{{==:#{{cursor_y}},{screen.cursor_y}}}"
    return f"#{{&&:{x},{y}}}"


def press(screen: Screen, key: str) -> str:
    """The tmux command that gives a key's byte to the pane's program, and to nothing else."""
    put = f"paste-buffer -r -d -b {_KEY_BUFFER} -t {screen.pane_id}"
    return f'set-buffer -b {_KEY_BUFFER} "{_KEY_BYTES[key]}" ; {put}'


class PromptBuffers:
    """The tmux buffers of prompts that are not pasted yet. An empty file with the buffer's name is
    in `folder` as long as the buffer may exist: by it the next gateway deletes the buffer of a
    killed one, since nobody else should find the prompt there.
    """

    def __init__(self, server: TmuxServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._names: list[str] = []

    def find_left(self) -> None:
        """Delete the buffers that a killed gateway left."""
        self._names += sorted(path.name for path in self._folder.glob(f"{_BUFFER_PREFIX}*"))
        self.delete_left()

    def delete_left(self) -> None:
        """Delete all buffers; stop when tmux does not answer."""
        while self._names:
            try:
                self._server.run("delete-buffer", "-b", self._names[-1])
            except UpstreamUnavailable as error:
                if is_silent(error):
                    return
            self.forget(self._names[-1])

    def forget(self, name: str) -> None:
        """Note that a buffer does not exist any more."""
        self._names.remove(name)
        (self._folder / name).unlink(missing_ok=True)

    def load(self, prompt: str) -> str:
        """Have tmux read the prompt into a new buffer; return its name. Raises UpstreamUnavailable,
        and Fenced when tmux does not answer: nothing was delivered.
        """
        self.delete_left()
        name = f"{_BUFFER_PREFIX}{secrets.token_hex(8)}"
        self._names.append(name)
        path = self._folder / name
        try:
            # A new file, written through its own descriptor: 0600 whatever the umask, and never
            # through a link.
            with open(in_folder(path, _new_file, private=True), "wb") as file:
                file.write(prompt.encode())
            self._server.run("load-buffer", "-b", name, str(path))
        except OSError as error:
            self.forget(name)
            raise UpstreamUnavailable(
                f"the prompt cannot be written for tmux to read: {error}", outcome="none"
            ) from None
        except UpstreamUnavailable as error:
            if is_silent(error):
                raise Fenced(f"nothing was delivered: {error.message}", outcome="none") from None
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.close(open_file(path, os.O_WRONLY | os.O_TRUNC, make=False))
        return name


def _new_file(folder: int, name: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)
