"""A tmux server and what its panes show."""

import shlex
from typing import NamedTuple

from holdfast.adapters.tmux_mark import MARK
from holdfast.adapters.tmux_program import ask
from holdfast.kernel.errors import Unavailable, UpstreamUnavailable
from holdfast.kernel.limits import TMUX_ANSWER_S

UNSENT = "@holdfast_unsent"
"""The option of a pane that names the paste behind which no Enter was sent yet, with the agent's process."""
AGENT = "@holdfast_agent"
"""The option of a pane that names the process which is the agent."""

_FIELDS = (
    *("pid", "session_id", "session_created", "pane_id", "pane_pid", "pane_dead", "pane_active", "window_active"),
    *("pane_input_off", "history_size", "history_limit", "cursor_x", "cursor_y", "alternate_on", "bracket_paste_flag"),
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
    """Its lines, with where the cursor is and how much has scrolled away: if this stays the same, nothing was written."""

    @property
    def last_line(self) -> str:
        """The last line with something on it."""
        return next((line for line in reversed(self.content[:-1]) if line.strip()), "")


class TmuxServer:
    """The tmux server behind a socket. No call takes longer than its limit."""

    def __init__(self, socket_name: str | None, socket_path: str | None, *, limit_s: float = TMUX_ANSWER_S) -> None:
        self.address = ["-L", socket_name] if socket_name else ["-S", socket_path] if socket_path else []
        self._limit_s = limit_s

    def run(self, *words: str, limit_s: float | None = None) -> list[str]:
        """Run a tmux command, and return the lines that it prints.

        Raises UpstreamUnavailable: with the outcome `none` when tmux refuses, and `unknown` when it does not answer in time.
        """
        try:
            said = ask([*self.address, *words], limit_s=self._limit_s if limit_s is None else limit_s)
        except UpstreamUnavailable:
            raise
        except Unavailable as error:
            raise UpstreamUnavailable(error.message, outcome="none") from None
        if said.status:
            raise UpstreamUnavailable(f"tmux {words[0]}: {said.complaint[:500]}", outcome="none")
        return said.lines

    def screen(self, session: str) -> Screen | None:
        """The first pane of the session of exactly that name, if it lives. Raises UpstreamUnavailable when tmux does not answer
        in time: then it may or may not be there."""
        try:
            lines = self.run("list-panes", "-s", "-t", f"={session}:", "-F", _FORMAT)
            panes = [line.split("|", len(_FIELDS) - 1) for line in lines]
            fields = [dict(zip(_FIELDS, pane, strict=True)) for pane in panes if len(pane) == len(_FIELDS)]
            if not fields:
                return None
            # By its number, which only grows: what people open beside it, or switch to, is not the agent.
            first = min(fields, key=lambda pane: int(pane["pane_id"].removeprefix("%")))
            if first["pane_dead"] == "1":
                return None
            return _screen(shlex.join(["tmux", *self.address]), first, self.run("capture-pane", "-p", "-t", first["pane_id"]))
        except UpstreamUnavailable as error:
            if silent(error):
                raise
            return None

    def text_since(self, before: Screen, after: Screen) -> str:
        """What was written since: from the cursor's line before on, as far as it is kept; of a program that draws the whole
        screen, that."""
        begin = before.history + before.cursor_y - after.history
        lost = after.alternate or before.alternate or after.history < before.history or after.history >= after.history_limit
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
