"""One swap, from the lock to the new recipe.

    take the swap lock and write the marker     one transaction: neither exists without the other
    ask, wait                                   until no work with another recipe is left
    say that what is loaded is unknown          in the transaction that finds nobody in the way
    load                                        what the caller's block does
    complete, or fail                           one transaction, with the marker's token and lock
    let go of the lock

Killed at any step, it leaves a marker that nobody stands behind, which the next one who looks
clears. If a command loads, the marker stays until the last process of that command is gone; the
next swap ends those processes, and waits for their end. A recipe that is loaded already needs no
swap: nobody is asked to yield, and the block keeps other swaps out without loading.
"""

import contextlib
import enum
import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from holdfast.domains.workflows import ports
from holdfast.domains.workflows import refusal as refusing
from holdfast.domains.workflows.change import Change, loaded_in
from holdfast.domains.workflows.context import Room, Watch, next_expiry_s
from holdfast.domains.workflows.ports import Contender
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Loaded,
    Phase,
    Preempt,
    Remains,
    SwapMarker,
    UnknownRecipe,
    Workflow,
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
"""How long a refused swap tries to tell of its end where the store was just seen to be shut."""


class Policy(enum.StrEnum):
    """What to do about work that cannot be preempted, or does not yield."""

    WAIT = "wait"
    REFUSE = "refuse"


InTheWay = SwapMarker | Remains | Workflow | CurrentRecipe | UnknownRecipe
OnWait = Callable[[Sequence[InTheWay]], None]
"""Told what is in the way when a wait begins, and when that changes: another swap, what is left of
one, or workflows; for work that waits for its recipe, also what is loaded instead.
"""


class Swap:
    """A swap, for the time of a `with` block; see `Workflows.swap`."""

    def __init__(
        self,
        room: Room,
        recipe: str,
        me: Holder,
        *,
        grace_s: float,
        timeout_s: float,
        policy: Policy,
        on_wait: OnWait | None,
        stop_fd: int | None = None,
        reload: bool = False,
    ) -> None:
        self.recipe = recipe
        self.needed = True
        """Is there anything to load? False in the block when the recipe is loaded already: then
        load nothing. The recipe stays loaded until the block ends.
        """
        self._room = room
        self._me = me
        self._grace_s = grace_s
        self._deadline = Deadline(timeout_s)
        self._timeout_s = timeout_s
        self._policy = policy
        self._on_wait = on_wait
        self._stop_fd = stop_fd
        self._reload = reload
        self._pinned = False
        self._before: Loaded | None = None
        self._told: list[tuple[str, int, str | None]] = []
        self._abandoned = self._unseen = False
        self._ended = 0
        self._late: set[int] = set()
        self._token = 0
        self._contender: Contender | None = None
        self._shut = False
        self._pid = 0
        self._on_lost: Callable[[], None] = lambda: None
        self.lost = threading.Event()
        """Set when this process learns that the swap is over before its end: stop loading."""

    @property
    def token(self) -> int:
        """The token of this swap."""
        return self._token

    def __enter__(self) -> "Swap":
        if self._contender is not None:
            raise InvalidValue("a swap is entered once: ask for another")
        self._deadline = Deadline(self._timeout_s)
        self._pid = os.getpid()
        self._contender = self._room.swap_lock.contender()
        try:
            with self._room.store.listen([CHANGED]) as ears:
                self._begin(ears)
                faults.reach("swap.marked")
                if self.needed:
                    self._drain(ears)
                faults.reach("swap.drained")
            if self._pinned:
                self._let_go()
            else:
                self._contender.watch(self._lose)
            return self
        except BaseException as error:
            self._end(ports.REFUSED, _why(error), loaded=False)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._contender is None or self._elsewhere():
                # It was ended in the block, or is its parent's: a forked child that leaves the
                # block ends nothing.
                return
            if error is not None:
                self._end(ports.FAILED, _why(error), loaded=True)
                return
            faults.reach("swap.loaded")
            self._room.change(self._complete)
            faults.reach("swap.completed")
            self._let_go()
        except BaseException:
            if not self._elsewhere():
                self._let_go()
            raise

    def check(self) -> None:
        """Is this swap still in force? Raises LeaseLost when it is not: stop loading."""
        if self.lost.is_set():
            raise refusing.swap_lost(self.recipe, self._token)
        self._room.change(self._still_loaded if self._pinned else self._mine)

    def when_lost(self, act: Callable[[], None]) -> None:
        """Call this once, from another thread, when the swap is found to be over before its end; at
        once if it is already.
        """
        self._on_lost = act
        if self.lost.is_set():
            act()

    def _lose(self) -> None:
        self.lost.set()
        self._on_lost()

    def fail(self, why: str, *, exit_status: int | None = None) -> None:
        """The load has failed: from here on it is unknown what is loaded. The swap is over, and the
        end of the block does nothing. A forked child ends nothing.
        """
        if not self._elsewhere():
            self._end(ports.FAILED, why, loaded=True, exit_status=exit_status)

    def cancel(self, why: str) -> None:
        """End the swap before anything was loaded: what was loaded still is. The end of the block
        does nothing. A forked child ends nothing.
        """
        if not self._elsewhere():
            self._end(ports.FAILED, why, loaded=False)

    def _elsewhere(self) -> bool:
        """Is this a process that was forked since the swap began?"""
        return self._pid != os.getpid()

    # --- beginning ---

    def _begin(self, ears: Listener) -> None:
        while True:
            in_the_way = self._change(self._mark)
            if self._pinned:
                return
            if self._has_lock():
                if in_the_way is None:
                    return
                self._contend_anew()
                continue
            if in_the_way is not None and (self._abandoned or self._unseen):
                self._await_load(in_the_way, ears)
                continue
            if self._deadline.passed():
                raise refusing.swap_in_the_way(self.recipe, in_the_way, self._timeout_s)
            self._tell([] if in_the_way is None else [in_the_way])
            # With the process that swaps: its load may live on when it dies, and is then to be
            # ended.
            watched = (
                [] if in_the_way is None else list({in_the_way.holder, in_the_way.holder.leader})
            )
            with Watch(self._room, watched) as watch:
                self._sleep(watch, ears, self._deadline.left_s())

    def _await_load(self, marker: SwapMarker, ears: Listener) -> None:
        """Sleep until the load of a dead swap may have ended. It is not work, so it is ended; where
        its guardian lives, that does the same. Raises Held and LockTimeout.
        """
        remains = self._room.remains(marker)
        if self._policy is Policy.REFUSE:
            raise refusing.load_survives(self.recipe, remains)
        if self._deadline.passed():
            raise refusing.swap_in_the_way(self.recipe, marker, self._timeout_s, remains)
        self._tell([remains])
        with Watch(self._room, [marker.holder]) as watch:
            if self._abandoned and marker.token != self._ended:
                self._ended = marker.token
                self._room.end_load(marker)
            self._sleep(watch, ears, earliest(self._deadline.left_s(), remains.left_s))

    def _change(self, body: Callable[[Change], T]) -> T:
        """One transaction of the beginning, within the time that is left."""
        try:
            return self._deadline.insist(
                lambda limit_s: self._room.change(body, timeout_s=limit_s), stop_fd=self._stop_fd
            )
        except LockTimeout as error:
            self._shut = error.fields.get("outcome") == "none"
            raise

    def _mark(self, change: Change) -> SwapMarker | None:
        """Take the lock and write the marker, or neither. Taken here, under the latch, where it is
        also asked about: so whoever asks never meets one who takes.
        """
        self._pinned = False
        self._abandoned, self._unseen = change.abandoned, change.unseen
        is_loaded = loaded_in(change.tx).has(self.recipe)
        self.needed = self._reload or not is_loaded
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
            reload=self._reload and is_loaded,
        )
        change.mark(marker, needed=self.needed)
        return None

    def _meet(self, change: Change, other: SwapMarker) -> None:
        """Another swap is under way. Raises DeadlockDetected when it waits for work of this very
        process.
        """
        mine = [
            one
            for one in change.workflows.values()
            if self._room.owns(self._me, one) and waits_for(other, one)
        ]
        if not self.needed and any(one.recipe == self.recipe for one in mine):
            # That work keeps the recipe loaded, whatever the other wants: there is nothing to wait
            # for.
            self._pinned = True
            change.tell(ports.NOT_NEEDED, self.recipe, {"who": who(self._me)})
        elif mine and other.phase is Phase.WAITING and not self._deadline.passed():
            raise refusing.swap_deadlock(self.recipe, other, mine)

    def _contend_anew(self) -> None:
        """Let go of a lock that was taken in a run which could not be committed: in the next run it
        stood behind a marker that nobody else stands behind.
        """
        contender, self._contender = self._contender, None
        if contender is not None:
            contender.close()
        self._token = 0
        self._contender = self._room.swap_lock.contender()

    def _has_lock(self) -> bool:
        return self._contender is not None and self._contender.has_it()

    # --- waiting for running work ---

    def _drain(self, ears: Listener) -> None:
        grace = Deadline(self._grace_s)
        while conflicts := self._change(lambda change: self._ask(change, late=grace.passed())):
            faults.reach("swap.asked")
            # One that yields after its time has yielded all the same, and is not said once more to
            # have not.
            self._late |= {
                workflow.token for workflow in conflicts if workflow.preempt is Preempt.IGNORED
            }
            if (refusal := self._refusal(conflicts)) is not None:
                raise refusal
            stubborn = [workflow for workflow in conflicts if not _may_yield(workflow)]
            self._tell(conflicts)
            patience_s = grace.left_s() if len(stubborn) < len(conflicts) else None
            with Watch(self._room, [workflow.owner for workflow in conflicts]) as watch:
                limit_s = earliest(
                    self._deadline.left_s(), patience_s, next_expiry_s(self._room, conflicts)
                )
                self._sleep(watch, ears, limit_s)

    def _sleep(self, watch: Watch, ears: Listener, limit_s: float | None) -> None:
        """Until something has changed; when whoever swaps does not want to any more, its time is
        over.
        """
        if not watch.wait(ears, limit_s, self._stop_fd):
            self._deadline.end()

    def _ask(self, change: Change, *, late: bool) -> list[Workflow]:
        """Ask those to yield who may, and note who has not in time; return all that are in the way.
        When nobody is, the load begins.
        """
        marker = self._mine(change)
        if change.damaged:
            # It may be work that runs, and nobody swaps under that by guessing.
            raise change.damaged[0]
        conflicts = self._conflicts(change, marker)
        if not conflicts:
            self._before = change.begin_load(marker)
            return []
        if self._policy is Policy.REFUSE and not all(
            workflow.preemptible for workflow in conflicts
        ):
            # It will be refused, so nobody is disturbed for it.
            return conflicts
        for workflow in conflicts:
            if workflow.preemptible:
                self._ask_one(change, workflow, late=late)
        conflicts = self._conflicts(change, marker)
        if self._refusal(conflicts) is None:
            change.drain(marker)
        return conflicts

    def _conflicts(self, change: Change, marker: SwapMarker) -> list[Workflow]:
        """The work that is in the way. What the swapper itself registered for the recipe is what it
        loads for.
        """
        return [
            workflow
            for workflow in change.workflows.values()
            if waits_for(marker, workflow)
            and not (workflow.recipe == self.recipe and self._room.owns(self._me, workflow))
        ]

    def _refusal(self, conflicts: Sequence[Workflow]) -> HoldfastError | None:
        """Why the swap does not wait for this work; None when it does."""
        stubborn = [workflow for workflow in conflicts if not _may_yield(workflow)]
        if stubborn and self._policy is Policy.REFUSE:
            return refusing.refused(self.recipe, stubborn)
        if self._deadline.passed():
            return refusing.not_drained(self.recipe, conflicts, self._timeout_s)
        own = [workflow for workflow in stubborn if self._room.owns(self._me, workflow)]
        return refusing.own_work(self.recipe, own) if own else None

    def _ask_one(self, change: Change, workflow: Workflow, *, late: bool) -> None:
        if self._unasked(workflow):
            change.ask(workflow)
        workflow = change.workflows[workflow.name]
        if (
            late
            and workflow.preempt in (Preempt.REQUESTED, Preempt.YIELDED)
            and workflow.token not in self._late
        ):
            change.ignore(workflow)

    def _unasked(self, workflow: Workflow) -> bool:
        """What yielded to somebody else, and is here, has not been asked for this swap."""
        return workflow.preempt is Preempt.NONE or (
            workflow.preempt is Preempt.YIELDED and workflow.preempt_swap != self._token
        )

    def _tell(self, in_the_way: Sequence[InTheWay]) -> None:
        facts = [_fact(one) for one in in_the_way]
        if facts and facts != self._told and self._on_wait is not None:
            self._told = facts
            self._on_wait(in_the_way)

    # --- ending ---

    def _mine(self, change: Change) -> SwapMarker:
        if change.marker is None or change.marker.token != self._token or not self._has_lock():
            raise refusing.swap_lost(self.recipe, self._token)
        return change.marker

    def _still_loaded(self, change: Change) -> None:
        if not loaded_in(change.tx).has(self.recipe):
            raise refusing.swap_lost(self.recipe, self._token)

    def _complete(self, change: Change) -> None:
        marker = self._mine(change)
        if self.needed:
            change.load(marker)
        else:
            change.skip(marker)

    def _end(self, kind: str, why: str, *, loaded: bool, exit_status: int | None = None) -> None:
        """End before its end; `loaded` says whether the caller may have begun to load. What cannot
        be told now, since the store does not answer, the next one who looks finds out: a marker
        without a lock.
        """
        if self._contender is None:
            # It has ended already.
            return
        why = why[:SWAP_WHY_CHARS_MAX]

        def body(change: Change) -> None:
            marker = change.marker
            if not self._token:
                # Another swap was in the way to the end. That may be another program's, whose
                # marker has no token either.
                change.tell(kind, self.recipe, {"who": who(self._me), "why": why})
            elif marker is not None and marker.token == self._token:
                if loaded and marker.phase is Phase.LOADING:
                    change.fail(marker, why, exit_status)
                else:
                    change.abandon(
                        marker, kind, why, self._before if marker.phase is Phase.LOADING else None
                    )

        try:
            with contextlib.suppress(HoldfastError):
                self._room.change(body, timeout_s=_SHUT_S if self._shut else TRANSACT_TIMEOUT_S)
        finally:
            # Whatever comes in between, a second Ctrl-C included: a process that lives on would
            # keep all others from swapping.
            self._let_go()

    def _let_go(self) -> None:
        if self._contender is not None:
            # In this order: a caller that was interrupted here can close it again.
            self._contender.close()
            self._contender = None
            faults.reach("swap.released")
            with contextlib.suppress(HoldfastError):
                # Once more: whoever woke for the marker may have come too early for the lock.
                self._room.wake()


def _may_yield(workflow: Workflow) -> bool:
    return workflow.preemptible and workflow.preempt is not Preempt.IGNORED


def _fact(one: InTheWay) -> tuple[str, int, str | None]:
    if isinstance(one, Remains):
        return one.marker.recipe, one.marker.token, "remains"
    return (
        (one.name, one.token, one.preempt)
        if isinstance(one, Workflow)
        else (one.recipe, one.token, None)
    )


def _why(error: BaseException) -> str:
    return error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
