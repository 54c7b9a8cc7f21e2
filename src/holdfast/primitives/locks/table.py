"""The part of the lock table that one decision looks at: each thing read once, when it is needed,
and written back at the end.

Decisions about a long queue mostly need its head, so queues are read in pages.

Who stands just behind whom. A waiter watches the one just ahead of it, and has to be woken when
that becomes another.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.kernel.store import ReadTx, Tx
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    Hold,
    Lock,
    Mode,
    Request,
    conflict,
    lock_in,
    request_key,
    root_of,
    self_and_wholes,
    within,
)

_FIRST_PAGE = 2
_PAGE_MAX = 128


class Holders:
    """The holds of one name, in order, and indexed by job. A hand-over to many sharers asks of each
    of them whether its job holds the name already, and how large the row has become; to go through
    all holds each time would be quadratic.
    """

    __slots__ = ("_by_job", "_bytes", "count", "exclusive")

    def __init__(self, holds: Sequence[Hold]) -> None:
        self._by_job: dict[str, list[tuple[int, Hold]]] = {}
        self._bytes: int | None = None
        self.count = 0
        self.exclusive: list[Hold] = []
        for hold in holds:
            self.add(hold)

    def add(self, hold: Hold) -> None:
        """A hold that came last."""
        self._by_job.setdefault(hold.by, []).append((self.count, hold))
        self.count += 1
        if hold.mode is Mode.EXCLUSIVE:
            self.exclusive.append(hold)
        if self._bytes is not None:
            self._bytes += len(to_json(hold))

    def covering(self, by: str, mode: Mode) -> Hold | None:
        """The first hold by which a job has the name in that mode; None when it needs one."""
        first: tuple[int, Hold] | None = None
        for job in self_and_wholes(by):
            for at, hold in self._by_job.get(job, ()):
                if hold.covers(by, mode) and (first is None or at < first[0]):
                    first = at, hold
        return None if first is None else first[1]

    def size(self) -> int:
        """The bytes of the holds as a row keeps them."""
        if self._bytes is None:
            self._bytes = sum(
                len(to_json(hold)) for holds in self._by_job.values() for _, hold in holds
            )
        return self._bytes


class Table:
    """A view of the table inside one transaction."""

    def __init__(self, tx: ReadTx) -> None:
        self._tx = tx
        self._locks: dict[str, Lock] = {}
        self._holders: dict[str, Holders] = {}
        self._requests: dict[str, Request | None] = {}
        self._queues: dict[str, _Queue] = {}
        self._lasts: dict[str, Request | None] = {}
        self._jobs: dict[str, list[Request]] = {}

    def lock(self, name: str) -> Lock:
        """Who holds a resource."""
        found = self._locks.get(name)
        if found is None:
            found = self._locks[name] = lock_in(self._tx.get(LOCKS, name))
        return found

    def holders(self, name: str) -> Holders:
        """The holds of a resource by what is asked of them."""
        found = self._holders.get(name)
        if found is None:
            found = self._holders[name] = Holders(self.lock(name).holds)
        return found

    def find_hold(self, hold_id: str, names: Sequence[str]) -> Hold | None:
        """A grant that is still in force."""
        for name in names:
            for hold in self.lock(name).holds:
                if hold.id == hold_id:
                    return hold
        return None

    def request(self, request_id: str) -> Request | None:
        """A request that waits, or that was told something and has not read it yet."""
        if request_id not in self._requests:
            row = self._tx.get(LOCK_WAITS, request_key(request_id))
            self._requests[request_id] = None if row is None else row.record
        return self._requests[request_id]

    def queue(self, name: str) -> Iterator[Request]:
        """Who waits for a name, in order. A request may be dequeued while this goes on."""
        return iter(self._queue(name))

    def last(self, name: str) -> Request | None:
        """The last in a name's queue."""
        if name not in self._lasts:
            waited = self.lock(name).waited
            found = (
                self._tx.find(LOCK_WAITS, "queue", (name,), reverse=True, limit=1) if waited else []
            )
            self._lasts[name] = self._whole(found[0].record) if found else None
        return self._lasts[name]

    def before(self, request: Request, name: str) -> Iterator[Request]:
        """Who waits for a name before a request, the nearest first."""
        stop, page = request.place, 1
        last = self._lasts.get(name)
        if last is not None and last.place < stop:
            yield last
            stop = last.place
        while True:
            found = self._tx.find(LOCK_WAITS, "queue", (name,), stop=stop, reverse=True, limit=page)
            for row in found:
                yield self._whole(row.record)
            if len(found) < page:
                return
            stop, page = found[-1].record.place, min(page * 4, _PAGE_MAX)

    def after(self, request: Request, name: str) -> Iterator[Request]:
        """Who waits for a name behind a request, the nearest first."""
        place, page = request.place, _FIRST_PAGE
        while True:
            found = self.page(name, place, page)
            yield from found
            if len(found) < page:
                return
            place, page = found[-1].place, min(page * 4, _PAGE_MAX)

    def of_job(self, by: str) -> list[Request]:
        """What a job and its parts wait for, in order."""
        root = root_of(by)
        found = self._jobs.get(root)
        if found is None:
            found = self._jobs[root] = [
                self._whole(row.record) for row in self._tx.find(LOCK_WAITS, "job", (root,))
            ]
        return (
            found
            if not found or root == by
            else [request for request in found if within(request.by, by)]
        )

    def page(self, name: str, after: tuple[int, int] | None, limit: int) -> list[Request]:
        """A stretch of a name's queue."""
        start = None if after is None else (after[0], after[1] + 1)
        rows = self._tx.find(LOCK_WAITS, "queue", (name,), start=start, limit=limit)
        return [self._whole(row.record) for row in rows]

    def _queue(self, name: str) -> "_Queue":
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = _Queue(self, name, empty=not self.lock(name).waited)
        return found

    def _whole(self, row: Request) -> Request:
        """The request behind one of its rows: only its first row is kept up to date."""
        if row.name == row.names[0]:
            return self._requests.setdefault(row.id, row) or row
        return self.request(row.id) or row


class WritableTable(Table):
    """A table that can be changed. Resources are written at the end, by `write`; requests at once,
    as the store keeps their order.
    """

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx)
        self.tx = tx
        self._changed: dict[str, None] = {}
        self._left: dict[str, None] = {}

    def hold(self, hold: Hold) -> None:
        """Enter a grant under each of its names."""
        for name in hold.names:
            self._set(name, (*self.lock(name).holds, hold), added=hold)

    def unhold(self, hold: Hold) -> None:
        """Take a grant away from each of its names."""
        for name in hold.names:
            self._set(name, tuple(other for other in self.lock(name).holds if other.id != hold.id))

    def rehold(self, hold: Hold) -> None:
        """Put a grant's new form in the place of its old one."""
        for name in hold.names:
            self._set(
                name,
                tuple(hold if other.id == hold.id else other for other in self.lock(name).holds),
            )

    def enqueue(self, request: Request) -> None:
        """Add a waiting request under each of its names."""
        self._requests[request.id] = request
        self._jobs.pop(root_of(request.by), None)
        for key, row in request.rows():
            lock, last = self.lock(row.name), self.last(row.name)
            if not lock.waited or row.name in self._queues:
                self._queue(row.name).add(request)
            newest_at = lock.newest_at
            if request.priority or (last is not None and last.place > request.place):
                newest_at = max(request.arrived_at, newest_at or request.arrived_at)
            if not lock.waited or newest_at != lock.newest_at:
                self._locks[row.name] = replace(lock, waited=True, newest_at=newest_at)
                self._changed[row.name] = None
            self.tx.put(LOCK_WAITS, key, row)

    def dequeue(self, request: Request) -> None:
        """Remove a request under each of its names."""
        self._requests[request.id] = None
        self._jobs.pop(root_of(request.by), None)
        for key, row in request.rows():
            self.tx.delete(LOCK_WAITS, key)
            self._queue(row.name).remove(request)
            self._lasts.pop(row.name, None)
            self._left[row.name] = None

    def update(self, request: Request) -> None:
        """Write what changed of a request that goes on waiting."""
        self.tx.put(LOCK_WAITS, request.key, replace(request, name=request.names[0]))
        self._requests[request.id] = request
        self._jobs.pop(root_of(request.by), None)
        for name in request.names:
            self._lasts.pop(name, None)
            if name in self._queues:
                self._queues[name].replace(request)

    def tell(self, request: Request) -> None:
        """Take a request out of the queue and leave it where its waiter finds its outcome."""
        self.dequeue(request)
        self.tx.put(LOCK_WAITS, request.key, replace(request, name=request.names[0]))
        self._requests[request.id] = request
        self.tx.notify(request.address)

    def forget(self, request: Request) -> None:
        """Clear away the outcome that a request was told."""
        self.tx.delete(LOCK_WAITS, request.key)
        self._requests[request.id] = None

    def write(self) -> None:
        """Write the resources that changed; one that nobody holds or waits for goes."""
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

    def _set(self, name: str, holds: tuple[Hold, ...], *, added: Hold | None = None) -> None:
        self._locks[name] = replace(self.lock(name), holds=holds)
        self._changed[name] = None
        if added is not None and name in self._holders:
            self._holders[name].add(added)
        else:
            self._holders.pop(name, None)


class _Queue:
    """A name's queue, as far as it has been read."""

    def __init__(self, table: Table, name: str, *, empty: bool) -> None:
        self._table = table
        self._name = name
        self._known: list[Request] = []
        self._read_to: tuple[int, int] | None = None
        self._page = _FIRST_PAGE
        self._complete = empty

    def __iter__(self) -> Iterator[Request]:
        at = 0
        while True:
            if at == len(self._known) and not self._read_on():
                return
            request = self._known[at]
            yield request
            # Not simply the next index: it may have been dequeued meanwhile, or another before it.
            at = bisect_right(self._known, request.place, key=_place)

    def add(self, request: Request) -> None:
        """A request that was just enqueued."""
        if self._complete or (self._read_to is not None and request.place < self._read_to):
            insort(self._known, request, key=_place)

    def remove(self, request: Request) -> None:
        """A request that was just dequeued."""
        at = self._index(request)
        if at is not None:
            del self._known[at]

    def replace(self, request: Request) -> None:
        """A request that was just updated."""
        at = self._index(request)
        if at is not None:
            self._known[at] = request

    def _index(self, request: Request) -> int | None:
        """Where a request is. No two have the same place, and none ever gets another."""
        at = bisect_left(self._known, request.place, key=_place)
        return at if at < len(self._known) and self._known[at].id == request.id else None

    def _read_on(self) -> bool:
        if self._complete:
            return False
        found = self._table.page(self._name, self._read_to, self._page)
        self._complete = len(found) < self._page
        self._page = min(self._page * 4, _PAGE_MAX)
        if found:
            self._read_to = found[-1].place
        self._known += found
        return bool(found)


def _place(request: Request) -> tuple[int, int]:
    return request.place


class Neighbours:
    """The queues of one transaction, seen by those in them. Each verb wakes whoever has somebody
    new just ahead.
    """

    def __init__(self, tx: Tx, table: Table) -> None:
        self._tx = tx
        self._table = table

    def come(self, request: Request) -> None:
        """A request is about to queue, maybe before others."""
        lasts = (self._table.last(name) for name in request.names)
        if any(last is not None and last.place > request.place for last in lasts):
            self.leave(request)

    def leave(self, request: Request) -> None:
        """A request is about to leave the queue, or to come into it: those behind it will have
        another ahead of them.
        """
        for name in request.names:
            self._wake(self._table.after(request, name), request.mode)

    def hold(self, name: str, mode: Mode) -> None:
        """A name has a holder of whom the first in line does not know."""
        self._wake(self._table.queue(name), mode)

    def grant(self, name: str, request: Request, *, waited: bool) -> None:
        """A request has become a holder. Those behind it in the queue know it, if it was in it; but
        if it passed somebody, that one is just ahead of them from now on.
        """
        if not waited:
            self.hold(name, request.mode)
            return
        ahead = takewhile(lambda other: other.place < request.place, self._table.queue(name))
        if self._wake(ahead, request.mode):
            self._wake(self._table.after(request, name), request.mode)

    def _wake(self, queue: Iterable[Request], mode: Mode) -> int:
        """Wake those of a queue that come next; return how many."""
        found = list(_next(queue, mode))
        for other in found:
            self._tx.notify(other.address)
        return len(found)


def _next(queue: Iterable[Request], mode: Mode) -> Iterator[Request]:
    """The next in a queue that conflicts with a mode, and more while they share or only look."""
    for other in queue:
        if conflict(other.mode, mode):
            yield other
            if other.mode is Mode.EXCLUSIVE and not other.look:
                return
