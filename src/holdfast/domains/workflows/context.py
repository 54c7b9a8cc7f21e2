"""What every operation on workflows shares: the store, the processes, the swap lock and the signal
files; and sleeping until a process dies.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.domains.workflows.change import (
    ASKED_STATES,
    Change,
    has_ended,
    loaded_in,
    marker_in,
    workflows_in,
)
from holdfast.domains.workflows.ports import Signals, SwapLock, SwapLogMirror
from holdfast.domains.workflows.records import (
    Loaded,
    OrphanLoad,
    Preempt,
    SwapMarker,
    UnseenLoads,
    Workflow,
    same_process,
    waits_for,
)
from holdfast.domains.workflows.wire import CHANGED, SCOPE, WORKFLOWS
from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError, Lost, Refused
from holdfast.kernel.holder import Holder, Liveness, ProbedLiveness, Processes, probe
from holdfast.kernel.limits import SWAP_LOAD_GRACE_S, SWAP_WATCHED_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Damage, Listener, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import SteadyClock, steady_clock

T = TypeVar("T")

_WAKE_S = 1.0

_AFTER_S = 0.001
"""A lease is valid up to and including its last instant, so a waiter looks just after it."""


class WorkflowsSnapshot(NamedTuple):
    """The workflows as they are stored, and the liveness of their processes."""

    workflows: list[Workflow]
    marker: SwapMarker | None
    loaded: Loaded
    now: datetime
    probed: ProbedLiveness
    damaged: Damage
    steady: SteadyClock

    def gone(self, workflow: Workflow) -> bool:
        """Whether a workflow has ended and may be swept."""
        return has_ended(workflow, self.probed, self.now, self.steady)

    def clean(self) -> bool:
        """Whether there is no workflow to sweep, and no marker to reconcile."""
        return self.marker is None and not any(map(self.gone, self.workflows))


def _unasked(workflows: Iterable[Workflow]) -> list[tuple[Workflow, str]]:
    """The workflows without a request to yield, and the paths of their signals."""
    return [
        (workflow, workflow.preempt_signal_path)
        for workflow in workflows
        if workflow.preempt is Preempt.NONE and workflow.preempt_signal_path is not None
    ]


class WorkflowsContext:
    """The workflows of one store, as one process sees them."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        swap_lock: SwapLock,
        signals: Signals,
        mirror: SwapLogMirror | None,
        within: tuple[str, int] | None = None,
    ) -> None:
        self.store = store
        self.steady = steady_clock(store)
        self.journal = journal
        self.processes = processes
        self.swap_lock = swap_lock
        self.signals = signals
        self.mirror = mirror
        self._within = within
        self._unseen = UnseenLoads()

    def look(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> WorkflowsSnapshot:
        """Read everything, and probe the processes. Changes nothing."""
        damaged: Damage = []

        def body(tx: ReadTx) -> tuple[list[Workflow], SwapMarker | None, Loaded, datetime]:
            damaged.clear()
            return workflows_in(tx, damaged), marker_in(tx), loaded_in(tx), tx.now

        workflows, marker, loaded, now = self.store.read(body, scope=SCOPE, timeout_s=timeout_s)
        holders = [workflow.owner for workflow in workflows]
        holders += [] if marker is None else [marker.holder, marker.holder.leader]
        probed = {holder: self.liveness(holder) for holder in set(holders)}
        return WorkflowsSnapshot(workflows, marker, loaded, now, probed, damaged, self.steady)

    def settled(self, snapshot: WorkflowsSnapshot) -> bool:
        """Whether there is nothing to sweep or reconcile, and no signal that a killed swap left
        behind.
        """
        return snapshot.clean() and not any(
            self.signals.given(path) for _, path in _unasked(snapshot.workflows)
        )

    def change(
        self,
        body: Callable[[Change], T],
        *,
        spare: tuple[str, int] | None = None,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Sweep, reconcile and run the body in one transaction; then make and remove signal files.

        A body decides before it changes anything: if it raises Refused or Lost, the sweep before it
        is committed all the same. The workflow with name and token `spare` is not swept.
        """
        snapshot = self.look(timeout_s)
        if not snapshot.clean():
            self.steady.compare()
        begun: list[Change] = []

        def whole(tx: Tx) -> T | HoldfastError:
            change = Change(
                tx,
                self.journal,
                snapshot.probed,
                self.swap_lock,
                self.steady,
                self._unseen,
                spare=spare,
            )
            begun[:] = [change]
            try:
                return body(change)
            except (Refused, Lost) as error:
                return error

        result = self.store.transact(whole, scope=SCOPE, timeout_s=timeout_s)
        self._update_signals(begun[0])
        if self.mirror is not None:
            self.mirror.catch_up()
        if isinstance(result, HoldfastError):
            raise result
        return result

    def _update_signals(self, change: Change) -> None:
        for workflow in change.cleared:
            if workflow.preempt_signal_path is not None and self._is_here(workflow.owner):
                self.signals.clear(workflow.preempt_signal_path, workflow.name, workflow.token)
        for workflow, path in _unasked(change.workflows.values()):
            if not self._is_here(workflow.owner):
                continue
            swap = self.signals.swap_of(path, workflow.name, workflow.token)
            under_way = 0 if change.marker is None else change.marker.token
            # The signal's swap began before this change and is not under way: it was killed before
            # it could remove the signal.
            if 0 < swap < change.revision and swap != under_way:
                self.signals.clear(path, workflow.name, workflow.token)
        for workflow in change.asked:
            if self._is_here(workflow.owner):
                self.give_signal(workflow)

    def give_signal(self, workflow: Workflow) -> None:
        """Make a workflow's signal file. A failure is only logged: the record says the same, and
        the store notifies work under `workflows run` or `running()`.
        """
        path = workflow.preempt_signal_path
        if path is None:
            return
        wrong = self.signals.give(path, workflow.name, workflow.token, workflow.preempt_swap or 0)
        if wrong is not None:
            # Loaded here, since it is seldom needed.
            import logging

            logger = logging.getLogger("holdfast.workflows")
            logger.warning("no signal file workflow=%s: %s", workflow.name, wrong)
        with suppress(HoldfastError):
            row = self.store.get(WORKFLOWS, workflow.name)
            if (
                row is None
                or row.record.token != workflow.token
                or row.record.preempt not in ASKED_STATES
            ):
                # The request was withdrawn, or the workflow removed, before the file was there to
                # be removed.
                self.signals.clear(path, workflow.name, workflow.token)

    def wake(self) -> None:
        """Wake all waiters. Tries only for a moment: without a wake-up they look again after at
        most WAIT_RECHECK_S.
        """
        self.store.transact(
            lambda tx: tx.notify(CHANGED), scope=[], durable=False, timeout_s=_WAKE_S
        )

    # --- processes ---

    def liveness(self, holder: Holder) -> Liveness:
        return probe(self._placed(holder), self.processes, embedded=self.store.embedded)

    def _placed(self, holder: Holder) -> Holder:
        if not holder.host_id and self.store.embedded:
            # Another program writes only pid and start. The files are on this machine, so the
            # process is too.
            return replace(holder, **self.processes.here()._asdict())
        return holder

    def owns(self, process: Holder, workflow: Workflow) -> bool:
        """Whether a workflow belongs to that process, or is the `workflows run` around it."""
        return (
            same_process(process, workflow.owner) or (workflow.name, workflow.token) == self._within
        )

    def own_conflicts(self, change: Change, process: Holder, marker: SwapMarker) -> list[Workflow]:
        """The work of a process that a swap waits for."""
        return [
            one
            for one in change.workflows.values()
            if self.owns(process, one) and waits_for(marker, one)
        ]

    def _is_here(self, holder: Holder) -> bool:
        """Whether a process runs on this machine, and so sees our files."""
        return holder.host_id in ("", self.processes.here().host_id)

    # --- the load of a swap that is over ---

    def orphan_load(self, marker: SwapMarker) -> OrphanLoad | None:
        """The load of a swap whose process is dead or has lost the swap lock; None for a live swap.
        Of such a swap, only processes of its load may be left.
        """
        dead = self.liveness(marker.holder.leader) is Liveness.DEAD
        unseen = self._unseen.left_s(marker.token) is not None
        return self.load_of(marker) if dead or unseen else None

    def load_of(self, marker: SwapMarker) -> OrphanLoad:
        """The load of a swap that is known to be over."""
        tree, seen = marker.holder.tree, marker.holder.place == self.processes.here()
        survivors = self.processes.survivors(tree) if tree and seen else ()
        return OrphanLoad(marker, survivors, self._unseen.left_s(marker.token))

    def end_load(self, marker: SwapMarker) -> None:
        """End the processes of a load, in a thread of its own. Only for a swap whose process was
        dead when its marker was read. Does nothing for a load on another machine or in another pid
        namespace.
        """
        tree = marker.holder.tree
        if not tree or marker.holder.place != self.processes.here():
            return

        def end() -> None:
            with suppress(HoldfastError, OSError, MemoryError):
                # The swap waits for processes that cannot be ended.
                self.processes.end_tree(tree, SWAP_LOAD_GRACE_S)

        threads.start(threading.Thread(target=end, name="holdfast-load", daemon=True))

    # --- expiry ---

    def next_expiry_s(self, workflows: Iterable[Workflow]) -> float | None:
        """The time until the first of the workflows expires; None when none can.

        Work that is not swept at its expiry is left out: a waiter would wake for it again and again
        without a pause.
        """
        now = self.store.now()
        ends = [
            (
                lease.expires_at - self.steady.without_jump(now, since=lease.granted_at)
            ).total_seconds()
            for workflow in workflows
            if (lease := workflow.lease).explicit
            or self.liveness(workflow.owner) is not Liveness.ALIVE
        ]
        return max(min(ends), 0.0) + _AFTER_S if ends else None

    def sleep(
        self,
        holders: Iterable[Holder],
        listener: Listener,
        timeout_s: float | None,
        stop_fd: int | None = None,
    ) -> bool:
        """Sleep until one of these processes dies, a notification comes or the time is over; not at
        all if one is dead already. False when the descriptor `stop_fd` became readable.
        """
        fds: list[int] = []
        try:
            for holder in islice(holders, SWAP_WATCHED_MAX):
                fd = self.processes.death(self._placed(holder))
                if fd is not None:
                    fds.append(fd)
                elif self.liveness(holder) is Liveness.DEAD:
                    # It died since it was probed, so no descriptor will report it.
                    return True
            stops = [] if stop_fd is None else [stop_fd]
            return listener.wait(timeout_s, also=[*fds, *stops]).ready.isdisjoint(stops)
        finally:
            for fd in fds:
                os.close(fd)
