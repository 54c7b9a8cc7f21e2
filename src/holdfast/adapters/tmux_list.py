"""One list of all panes of a tmux server, for all threads of this process that look at one.

Each look at an agent would otherwise start a tmux program of its own, every second: with 50 idle
agents these took a fifth of a processor.
"""

import threading
import time
from collections.abc import Sequence

from holdfast.adapters.tmux import ask
from holdfast.kernel.errors import HoldfastError, Unavailable, UpstreamUnavailable

_AGE_S = 0.25


class PaneList:
    """The panes of a tmux server at one moment."""

    def __init__(self, begun_s: float, lines: Sequence[str]) -> None:
        self.begun_s = begun_s
        self._sessions: dict[str, str] = {}
        self._panes: dict[str, list[str]] = {}
        for line in lines:
            # `$1 name` for a session, `p$1 facts` for a pane: a name may have any character.
            first, _, rest = line.partition(" ")
            if first.startswith("p"):
                self._panes.setdefault(first[1:], []).append(rest)
            else:
                self._sessions[rest] = first

    def panes_of(self, session: str) -> list[str]:
        """The facts of the panes of the session of exactly that name."""
        return self._panes.get(self._sessions.get(session, ""), [])


class _Lists:
    """The lists of one tmux server: one thread asks at a time, and the others wait for its list."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._last: PaneList | None = None
        self._error: tuple[float, HoldfastError] | None = None

    def recent(self, words: Sequence[str], *, unlike: PaneList | None, limit_s: float) -> PaneList:
        oldest_s = time.monotonic() - _AGE_S
        with self._mutex:
            last = self._last
            if last is not None and last is not unlike and last.begun_s >= oldest_s:
                return last
            if self._error is not None and self._error[0] >= oldest_s:
                raise self._error[1]
            begun_s = time.monotonic()
            try:
                self._last = listed = _listed(words, begun_s, limit_s)
            except HoldfastError as error:
                self._error = (time.monotonic(), error)
                raise
            self._error = None
            return listed


_mutex = threading.Lock()
_by_server: dict[tuple[str, ...], _Lists] = {}


def recent_list(
    address: Sequence[str], facts: str, *, unlike: PaneList | None, limit_s: float
) -> PaneList:
    """The panes of the tmux server at an address, each with these facts (a format of tmux). The
    list is at most a quarter of a second older than this call, and not `unlike`, the one that the
    caller has seen already. Raises UpstreamUnavailable when tmux does not answer.
    """
    words = (*address, "list-sessions", "-F", "#{session_id} #{session_name}", ";")
    words = (*words, "list-panes", "-a", "-F", "p#{session_id} " + facts)
    with _mutex:
        lists = _by_server.setdefault(words, _Lists())
    return lists.recent(words, unlike=unlike, limit_s=limit_s)


def _listed(words: Sequence[str], begun_s: float, limit_s: float) -> PaneList:
    try:
        answer = ask(words, limit_s=limit_s)
    except UpstreamUnavailable:
        raise
    except Unavailable as error:
        raise UpstreamUnavailable(error.message, outcome="none") from None
    # After a refusal the callers, which find no pane, look for themselves.
    return PaneList(begun_s, [] if answer.status else answer.lines)
