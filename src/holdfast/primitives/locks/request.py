"""One request for locks: what the caller wants, what the lock table answers, and the errors.

A `LockRequest` is what the caller wants, checked. `RequestSteps` are its steps, each inside one
transaction, and end in an answer: granted, waiting, deadlocked, not granted.
"""

import shlex
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from holdfast.kernel import lease as leases
from holdfast.kernel.clock import BEGINNING
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import DeadlockDetected, InvalidValue, LeaseLost, LockTimeout
from holdfast.kernel.holder import THIS_PROCESS, Holder, Liveness, ThisProcess, check_holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import (
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
    LOCK_SET_BYTES_MAX,
    LOCK_TTL_MAX_S,
)
from holdfast.kernel.names import check_label, check_new_label
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Tx
from holdfast.primitives.locks import hot_path
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.policy import Obstruction, describe_obstruction, obstruction_of
from holdfast.primitives.locks.records import LockHold, Mode, Waiter, WaitOutcome
from holdfast.primitives.locks.table import LockTable
from holdfast.primitives.locks.transaction import LockTransaction
from holdfast.primitives.locks.wait import Ahead, all_ahead, as_ahead
from holdfast.primitives.steady_clock import SteadyClock


class LockRequest(Struct, frozen=True):
    """What a caller requests, checked: see `check_request`."""

    names: tuple[str, ...]
    by: str
    mode: Mode
    timeout_s: float | None
    priority: int = 0
    ttl_s: float | None = None
    process: Holder | ThisProcess | None = THIS_PROCESS
    wait_only: bool = False
    """It waits until the names are free and takes nothing."""


def check_request(
    names: str | Iterable[str],
    by: str,
    mode: Mode | str,
    timeout_s: float | None,
    priority: int = 0,
    ttl_s: float | None = None,
    process: Holder | ThisProcess | None = THIS_PROCESS,
    *,
    wait_only: bool = False,
) -> LockRequest:
    """The request of a caller. Raises InvalidName and InvalidValue."""
    # What is only waited for may have a name that is not allowed for new resources.
    wanted = check_names(names, new=not wait_only)
    if mode is not Mode.EXCLUSIVE:
        # Most requests are exclusive, and this lookup costs as much as all other checks.
        try:
            mode = Mode(mode)
        except ValueError:
            raise InvalidValue(
                f"{ascii(mode)[:40]} is not a lock mode: use exclusive or shared", field="mode"
            ) from None
    check_new_label(by, "job")
    if timeout_s != timeout_s:
        raise InvalidValue(
            "timeout_s is not a number: give the seconds to wait, or None for no limit",
            field="timeout_s",
        )
    if ttl_s is not None:
        check_ttl(ttl_s)
    else:
        leases.check_claim_end(process, ttl_s)
    if isinstance(process, Holder):
        check_holder(process)
    if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
        raise InvalidValue(
            f"priority is {priority}: use -{LOCK_PRIORITY_MAX} to {LOCK_PRIORITY_MAX}",
            field="priority",
        )
    return LockRequest(wanted, by, mode, timeout_s, priority, ttl_s, process, wait_only)


def check_names(names: str | Iterable[str], *, new: bool = False) -> tuple[str, ...]:
    """The names without duplicates, in their order. `new`: they are to be taken."""
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    check = check_new_label if new else check_label
    for name in wanted:
        check(name, "resource")
    if len(wanted) > 1 and sum(len(name.encode()) for name in wanted) > LOCK_SET_BYTES_MAX:
        raise InvalidValue(
            f"the names of one request may have {LOCK_SET_BYTES_MAX} bytes together: request a "
            "name that stands for many",
            field="names",
            bytes_max=LOCK_SET_BYTES_MAX,
        )
    if len(wanted) > LOCK_NAMES_MAX:
        raise InvalidValue(
            f"one request may have {LOCK_NAMES_MAX} names, not {len(wanted)}: request a name that "
            "stands for many",
            field="names",
            names_max=LOCK_NAMES_MAX,
        )
    return wanted


def check_ttl(ttl_s: float | None) -> None:
    """Raises InvalidValue unless the time to live is positive and within its bound."""
    if ttl_s is not None and not 0 < ttl_s <= LOCK_TTL_MAX_S:
        raise InvalidValue(
            f"ttl_s is {ttl_s}: give more than 0 seconds, and {LOCK_TTL_MAX_S:.0f} at most",
            field="ttl_s",
        )


def make_draft(
    context: LockContext, request: LockRequest, request_id: str, address: str = ""
) -> Waiter:
    """The request as a waiter that has no place in the queue yet."""
    now, this = context.store.now(), context.this_process()
    process = this if isinstance(request.process, ThisProcess) else request.process
    return Waiter(
        id=request_id,
        name=request.names[0],
        names=request.names,
        mode=request.mode,
        wait_only=request.wait_only,
        by=request.by,
        priority=request.priority,
        rank=0,
        arrival=0,
        arrived_at=now,
        process=this,
        grantee=None if process == this else process,
        unattended=process is None,
        ttl_s=request.ttl_s,
        lease=_NO_LEASE,
        address=address,
    )


_NO_LEASE = Lease(granted_at=BEGINNING, expires_at=BEGINNING)
"""A waiter gets its lease with its place in the queue."""


class Granted(Struct, frozen=True):
    """The job has all the names: by a new hold, and by those that it had before."""

    hold: LockHold | None
    own: list[LockHold]


class Waiting(Struct, frozen=True):
    """The request must wait; these are just ahead of it."""

    waiter: Waiter
    ahead: list[Ahead]
    obstruction: Obstruction | None = None
    """What blocks a request that does not wait, if its caller wants to know."""


class Unverified(Struct, frozen=True):
    """The answer depends on whether these are alive; nothing was changed."""

    ahead: list[Ahead]


class Deadlocked(Struct, frozen=True):
    """Waiting would have closed this cycle."""

    cycle: str


class NotGranted(Struct, frozen=True):
    """The request ended without a grant."""

    reason: str
    """TIMED_OUT, FREE (for a request that takes nothing) or TAKEN_AWAY."""
    obstruction: Obstruction | None = None
    """What blocked it until its time limit, if its caller wants to know."""


AcquireAnswer = Granted | Waiting | Unverified | Deadlocked | NotGranted

TIMED_OUT = "timed out"
FREE = "free"
TAKEN_AWAY = "taken away"


class RequestSteps:
    """The steps of one request. Each runs inside one transaction, which may run more than once."""

    def __init__(
        self, draft: Waiter, settings: LockSettings, clock: SteadyClock, *, explain: bool
    ) -> None:
        self.draft = draft
        self._settings = settings
        self.verified: set[str] = set()
        """Ids of holds and waiters that were probed and found alive."""
        self._clock = clock
        self._explain = explain

    def on_hot_path(self, tx: Tx) -> Granted | Waiting | None:
        """The answer of `grant_or_queue` in the usual case; None in any other."""
        found = hot_path.grant_or_queue(tx, self._settings, self.draft)
        if found is None:
            return None
        if isinstance(found, LockHold):
            return Granted(found, [])
        return Waiting(found.waiter, [as_ahead(found.ahead)])

    def grant_or_queue(self, transaction: LockTransaction) -> AcquireAnswer:
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
            for one in (as_ahead(step.hold), as_ahead(step.waiter))
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

    def report_wait(self, transaction: LockTransaction) -> None:
        """Journal that the request waits, if it still does."""
        waiter = transaction.table.waiter(self.draft.id)
        if waiter is not None and waiter.outcome is None:
            transaction.report_wait(waiter)

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
            return Unverified([as_ahead(hold) for hold in doubtful])
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


def timeout_error(request: LockRequest, why: Obstruction) -> LockTimeout:
    """The time limit passed before the request's turn came."""
    # Of many names, only this one may be blocked.
    resource = why.holders[0].resource if why.holders else request.names[0]
    return LockTimeout(
        f"{_could_not(request)}: {describe_obstruction(why, request.names)}; nothing was taken. "
        f"`holdfast locks explain {shlex.quote(resource)}` shows more",
        resource=resource,
        names=list(request.names),
        by=request.by,
        timeout_s=request.timeout_s,
        holders=to_plain(why.holders),
        position=why.position,
        ahead=to_plain(why.ahead),
        outcome="none",
    )


def store_timeout_error(request: LockRequest, error: LockTimeout) -> LockTimeout:
    """The time limit passed before the store ran the request: another transaction held it."""
    fields = {"names": list(request.names), "by": request.by, "timeout_s": request.timeout_s}
    return LockTimeout(f"{_could_not(request)}: {error.message}", **{**error.fields, **fields})


def lost_error(request: LockRequest) -> LeaseLost:
    """The grant, or the place in the queue, was gone before the process could wake."""
    return LeaseLost(
        f"{request.by} lost its grant of {', '.join(request.names)}, or its place in the queue, "
        "before its process could wake: try again if you still need it. "
        f"`holdfast log --subject {shlex.quote(request.names[0])}` shows what happened",
        names=list(request.names),
        by=request.by,
    )


def deadlock_error(request: LockRequest, cycle: str) -> DeadlockDetected:
    """The request would never have been granted."""
    by = request.by
    return DeadlockDetected(
        f"{by} would wait for ever: {cycle}. Release what {by} holds and try again, or take all "
        "of it in one request",
        by=by,
        names=list(request.names),
        cycle=cycle,
    )


def _could_not(request: LockRequest) -> str:
    limit_s = request.timeout_s
    limit = "before its wait was stopped" if limit_s is None else f"within {limit_s:g} s"
    return f"{request.by} could not acquire {', '.join(request.names)} {limit}"
