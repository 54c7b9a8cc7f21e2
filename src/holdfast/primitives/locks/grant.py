"""A grant, as its holder has it, and lasting grants, which survive a reboot.

The lock table of an embedded store ends with the boot, as the processes that hold locks do. A grant
without a process must not. So it has a durable copy, written before `acquire` returns, which enters
the table of the next boot with the same token.
"""

import math
import os
import shlex
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.kernel.codec import Record
from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Listener, Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.locks.records import LOCKS, LockHold, Mode, conflict, lock_in
from holdfast.primitives.locks.table import WritableLockTable

if TYPE_CHECKING:
    from holdfast.primitives.locks.manager import Locks


_event_mutex = threading.Lock()
"""Held for an instant, so that two threads get the same event of a grant."""


class SavedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as data across execve(2). The program that is executed may be of another version."""

    id: str
    by: str
    mode: Mode
    names: tuple[str, ...]
    token: int
    since_s: float


class Suspended(msgspec.Struct, frozen=True):
    """A grant that this process will resume after execve(2). Its loss makes the first of `fds`
    readable. Keep the listener and all of them open until then.
    """

    grant: SavedGrant
    listener: Listener
    fds: tuple[int, ...]


class Grant:
    """A set of names, held by one job. A context manager that releases it.

    `token` fences what the grant guards: send it with every write, so that the other side can
    refuse a smaller one than it has seen, or call `check_token`. Names that the job held already
    keep the token of that earlier grant; `tokens` has all of them. A release frees `taken`, the
    names that this grant acquired itself; a re-entered grant acquired none.

    Promised: until this grant is released or lost, no other job is granted any of its names in a
    conflicting mode, except names that the job releases by `Locks.free`. Not promised: that this
    process notices a loss before its next write, as after SIGCONT; the token is there for that.
    """

    __slots__ = (
        *("_lost", "_owner", "_tokens", "by", "ends_s", "gone", "id", "mode", "names", "pid"),
        *("since_s", "taken", "token", "ttl_s", "unattended", "untouched"),
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
        """As far as this process knows, its rows are unchanged since the grant."""
        self.unattended = unattended
        """No process holds it."""
        self.pid = os.getpid()
        self.since_s = time.monotonic()
        self.ends_s = ends_s
        """When it ends unless renewed, on the monotonic clock; infinite without a time to live."""
        self.gone = ""
        """Why it is over, as far as this process knows: "released", "lost", or "" if it is not."""

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
        """True when the job held all the names already, so that a release frees nothing."""
        return bool(self.names) and not self.taken

    @property
    def lost(self) -> threading.Event:
        """Set when this process learns that the grant was taken away. A release never sets it."""
        with _event_mutex:
            if self._lost is None:
                self._lost = threading.Event()
            if self.gone == "lost":
                self._lost.set()
            return self._lost

    def check(self) -> None:
        """Ask the store whether this grant is in force. Raises LeaseLost: stop work now."""
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

    def drop_names(self, names: Collection[str]) -> None:
        """Note that the job has released some of the names; the grant is released with the last."""
        remaining = {name: token for name, token in self.tokens.items() if name not in names}
        if not remaining:
            self.gone = "released"
            return
        self._tokens, self.names = remaining, tuple(remaining)
        self.token = max(remaining.values())
        self.taken = tuple(name for name in self.taken if name not in names)

    def lose(self) -> None:
        """Note that it was taken away, and set the event `lost`."""
        with _event_mutex:
            self.gone = self.gone or "lost"
            if self._lost is not None and self.gone == "lost":
                self._lost.set()


def lost(grant: Grant) -> LeaseLost:
    """The error for the holder of a lost grant."""
    # If its time ran out and no other job took it, the journal has no entry.
    over = time.monotonic() >= grant.ends_s
    why = "is over, as its time to live has ended" if over else "was taken away"
    return LeaseLost(
        f"the grant of {', '.join(grant.names)} to {grant.by} (token {grant.token}) {why}: stop "
        "work on it now. "
        f"`holdfast log --subject {shlex.quote(grant.names[0])}` shows what happened",
        names=list(grant.names),
        by=grant.by,
        token=grant.token,
    )


class LastingGrant(Record, frozen=True, kw_only=True):
    """The durable copy of a grant."""

    hold: LockHold


class TableBegun(Record, frozen=True, kw_only=True):
    """The lock table of this boot has the grants that survived the last one."""

    grants: int


LASTING_GRANTS = Space("lasting_grants", LastingGrant)
TABLE_BEGUN = Space("lock_table_begun", TableBegun, volatile=True)

_ONLY = "table"


class LastingGrants:
    """The copies of lasting grants. Does nothing where the lock table itself is durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._restored = not store.embedded

    def restore(self, *, read_only: bool = False, deadline: Deadline | None = None) -> None:
        """Before the first use of the lock table, enter the grants that survived the last boot. If
        there are none, a `read_only` caller writes nothing.
        """
        if self._restored:
            return
        retry = (deadline or Deadline(TRANSACT_TIMEOUT_S)).retry
        store = self._store
        if retry(lambda limit_s: store.get(TABLE_BEGUN, _ONLY, timeout_s=limit_s)) is None:
            found = retry(
                lambda limit_s: store.read(
                    lambda tx: tx.range(LASTING_GRANTS), scope=[LASTING_GRANTS], timeout_s=limit_s
                )
            )
            if read_only and not found:
                return
            copies = [row.record.hold for row in found]
            over = retry(
                lambda limit_s: store.transact(
                    lambda tx: _enter(tx, copies), scope=[LOCKS, TABLE_BEGUN], timeout_s=limit_s
                )
            )
            for hold in over:
                self.delete(hold.id)
        self._restored = True

    def put(self, hold: LockHold, deadline: Deadline | None = None) -> None:
        """Write the durable copy of a grant, as it is now, if no process holds it."""
        if not self._store.embedded or hold.process is not None:
            return
        retry = (deadline or Deadline(TRANSACT_TIMEOUT_S)).retry
        written: LockHold | None = None
        present: LockHold | None = hold
        # Repeat if another process changed or ended the grant meanwhile: it found no copy to change
        # yet.
        while present is not None and present != written:
            written = present
            retry(partial(self._write, written))
            held = (
                one for name in hold.names for one in lock_in(self._store.get(LOCKS, name)).holds
            )
            present = next((one for one in held if one.id == hold.id), None)
        if present is None:
            self.delete(hold.id)

    def _write(self, hold: LockHold, timeout_s: float) -> None:
        copy = LastingGrant(hold=hold)
        self._store.transact(
            lambda tx: tx.put(LASTING_GRANTS, hold.id, copy),
            scope=[LASTING_GRANTS],
            timeout_s=timeout_s,
        )

    def end(self, hold: LockHold, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """Delete the copy of a grant that is over, if no process held it."""
        if hold.process is None:
            self.delete(hold.id, timeout_s)

    def delete(self, hold_id: str, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        if self._store.embedded:
            self._store.transact(
                lambda tx: tx.delete(LASTING_GRANTS, hold_id),
                scope=[rows(LASTING_GRANTS)],
                timeout_s=timeout_s,
            )


def _enter(tx: Tx, kept: list[LockHold]) -> list[LockHold]:
    """Fill the table once; return the grants that are over."""
    if tx.get(TABLE_BEGUN, _ONLY) is not None:
        return []
    table = WritableLockTable(tx)
    entered, over = 0, []
    # The newest first. Where two copies conflict, the older grant had ended, and its copy was about
    # to be deleted.
    for hold in sorted(kept, key=lambda hold: -hold.token):
        held = [other for name in hold.names for other in table.lock(name).holds]
        if hold.lease.fresh(tx.now) and not any(conflict(hold.mode, other.mode) for other in held):
            table.add_hold(hold)
            entered += 1
        else:
            over.append(hold)
    table.write()
    tx.put(TABLE_BEGUN, _ONLY, TableBegun(grants=entered))
    return over
