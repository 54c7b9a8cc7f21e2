"""One request for locks, from `acquire` to its grant or its refusal.

    Acquisition.acquire
      _take_free        nobody holds or waits for the names: one insert, no transaction
      _answer           else: a transaction grants the request, refuses it or queues it
        _ask              the body of that transaction
        _sleep            until the hand-over, a death ahead, the end of a lease, or the time limit
      _make_grant

A request leaves nothing behind however it ends. What a killed process leaves, the next in the queue
removes.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.holder import Holder, Liveness, ThisProcess
from holdfast.kernel.store import Listener
from holdfast.primitives.deadline import Deadline, earliest
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.policy import Obstruction, obstruction_of
from holdfast.primitives.locks.records import LOCKS, Lock, LockHold, Outcome, Waiter, lock_in
from holdfast.primitives.locks.request import (
    LockRequest,
    deadlock_error,
    lost_error,
    make_draft,
    store_timeout_error,
    timeout_error,
)
from holdfast.primitives.locks.table import LockTable
from holdfast.primitives.locks.transaction import LockTransaction, Reaped, Suspect
from holdfast.primitives.locks.wait import (
    Ahead,
    AheadWatch,
    OnWait,
    ahead_of_hold,
    ahead_of_waiter,
    all_ahead,
)

if TYPE_CHECKING:
    from holdfast.primitives.locks.manager import Locks

T = TypeVar("T")

_REAP_AGAIN_S = 0.02
"""Pause before another try to reclaim what is not over yet by the store's clock."""

_STORE_LOST_S = 1.0


class Granted(NamedTuple):
    """The job has all the names: by a new hold, and by those that it had before."""

    hold: LockHold | None
    own: list[LockHold]


class Waiting(NamedTuple):
    """It is not its turn; these are just ahead."""

    waiter: Waiter
    ahead: list[Ahead]
    obstruction: Obstruction | None = None
    """For a request that does not wait, if its caller wants to know."""


class Unverified(NamedTuple):
    """The answer depends on whether these are alive; nothing was changed."""

    ahead: list[Ahead]


class Deadlocked(NamedTuple):
    """Waiting would have closed this cycle."""

    cycle: str


class NotGranted(NamedTuple):
    """The end of a request without a grant. After a timeout `obstruction` says why, if its caller
    wants to know.
    """

    reason: str
    obstruction: Obstruction | None = None


Answer = Granted | Waiting | Unverified | Deadlocked | NotGranted

TIMED_OUT = "timed out"
FREE = "free"
TAKEN_AWAY = "taken away"


class Acquisition:
    """One call that requests locks. `owner` is what its grant belongs to."""

    def __init__(
        self,
        context: LockContext,
        owner: "Locks",
        request: LockRequest,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
        *,
        explain: bool = True,
    ) -> None:
        self._context = context
        self._owner = owner
        self._request = request
        self._deadline = Deadline(request.timeout_s)
        self._on_wait = on_wait
        self._stop_fd = stop_fd
        self._explain = explain
        self._may_have_written = False
        """False while each step ended with a LockTimeout, which says that nothing was changed."""
        self._waited = False
        self._verified: set[str] = set()
        """Ids of holds and waiters that were probed and found alive."""
        self._shown_ahead: list[tuple[str, bool]] = []

    def acquire(self) -> Grant | None:
        """The grant; None after a timeout, unless the caller wants it explained.

        Raises LockTimeout, DeadlockDetected and LeaseLost.
        """
        context, request = self._context, self._request
        context.begin_process()
        context.durable.restore(deadline=self._deadline)
        if not request.names:
            return Grant(
                self._owner, id="", by=request.by, mode=request.mode, names=(), taken=(), token=0
            )
        if context.withdrawals:
            context.finish_withdrawals(request.names, self._deadline)
        if request.process is None:
            # No process will be there to see that the clock is set forward.
            context.clock.compare()
        self._id = context.new_id()
        grant: Grant | None = None
        try:
            grant = self._take_free()
            if grant is None:
                answer = self._answer()
                if isinstance(answer, Granted):
                    context.note_contention(request.names, contended=self._waited)
                    grant = self._make_grant(answer)
            if grant is not None:
                context.counters.count_grant(grant.taken)
                context.keeper.add(grant)
                return grant
        except BaseException as error:
            # Whatever comes between the grant and its caller, Ctrl-C included: nobody would know
            # of the grant.
            if grant is not None:
                context.keeper.discard(grant)
            self._withdraw(later=isinstance(error, LockTimeout))
            if self._explain and isinstance(error, LockTimeout):
                raise store_timeout_error(request, error) from None
            raise
        assert not isinstance(answer, Granted)
        self._refuse(answer)
        return None

    def wait_until_free(self) -> Obstruction | None:
        """None when the names were free; else what blocked them when the time limit passed.

        Raises LockTimeout and DeadlockDetected.
        """
        context, request = self._context, self._request
        if not request.names:
            return None
        context.begin_process()
        context.durable.restore(deadline=self._deadline)
        self._id = context.new_id()
        try:
            answer = self._answer()
        except BaseException as error:
            self._withdraw(later=isinstance(error, LockTimeout))
            raise
        if isinstance(answer, Deadlocked):
            context.counters.count(request.names, "deadlocks")
            raise deadlock_error(request, answer.cycle)
        if isinstance(answer, Granted) or answer.reason == FREE:
            return None
        assert answer.obstruction is not None
        return answer.obstruction

    # --- taking what is free

    def _take_free(self) -> Grant | None:
        """Take names that nobody holds or waits for, in one statement; None when they are not
        free.
        """
        context, request = self._context, self._request
        names, ttl_s = request.names, request.ttl_s
        if context.settings.journal == "all" or context.is_contended(names):
            return None
        process = request.process
        on_behalf = isinstance(process, Holder) and process != context.this_process()
        if isinstance(process, ThisProcess):
            process = context.this_process()
        hold = LockHold(
            id=self._id,
            by=request.by,
            mode=request.mode,
            names=names,
            lease=leases.grant(
                context.store.now(),
                context.settings.lease_s if ttl_s is None else ttl_s,
                explicit=ttl_s is not None,
            ),
            process=process,
            on_behalf=on_behalf,
            ttl_s=ttl_s,
        )
        lock = Lock(holds=(hold,))
        items = [(name, lock) for name in names]
        token = self._insist(lambda limit_s: context.store.put_new(LOCKS, items, timeout_s=limit_s))
        if token is None:
            return None
        if process is None:
            context.durable.put(replace(hold, token=token), self._deadline)
        return Grant(
            self._owner,
            id=self._id,
            by=request.by,
            mode=request.mode,
            names=names,
            taken=names,
            token=token,
            ttl_s=ttl_s,
            untouched=True,
            unattended=process is None,
            ends_s=math.inf if ttl_s is None else monotonic_end_s(context, hold),
        )

    def _make_grant(self, granted: Granted) -> Grant:
        context, request = self._context, self._request
        hold, names = granted.hold, request.names
        tokens = {name: own.token for own in granted.own for name in own.names if name in names}
        # A re-entered grant keeps the time to live of the grant that it re-enters.
        ttl_s = min((own.ttl_s for own in granted.own if own.ttl_s is not None), default=None)
        if hold is not None:
            ttl_s = request.ttl_s
            tokens |= dict.fromkeys(hold.names, hold.token)
            context.durable.put(hold, self._deadline)
        return Grant(
            self._owner,
            id=self._id,
            by=request.by,
            mode=request.mode,
            names=names,
            taken=() if hold is None else hold.names,
            token=max(tokens.values()),
            tokens=tokens,
            ttl_s=ttl_s,
            unattended=request.process is None,
            ends_s=math.inf if hold is None else monotonic_end_s(context, hold),
        )

    # --- the answer of the lock table

    def _answer(self) -> Granted | Deadlocked | NotGranted:
        """Request the names in a transaction, and wait in the queue while time is left."""
        context = self._context
        self._draft = make_draft(context, self._request, self._id)
        context.clock.compare()
        if self._deadline.passed():
            return self._answer_now()
        began_s = time.monotonic()
        self._next_refresh = Deadline(context.settings.lease_s / 3)
        with context.store.listen() as listener:
            self._draft = replace(self._draft, address=listener.address)
            answer: Answer = self._transact(self._ask)
            while True:
                if isinstance(answer, Waiting):
                    if answer.waiter.outcome is not None:
                        answer = self._transact(self._read_outcome)
                        continue
                    self._waited = True
                    self._show_ahead(answer.ahead)
                    # Those that were alive before the wait may be dead after it.
                    self._verified.clear()
                    answer = self._sleep(answer, listener)
                elif isinstance(answer, Unverified):
                    self._verify(answer.ahead)
                    answer = self._transact(self._ask)
                elif isinstance(answer, Granted) and self._lost_a_part(answer):
                    # Released and not withdrawn: a withdrawal may happen later, and would then
                    # take away the new grant.
                    self._transact(
                        lambda transaction: transaction.release_if_held(self._id, self._draft.names)
                    )
                    answer = self._transact(self._ask)
                elif (
                    isinstance(answer, NotGranted)
                    and answer.reason == TAKEN_AWAY
                    and self._draft.look
                ):
                    # It was reaped by mistake; one that only looks has lost nothing but time.
                    answer = self._transact(self._ask)
                else:
                    break
            if (
                isinstance(answer, Granted)
                and answer.hold is not None
                and answer.hold.process != self._draft.holder
            ):
                answer = self._transact(self._pass_on)
        if isinstance(answer, NotGranted) and answer.reason == TAKEN_AWAY:
            # Of a set, perhaps only some names are gone.
            self._withdraw()
        if self._waited:
            granted = isinstance(answer, Granted) and not self._draft.look
            waited_s = time.monotonic() - began_s
            context.counters.count_wait(self._draft.names, waited_s, granted=granted)
        return answer

    def _answer_now(self) -> Granted | NotGranted:
        """The answer for a request that does not wait. The dead are reaped all the same."""
        doubted: Sequence[Ahead] = ()
        while True:
            answer = self._transact(self._try)
            if isinstance(answer, Unverified):
                self._verify(answer.ahead)
            elif not isinstance(answer, Waiting):
                return answer
            elif not (suspects := self._suspects(answer.ahead)):
                return NotGranted(TIMED_OUT, answer.obstruction)
            elif not self._reap(suspects)[0] and answer.ahead == doubted:
                # They stand by the store's clock. Once proves nothing: one that was over may have
                # left by itself meanwhile.
                return NotGranted(TIMED_OUT, answer.obstruction)
            else:
                doubted = answer.ahead

    def _ask(self, transaction: LockTransaction) -> Answer:
        """Transaction: grant the request, or queue it."""
        known = self._known(transaction)
        if known is not None:
            return known
        found = transaction.ask(self._draft)
        if found is None:
            return NotGranted(FREE)
        if isinstance(found, LockHold):
            return self._granted(transaction.table, found)
        if isinstance(found, Waiter):
            return self._state(transaction.table)
        # A cycle through a dead process is none.
        involved = [
            one
            for step in found
            for one in (ahead_of_hold(step.hold), ahead_of_waiter(step.waiter))
        ]
        others = [one for one in involved if one.id not in self._verified and one.id != self._id]
        return Unverified(others) if others else Deadlocked(transaction.refuse(found))

    def _try(self, transaction: LockTransaction) -> Granted | Waiting | Unverified | NotGranted:
        """Transaction: grant the request, or change nothing."""
        known = self._known(transaction)
        if known is not None:
            return known
        found = transaction.try_now(self._draft)
        if found is None:
            return NotGranted(FREE)
        if isinstance(found, LockHold):
            return self._granted(transaction.table, found)
        return Waiting(found, all_ahead(transaction.table, found), self._why(transaction, found))

    def _known(self, transaction: LockTransaction) -> Granted | Unverified | None:
        """The answer that follows from the job's own holds; None when it lacks names."""
        by_name = transaction.own_holds(self._draft)
        if not by_name:
            return None
        own = list({hold.id: hold for hold in by_name.values()}.values())
        if doubtful := self._doubtful(own, transaction.now):
            return Unverified([ahead_of_hold(hold) for hold in doubtful])
        return Granted(None, own) if len(by_name) == len(self._draft.names) else None

    def _granted(self, table: LockTable, hold: LockHold) -> Granted | NotGranted:
        """The grant, with the holds by which the job has the other names; those may be gone."""
        own: dict[str, LockHold] = {}
        if len(hold.names) < len(self._draft.names):
            for name in self._draft.names:
                if name not in hold.names:
                    found = table.covering_hold(name, self._draft.by, self._draft.mode)
                    if found is None:
                        return NotGranted(TAKEN_AWAY)
                    own[found.id] = found
        return Granted(hold, list(own.values()))

    def _state(self, table: LockTable) -> Answer:
        """The answer as the table shows it now."""
        waiter = table.waiter(self._id)
        if waiter is not None:
            return Waiting(waiter, [] if waiter.outcome else all_ahead(table, waiter))
        hold = table.find_hold(self._id, self._draft.names)
        return NotGranted(TAKEN_AWAY) if hold is None else self._granted(table, hold)

    def _read_outcome(self, transaction: LockTransaction) -> Answer:
        """Transaction: read the outcome of the wait and delete it."""
        answer = self._state(transaction.table)
        if not isinstance(answer, Waiting) or answer.waiter.outcome is None:
            return answer
        transaction.table.forget(answer.waiter)
        free = answer.waiter.outcome is Outcome.FREE
        return NotGranted(FREE) if free else self._ask(transaction)

    def _give_up(self, transaction: LockTransaction) -> Answer:
        """Transaction: leave the queue, unless the wait has just ended."""
        answer = self._state(transaction.table)
        if not isinstance(answer, Waiting):
            return answer
        if answer.waiter.outcome is not None:
            return self._read_outcome(transaction)
        # Before it leaves: nothing blocks one that has left.
        why = self._why(transaction, answer.waiter)
        if self._deadline.timeout_s is None:
            # Without a time limit the caller ended the wait by `stop_fd`.
            transaction.leave(answer.waiter, "lock.withdrawn")
        else:
            transaction.time_out(answer.waiter)
        return NotGranted(TIMED_OUT, why)

    def _pass_on(self, transaction: LockTransaction) -> Granted | NotGranted:
        """Transaction: give the grant to the process on whose behalf it was waited for."""
        hold = transaction.table.find_hold(self._id, self._draft.names)
        if hold is None:
            return NotGranted(TAKEN_AWAY)
        given = transaction.pass_on(hold, self._draft.holder)
        return self._granted(transaction.table, given)

    def _refresh(self, transaction: LockTransaction) -> None:
        """Transaction: a sign of life for the waiter."""
        waiter = transaction.table.waiter(self._id)
        if waiter is not None and waiter.outcome is None:
            transaction.refresh(waiter)

    def _why(self, transaction: LockTransaction, waiter: Waiter) -> Obstruction | None:
        if not self._explain:
            return None
        return obstruction_of(transaction.table, waiter, transaction.now)

    # --- sleeping

    def _sleep(self, waiting: Waiting, listener: Listener) -> Answer:
        """Sleep until something about the wait has changed."""
        context = self._context
        with AheadWatch(waiting.ahead, context.processes, context.store) as watch:
            while True:
                suspects = watch.suspects()
                if suspects:
                    state = self._patiently(
                        lambda gone=suspects: self._reap(gone, once=True)[1],  # type: ignore[misc]
                        waiting,
                        listener,
                    )
                    if _differs(state, waiting):
                        return state
                if self._deadline.passed():
                    return self._transact(self._give_up)
                pause_s = _REAP_AGAIN_S if suspects else watch.next_expiry_s()
                limit_s = earliest(self._deadline.left_s(), pause_s, self._next_refresh.left_s())
                ready = self._rest(listener, limit_s, watch.fds)
                if ready:
                    watch.note_deaths(ready)
                    continue
                state = self._patiently(self._look, waiting, listener)
                if _differs(state, waiting):
                    return state

    def _look(self) -> Answer:
        """The state of the wait. A grant, the usual reason to wake, is seen in one read."""
        draft, limit_s = self._draft, self._deadline.transaction_s()
        row = self._context.store.get(LOCKS, draft.names[0], timeout_s=limit_s)
        for hold in lock_in(row).holds:
            if hold.id == draft.id and hold.names == draft.names:
                return Granted(hold, [])
        return self._context.read(self._state, timeout_s=limit_s)

    def _patiently(self, act: Callable[[], Answer], waiting: Waiting, listener: Listener) -> Answer:
        """Act, after a sign of life when one is due. A waiter outlives a restart of its database:
        while the store does not answer nothing has changed, until the time limit passes.
        """
        while True:
            try:
                if self._next_refresh.passed():
                    self._transact(self._refresh, once=True)
                    self._next_refresh = Deadline(self._context.settings.lease_s / 3)
                return act()
            except (StoreUnavailable, LockTimeout) as error:
                if self._deadline.passed():
                    return waiting
                if error.fields.get("closed"):
                    raise
                logging.getLogger("holdfast.locks").warning("still waiting: %s", error.message)
                self._rest(listener, earliest(self._deadline.left_s(), _STORE_LOST_S))

    def _rest(
        self, listener: Listener, limit_s: float | None, also: Sequence[int] = ()
    ) -> frozenset[int]:
        """Sleep; return the descriptors that ended it. `stop_fd` also ends the time limit."""
        if self._stop_fd is None:
            return listener.wait(limit_s, also=also).ready
        ready = listener.wait(limit_s, also=[*also, self._stop_fd]).ready
        if self._stop_fd in ready:
            self._deadline.end()
        return ready

    def _show_ahead(self, ahead: Sequence[Ahead]) -> None:
        if self._on_wait is not None:
            shown = [(one.id, one.holds) for one in ahead]
            if shown != self._shown_ahead:
                self._shown_ahead = shown
                self._on_wait(ahead)

    # --- the dead

    def _doubtful(self, own: Iterable[LockHold], now: datetime) -> list[LockHold]:
        """The job's own holds that may be over. One whose time has passed, or whose process is
        dead, cannot be re-entered.
        """
        this = self._draft.process
        return [
            hold
            for hold in own
            if self._context.clock.reclaimable(hold.lease, Liveness.ALIVE, now)
            or (hold.process not in (None, this) and hold.id not in self._verified)
        ]

    def _lost_a_part(self, granted: Granted) -> bool:
        """True when another process of the job, which held some of the names, died during the
        wait.
        """
        if not granted.own:
            return False
        doubtful = self._doubtful(granted.own, self._context.store.now())
        return bool(doubtful) and self._verify([ahead_of_hold(hold) for hold in doubtful])

    def _verify(self, ahead: Sequence[Ahead]) -> bool:
        """Reap those that are gone; when none is, take note that all are alive. True when some
        were reaped.
        """
        suspects = self._suspects(ahead)
        if suspects and self._reap(suspects)[0]:
            return True
        self._verified |= {one.id for one in ahead}
        return False

    def _suspects(self, ahead: Sequence[Ahead]) -> list[Suspect]:
        with AheadWatch(ahead, self._context.processes, self._context.store) as watch:
            return watch.suspects()

    def _reap(self, suspects: list[Suspect], *, once: bool = False) -> tuple[list[Reaped], Answer]:
        reaped, state = self._transact(
            lambda transaction: (transaction.reap(suspects), self._state(transaction.table)),
            once=once,
        )
        self._context.count_reaped(reaped)
        return reaped, state

    # --- the store

    def _transact(self, body: Callable[[LockTransaction], T], *, once: bool = False) -> T:
        """Change the table as soon as the store lets it; `once`: the caller itself retries."""
        transact = self._context.transact
        return self._insist(lambda limit_s: transact(body, timeout_s=limit_s), once=once)

    def _insist(self, act: Callable[[float], T], *, once: bool = False) -> T:
        """Call `act` until the store lets it, and note whether it may have written."""

        def step(limit_s: float) -> T:
            before, self._may_have_written = self._may_have_written, True
            try:
                return act(limit_s)
            except LockTimeout as error:
                self._may_have_written = before or error.fields.get("outcome") != "none"
                raise

        if once:
            return step(self._deadline.transaction_s())
        return self._deadline.retry(step, stop_fd=self._stop_fd)

    def _withdraw(self, *, later: bool = False) -> None:
        """Leave nothing behind. `later`: the store was just seen not to answer."""
        if self._may_have_written:
            self._context.withdraw(self._id, self._request.names, later=later)

    def _refuse(self, answer: Deadlocked | NotGranted) -> None:
        """Raises why there is no grant; returns for a timeout that is not to be explained."""
        context, request = self._context, self._request
        if isinstance(answer, Deadlocked):
            context.counters.count(request.names, "deadlocks")
            raise deadlock_error(request, answer.cycle)
        if answer.reason != TIMED_OUT:
            raise lost_error(request)
        if request.timeout_s is not None:
            # Without a time limit the caller gave up, which is no timeout.
            context.counters.count(request.names, "timeouts")
        if answer.obstruction is not None:
            raise timeout_error(request, answer.obstruction)


def monotonic_end_s(context: LockContext, hold: LockHold) -> float:
    """When a grant ends by itself, on this process's monotonic clock.

    Infinite without a time to live: a lease that ran out, in an outage or while the process was
    stopped, is renewed if nobody took the grant.
    """
    if not hold.lease.explicit:
        return math.inf
    # By the store's clock: it may have been granted long before this process woke.
    return time.monotonic() + (hold.lease.expires_at - context.store.now()).total_seconds()


def _differs(state: Answer, before: Waiting) -> bool:
    return (
        not isinstance(state, Waiting)
        or state.ahead != before.ahead
        or state.waiter.outcome is not None
    )
