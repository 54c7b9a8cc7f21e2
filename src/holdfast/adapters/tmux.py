"""tmux, through libtmux: which tmux sessions there are, and new ones for agents.

Names are always matched exactly. The server is the one that `tmux` itself would talk to here: that of the tmux session around
this process, or the user's own.
"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.kernel.errors import Collision, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness

if TYPE_CHECKING:
    import libtmux
    from libtmux.common import tmux_cmd

_NO_SERVER = ("no server running", "no such file or directory", "connection refused", "no sessions")
_ENDING = ("server exited", "lost server")
"""What tmux says when its server went away while it was asked. The next one to ask is told plainly."""
_TRIES = 3
_FORBIDDEN = frozenset(".:")


class Tmux:
    """The tmux server of this user. Nothing is started by looking."""

    def liveness(self, session_name: str) -> Liveness:
        """Is there a tmux session of exactly this name? UNKNOWN when tmux is not installed, or does not answer this user."""
        if not session_name or _FORBIDDEN & set(session_name):
            # tmux gives no tmux session such a name, and takes it for a pane's.
            return Liveness.UNKNOWN
        try:
            # All of them, to compare here: tmux would take `$0`, `@1` and the like for something else than a name.
            asked = _ask("list-sessions", "-F", "#{session_name}")
        except Unavailable:
            return Liveness.UNKNOWN
        if asked.returncode == 0:
            return Liveness.ALIVE if session_name in asked.stdout else Liveness.DEAD
        return Liveness.DEAD if _says(asked, _NO_SERVER) else Liveness.UNKNOWN

    def current(self) -> str | None:
        """The name of the tmux session around this process; None when there is none."""
        if not os.environ.get("TMUX"):
            return None
        try:
            asked = _ask("display-message", "-p", "-t", os.environ.get("TMUX_PANE", ""), "#{session_name}")
        except Unavailable:
            return None
        return asked.stdout[0] if asked.returncode == 0 and asked.stdout else None

    def start(self, session_name: str, command: Sequence[str], *, folder: str, environment: Mapping[str, str]) -> None:
        """Start a command in a new tmux session, in the background.

        Raises Collision when there is one of that name, InvalidValue for a name that tmux does not take, and Unavailable when
        tmux cannot be used; nothing was started then.
        """
        if not session_name or _FORBIDDEN & set(session_name):
            raise InvalidValue(f"{session_name!r} cannot name a tmux session: leave out . and :", field="session_name")
        words = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        started = _ask("new-session", "-d", "-s", session_name, "-c", folder, *words, shlex.join(command))
        said = " ".join(started.stderr)
        if "duplicate session" in said:
            raise Collision(
                f"there is a tmux session {session_name} already: choose another name with --tmux-session, or end it with "
                f"`tmux kill-session -t ={session_name}`",
                session_name=session_name,
            )
        if started.returncode != 0:
            raise Unavailable(f"tmux could not start {session_name}: {said or 'it does not say why'}", outcome="none")


def _ask(*words: str) -> "tmux_cmd":
    server = _server()
    for _ in range(_TRIES):
        asked = server.cmd(*words)
        if not _says(asked, _ENDING):
            break
    return asked


def _says(asked: "tmux_cmd", any_of: Sequence[str]) -> bool:
    said = " ".join(asked.stderr).lower()
    return any(words in said for words in any_of)


def _server() -> "libtmux.Server":
    try:
        import libtmux
    except ImportError:
        raise Unavailable(
            "tmux is used through libtmux, which is not installed: pip install 'holdfast[tmux]'", outcome="none"
        ) from None
    if shutil.which("tmux") is None:
        raise Unavailable("there is no tmux on the PATH: install it, or use `holdfast agents run`", outcome="none")
    return libtmux.Server()
