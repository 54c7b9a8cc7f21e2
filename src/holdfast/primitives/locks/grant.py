"""What a holder has in hand."""

import math
import os
import shlex
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.store import Listener
from holdfast.primitives.locks.record import Mode

if TYPE_CHECKING:
    from holdfast.primitives.locks.locks import Locks


_making = threading.Lock()
"""Held for an instant, so that two threads that ask for a grant's event get the same."""


class SavedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant on its way to the next program that its process executes. That may be of another version, so unknown fields are
    allowed."""

    id: str
    by: str
    mode: Mode
    names: tuple[str, ...]
    token: int
    since_s: float


class Suspended(NamedTuple):
    """A grant that the next program of this process will resume. A notice of its loss makes the first descriptor readable. All
    of them must stay open until then, and so must the listener."""

    grant: SavedGrant
    listener: Listener
    fds: tuple[int, ...]


class Grant:
    """A set of names, held by one job. A context manager that releases it.

    `token` fences what the grant guards: show it with every write, and let the other side refuse a smaller one than it has
    seen, or ask `check_token`. Where the job held some of the names already, those keep the token of that grant; `tokens` has
    all of them. Releasing this grant frees `taken`, the names that it took itself, which are none for a re-entered one.

    Promised: as long as this grant is neither released nor lost, no other job has been granted any of its names in a way that
    conflicts; what its process lets go of by `Locks.free` is no longer among them. Not promised: that this process notices at
    once when it is lost; a program that was stopped and continued may write once more before it does, which is what the token
    is for.
    """

    __slots__ = (
        "_lost",
        "_owner",
        "_tokens",
        "by",
        "ends_s",
        "gone",
        "id",
        "mode",
        "names",
        "pid",
        "since_s",
        "taken",
        "token",
        "ttl_s",
        "unattended",
        "untouched",
    )

    def __init__(
        self,
        owner: "Locks",
        *,
        id: str,
        by: str,
        mode: Mode,
        names: tuple[str, ...],
        taken: tuple[str, ...],
        token: int,
        tokens: Mapping[str, int] | None = None,
        ttl_s: float | None = None,
        untouched: bool = False,
        unattended: bool = False,
        ends_s: float = math.inf,
    ) -> None:
        self._owner = owner
        self._lost: threading.Event | None = None
        self.id = id
        self.by = by
        self.mode = mode
        self.names = names
        self.taken = taken
        self.token = token
        self._tokens = tokens
        self.ttl_s = ttl_s
        self.untouched = untouched
        self.unattended = unattended
        self.pid = os.getpid()
        self.since_s = time.monotonic()
        self.ends_s = ends_s
        """When it is over unless it is renewed, on the monotonic clock; infinite where only the holder's death ends it."""
        self.gone = ""
        """Why it is over, as far as this process knows: "" while it is not, "released" or "lost"."""

    def __enter__(self) -> "Grant":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._owner.leave(self, raising=kind is None)

    def __repr__(self) -> str:
        return f"<Grant {', '.join(self.names)} by {self.by} token={self.token}{self.gone and ' ' + self.gone}>"

    @property
    def tokens(self) -> Mapping[str, int]:
        """The token of each name."""
        return dict.fromkeys(self.names, self.token) if self._tokens is None else self._tokens

    @property
    def reentered(self) -> bool:
        """True when the job held all of it already, so that its release frees nothing."""
        return bool(self.names) and not self.taken

    @property
    def lost(self) -> threading.Event:
        """Set when this process learns that the grant was taken away: `grant.lost.wait(1)`. Never set by a release."""
        with _making:
            if self._lost is None:
                self._lost = threading.Event()
            if self.gone == "lost":
                self._lost.set()
            return self._lost

    def check(self) -> None:
        """Ask the store whether this grant is still in force. Raises LeaseLost when it is not: stop work now."""
        self._owner.check(self)

    def release(self) -> bool:
        """Release it; True when that freed something."""
        return self._owner.release(self)

    def saved(self) -> SavedGrant:
        """The grant as data."""
        return SavedGrant(
            id=self.id,
            by=self.by,
            mode=self.mode,
            names=self.names,
            token=self.token,
            since_s=self.since_s,
        )

    def let_go(self, names: Collection[str]) -> None:
        """Take note that its job has let go of some of its names: it is the grant of the others."""
        rest = {name: token for name, token in self.tokens.items() if name not in names}
        if not rest:
            self.gone = "released"
            return
        self._tokens, self.names = rest, tuple(rest)
        self.taken = tuple(name for name in self.taken if name not in names)

    def lose(self) -> None:
        """Take note that it was taken away, and tell who waits for that."""
        with _making:
            self.gone = self.gone or "lost"
            if self._lost is not None:
                self._lost.set()


def lost(grant: Grant) -> LeaseLost:
    """The error that tells a holder."""
    # Nobody need have taken it then, and the journal need not tell of it.
    over = "is over, as its time has run out" if time.monotonic() >= grant.ends_s else "was taken away"
    return LeaseLost(
        f"the grant of {', '.join(grant.names)} to {grant.by} (token {grant.token}) {over}: stop work on it now. "
        f"`holdfast log --subject {shlex.quote(grant.names[0])}` tells more",
        names=list(grant.names),
        by=grant.by,
        token=grant.token,
    )
