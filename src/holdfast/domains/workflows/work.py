"""A running workflow: registered, renewed in the background, notified when it should yield, and
released at the end.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.domains.workflows.context import WorkflowsContext
from holdfast.domains.workflows.messages import swept
from holdfast.domains.workflows.records import Preempt, Workflow
from holdfast.domains.workflows.registration import Registered
from holdfast.domains.workflows.wire import WORKFLOWS, topic_of
from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError, Lost, NotFound
from holdfast.kernel.holder import Liveness
from holdfast.kernel.store import Listener

if TYPE_CHECKING:
    from holdfast.domains.workflows.registry import Workflows

OnPreempt = Callable[[], object]
"""Called when the work is asked to yield; again a moment later, if it returns False."""
OnLost = Callable[[], object]
"""Called when the workflow was swept though its owner lives."""

_STORE_LOST_S = 1.0
_CLOSING_S = 5.0


class Work:
    """A workflow for the time of a `with` block; see `Workflows.running`."""

    def __init__(
        self,
        workflows: "Workflows",
        context: WorkflowsContext,
        register: Callable[[], Registered],
        on_preempt: OnPreempt | None,
        on_lost: OnLost | None,
    ) -> None:
        self._workflows = workflows
        self._context = context
        self._register = register
        self._on_preempt = on_preempt
        self._on_lost = on_lost
        self._notified = False
        self._left = False
        self._over = threading.Event()
        self.lost = threading.Event()
        """Set when the workflow was swept: stop work that needs its recipe."""
        self.preempted = threading.Event()
        """Set while the work is asked to yield."""

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
            # `__exit__` is not called when `__enter__` raises. The thread may run already; `_over`
            # ends it.
            self._over.set()
            with contextlib.suppress(HoldfastError):
                self._workflows.release(self.workflow.name, self.workflow.token)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._pid != os.getpid():
            # A forked child that leaves the block ends nothing: the work is its parent's.
            return
        self._over.set()
        with contextlib.suppress(HoldfastError):
            self._context.store.transact(lambda tx: tx.notify(self._topic), scope=[], durable=False)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)
        if self._left:
            return
        try:
            self._workflows.release(self.workflow.name, self.workflow.token)
        except (NotFound, Lost):
            self._lose()
        if self.lost.is_set() and error is None:
            raise swept(self.workflow.name, self.workflow.token)

    @property
    def workflow(self) -> Workflow:
        return self._registered.workflow

    @property
    def swap_needed(self) -> bool:
        """Whether its recipe was not loaded yet when it was registered."""
        return self._registered.swap_needed

    def should_yield(self) -> bool:
        """Whether the work was asked to yield. Call it where stopping is safe. Raises LeaseLost
        when the workflow was swept.
        """
        if self.lost.is_set():
            raise swept(self.workflow.name, self.workflow.token)
        path = self.workflow.preempt_signal_path
        return self.preempted.is_set() or (path is not None and self._context.signals.given(path))

    def leave(self) -> None:
        """Keep the workflow for the processes of its owner's tree: the end of the block does not
        release it.
        """
        self._left = True

    # --- in the background ---

    def _keep(self) -> None:
        every_s = self.workflow.ttl_seconds / 3
        topics = [self._topic, topic_of(self.workflow.name)]
        while self._goes_on():
            try:
                with self._context.store.listen(topics) as listener:
                    self._keep_on(listener, every_s)
            except (HoldfastError, OSError, MemoryError):
                # The store does not answer, or memory ran out. Try again until the work ends.
                self._over.wait(min(every_s, _STORE_LOST_S))

    def _keep_on(self, listener: Listener, every_s: float) -> None:
        while self._goes_on():
            self._look()
            since_s = (self._context.store.now() - self._renewed_at).total_seconds()
            if not 0 <= since_s < every_s:
                self._renew()
                since_s = 0.0
            if self._goes_on():
                listener.wait(every_s - since_s)

    def _goes_on(self) -> bool:
        return not self._over.is_set() and not self.lost.is_set()

    def _renew(self) -> None:
        # Taken before the renewal, which may take long on a store that keeps failing.
        asked_at = self._context.store.now()
        try:
            self._workflows.renew(self.workflow.name, self.workflow.token)
            self._renewed_at = asked_at
        except Lost:
            self._lose()

    def _lose(self) -> None:
        """The workflow is not registered any more. If its owner has ended, that is no loss: the
        sweep was only faster than the release.
        """
        if self._context.liveness(self.workflow.owner) is Liveness.DEAD:
            self._over.set()
        elif not self.lost.is_set():
            self.lost.set()
            if self._on_lost is not None:
                _call(self._on_lost)

    def _look(self) -> None:
        row = self._context.store.get(WORKFLOWS, self.workflow.name)
        if row is None or row.record.token != self.workflow.token:
            self._lose()
        elif row.record.preempt is Preempt.NONE:
            # Nobody asks, or the swap that asked has failed.
            self.preempted.clear()
            self._notified = False
        elif row.record.preempt is not Preempt.YIELDED and not self._notified:
            # The swapper may be on another machine, or may not write where the owner reads.
            self._context.give_signal(row.record)
            self.preempted.set()
            self._notified = self._on_preempt is None or _call(self._on_preempt) is not False


def _call(act: Callable[[], object]) -> object:
    """Call the caller's function. An exception is only logged: the thread must go on renewing, or
    the recipe would be swapped under the work.
    """
    try:
        return act()
    except Exception:
        # Loaded here, since it is seldom needed.
        import logging

        logging.getLogger("holdfast.workflows").exception("the callback of a workflow failed")
        return None
