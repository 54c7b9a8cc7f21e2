"""What every request of a process shares: the store, its settings and its counts, and the table in one transaction."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from holdfast.kernel.errors import HoldfastError, LockTimeout
from holdfast.kernel.holder import Processes
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.lasting import Lasting
from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS, Hold
from holdfast.primitives.locks.statistics import Counting
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.turns import Removed, Terms, Turns
from holdfast.primitives.steady_clock import SteadyClock, steady_clock

T = TypeVar("T")

SCOPE = (LOCKS, LOCK_WAITS)

_WITHDRAWING_S = 1.0


class Footprint:
    """Whether a request may have left something in the store. It has not while each of its steps ended with a LockTimeout,
    which says that nothing was changed; then there is nothing to withdraw."""

    def __init__(self) -> None:
        self.possible = False

    def step(self, act: Callable[[], T]) -> T:
        """Do something that may leave something."""
        before, self.possible = self.possible, True
        try:
            return act()
        except LockTimeout as error:
            self.possible = before or error.fields.get("outcome") != "none"
            raise


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

    @property
    def steady(self) -> SteadyClock:
        """How far the store's clock is believed."""
        return steady_clock(self.store)

    def transact(self, body: Callable[[Turns], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Change the lock table in one step."""

        def run(tx: Tx) -> T:
            turns = Turns(tx, self.journal, self.terms, self.steady)
            result = body(turns)
            turns.end()
            return result

        return self.store.transact(run, scope=SCOPE, timeout_s=timeout_s)

    def read(self, body: Callable[[Table], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Look at the lock table as of now."""
        return self.store.read(lambda tx: body(Table(tx)), scope=SCOPE, timeout_s=timeout_s)

    def withdraw(self, request_id: str, names: tuple[str, ...], *, later: bool = False) -> None:
        """Leave nothing of a request, whether it waits, was told something or was granted. What cannot be done now, since the
        store does not answer, is done later; with `later`, it was just seen not to."""
        if later:
            self.strays.setdefault(request_id, names)
        elif request_id not in self.strays:
            try:
                self._withdraw(request_id, names)
            except HoldfastError as error:
                # Loaded here: a command that warns of nothing need not.
                import logging

                logging.getLogger("holdfast.locks").warning("could not withdraw request %s yet: %s", request_id, error.message)

    def withdraw_strays(self) -> bool:
        """Try again what could not be withdrawn; False when some of it still cannot."""
        for request_id, names in list(self.strays.items()):
            try:
                self._withdraw(request_id, names)
            except HoldfastError:
                # What keeps this one keeps the others too.
                return False
        return True

    def clear(self, names: tuple[str, ...], deadline: Deadline) -> None:
        """Before names are asked for: what an earlier request left of them must be gone. It would be taken for the job's own,
        and withdrawn later under the one who entered it. Raises what keeps it from being withdrawn."""
        for request_id, left in list(self.strays.items()):
            if not set(names).isdisjoint(left):
                deadline.insist(partial(self._withdraw, request_id, left))

    def _withdraw(self, request_id: str, names: tuple[str, ...], timeout_s: float = _WITHDRAWING_S) -> None:
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
            hold = self.transact(body, timeout_s=timeout_s)
            if hold is not None:
                self.lasting.end(hold, timeout_s)
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
