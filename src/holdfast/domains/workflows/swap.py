"""One swap, from the lock to the new recipe.

    take the swap lock and write the marker     one transaction: neither exists without the other
    ask, wait                                   until no work with another recipe is left
    store that what is loaded is unknown        in the transaction that finds no conflict
    load                                        what the caller's block does
    complete, or fail                           one transaction, with the marker's token and lock
    release the lock

A swap that is killed at any step leaves an orphaned marker, which the next look clears. If a
command loads, the marker stays until the last process of that command is gone; the next swap ends
those processes and waits for them. A recipe that is loaded already needs no swap: nobody is asked
to yield, and the block keeps other swaps out without loading.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.domains.workflows import messages, ports
from holdfast.domains.workflows.change import Change, loaded_in
from holdfast.domains.workflows.context import WorkflowsContext
from holdfast.domains.workflows.ports import Contender
from holdfast.domains.workflows.records import (
    Loaded,
    Obstacle,
    OnWait,
    Phase,
    Policy,
    Preempt,
    SwapMarker,
    Workflow,
    fact_of,
    may_yield,
    waits_for,
    who,
)
from holdfast.domains.workflows.wire import CHANGED
from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError, InvalidValue, LockTimeout
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import SWAP_WHY_CHARS_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Listener
from holdfast.primitives.deadline import Deadline, earliest

T = TypeVar("T")

_SHUT_S = 1.0
"""How long a refused swap tries to log its end on a store that was just seen to be busy."""


class SwapTerms(NamedTuple):
    """What a caller asks for; see `Workflows.swap`."""

    recipe: str
    holder: Holder
    grace_s: float
    timeout_s: float
    policy: Policy
    reload: bool
    on_wait: OnWait | None
    stop_fd: int | None


class Swap:
    """A swap, for the time of a `with` block; see `Workflows.swap`."""

    def __init__(self, context: WorkflowsContext, terms: SwapTerms) -> None:
        self.recipe = terms.recipe
        self.needed = True
        """False in the block when the recipe is loaded already: then load nothing. The recipe stays
        loaded until the block ends.
        """
        self.lost = threading.Event()
        """Set when this process learns that the swap was lost: stop loading."""
        self._context = context
        self._terms = terms
        self._me = terms.holder
        self._deadline = Deadline(terms.timeout_s)
        self._pinned = False
        """Own work keeps the recipe loaded, so the block needs neither lock nor marker."""
        self._before: Loaded | None = None
        self._reported: list[tuple[str, int, str | None]] = []
        self._abandoned = self._unseen = False
        self._ended_load = 0
        self._late: set[int] = set()
        self._token = 0
        self._contender: Contender | None = None
        self._store_busy = False
        self._pid = 0
        self._on_lost: Callable[[], None] = lambda: None

    @property
    def token(self) -> int:
        return self._token

    def __enter__(self) -> "Swap":
        if self._contender is not None:
            raise InvalidValue("a swap is entered once: make another one")
        self._deadline = Deadline(self._terms.timeout_s)
        self._pid = os.getpid()
        self._contender = self._context.swap_lock.contender()
        try:
            with self._context.store.listen([CHANGED]) as listener:
                self._begin(listener)
                faults.reach("swap.marked")
                if self.needed:
                    self._drain(listener)
                faults.reach("swap.drained")
            if self._pinned:
                self._release()
            else:
                self._contender.watch(self._lose)
            return self
        except BaseException as error:
            self._end(ports.REFUSED, _why(error), loaded=False)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if self._contender is None or self._pid != os.getpid():
                # The swap was ended in the block, or belongs to the parent process.
                return
            if error is not None:
                self._end(ports.FAILED, _why(error), loaded=True)
                return
            faults.reach("swap.loaded")
            self._context.change(
                lambda change: (change.complete_load if self.needed else change.skip_load)(
                    self._own_marker(change)
                )
            )
            faults.reach("swap.completed")
            self._release()
        except BaseException:
            if self._pid == os.getpid():
                self._release()
            raise

    def check(self) -> None:
        """Check that this swap is still in force. Raises LeaseLost when it is not: stop loading."""
        if self.lost.is_set():
            raise messages.swap_lost(self.recipe, self._token)

        def body(change: Change) -> None:
            if not self._pinned:
                self._own_marker(change)
            elif not loaded_in(change.tx).has(self.recipe):
                raise messages.swap_lost(self.recipe, self._token)

        self._context.change(body)

    def when_lost(self, act: Callable[[], None]) -> None:
        """Call `act` once, from another thread, when the swap is lost; at once if it is already."""
        self._on_lost = act
        if self.lost.is_set():
            act()

    def _lose(self) -> None:
        self.lost.set()
        self._on_lost()

    def fail(self, why: str, *, exit_status: int | None = None) -> None:
        """End the swap: the load has failed, and it is unknown what is loaded. The end of the block
        does nothing then, and neither does a forked child.
        """
        if self._pid == os.getpid():
            self._end(ports.FAILED, why, loaded=True, exit_status=exit_status)

    def cancel(self, why: str) -> None:
        """End the swap before anything was loaded; otherwise as `fail`."""
        if self._pid == os.getpid():
            self._end(ports.FAILED, why, loaded=False)

    def _begin(self, listener: Listener) -> None:
        while True:
            other = self._change(self._mark)
            if self._pinned:
                return
            if self._contender is not None and self._contender.has_it():
                if other is None:
                    return
                # The lock was taken in a try of the transaction that was not committed. If it were
                # kept, it would make the marker of another, dead swap look alive.
                contender, self._contender = self._contender, None
                contender.close()
                self._token = 0
                self._contender = self._context.swap_lock.contender()
                continue
            if other is not None and (self._abandoned or self._unseen):
                self._await_load(other, listener)
                continue
            if self._deadline.passed():
                raise messages.swap_timeout(self.recipe, other, None, self._terms.timeout_s)
            self._report([] if other is None else [other])
            # The leader too: when it dies, its load may live on and must be ended.
            watched = [] if other is None else {other.holder, other.holder.leader}
            self._sleep(watched, listener, self._deadline.left_s())

    def _await_load(self, marker: SwapMarker, listener: Listener) -> None:
        """Sleep until the load of a dead swap may have ended. A load is not work, so it is ended;
        its guardian, where that lives, does the same.
        """
        orphan = self._context.load_of(marker)
        if self._terms.policy is Policy.REFUSE:
            raise messages.load_in_the_way(self.recipe, orphan)
        if self._deadline.passed():
            raise messages.swap_timeout(self.recipe, marker, orphan, self._terms.timeout_s)
        self._report([orphan])
        if self._abandoned and marker.token != self._ended_load:
            self._ended_load = marker.token
            self._context.end_load(marker)
        self._sleep([marker.holder], listener, earliest(self._deadline.left_s(), orphan.left_s))

    def _change(self, body: Callable[[Change], T]) -> T:
        try:
            return self._deadline.retry(
                lambda limit_s: self._context.change(body, timeout_s=limit_s),
                stop_fd=self._terms.stop_fd,
            )
        except LockTimeout as error:
            self._store_busy = error.fields.get("outcome") == "none"
            raise

    def _mark(self, change: Change) -> SwapMarker | None:
        """Take the lock and write the marker, or neither; return the marker of another swap. Call
        it under the latch. The lock is also probed under the latch, so no probe can make this take
        fail.
        """
        self._pinned = False
        self._abandoned, self._unseen = change.abandoned, change.unseen
        is_loaded = loaded_in(change.tx).has(self.recipe)
        self.needed = self._terms.reload or not is_loaded
        if change.marker is not None:
            self._meet(change, change.marker)
            return change.marker
        if self._contender is None or not self._contender.try_take():
            return None
        self._token = change.tx.revision
        marker = SwapMarker(
            recipe=self.recipe,
            holder=self._me,
            begun_at=change.tx.now,
            token=self._token,
            phase=Phase.BEGUN,
            reload=self._terms.reload and is_loaded,
        )
        change.begin_swap(marker, needed=self.needed)
        return None

    def _meet(self, change: Change, other: SwapMarker) -> None:
        """Another swap is under way. Raises DeadlockDetected when it waits for this process."""
        mine = self._context.own_conflicts(change, self._me, other)
        if not self.needed and any(one.recipe == self.recipe for one in mine):
            # That work keeps the recipe loaded, whatever the other swap wants. No need to wait.
            self._pinned = True
            change.log(ports.NOT_NEEDED, self.recipe, {"who": who(self._me)})
        elif mine and other.phase is Phase.WAITING and not self._deadline.passed():
            raise messages.deadlock(f"the swap to {self.recipe}", self.recipe, other, mine)

    def _sleep(self, watched: Iterable[Holder], listener: Listener, limit_s: float | None) -> None:
        if not self._context.sleep(watched, listener, limit_s, self._terms.stop_fd):
            # The caller wants to stop, as if the time were over.
            self._deadline.end()

    def _report(self, reasons: Sequence[Obstacle]) -> None:
        facts = [fact_of(one) for one in reasons]
        if facts and facts != self._reported and self._terms.on_wait is not None:
            self._reported = facts
            self._terms.on_wait(reasons)

    def _drain(self, listener: Listener) -> None:
        grace = Deadline(self._terms.grace_s)
        while conflicts := self._change(lambda change: self._ask(change, late=grace.passed())):
            faults.reach("swap.asked")
            # Work that yields after the grace time is not logged a second time as having ignored
            # the request.
            self._late |= {one.token for one in conflicts if one.preempt is Preempt.IGNORED}
            if (refusal := self._refusal(conflicts)) is not None:
                raise refusal
            self._report(conflicts)
            grace_s = grace.left_s() if any(map(may_yield, conflicts)) else None
            expiry_s = self._context.next_expiry_s(conflicts)
            limit_s = earliest(self._deadline.left_s(), grace_s, expiry_s)
            self._sleep([one.owner for one in conflicts], listener, limit_s)

    def _ask(self, change: Change, *, late: bool) -> list[Workflow]:
        """Ask preemptible work to yield, and note which did not in time; return all conflicts. When
        there are none, the load begins.
        """
        marker = self._own_marker(change)
        if change.damaged:
            # It may be running work, which a swap must not load over.
            raise change.damaged[0]
        conflicts = self._conflicts(change, marker)
        if not conflicts:
            self._before = change.begin_load(marker)
            return []
        if self._terms.policy is Policy.REFUSE and not all(one.preemptible for one in conflicts):
            # The swap will be refused, so no work is disturbed for it.
            return conflicts
        for workflow in [one for one in conflicts if one.preemptible]:
            # Work that yielded to another swap, and is still there, was not asked by this one.
            if workflow.preempt is Preempt.NONE or (
                workflow.preempt is Preempt.YIELDED and workflow.preempt_swap != self._token
            ):
                change.ask(workflow)
            current = change.workflows[workflow.name]
            may_ignore = current.preempt in (Preempt.REQUESTED, Preempt.YIELDED)
            if late and may_ignore and current.token not in self._late:
                change.ignore(current)
        conflicts = self._conflicts(change, marker)
        if self._refusal(conflicts) is None:
            change.begin_wait(marker)
        return conflicts

    def _conflicts(self, change: Change, marker: SwapMarker) -> list[Workflow]:
        """The work that the swap waits for; not own work with its recipe, for which it loads."""
        return [
            workflow
            for workflow in change.workflows.values()
            if waits_for(marker, workflow)
            and not (workflow.recipe == self.recipe and self._context.owns(self._me, workflow))
        ]

    def _refusal(self, conflicts: Sequence[Workflow]) -> HoldfastError | None:
        """Why the swap does not wait for these conflicts; None when it does."""
        stubborn = [workflow for workflow in conflicts if not may_yield(workflow)]
        if stubborn and self._terms.policy is Policy.REFUSE:
            return messages.work_in_the_way(self.recipe, stubborn)
        if self._deadline.passed():
            return messages.work_timeout(self.recipe, conflicts, self._terms.timeout_s)
        own = [workflow for workflow in stubborn if self._context.owns(self._me, workflow)]
        return messages.waits_for_itself(self.recipe, own) if own else None

    # --- the end ---

    def _own_marker(self, change: Change) -> SwapMarker:
        if (
            change.marker is None
            or change.marker.token != self._token
            or not (self._contender is not None and self._contender.has_it())
        ):
            raise messages.swap_lost(self.recipe, self._token)
        return change.marker

    def _end(self, kind: str, why: str, *, loaded: bool, exit_status: int | None = None) -> None:
        """End the swap early; `loaded`: the caller may have begun to load. If the store does not
        answer, the next look finds an orphaned marker and clears it.
        """
        if self._contender is None:
            # It has ended already.
            return
        why = why[:SWAP_WHY_CHARS_MAX]

        def body(change: Change) -> None:
            marker = change.marker
            if not self._token:
                # This swap never had a marker. The one that is there may be another program's,
                # which has no token either.
                change.log(kind, self.recipe, {"who": who(self._me), "why": why})
            elif marker is not None and marker.token == self._token:
                loading = marker.phase is Phase.LOADING
                if loaded and loading:
                    change.fail_load(marker, why, exit_status)
                else:
                    change.cancel_swap(marker, kind, why, self._before if loading else None)

        try:
            with contextlib.suppress(HoldfastError):
                timeout_s = _SHUT_S if self._store_busy else TRANSACT_TIMEOUT_S
                self._context.change(body, timeout_s=timeout_s)
        finally:
            # Also after a second Ctrl-C: a process that lives on would keep all others from
            # swapping.
            self._release()

    def _release(self) -> None:
        if self._contender is not None:
            # In this order: if a signal interrupts the close, the caller can close it again.
            self._contender.close()
            self._contender = None
            faults.reach("swap.released")
            with contextlib.suppress(HoldfastError):
                # A second wake-up: a waiter that woke when the marker went may have found the lock
                # still held.
                self._context.wake()


def _why(error: BaseException) -> str:
    return error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
