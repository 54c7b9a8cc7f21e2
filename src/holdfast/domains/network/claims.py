"""Leases counted by their holders: what a source host and a neighbour entry have in common.

Used inside the caller's transaction, so that a batch is one step. What is known of processes is found out before.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from msgspec.structs import replace

from holdfast.domains.network.record import Leased, RunLease, lease_within
from holdfast.domains.network.room import Room
from holdfast.kernel.errors import RegistryError
from holdfast.kernel.limits import LEASES_PER_HOST_MAX
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, ReadTx, Row, Tx
from holdfast.primitives.holds import Verdicts, dropped, living, taken, verdicts_on
from holdfast.primitives.steady_clock import steady_clock


class Claims:
    """The leases of one space. `kind` begins the names of its journal entries."""

    def __init__(self, room: Room, space: Space[Any], kind: str) -> None:
        self._room = room
        self._steady = steady_clock(room.store)
        self._space = space
        self._kind = kind

    def verdicts(self, keys: Iterable[str]) -> Verdicts:
        """Look at the processes that have leases under these keys. Does I/O, so it is for outside of transactions."""
        self._steady.look()
        rows = [row for key in keys if (row := self._room.store.get(self._space, key)) is not None]
        return self.verdicts_in(rows)

    def verdicts_in(self, rows: Iterable[Row[Any]]) -> Verdicts:
        """The same for records at hand."""
        found = [lease for row in rows for lease in row.record.leases]
        return verdicts_on(found, self._room.processes, embedded=self._room.store.embedded)

    def all(self, damaged: Damage | None = None) -> list[Row[Any]]:
        """Every record. A damaged one raises, or is put into `damaged`."""
        return self._room.store.read(lambda tx: tx.range(self._space, damaged=damaged), scope=[self._space])

    def one(self, key: str) -> list[Row[Any]]:
        """The record under a key, if there is one. Damaged others do not matter."""
        row = self._room.store.get(self._space, key)
        return [] if row is None else [row]

    def ends(self, lease: RunLease) -> RunLease:
        """The lease as it ends by `lease_ttl_s`, if that is what ends it."""
        return replace(lease, lease=lease_within(lease.lease, self._room.settings.lease_ttl_s))

    def living(self, held: tuple[RunLease, ...], verdicts: Verdicts, now: datetime) -> tuple[RunLease, ...]:
        """Those that count, as they are written: their process is not known to be dead, and their time is not over."""
        return tuple(lease for lease in held if living((self.ends(lease),), verdicts, now, self._steady))

    def count(self, key: str) -> int:
        """How many hold it that are not known to be gone."""
        row = self._room.store.get(self._space, key)
        if row is None:
            return 0
        return len(self.living(_leases(row), self.verdicts_in([row]), self._room.store.now()))

    def take(self, tx: Tx, key: str, anew: Leased, lease: RunLease, verdicts: Verdicts) -> int:
        """One more holder, or one that renews; return the count. `anew` is the record if there is none. Raises RegistryError
        when there are too many."""
        record = self._swept(tx, key, verdicts) or anew
        held: tuple[RunLease, ...] = record.leases
        before = next((one for one in held if one.by == lease.by), None)
        if before is not None:
            # It is the same hold, and began when it began.
            lease = replace(lease, allocated_at=before.allocated_at, more=before.more)
        leases = taken(held, lease)
        if len(leases) > LEASES_PER_HOST_MAX:
            raise RegistryError(f"{key} has {LEASES_PER_HOST_MAX} leases, the most there may be: release some of them", key=key)
        tx.put(self._space, key, replace(record, leases=leases))
        self.tell(tx, "taken", key, run_id=lease.by, count=len(leases))
        return len(leases)

    def drop(self, tx: Tx, key: str, by: str, verdicts: Verdicts) -> tuple[int, bool]:
        """One holder fewer; return the count, and whether it was one. Its own lease it may drop though its process is dead."""
        row = tx.get(self._space, key)
        held = row is not None and any(lease.by == by for lease in row.record.leases)
        if held and row is not None:
            self._write(tx, key, replace(row.record, leases=dropped(_leases(row), by)))
        record = self._swept(tx, key, verdicts)
        count = 0 if record is None else len(record.leases)
        if held:
            self.tell(tx, "dropped", key, run_id=by, count=count)
        return count, held

    def remaining(self, tx: Tx, key: str, verdicts: Verdicts) -> tuple[str, ...]:
        """Who holds it, once those that are gone have left."""
        record = self._swept(tx, key, verdicts)
        return () if record is None else tuple(lease.by for lease in record.leases)

    def remove(self, tx: Tx, key: str) -> None:
        """End every lease at once."""
        row = tx.get(self._space, key)
        if row is not None:
            tx.delete(self._space, key)
            for at, lease in enumerate(row.record.leases, 1):
                self.tell(tx, "dropped", key, run_id=lease.by, count=len(row.record.leases) - at, forced=True)

    def sweep(self, timeout_s: float) -> int:
        """Let those that are gone leave everywhere; return how many there were. Passes over damaged records."""
        self._steady.look()
        rows = self.all(damaged=[])
        verdicts = self.verdicts_in(rows)
        now = self._room.store.now()
        due = [row.key for row in rows if len(self.living(_leases(row), verdicts, now)) < len(row.record.leases)]

        def body(tx: Tx) -> int:
            return sum(self._number(tx, key) - len(self.remaining(tx, key, verdicts)) for key in due)

        return self._room.store.transact(body, scope=[self._space], timeout_s=timeout_s) if due else 0

    def tell(self, tx: Tx, what: str, key: str, **data: object) -> None:
        """Write it into the journal."""
        self._room.journal.append(tx, kind=f"{self._kind}.{what}", subject=key, data=data)

    def _swept(self, tx: Tx, key: str, verdicts: Verdicts) -> Leased | None:
        """The record without those that are gone, which are told of; None when nobody is left."""
        row = tx.get(self._space, key)
        if row is None:
            return None
        rest = self.living(_leases(row), verdicts, tx.now)
        record: Leased = row.record
        if len(rest) == len(record.leases):
            return record
        left = {lease.by for lease in rest}
        for gone in record.leases:
            if gone.by not in left:
                self.tell(tx, "swept", key, run_id=gone.by, count=len(rest))
        record = replace(record, leases=rest)
        self._write(tx, key, record)
        return record if rest else None

    def _write(self, tx: Tx, key: str, record: Leased) -> None:
        if record.leases:
            tx.put(self._space, key, record)
        else:
            tx.delete(self._space, key)

    def _number(self, tx: ReadTx, key: str) -> int:
        row = tx.get(self._space, key)
        return 0 if row is None else len(row.record.leases)


def _leases(row: Row[Any]) -> tuple[RunLease, ...]:
    return cast("tuple[RunLease, ...]", row.record.leases)
