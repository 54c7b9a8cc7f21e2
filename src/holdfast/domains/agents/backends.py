"""What agents run on. Only what is in tmux is controlled through its tmux session."""

import re
from collections.abc import Mapping

from holdfast.kernel.errors import InvalidValue

TMUX_BACKED: Mapping[str, bool] = {
    "local_interactive": True,
    "claude_headless": True,
    "codex_headless": True,
    "gemini_headless": True,
    "cao_rest": False,
    "houmao_server_rest": False,
    "command": False,
}
"""Those known by name. Any other `TOOL_headless` is in tmux too; `command` is a program in the foreground, without tmux."""

_HEADLESS = re.compile(r"[a-z0-9]+_headless\Z")


def tmux_backed(backend: str) -> bool:
    """Does it run in tmux? An unknown one does not: nothing is controlled on a guess."""
    return TMUX_BACKED.get(backend, _HEADLESS.match(backend) is not None)


def check_backend(backend: str) -> str:
    """Return the backend if it is one. Raises InvalidValue."""
    if backend in TMUX_BACKED or _HEADLESS.match(backend):
        return backend
    known = ", ".join(TMUX_BACKED)
    raise InvalidValue(f"{backend[:40]!r} is no backend: use {known}, or another TOOL_headless", field="backend")


def check_session(backend: str, session_name: str | None) -> None:
    """Refuse an interactive agent that does not say in which tmux session it is: nobody could control it, and when its launcher
    ends it would be taken for gone. Raises InvalidValue."""
    if backend == "local_interactive" and session_name is None:
        raise InvalidValue(
            "a local_interactive agent is in a tmux session, and none is named: give its name (--tmux-session), or say another "
            "backend, such as command",
            field="session_name",
        )
