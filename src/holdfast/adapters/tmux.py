"""tmux, through libtmux: which tmux sessions there are, and new ones for agents.

Names are always matched exactly. The server is the one that `tmux` itself would talk to here: that of the tmux session around
this process, or the user's own.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.kernel.errors import Collision, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness

if TYPE_CHECKING:
    import libtmux

_NO_SERVER = ("no server running", "no such file or directory", "connection refused")
_NO_SESSION = ("can't find session", "session not found")
_FORBIDDEN = frozenset(".:")


class Tmux:
    """The tmux server of this user. Nothing is started by looking."""

    def liveness(self, session_name: str) -> Liveness:
        """Is there a tmux session of exactly this name? UNKNOWN when tmux is not installed, or does not answer this user."""
        if not session_name or _FORBIDDEN & set(session_name):
            # tmux gives no tmux session such a name, and takes it for a pane's.
            return Liveness.UNKNOWN
        try:
            asked = _server().cmd("has-session", "-t", f"={session_name}")
        except Unavailable:
            return Liveness.UNKNOWN
        if asked.returncode == 0:
            return Liveness.ALIVE
        said = " ".join(asked.stderr).lower()
        return Liveness.DEAD if any(words in said for words in (*_NO_SERVER, *_NO_SESSION)) else Liveness.UNKNOWN

    def current(self) -> str | None:
        """The name of the tmux session around this process; None when there is none."""
        import os

        if not os.environ.get("TMUX"):
            return None
        try:
            asked = _server().cmd("display-message", "-p", "-t", os.environ.get("TMUX_PANE", ""), "#{session_name}")
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
        started = _server().cmd("new-session", "-d", "-s", session_name, "-c", folder, *words, shlex.join(command))
        said = " ".join(started.stderr)
        if "duplicate session" in said:
            raise Collision(
                f"there is a tmux session {session_name} already: choose another name with --tmux-session, or end it with "
                f"`tmux kill-session -t ={session_name}`",
                session_name=session_name,
            )
        if started.returncode != 0:
            raise Unavailable(f"tmux could not start {session_name}: {said or 'it does not say why'}", outcome="none")


def _server() -> "libtmux.Server":
    import shutil

    try:
        import libtmux
    except ImportError:
        raise Unavailable(
            "tmux is used through libtmux, which is not installed: pip install 'holdfast[tmux]'", outcome="none"
        ) from None
    if shutil.which("tmux") is None:
        raise Unavailable("there is no tmux on the PATH: install it, or use `holdfast agents run`", outcome="none")
    return libtmux.Server()
