"""Who stands just behind whom. A waiter watches the one just ahead of it, and has to be woken when that becomes another."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from holdfast.kernel.store import Tx
from holdfast.primitives.locks.record import Mode, Request, conflict
from holdfast.primitives.locks.table import Table


class Neighbours:
    """The queues of one transaction, seen by those in them. Each verb wakes whoever has somebody new just ahead."""

    def __init__(self, tx: Tx, table: Table) -> None:
        self._tx = tx
        self._table = table

    def come(self, request: Request) -> None:
        """A request is about to queue, maybe before others."""
        lasts = (self._table.last(name) for name in request.names)
        if any(last is not None and last.place > request.place for last in lasts):
            self.leave(request)

    def leave(self, request: Request) -> None:
        """A request is about to leave the queue, or to come into it: those behind it will have another ahead of them."""
        for name in request.names:
            self._wake(self._table.after(request, name), request.mode)

    def hold(self, name: str, mode: Mode) -> None:
        """A name has a holder of whom the first in line does not know."""
        self._wake(self._table.queue(name), mode)

    def grant(self, name: str, request: Request, *, waited: bool) -> None:
        """A request has become a holder. Those behind it in the queue know it, if it was in it; but if it passed somebody,
        that one is just ahead of them from now on."""
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
