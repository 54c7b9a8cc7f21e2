"""What a holder has in hand.

Grants that must outlive a reboot: those that no process holds, which a person or a script took for
so many seconds.

The lock table of an embedded store ends with the boot, as its holders do. These grants are also
written to the durable part, before their taker is told, and are entered anew into the table of the
next boot. Their tokens stay as they are.
"""

import math
import os
import shlex
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.kernel.codec import Record
from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Listener, Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.locks.records import LOCKS, Hold, Mode, conflict, lock_in
from holdfast.primitives.locks.table import WritableTable

if TYPE_CHECKING:
    from holdfast.primitives.locks.manager import Locks


_making = threading.Lock()
"""Held for an instant, so that two threads that ask for a grant's event get the same."""


class SavedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant on its way to the next program that its process executes. That may be of another
    version, so unknown fields are allowed.
    """

    id: str
    by: str
    mode: Mode
    names: tuple[str, ...]
    token: int
    since_s: float


class Suspended(NamedTuple):
    """A grant that the next program of this process will resume. A notice of its loss makes the
    first descriptor readable. All of them must stay open until then, and so must the listener.
    """

    grant: SavedGrant
    listener: Listener
    fds: tuple[int, ...]


class Grant:
    """A set of names, held by one job. A context manager that releases it.

    `token` fences what the grant guards: show it with every write, and let the other side refuse a
    smaller one than it has seen, or ask `check_token`. Where the job held some of the names
    already, those keep the token of that grant; `tokens` has all of them. Releasing this grant
    frees `taken`, the names that it took itself, which are none for a re-entered one.

    Promised: as long as this grant is neither released nor lost, no other job has been granted any
    of its names in a way that conflicts; what its process lets go of by `Locks.free` is no longer
    among them. Not promised: that this process notices at once when it is lost; a program that was
    stopped and continued may write once more before it does, which is what the token is for.
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
        """When it is over unless it is renewed, on the monotonic clock; infinite where only the
        holder's death ends it.
        """
        self.gone = ""
        """Why it is over, as far as this process knows: "" while it is not, "released" or "lost".
        """

    def __enter__(self) -> "Grant":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._owner.leave(self, raising=kind is None)

    def __repr__(self) -> str:
        return (
            f"<Grant {', '.join(self.names)} by {self.by} "
            f"token={self.token}{self.gone and ' ' + self.gone}>"
        )

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
        """Set when this process learns that the grant was taken away: `grant.lost.wait(1)`. Never
        set by a release.
        """
        with _making:
            if self._lost is None:
                self._lost = threading.Event()
            if self.gone == "lost":
                self._lost.set()
            return self._lost

    def check(self) -> None:
        """Ask the store whether this grant is still in force. Raises LeaseLost when it is not: stop
        work now.
        """
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
    over = (
        "is over, as its time has run out" if time.monotonic() >= grant.ends_s else "was taken away"
    )
    return LeaseLost(
        f"the grant of {', '.join(grant.names)} to {grant.by} (token {grant.token}) {over}: stop "
        "work on it now. "
        f"`holdfast log --subject {shlex.quote(grant.names[0])}` tells more",
        names=list(grant.names),
        by=grant.by,
        token=grant.token,
    )


class LastingGrant(Record, frozen=True, kw_only=True):
    """The durable copy of a grant."""

    hold: Hold


class TableBegun(Record, frozen=True, kw_only=True):
    """Says that the lock table of this boot has what outlived the last one."""

    grants: int


LASTING_GRANTS = Space("lasting_grants", LastingGrant)
TABLE_BEGUN = Space("lock_table_begun", TableBegun, volatile=True)

_ONLY = "table"


class Lasting:
    """The durable copies of one store's grants. Does nothing where the lock table itself is
    durable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begun = not store.embedded

    def begin(self, *, to_look: bool = False, deadline: Deadline | None = None) -> None:
        """Before the first use of the lock table: see to it that it has what outlived the last
        boot. `to_look` says that nothing will be granted, so that nothing need be written where
        nothing outlived it. `deadline` is the caller's.
        """
        if self._begun:
            return
        insist = (deadline or Deadline(TRANSACT_TIMEOUT_S)).insist
        if insist(lambda limit_s: self._store.get(TABLE_BEGUN, _ONLY, timeout_s=limit_s)) is None:
            kept = insist(
                lambda limit_s: self._store.read(
                    lambda tx: [row.record.hold for row in tx.range(LASTING_GRANTS)],
                    scope=[LASTING_GRANTS],
                    timeout_s=limit_s,
                )
            )
            if to_look and not kept:
                return
            over = insist(
                lambda limit_s: self._store.transact(
                    lambda tx: _enter(tx, kept), scope=[LOCKS, TABLE_BEGUN], timeout_s=limit_s
                )
            )
            for hold in over:
                self.forget(hold.id)
        self._begun = True

    def keep(self, hold: Hold, deadline: Deadline | None = None) -> None:
        """Make a grant outlive a reboot, as it is now, if no process holds it. `deadline` is the
        caller's.
        """
        if not self._store.embedded or hold.process is not None:
            return
        insist = (deadline or Deadline(TRANSACT_TIMEOUT_S)).insist
        written: Hold | None = None
        present: Hold | None = hold
        # Again if it was changed or ended meanwhile, by another that had no copy to change yet.
        while present is not None and present != written:
            written = present
            insist(partial(self._put, hold.id, LastingGrant(hold=present)))
            present = self._present(present)
        if present is None:
            self.forget(hold.id)

    def _put(self, hold_id: str, copy: LastingGrant, timeout_s: float) -> None:
        self._store.transact(
            lambda tx: tx.put(LASTING_GRANTS, hold_id, copy),
            scope=[LASTING_GRANTS],
            timeout_s=timeout_s,
        )

    def _present(self, hold: Hold) -> Hold | None:
        """A grant as the table has it."""
        held = (
            other for name in hold.names for other in lock_in(self._store.get(LOCKS, name)).holds
        )
        return next((other for other in held if other.id == hold.id), None)

    def end(self, hold: Hold, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """A grant is over; if no process held it, it must not come back."""
        if hold.process is None:
            self.forget(hold.id, timeout_s)

    def forget(self, hold_id: str, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """Remove a grant's copy."""
        if self._store.embedded:
            self._store.transact(
                lambda tx: tx.delete(LASTING_GRANTS, hold_id),
                scope=[rows(LASTING_GRANTS)],
                timeout_s=timeout_s,
            )


def _enter(tx: Tx, kept: list[Hold]) -> list[Hold]:
    """Fill the table once; return those that are over."""
    if tx.get(TABLE_BEGUN, _ONLY) is not None:
        return []
    table = WritableTable(tx)
    entered, over = 0, []
    # The newest first: where two copies cannot both be true, the older grant had ended, and its
    # copy was about to go.
    for hold in sorted(kept, key=lambda hold: -hold.token):
        held = [other for name in hold.names for other in table.lock(name).holds]
        if hold.lease.fresh(tx.now) and not any(conflict(hold.mode, other.mode) for other in held):
            table.hold(hold)
            entered += 1
        else:
            over.append(hold)
    table.write()
    tx.put(TABLE_BEGUN, _ONLY, TableBegun(grants=entered))
    return over
