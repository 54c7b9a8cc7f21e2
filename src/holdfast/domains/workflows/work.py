"""A running workflow: registered, renewed in the background, notified when it should yield, and
released at the end.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.domains.workflows.context import WorkflowsContext
from holdfast.domains.workflows.messages import swept
from holdfast.domains.workflows.records import Preempt, Workflow
from holdfast.domains.workflows.registration import Registered
from holdfast.domains.workflows.wire import WORKFLOWS, topic_of
from holdfast.kernel.errors import HoldfastError, Lost, NotFound
from holdfast.kernel.holder import Liveness
from holdfast.kernel.lease import renew_every_s
from holdfast.primitives.renewal import Keeper

if TYPE_CHECKING:
    from holdfast.domains.workflows.registry import Workflows

OnPreempt = Callable[[], object]
"""Called when the work is asked to yield; if it returns False, again at the next look."""
OnLost = Callable[[], object]
"""Called when the workflow was swept though its owner lives."""


class _KeptWork(NamedTuple):
    """Running work, as its keeper knows it."""

    id: str
    since_s: float
    lose: Callable[[], None]
    ends_s: float = math.inf


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
        self._keeper: Keeper[_KeptWork] | None = None
        self.lost = threading.Event()
        """Set when the workflow was swept: stop work that needs its recipe."""
        self.preempted = threading.Event()
        """Set while the work is asked to yield."""

    def __enter__(self) -> "Work":
        self._pid = os.getpid()
        self._registered = self._register()
        try:
            name = self.workflow.name
            self._kept = _KeptWork(name, time.monotonic(), self._lose)
            self._renewed_at = self.workflow.last_renewed_at
            self._every_s = renew_every_s(self.workflow.ttl_seconds)
            self._keeper = Keeper(
                self._context.store,
                topic=lambda: topic_of(name),
                renew=self._keep,
                renew_every_s=self._every_s,
            )
            self._keeper.add(self._kept)
            return self
        except BaseException:
            # `__exit__` is not called when `__enter__` raises, and the thread may run already.
            self._stop()
            with contextlib.suppress(HoldfastError):
                self._workflows.release(self.workflow.name, self.workflow.token)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._pid != os.getpid():
            # A forked child that leaves the block ends nothing: the work is its parent's.
            return
        self._stop()
        if self._left:
            return
        try:
            self._workflows.release(self.workflow.name, self.workflow.token)
        except (NotFound, Lost):
            self._lose()
        if self.lost.is_set() and error is None:
            raise swept(self.workflow.name, self.workflow.token)

    def _stop(self) -> None:
        if self._keeper is not None:
            # Before the release: a renewal that is under way finds the workflow gone, and must not
            # report that as a loss.
            self._keeper.discard(self._kept)
            self._keeper.close()

    @property
    def workflow(self) -> Workflow:
        """The workflow as it was registered."""
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

    def _keep(self, due: list[_KeptWork]) -> list[_KeptWork]:
        try:
            self._look()
            now = self._context.store.now()
            # By the store's clock, which may be set back. A notice brings the keeper here early,
            # and it sleeps a whole interval next: it renews unless it has only just done so.
            if not 0 <= (now - self._renewed_at).total_seconds() < self._every_s / 10:
                self._workflows.renew(self.workflow.name, self.workflow.token)
                # The time before the renewal: on a store that keeps failing it may take long.
                self._renewed_at = now
        except Lost:
            if self._keeper is not None and self._keeper.keeps(self._kept):
                # Called here too, since the keeper stops keeping the work before it calls `lose`:
                # an error there would hide the loss. An error here is retried.
                self._lose()
            return due
        return []

    def _lose(self) -> None:
        """Note that the workflow was swept. That is no loss if its owner has ended: then the sweep
        only came before the release.
        """
        dead = self._context.liveness(self.workflow.owner) is Liveness.DEAD
        if not dead and not self.lost.is_set():
            self.lost.set()
            if self._on_lost is not None:
                _call(self._on_lost)

    def _look(self) -> None:
        """Note whether the work is asked to yield. Raises LeaseLost when it was swept."""
        row = self._context.store.get(WORKFLOWS, self.workflow.name)
        if row is None or row.record.token != self.workflow.token:
            raise swept(self.workflow.name, self.workflow.token)
        if row.record.preempt is Preempt.NONE:
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
