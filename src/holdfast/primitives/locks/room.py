"""What every request of a process shares: the store, its settings and its counts, and the table in one transaction."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Processes
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.lasting import Lasting
from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS, Hold
from holdfast.primitives.locks.statistics import Counting
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.turns import Removed, Terms, Turns

T = TypeVar("T")

SCOPE = (LOCKS, LOCK_WAITS)

_WITHDRAWING_S = 1.0


class Room(NamedTuple):
    """What every request of a process shares."""

    store: Store
    journal: Journal
    processes: Processes
    terms: Terms
    counting: Counting
    lasting: Lasting
    strays: dict[str, tuple[str, ...]]
    """Requests that could not be withdrawn when they should have been, as the store did not answer."""

    def transact(self, body: Callable[[Turns], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Change the lock table in one step."""

        def run(tx: Tx) -> T:
            turns = Turns(tx, self.journal, self.terms)
            result = body(turns)
            turns.end()
            return result

        return self.store.transact(run, scope=SCOPE, timeout_s=timeout_s)

    def read(self, body: Callable[[Table], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Look at the lock table as of now."""
        return self.store.read(lambda tx: body(Table(tx)), scope=SCOPE, timeout_s=timeout_s)

    def withdraw(self, request_id: str, names: tuple[str, ...]) -> None:
        """Leave nothing of a request, whether it waits, was told something or was granted. What cannot be done now, since the
        store does not answer, is done later."""
        if request_id not in self.strays:
            self._withdraw_if_possible(request_id, names)

    def withdraw_strays(self) -> None:
        """Try again what could not be withdrawn."""
        for request_id, names in list(self.strays.items()):
            self._withdraw_if_possible(request_id, names)

    def clear(self, names: tuple[str, ...]) -> None:
        """Before names are asked for: what an earlier request left of them must be gone. It would be taken for the job's own,
        and withdrawn later under the one who entered it. Raises what keeps it from being withdrawn."""
        for request_id, left in list(self.strays.items()):
            if not set(names).isdisjoint(left):
                self._withdraw(request_id, left)

    def _withdraw_if_possible(self, request_id: str, names: tuple[str, ...]) -> None:
        try:
            self._withdraw(request_id, names)
        except HoldfastError as error:
            logging.getLogger("holdfast.locks").warning("could not withdraw request %s yet: %s", request_id, error.message)

    def _withdraw(self, request_id: str, names: tuple[str, ...]) -> None:
        def body(turns: Turns) -> Hold | None:
            request = turns.table.request(request_id)
            hold = turns.table.find_hold(request_id, names)
            if request is not None and request.outcome is None:
                turns.leave(request, "lock.withdrawn")
            elif request is not None:
                turns.table.forget(request)
            elif hold is not None:
                turns.release(hold)
            return hold

        try:
            hold = self.transact(body, timeout_s=_WITHDRAWING_S)
            if hold is not None:
                self.lasting.end(hold)
            self.strays.pop(request_id, None)
        except BaseException:
            # Not before: another thread would withdraw it too, and by then its id may have been asked with again.
            self.strays[request_id] = names
            raise

    def reaped(self, removed: Sequence[Removed]) -> None:
        """Count what was reaped, and let its durable copies go."""
        for gone in removed:
            if gone.hold is not None:
                self.lasting.end(gone.hold)
                if not gone.dead:
                    self.counting.count(gone.names, "expiries")
                elif not gone.hold.on_behalf:
                    self.counting.count(gone.names, "deaths")
