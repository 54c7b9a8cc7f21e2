"""One request for locks, from `acquire` to its grant or its refusal.

    Acquisition.acquire
      _take_free      nobody holds or waits for the names: one insert, no transaction
      _answer         else a transaction grants the request, refuses it or queues it (request.py)
        _sleep        until the hand-over, a death ahead, the end of a lease, or the time limit
      _make_grant

A request leaves nothing behind; what a killed process leaves, the next in the queue removes.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import DeadlockDetected, LockTimeout, StoreUnavailable
from holdfast.kernel.holder import ThisProcess
from holdfast.kernel.store import Listener, Tx, Woken
from holdfast.primitives.deadline import Deadline, earliest
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.records import LOCKS, Lock, LockHold, lock_in
from holdfast.primitives.locks.request import (
    FREE,
    TAKEN_AWAY,
    TIMED_OUT,
    AcquireAnswer,
    Deadlocked,
    Granted,
    LockRequest,
    NotGranted,
    RequestSteps,
    Unverified,
    Waiting,
    deadlock_error,
    lost_error,
    make_draft,
    store_timeout_error,
    timeout_error,
)
from holdfast.primitives.locks.transaction import LockTransaction, Reaped, Suspect
from holdfast.primitives.locks.wait import Ahead, AheadWatch, OnWait, as_ahead
from holdfast.primitives.log import warn

if TYPE_CHECKING:
    from holdfast.primitives.locks.manager import Locks

T = TypeVar("T")

# Pauses before another attempt: to reclaim what is not over yet by the store's clock, and to ask a
# store that did not answer.
_REAP_AGAIN_S = 0.02
_STORE_LOST_S = 1.0
_UNWATCHED_S = 0.01
"""How long a wait may last before the processes ahead are watched. A watch costs more than a short
wait, and a death in its beginning is noticed later by this much at most.
"""


class Acquisition:
    """One call that requests locks. `owner` is the lock manager that releases its grant."""

    _steps: RequestSteps
    _next_refresh: Deadline
    """When the waiter renews its lease."""
    _unwatched: Deadline
    """Until when nobody ahead is watched."""
    _report: Deadline
    """When the wait is journalled, if it was not at its beginning."""

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
        self._id = ""
        self._may_have_written = False
        """False while each step ended with a LockTimeout, which says that nothing was changed."""
        self._waited = False
        self._shown_ahead: list[tuple[str, bool]] = []

    def acquire(self) -> Grant | None:
        """Return the grant. After a timeout return None, or raise LockTimeout if the caller wants
        the reason. Raises DeadlockDetected and LeaseLost.
        """
        context, request = self._context, self._request
        self._begin()
        if not request.names:
            return self._new_grant((), 0)
        grant: Grant | None = None
        try:
            grant = self._take_free()
            if grant is None:
                answer = self._answer()
                if isinstance(answer, Granted):
                    context.note_contention(request.names, contended=self._waited)
                    grant = self._make_grant(answer)
            if grant is not None:
                context.counters.count(grant.taken, "grants")
                context.keeper.add(grant)
                return grant
        except BaseException as error:
            # Withdraw the request after any exception, also Ctrl-C: its grant would never reach the
            # caller.
            if grant is not None:
                context.keeper.discard(grant)
            self._withdraw(later=isinstance(error, LockTimeout))
            if self._explain and isinstance(error, LockTimeout):
                raise store_timeout_error(request, error) from None
            raise
        if isinstance(answer, Deadlocked):
            raise self._deadlock(answer)
        assert isinstance(answer, NotGranted)
        if answer.reason != TIMED_OUT:
            raise lost_error(request)
        if request.timeout_s is not None:
            # Without a time limit the caller stopped the wait, which is no timeout.
            context.counters.count(request.names, "timeouts")
        if answer.obstruction is not None:
            raise timeout_error(request, answer.obstruction)
        return None

    def wait_until_free(self) -> Obstruction | None:
        """None when the names were free; else what blocked them. Raises as `acquire`."""
        self._begin()
        if not self._request.names:
            return None
        try:
            answer = self._answer()
        except BaseException as error:
            self._withdraw(later=isinstance(error, LockTimeout))
            raise
        if isinstance(answer, Deadlocked):
            raise self._deadlock(answer)
        if isinstance(answer, Granted) or answer.reason == FREE:
            return None
        assert answer.obstruction is not None
        return answer.obstruction

    def _begin(self) -> None:
        context, request = self._context, self._request
        context.begin_process()
        context.lasting.restore(deadline=self._deadline)
        if context.withdrawals and not request.wait_only:
            context.finish_withdrawals(request.names, self._deadline)
        if request.process is None:
            # No process will be there to notice that the clock is set forward.
            context.clock.compare()
        if request.names:
            self._id = context.new_id()

    def _deadlock(self, answer: Deadlocked) -> DeadlockDetected:
        self._context.counters.count(self._request.names, "deadlocks")
        return deadlock_error(self._request, answer.cycle)

    # --- the grant

    def _take_free(self) -> Grant | None:
        """Take names that nobody holds or waits for, in one statement; None: they are not free."""
        context, request = self._context, self._request
        names, ttl_s = request.names, request.ttl_s
        if context.settings.journal == "all" or context.is_contended(names):
            return None
        this = context.this_process()
        process = this if isinstance(request.process, ThisProcess) else request.process
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
            on_behalf=process not in (None, this),
            ttl_s=ttl_s,
        )
        lock = Lock(holds=(hold,))
        items = [(name, lock) for name in names]
        token = self._retry(lambda limit_s: context.store.put_new(LOCKS, items, timeout_s=limit_s))
        if token is None:
            return None
        if process is None:
            context.lasting.put(replace(hold, token=token), self._deadline)
        ends_s = math.inf if ttl_s is None else context.ends_s(hold)
        return self._new_grant(names, token, ttl_s=ttl_s, untouched=True, ends_s=ends_s)

    def _make_grant(self, granted: Granted) -> Grant:
        hold, names = granted.hold, self._request.names
        tokens = {name: own.token for own in granted.own for name in own.names if name in names}
        if hold is None:
            # A re-entered grant keeps the time to live of the grant that it re-enters.
            ttl_s = min((own.ttl_s for own in granted.own if own.ttl_s is not None), default=None)
            return self._new_grant((), max(tokens.values()), tokens=tokens, ttl_s=ttl_s)
        tokens |= dict.fromkeys(hold.names, hold.token)
        self._context.lasting.put(hold, self._deadline)
        return self._new_grant(
            hold.names,
            max(tokens.values()),
            tokens=tokens,
            ttl_s=self._request.ttl_s,
            ends_s=self._context.ends_s(hold),
        )

    def _new_grant(self, taken: tuple[str, ...], token: int, **more: Any) -> Grant:
        request = self._request
        if taken and not isinstance(request.process, ThisProcess):
            # Its holder has nothing but the token, and sends it here.
            self._context.tokens.note([(token, taken[0])])
        return Grant(
            self._owner,
            id=self._id,
            by=request.by,
            mode=request.mode,
            names=request.names,
            taken=taken,
            token=token,
            unattended=request.process is None,
            **more,
        )

    # --- the answer of the lock table

    def _answer(self) -> Granted | Deadlocked | NotGranted:
        """Request the names in a transaction, and wait in the queue while time is left."""
        context = self._context
        context.clock.compare()
        if self._deadline.passed():
            return self._answer_now()
        began_s = time.monotonic()
        settings = context.settings
        with context.store.listen() as listener:
            draft = make_draft(context, self._request, self._id, listener.address)
            steps = self._steps = RequestSteps(
                draft, settings, context.clock, explain=self._explain
            )
            answer = self._transact(steps.grant_or_queue, shortcut=steps.on_hot_path)
            while True:
                if isinstance(answer, Waiting):
                    if answer.waiter.outcome is not None:
                        answer = self._transact(steps.read_outcome)
                        continue
                    if not self._waited:
                        self._waited = True
                        # After the arrival: a wait that was reported is long enough for its grant
                        # to be journalled too.
                        self._report = Deadline(settings.report_waits_s)
                        self._unwatched = Deadline(_UNWATCHED_S)
                        self._next_refresh = Deadline(leases.renew_every_s(settings.lease_s))
                    self._show_ahead(answer.ahead)
                    # Those that were alive before the wait may be dead after it.
                    steps.verified.clear()
                    answer = self._sleep(answer, listener)
                    continue
                if isinstance(answer, Unverified):
                    self._verify(answer.ahead)
                elif isinstance(answer, Granted) and self._own_hold_ended(answer):
                    # Released and not withdrawn: a withdrawal may happen later, and would then
                    # take away the new grant.
                    self._transact(
                        lambda transaction: transaction.release_if_held(self._id, draft.names)
                    )
                elif answer == NotGranted(TAKEN_AWAY) and draft.wait_only:
                    # Reaped by mistake. A request that takes nothing has lost only its place.
                    pass
                else:
                    break
                answer = self._transact(steps.grant_or_queue)
            hold = answer.hold if isinstance(answer, Granted) else None
            if hold is not None and hold.process != draft.holder:
                answer = self._transact(steps.transfer)
        if answer == NotGranted(TAKEN_AWAY):
            # Of a set, only some names may be gone.
            self._withdraw()
        if self._waited:
            granted = isinstance(answer, Granted) and not draft.wait_only
            context.counters.count_wait(draft.names, time.monotonic() - began_s, granted=granted)
        return answer

    def _answer_now(self) -> Granted | NotGranted:
        """The answer for a request that does not wait. Dead holders are reaped first."""
        context = self._context
        draft = make_draft(context, self._request, self._id)
        self._steps = RequestSteps(draft, context.settings, context.clock, explain=self._explain)
        before: Sequence[Ahead] = ()
        while True:
            answer = self._transact(self._steps.grant_or_refuse)
            if isinstance(answer, Unverified):
                self._verify(answer.ahead)
            elif not isinstance(answer, Waiting):
                return answer
            elif not (suspects := self._suspects(answer.ahead)):
                return NotGranted(TIMED_OUT, answer.obstruction)
            elif not self._reap(suspects)[0] and answer.ahead == before:
                # By the store's clock the same holders still hold, for the second time. At the
                # first look, a holder whose time was over may have released by itself.
                return NotGranted(TIMED_OUT, answer.obstruction)
            else:
                before = answer.ahead

    # --- sleeping in the queue

    def _sleep(self, waiting: Waiting, listener: Listener) -> AcquireAnswer:
        """Sleep until something about the wait has changed."""
        context, deadline = self._context, self._deadline
        unwatched_s = self._unwatched.left_s()
        if unwatched_s and self._wait(listener, earliest(deadline.left_s(), unwatched_s)).notified:
            state = self._reap_and_read(waiting, listener)
            if _differs(state, waiting):
                return state
        with AheadWatch(waiting.ahead, context.processes, context.store) as watch:
            while True:
                suspects = watch.suspects()
                if suspects:
                    state = self._reap_and_read(waiting, listener, suspects)
                    if _differs(state, waiting):
                        return state
                if deadline.passed():
                    # Without a time limit the caller ended the wait by `stop_fd`.
                    timed_out = deadline.timeout_s is not None
                    return self._transact(partial(self._steps.leave_queue, timed_out=timed_out))
                pause_s = _REAP_AGAIN_S if suspects else watch.next_expiry_s()
                limit_s = earliest(
                    deadline.left_s(), pause_s, self._next_refresh.left_s(), self._report.left_s()
                )
                ready = self._wait(listener, limit_s, watch.fds).ready
                if ready:
                    watch.note_deaths(ready)
                    continue
                state = self._reap_and_read(waiting, listener)
                if _differs(state, waiting):
                    return state

    def _reap_and_read(
        self, waiting: Waiting, listener: Listener, suspects: Sequence[Suspect] = ()
    ) -> AcquireAnswer:
        """The state of the wait, after the suspects are reaped. While the store does not answer, as
        a database that restarts, nothing has changed until the time limit passes.
        """
        while True:
            try:
                if self._next_refresh.passed():
                    self._transact(self._steps.refresh, once=True)
                    self._next_refresh = Deadline(
                        leases.renew_every_s(self._context.settings.lease_s)
                    )
                if self._report.passed():
                    self._transact(self._steps.report_wait, once=True)
                    self._report = Deadline(None)
                if suspects:
                    return self._reap(suspects, once=True)[1]
                # A grant, the usual reason to wake, is seen in one read.
                draft, limit_s = self._steps.draft, self._deadline.transaction_s()
                row = self._context.store.get(LOCKS, draft.names[0], timeout_s=limit_s)
                for hold in lock_in(row).holds:
                    if hold.id == draft.id and hold.names == draft.names:
                        return Granted(hold, [])
                return self._context.read(self._steps.state, timeout_s=limit_s)
            except (StoreUnavailable, LockTimeout) as error:
                if self._deadline.passed():
                    return waiting
                if error.fields.get("closed"):
                    raise
                warn("still waiting: %s", error.message)
                self._wait(listener, earliest(self._deadline.left_s(), _STORE_LOST_S))

    def _wait(self, listener: Listener, limit_s: float | None, also: Sequence[int] = ()) -> Woken:
        """Sleep; return what ended it. `stop_fd` also ends the time limit."""
        if self._stop_fd is None:
            return listener.wait(limit_s, also=also)
        woken = listener.wait(limit_s, also=[*also, self._stop_fd])
        if self._stop_fd in woken.ready:
            self._deadline.end()
        return woken

    def _show_ahead(self, ahead: Sequence[Ahead]) -> None:
        if self._on_wait is not None:
            shown = [(one.id, one.is_holder) for one in ahead]
            if shown != self._shown_ahead:
                self._shown_ahead = shown
                self._on_wait(ahead)

    # --- dead holders and waiters

    def _own_hold_ended(self, granted: Granted) -> bool:
        """True when a process of the job that held some of the names died during the wait."""
        if not granted.own:
            return False
        doubtful = self._steps.doubtful(granted.own, self._context.store.now())
        return bool(doubtful) and self._verify([as_ahead(hold) for hold in doubtful])

    def _verify(self, ahead: Sequence[Ahead]) -> bool:
        """Reap those that are gone, or note that all are alive. True when some were reaped."""
        suspects = self._suspects(ahead)
        if suspects and self._reap(suspects)[0]:
            return True
        self._steps.verified |= {one.id for one in ahead}
        return False

    def _suspects(self, ahead: Sequence[Ahead]) -> list[Suspect]:
        with AheadWatch(ahead, self._context.processes, self._context.store) as watch:
            return watch.suspects()

    def _reap(
        self, suspects: Sequence[Suspect], *, once: bool = False
    ) -> tuple[list[Reaped], AcquireAnswer]:
        reaped, state = self._transact(
            lambda transaction: (transaction.reap(suspects), self._steps.state(transaction.table)),
            once=once,
        )
        self._context.count_reaped(reaped)
        return reaped, state

    # --- the store

    def _transact(
        self,
        body: Callable[[LockTransaction], T],
        *,
        once: bool = False,
        shortcut: Callable[[Tx], T | None] | None = None,
    ) -> T:
        """Change the table as soon as the store lets it; `once`: the caller itself retries."""
        return self._retry(partial(self._context.transact, body, shortcut), once=once)

    def _retry(self, act: Callable[[float], T], *, once: bool = False) -> T:
        """Call `act` until the store lets it, and note whether it may have written."""
        before, self._may_have_written = self._may_have_written, True
        try:
            if once:
                return act(self._deadline.transaction_s())
            return self._deadline.retry(act, stop_fd=self._stop_fd)
        except LockTimeout as error:
            self._may_have_written = before or error.fields.get("outcome") != "none"
            raise

    def _withdraw(self, *, later: bool = False) -> None:
        """Leave nothing behind. `later`: the store did not answer a moment ago."""
        if self._may_have_written:
            self._context.withdraw(self._id, self._request.names, later=later)


def _differs(state: AcquireAnswer, before: Waiting) -> bool:
    return (
        not isinstance(state, Waiting)
        or state.ahead != before.ahead
        or state.waiter.outcome is not None
    )
