"""A workflow that runs: registered, renewed in the background, told when it is asked to yield, and
released at the end.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.domains.workflows import refusal
from holdfast.domains.workflows.context import Room
from holdfast.domains.workflows.records import Preempt, Workflow
from holdfast.domains.workflows.wire import WORKFLOWS, topic_of
from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError, Lost, NotFound
from holdfast.kernel.holder import Liveness

if TYPE_CHECKING:
    from holdfast.domains.workflows.registration import Registered
    from holdfast.domains.workflows.registry import Workflows

OnPreempt = Callable[[], object]
"""Called each time that the work is asked to yield; and again a moment later, if it returns False.
"""
OnLost = Callable[[], object]
"""Called when the workflow was swept though its owner lives."""

_STORE_LOST_S = 1.0
_CLOSING_S = 5.0


class Work:
    """A workflow for the time of a `with` block; see `Workflows.running`."""

    def __init__(
        self,
        workflows: "Workflows",
        room: Room,
        register: "Callable[[], Registered]",
        on_preempt: OnPreempt | None,
        on_lost: OnLost | None,
    ) -> None:
        self._workflows = workflows
        self._room = room
        self._register = register
        self._on_preempt = on_preempt
        self._on_lost = on_lost
        self._heard = False
        self._left = False
        self._over = threading.Event()
        self.lost = threading.Event()
        """Set when the workflow was swept: stop work that needs its recipe."""
        self.preempted = threading.Event()
        """Set while it is asked to yield."""

    def __enter__(self) -> "Work":
        self._pid = os.getpid()
        self._registered = self._register()
        try:
            self._renewed_at = self.workflow.last_renewed_at
            self._topic = f"{topic_of(self.workflow.name)}/{self.workflow.token}"
            self._thread = threading.Thread(target=self._keep, name="holdfast-work", daemon=True)
            threads.start(self._thread)
            return self
        except BaseException:
            # `__exit__` is not called when `__enter__` raises. The thread may already run, and ends
            # by `_over`.
            self._over.set()
            with contextlib.suppress(HoldfastError):
                self._workflows.release(self.workflow.name, self.workflow.token)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pid != os.getpid():
            # A forked child that leaves the block ends nothing: the work is its parent's.
            return
        self._end_thread()
        if self._left:
            return
        try:
            self._workflows.release(self.workflow.name, self.workflow.token)
        except (NotFound, Lost):
            self._gone()
        if self.lost.is_set() and error is None:
            raise refusal.swept(self.workflow.name, self.workflow.token)

    @property
    def workflow(self) -> Workflow:
        """The workflow as it was registered."""
        return self._registered.workflow

    @property
    def swap_needed(self) -> bool:
        """Was its recipe yet to be loaded when it was registered?"""
        return self._registered.swap_needed

    def should_yield(self) -> bool:
        """To be asked where stopping is safe: True when the work was asked to yield. Raises
        LeaseLost when it was swept.
        """
        if self.lost.is_set():
            raise refusal.swept(self.workflow.name, self.workflow.token)
        path = self.workflow.preempt_signal_path
        return self.preempted.is_set() or (path is not None and self._room.signals.given(path))

    def leave(self) -> None:
        """Let the workflow go on for the processes of its owner's tree: the end of the block does
        not release it.
        """
        self._left = True

    def _end_thread(self) -> None:
        self._over.set()
        with contextlib.suppress(HoldfastError):
            self._room.store.transact(lambda tx: tx.notify(self._topic), scope=[], durable=False)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)

    def _keep(self) -> None:
        every_s = self.workflow.ttl_seconds / 3
        while not self._over.is_set() and not self.lost.is_set():
            try:
                with self._room.store.listen([self._topic, topic_of(self.workflow.name)]) as ears:
                    self._keep_on(ears.wait, every_s)
            except (HoldfastError, OSError, MemoryError):
                # The store does not answer, or memory ran out. It is asked again until it does, or
                # the work ends.
                self._over.wait(min(every_s, _STORE_LOST_S))

    def _keep_on(self, wait: Callable[[float], object], every_s: float) -> None:
        while not self._over.is_set() and not self.lost.is_set():
            self._look()
            since_s = (self._room.store.now() - self._renewed_at).total_seconds()
            if not 0 <= since_s < every_s:
                self._renew()
                since_s = 0.0
            if not self._over.is_set() and not self.lost.is_set():
                wait(every_s - since_s)

    def _renew(self) -> None:
        # Before it: on a store that keeps going away, what counts is when it was last asked in
        # time.
        asked_at = self._room.store.now()
        try:
            self._workflows.renew(self.workflow.name, self.workflow.token)
            self._renewed_at = asked_at
        except Lost:
            self._gone()

    def _gone(self) -> None:
        """It is not there any more. Whose owner has ended lost nothing by that: another was just
        quicker than its release.
        """
        owner = self.workflow.owner
        if self._room.verdicts_on([owner])[owner] is Liveness.DEAD:
            self._over.set()
        elif not self.lost.is_set():
            self.lost.set()
            if self._on_lost is not None:
                _called(self._on_lost)

    def _look(self) -> None:
        row = self._room.store.get(WORKFLOWS, self.workflow.name)
        if row is None or row.record.token != self.workflow.token:
            self._gone()
        elif row.record.preempt is Preempt.NONE:
            # Not asked, or not any more: the swap has failed.
            self.preempted.clear()
            self._heard = False
        elif row.record.preempt is not Preempt.YIELDED and not self._heard:
            # Whoever asked may be on another machine, or may not write where the owner reads.
            self._room.give_signal(row.record)
            self.preempted.set()
            self._heard = self._on_preempt is None or _called(self._on_preempt) is not False


def _called(act: Callable[[], object]) -> object:
    """Call what the caller gave. If it fails that is told in the log, and the work is looked after
    as before: without it the recipe would be swapped under the work.
    """
    try:
        return act()
    except Exception:
        # Loaded here, since there is mostly nothing to tell.
        import logging

        logging.getLogger("holdfast.workflows").exception(
            "what was to be called for a workflow failed"
        )
        return None
