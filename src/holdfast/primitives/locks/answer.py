"""What the lock table answers to one request: granted, waiting, deadlocked, or not granted."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from holdfast.kernel.holder import Liveness
from holdfast.primitives.locks.policy import Obstruction, obstruction_of
from holdfast.primitives.locks.records import LockHold, Waiter, WaitOutcome
from holdfast.primitives.locks.table import LockTable
from holdfast.primitives.locks.transaction import LockTransaction
from holdfast.primitives.locks.wait import Ahead, ahead_of_hold, ahead_of_waiter, all_ahead
from holdfast.primitives.steady_clock import SteadyClock


class Granted(NamedTuple):
    """The job has all the names: by a new hold, and by those that it had before."""

    hold: LockHold | None
    own: list[LockHold]


class Waiting(NamedTuple):
    """The request must wait; these are just ahead of it."""

    waiter: Waiter
    ahead: list[Ahead]
    obstruction: Obstruction | None = None
    """For a request that does not wait, if its caller wants the reason."""


class Unverified(NamedTuple):
    """The answer depends on whether these are alive; nothing was changed."""

    ahead: list[Ahead]


class Deadlocked(NamedTuple):
    """Waiting would have closed this cycle."""

    cycle: str


class NotGranted(NamedTuple):
    """The end of a request without a grant, and after a timeout the reason if it is wanted."""

    reason: str
    obstruction: Obstruction | None = None


AcquireAnswer = Granted | Waiting | Unverified | Deadlocked | NotGranted

TIMED_OUT = "timed out"
FREE = "free"
TAKEN_AWAY = "taken away"


class RequestSteps:
    """The steps of one request. Each runs inside one transaction, which may run more than once."""

    def __init__(self, draft: Waiter, clock: SteadyClock, *, explain: bool) -> None:
        self.draft = draft
        self.verified: set[str] = set()
        """Ids of holds and waiters that were probed and found alive."""
        self._clock = clock
        self._explain = explain

    def grant_or_queue(self, transaction: LockTransaction) -> AcquireAnswer:
        """Grant the request, or queue it."""
        if (owned := self._owned(transaction)) is not None:
            return owned
        found = transaction.grant_or_queue(self.draft)
        if found is None:
            return NotGranted(FREE)
        if isinstance(found, LockHold):
            return self._granted(transaction.table, found)
        if isinstance(found, Waiter):
            return self.state(transaction.table)
        # A cycle through a dead process is no deadlock: that process will be reaped.
        involved = [
            one
            for step in found
            for one in (ahead_of_hold(step.hold), ahead_of_waiter(step.waiter))
            if one.id not in self.verified and one.id != self.draft.id
        ]
        return Unverified(involved) if involved else Deadlocked(transaction.refuse(found))

    def grant_or_refuse(
        self, transaction: LockTransaction
    ) -> Granted | Waiting | Unverified | NotGranted:
        """Grant the request, or change nothing."""
        if (owned := self._owned(transaction)) is not None:
            return owned
        found = transaction.grant_or_refuse(self.draft)
        if found is None:
            return NotGranted(FREE)
        if isinstance(found, LockHold):
            return self._granted(transaction.table, found)
        ahead = all_ahead(transaction.table, found)
        return Waiting(found, ahead, self._obstruction(transaction, found))

    def state(self, table: LockTable) -> AcquireAnswer:
        """The answer as the table shows it now."""
        waiter = table.waiter(self.draft.id)
        if waiter is not None:
            return Waiting(waiter, [] if waiter.outcome else all_ahead(table, waiter))
        hold = table.find_hold(self.draft.id, self.draft.names)
        return NotGranted(TAKEN_AWAY) if hold is None else self._granted(table, hold)

    def read_outcome(self, transaction: LockTransaction) -> AcquireAnswer:
        """Read the outcome of the wait and delete it."""
        answer = self.state(transaction.table)
        if not isinstance(answer, Waiting) or answer.waiter.outcome is None:
            return answer
        transaction.table.delete_outcome(answer.waiter)
        free = answer.waiter.outcome is WaitOutcome.FREE
        return NotGranted(FREE) if free else self.grant_or_queue(transaction)

    def leave_queue(self, transaction: LockTransaction, *, timed_out: bool) -> AcquireAnswer:
        """Leave the queue, unless the wait has just ended."""
        answer = self.state(transaction.table)
        if not isinstance(answer, Waiting):
            return answer
        if answer.waiter.outcome is not None:
            return self.read_outcome(transaction)
        # Before it leaves: nothing blocks a waiter that has left.
        obstruction = self._obstruction(transaction, answer.waiter)
        if timed_out:
            transaction.time_out(answer.waiter)
        else:
            transaction.leave(answer.waiter, "lock.withdrawn")
        return NotGranted(TIMED_OUT, obstruction)

    def transfer(self, transaction: LockTransaction) -> Granted | NotGranted:
        """Give the grant to the process on whose behalf this one waited."""
        hold = transaction.table.find_hold(self.draft.id, self.draft.names)
        if hold is None:
            return NotGranted(TAKEN_AWAY)
        return self._granted(transaction.table, transaction.transfer(hold, self.draft.holder))

    def refresh(self, transaction: LockTransaction) -> None:
        """Renew the lease of the waiter."""
        waiter = transaction.table.waiter(self.draft.id)
        if waiter is not None and waiter.outcome is None:
            transaction.refresh(waiter)

    def doubtful(self, own: Iterable[LockHold], now: datetime) -> list[LockHold]:
        """The job's own holds that may be over, and then cannot be re-entered."""
        this = self.draft.process
        return [
            hold
            for hold in own
            if self._clock.reclaimable(hold.lease, Liveness.ALIVE, now)
            or (hold.process not in (None, this) and hold.id not in self.verified)
        ]

    def _owned(self, transaction: LockTransaction) -> Granted | Unverified | None:
        """The answer that follows from the job's own holds; None when it lacks names."""
        by_name = transaction.own_holds(self.draft)
        if not by_name:
            return None
        own = list({hold.id: hold for hold in by_name.values()}.values())
        if doubtful := self.doubtful(own, transaction.now):
            return Unverified([ahead_of_hold(hold) for hold in doubtful])
        return Granted(None, own) if len(by_name) == len(self.draft.names) else None

    def _granted(self, table: LockTable, hold: LockHold) -> Granted | NotGranted:
        """The grant, with the holds by which the job has the other names; those may be gone."""
        own: dict[str, LockHold] = {}
        if len(hold.names) < len(self.draft.names):
            for name in self.draft.names:
                if name not in hold.names:
                    found = table.covering_hold(name, self.draft.by, self.draft.mode)
                    if found is None:
                        return NotGranted(TAKEN_AWAY)
                    own[found.id] = found
        return Granted(hold, list(own.values()))

    def _obstruction(self, transaction: LockTransaction, waiter: Waiter) -> Obstruction | None:
        if not self._explain:
            return None
        return obstruction_of(transaction.table, waiter, transaction.now)
