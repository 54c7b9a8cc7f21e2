"""Grants that must outlive a reboot: those that no process holds, which a person or a script took for so many seconds.

The lock table of an embedded store ends with the boot, as its holders do. These grants are also written to the durable part,
before their taker is told, and are entered anew into the table of the next boot. Their tokens stay as they are.
"""

from functools import partial

from holdfast.kernel.codec import Record
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.locks.record import LOCKS, Hold, conflict, lock_in
from holdfast.primitives.locks.table import WritableTable


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
    """The durable copies of one store's grants. Does nothing where the lock table itself is durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begun = not store.embedded

    def begin(self, *, to_look: bool = False, deadline: Deadline | None = None) -> None:
        """Before the first use of the lock table: see to it that it has what outlived the last boot. `to_look` says that
        nothing will be granted, so that nothing need be written where nothing outlived it. `deadline` is the caller's."""
        if self._begun:
            return
        insist = (deadline or Deadline(TRANSACT_TIMEOUT_S)).insist
        if insist(lambda limit_s: self._store.get(TABLE_BEGUN, _ONLY, timeout_s=limit_s)) is None:
            kept = insist(
                lambda limit_s: self._store.read(
                    lambda tx: [row.record.hold for row in tx.range(LASTING_GRANTS)], scope=[LASTING_GRANTS], timeout_s=limit_s
                )
            )
            if to_look and not kept:
                return
            over = insist(
                lambda limit_s: self._store.transact(lambda tx: _enter(tx, kept), scope=[LOCKS, TABLE_BEGUN], timeout_s=limit_s)
            )
            for hold in over:
                self.forget(hold.id)
        self._begun = True

    def keep(self, hold: Hold, deadline: Deadline | None = None) -> None:
        """Make a grant outlive a reboot, as it is now, if no process holds it. `deadline` is the caller's."""
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
        self._store.transact(lambda tx: tx.put(LASTING_GRANTS, hold_id, copy), scope=[LASTING_GRANTS], timeout_s=timeout_s)

    def _present(self, hold: Hold) -> Hold | None:
        """A grant as the table has it."""
        held = (other for name in hold.names for other in lock_in(self._store.get(LOCKS, name)).holds)
        return next((other for other in held if other.id == hold.id), None)

    def end(self, hold: Hold, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """A grant is over; if no process held it, it must not come back."""
        if hold.process is None:
            self.forget(hold.id, timeout_s)

    def forget(self, hold_id: str, timeout_s: float = TRANSACT_TIMEOUT_S) -> None:
        """Remove a grant's copy."""
        if self._store.embedded:
            self._store.transact(
                lambda tx: tx.delete(LASTING_GRANTS, hold_id), scope=[rows(LASTING_GRANTS)], timeout_s=timeout_s
            )


def _enter(tx: Tx, kept: list[Hold]) -> list[Hold]:
    """Fill the table once; return those that are over."""
    if tx.get(TABLE_BEGUN, _ONLY) is not None:
        return []
    table = WritableTable(tx)
    entered, over = 0, []
    # The newest first: where two copies cannot both be true, the older grant had ended, and its copy was about to go.
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
