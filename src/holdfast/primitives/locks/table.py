"""The part of the lock table that one transaction uses. Each row is read once, when it is needed,
and queues in pages, as most decisions need only the head.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.kernel.store import ReadTx, Tx
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    Lock,
    LockHold,
    Mode,
    Waiter,
    job_and_parents,
    lock_in,
    root_of,
    waiter_key,
    within,
)

_place = attrgetter("place")
_FIRST_PAGE = 2
_PAGE_MAX = 128


class HoldIndex:
    """The holds of one name by job. A hand-over to many sharers needs for each its job's hold and
    the size of the row: scanning would be quadratic.
    """

    __slots__ = ("_by_job", "_bytes", "count", "exclusive")

    def __init__(self, holds: Sequence[LockHold]) -> None:
        self._by_job: dict[str, list[tuple[int, LockHold]]] = {}
        self._bytes: int | None = None
        self.count = 0
        self.exclusive: list[LockHold] = []
        for hold in holds:
            self.add(hold)

    def add(self, hold: LockHold) -> None:
        self._by_job.setdefault(hold.by, []).append((self.count, hold))
        self.count += 1
        if hold.mode is Mode.EXCLUSIVE:
            self.exclusive.append(hold)
        if self._bytes is not None:
            self._bytes += len(to_json(hold))

    def covering(self, by: str, mode: Mode) -> LockHold | None:
        """The first hold by which a job has the name in that mode; None when it needs one."""
        first: tuple[int, LockHold] | None = None
        for job in job_and_parents(by):
            for at, hold in self._by_job.get(job, ()):
                if hold.covers(by, mode) and (first is None or at < first[0]):
                    first = at, hold
        return None if first is None else first[1]

    def size(self) -> int:
        if self._bytes is None:
            self._bytes = sum(
                len(to_json(hold)) for holds in self._by_job.values() for _, hold in holds
            )
        return self._bytes


class LockTable:
    """A view of the table inside one transaction."""

    def __init__(self, tx: ReadTx) -> None:
        self.tx = tx
        self._locks: dict[str, Lock] = {}
        self._indexes: dict[str, HoldIndex] = {}
        self._waiters: dict[str, Waiter | None] = {}
        self._queues: dict[str, _Queue] = {}
        self._lasts: dict[str, Waiter | None] = {}
        self._jobs: dict[str, list[Waiter]] = {}

    def lock(self, name: str) -> Lock:
        """The resource of that name; a free one has no row."""
        found = self._locks.get(name)
        if found is None:
            found = self._locks[name] = lock_in(self.tx.get(LOCKS, name))
        return found

    def hold_index(self, name: str) -> HoldIndex:
        found = self._indexes.get(name)
        if found is None:
            found = self._indexes[name] = HoldIndex(self.lock(name).holds)
        return found

    def covering_hold(self, name: str, by: str, mode: Mode) -> LockHold | None:
        """The hold by which a job has a name in that mode already; None when it needs one."""
        holds = (self._locks.get(name) or self.lock(name)).holds
        if len(holds) > 1:
            return self.hold_index(name).covering(by, mode)
        return holds[0] if holds and holds[0].covers(by, mode) else None

    def find_hold(self, hold_id: str, names: Sequence[str]) -> LockHold | None:
        """A grant that is still in force on any of the names."""
        for name in names:
            for hold in self.lock(name).holds:
                if hold.id == hold_id:
                    return hold
        return None

    def waiter(self, waiter_id: str) -> Waiter | None:
        """A waiter in the queue, or one that has an outcome to read."""
        if waiter_id not in self._waiters:
            row = self.tx.get(LOCK_WAITS, waiter_key(waiter_id))
            self._waiters[waiter_id] = None if row is None else row.record
        return self._waiters[waiter_id]

    def queue(self, name: str) -> Iterator[Waiter]:
        """The waiters for a name, in order. Waiters may be dequeued during the iteration."""
        return iter(self._queue(name))

    def last(self, name: str) -> Waiter | None:
        """The last waiter for a name."""
        if name not in self._lasts:
            last = None
            if self.lock(name).waited:
                rows = self.tx.find(LOCK_WAITS, "queue", (name,), reverse=True, limit=1)
                last = self._current(rows[0].record) if rows else None
            self._lasts[name] = last
        return self._lasts[name]

    def before(self, waiter: Waiter, name: str) -> Iterator[Waiter]:
        """The waiters for a name ahead of one, the nearest first."""
        stop, page = waiter.place, 1
        last = self._lasts.get(name)
        if last is not None and last.place < stop:
            yield last
            stop = last.place
        while True:
            rows = self.tx.find(LOCK_WAITS, "queue", (name,), stop=stop, reverse=True, limit=page)
            for row in rows:
                yield self._current(row.record)
            if len(rows) < page:
                return
            stop, page = rows[-1].record.place, min(page * 4, _PAGE_MAX)

    def after(self, waiter: Waiter, name: str) -> Iterator[Waiter]:
        """The waiters for a name behind one, the nearest first."""
        place, page = waiter.place, _FIRST_PAGE
        while True:
            found = self.page(name, place, page)
            yield from found
            if len(found) < page:
                return
            place, page = found[-1].place, min(page * 4, _PAGE_MAX)

    def waits_of_job(self, by: str) -> list[Waiter]:
        """The waits of a job and its parts, in order."""
        root = root_of(by)
        found = self._jobs.get(root)
        if found is None:
            found = self._jobs[root] = [
                self._current(row.record) for row in self.tx.find(LOCK_WAITS, "job", (root,))
            ]
        if not found or root == by:
            return found
        return [waiter for waiter in found if within(waiter.by, by)]

    def page(self, name: str, after: tuple[int, int] | None, limit: int) -> list[Waiter]:
        """The waiters for a name behind a place, or from the first on."""
        start = None if after is None else (after[0], after[1] + 1)
        rows = self.tx.find(LOCK_WAITS, "queue", (name,), start=start, limit=limit)
        return [self._current(row.record) for row in rows]

    def _queue(self, name: str) -> "_Queue":
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = _Queue(self, name, empty=not self.lock(name).waited)
        return found

    def _current(self, row: Waiter) -> Waiter:
        """The waiter of any of its rows: only the first row is kept up to date."""
        if row.name == row.names[0]:
            return self._waiters.setdefault(row.id, row) or row
        return self.waiter(row.id) or row


class WritableLockTable(LockTable):
    """A table to change. Waiters are written at once, as the store keeps them in order; locks are
    written at the end, by `write`.
    """

    tx: Tx

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx)
        self._changed: dict[str, None] = {}
        """Names whose row must be written; a dict, to keep their order."""
        self._left: dict[str, None] = {}
        """Names that lost a waiter, and may have no other."""

    def add_hold(self, hold: LockHold) -> None:
        for name in hold.names:
            lock = self.lock(name)
            self._locks[name] = replace(lock, holds=(*lock.holds, hold))
            self._changed[name] = None
            if name in self._indexes:
                self._indexes[name].add(hold)

    def remove_hold(self, hold: LockHold) -> None:
        for name in hold.names:
            holds = tuple(other for other in self.lock(name).holds if other.id != hold.id)
            self._set_holds(name, holds)

    def replace_hold(self, hold: LockHold) -> None:
        for name in hold.names:
            holds = tuple(hold if one.id == hold.id else one for one in self.lock(name).holds)
            self._set_holds(name, holds)

    def enqueue(self, waiter: Waiter) -> None:
        self._waiters[waiter.id] = waiter
        self._jobs.pop(root_of(waiter.by), None)
        for key, row in waiter.rows():
            lock, last = self.lock(row.name), self.last(row.name)
            if not lock.waited or row.name in self._queues:
                self._queue(row.name).add(waiter)
            newest_at = lock.newest_at
            if waiter.priority or (last is not None and last.place > waiter.place):
                newest_at = max(waiter.arrived_at, newest_at or waiter.arrived_at)
            if not lock.waited or newest_at != lock.newest_at:
                self._locks[row.name] = replace(lock, waited=True, newest_at=newest_at)
                self._changed[row.name] = None
            self.tx.put(LOCK_WAITS, key, row)

    def dequeue(self, waiter: Waiter) -> None:
        self._waiters[waiter.id] = None
        self._jobs.pop(root_of(waiter.by), None)
        for key, row in waiter.rows():
            self.tx.delete(LOCK_WAITS, key)
            self._queue(row.name).remove(waiter)
            self._lasts.pop(row.name, None)
            self._left[row.name] = None

    def update(self, waiter: Waiter) -> None:
        """Write the changed fields of a waiter that stays in the queue."""
        self.tx.put(LOCK_WAITS, waiter.key, replace(waiter, name=waiter.names[0]))
        self._waiters[waiter.id] = waiter
        self._jobs.pop(root_of(waiter.by), None)
        for name in waiter.names:
            self._lasts.pop(name, None)
            if name in self._queues:
                self._queues[name].replace(waiter)

    def settle(self, waiter: Waiter) -> None:
        """Dequeue a waiter that has an outcome, leave the outcome in its first row, and wake it."""
        self.dequeue(waiter)
        self.tx.put(LOCK_WAITS, waiter.key, replace(waiter, name=waiter.names[0]))
        self._waiters[waiter.id] = waiter
        self.tx.notify(waiter.address)

    def delete_outcome(self, waiter: Waiter) -> None:
        self.tx.delete(LOCK_WAITS, waiter.key)
        self._waiters[waiter.id] = None

    def write(self) -> None:
        """Write the changed resources; delete those that nobody holds or waits for."""
        for name in self._left:
            if next(self.queue(name), None) is None and self.lock(name).waited:
                self._locks[name] = replace(self.lock(name), waited=False, newest_at=None)
                self._changed[name] = None
        for name in self._changed:
            lock = self.lock(name)
            if lock.holds or lock.waited:
                self.tx.put(LOCKS, name, lock)
            else:
                self.tx.delete(LOCKS, name)

    def _set_holds(self, name: str, holds: tuple[LockHold, ...]) -> None:
        self._locks[name] = replace(self.lock(name), holds=holds)
        self._changed[name] = None
        self._indexes.pop(name, None)


class _Queue:
    """A name's queue, as far as it has been read."""

    def __init__(self, table: LockTable, name: str, *, empty: bool) -> None:
        self._table = table
        self._name = name
        self._read: list[Waiter] = []
        self._end: tuple[int, int] | None = None
        self._page = _FIRST_PAGE
        self._complete = empty

    def __iter__(self) -> Iterator[Waiter]:
        at = 0
        while at < len(self._read) or self._read_more():
            waiter = self._read[at]
            yield waiter
            # Not simply at + 1: this waiter, or one before it, may have been dequeued meanwhile.
            at = bisect_right(self._read, waiter.place, key=_place)

    def add(self, waiter: Waiter) -> None:
        if self._complete or (self._end is not None and waiter.place < self._end):
            insort(self._read, waiter, key=_place)

    def remove(self, waiter: Waiter) -> None:
        if (at := self._index(waiter)) is not None:
            del self._read[at]

    def replace(self, waiter: Waiter) -> None:
        if (at := self._index(waiter)) is not None:
            self._read[at] = waiter

    def _index(self, waiter: Waiter) -> int | None:
        at = bisect_left(self._read, waiter.place, key=_place)
        return at if at < len(self._read) and self._read[at].id == waiter.id else None

    def _read_more(self) -> bool:
        if self._complete:
            return False
        found = self._table.page(self._name, self._end, self._page)
        self._complete = len(found) < self._page
        self._page = min(self._page * 4, _PAGE_MAX)
        if found:
            self._end = found[-1].place
        self._read += found
        return bool(found)
