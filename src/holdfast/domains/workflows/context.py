"""What every operation on workflows shares: the store, the processes, the swap lock and the signal
files.

Watching processes while something waits: the kernel tells of a death at once, and a time to live is
reckoned with.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.domains.workflows.change import (
    ASKED_STATES,
    Change,
    Verdicts,
    gone,
    loaded_in,
    marker_in,
    workflows_in,
)
from holdfast.domains.workflows.ports import Mirror, Signals, SwapLock
from holdfast.domains.workflows.records import (
    Loaded,
    Preempt,
    Remains,
    SwapMarker,
    UnseenLoads,
    Workflow,
    same_process,
)
from holdfast.domains.workflows.wire import CHANGED, SCOPE, WORKFLOWS
from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError, Lost, Refused
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.limits import SWAP_LOAD_GRACE_S, SWAP_WATCHED_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Listener, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal, Lag
from holdfast.primitives.steady_clock import SteadyClock, steady_clock

T = TypeVar("T")

_WAKE_S = 1.0


class Sight(NamedTuple):
    """The workflows as they are stored, and what is known of their processes."""

    workflows: list[Workflow]
    marker: SwapMarker | None
    loaded: Loaded
    now: datetime
    verdicts: Verdicts
    damaged: Damage
    steady: SteadyClock

    def gone(self, workflow: Workflow) -> bool:
        """Is a workflow over?"""
        return gone(workflow, self.verdicts, self.now, self.steady)

    def clean(self) -> bool:
        """Is there nothing to sweep, and no marker to ask about?"""
        return self.marker is None and not any(map(self.gone, self.workflows))


def _unasked(workflows: Iterable[Workflow]) -> list[tuple[Workflow, str]]:
    """Those that nobody asks to yield, and where their signal would be."""
    return [
        (workflow, workflow.preempt_signal_path)
        for workflow in workflows
        if workflow.preempt is Preempt.NONE and workflow.preempt_signal_path is not None
    ]


class Room:
    """The workflows of one store, as one process sees them."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        swap_lock: SwapLock,
        signals: Signals,
        mirror: Mirror,
        within: tuple[str, int] | None = None,
    ) -> None:
        self.store = store
        self.steady = steady_clock(store)
        self.journal = journal
        self.processes = processes
        self.swap_lock = swap_lock
        self.signals = signals
        self._mirror = mirror
        self._within = within
        self._unseen = UnseenLoads()

    def look(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> Sight:
        """Read everything, and look at the processes. Changes nothing."""
        damaged: Damage = []

        def body(tx: ReadTx) -> tuple[list[Workflow], SwapMarker | None, Loaded, datetime]:
            damaged.clear()
            return workflows_in(tx, damaged), marker_in(tx), loaded_in(tx), tx.now

        workflows, marker, loaded, now = self.store.read(body, scope=SCOPE, timeout_s=timeout_s)
        holders = [workflow.owner for workflow in workflows]
        holders += [] if marker is None else [marker.holder, marker.holder.leader]
        return Sight(
            workflows, marker, loaded, now, self.verdicts_on(holders), damaged, self.steady
        )

    def swap_log_lag(self) -> Lag | None:
        """How far the file that mirrors the swap log is behind; None where there is none. Raises
        OSError.
        """
        return self._mirror.lag()

    def settled(self, sight: Sight) -> bool:
        """Is there nothing to sweep, no marker to ask about, and no signal that a swap left as it
        was killed?
        """
        return sight.clean() and not any(
            self.signals.given(path) for _, path in _unasked(sight.workflows)
        )

    def change(
        self,
        body: Callable[[Change], T],
        *,
        spare: tuple[str, int] | None = None,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Sweep, reconcile, and then do what the body does, in one transaction; and after it see to
        the signal files.

        What the body raises of Refused and Lost comes through, and what was swept before it stays
        swept: so a body decides before it changes anything. The workflow with name and token
        `spare` is not swept.
        """
        sight = self.look(timeout_s)
        verdicts = sight.verdicts
        if not sight.clean():
            self.steady.look()
        begun: list[Change] = []

        def whole(tx: Tx) -> T | HoldfastError:
            begun[:] = [
                Change(
                    tx,
                    self.journal,
                    verdicts,
                    self.swap_lock,
                    self.steady,
                    self._unseen,
                    spare=spare,
                )
            ]
            try:
                return body(begun[0])
            except (Refused, Lost) as error:
                return error

        result = self.store.transact(whole, scope=SCOPE, timeout_s=timeout_s)
        self._after(begun[0])
        if isinstance(result, HoldfastError):
            raise result
        return result

    def change_rows(self, body: Callable[[Tx], T]) -> T:
        """One transaction over single workflows, which neither sweeps nor asks about the marker."""
        return self.store.transact(body, scope=[rows(WORKFLOWS)])

    def wake(self) -> None:
        """Let everyone who waits look again. Not for long: a wake-up that is not sent costs them
        WAIT_RECHECK_S at most.
        """
        self.store.transact(
            lambda tx: tx.notify(CHANGED), scope=[], durable=False, timeout_s=_WAKE_S
        )

    def verdicts_on(self, holders: Iterable[Holder]) -> dict[Holder, Liveness]:
        """Look at some processes."""
        return {holder: self._probe(holder) for holder in set(holders)}

    def death(self, holder: Holder) -> int | None:
        """A descriptor that becomes readable when a process dies; None when it cannot be watched,
        or is dead already.
        """
        return self.processes.death(self._placed(holder))

    def is_over(self, marker: SwapMarker) -> bool:
        """Is the process of a swap dead, or has it lost the swap lock? Then only processes of its
        load are left.
        """
        leader = marker.holder.leader
        return (
            self.verdicts_on([leader])[leader] is Liveness.DEAD
            or self._unseen.left_s(marker.token) is not None
        )

    def remains(self, marker: SwapMarker) -> Remains:
        """What is left of a swap that is over."""
        tree, seen = marker.holder.tree, marker.holder.place == self.processes.here()
        survivors = self.processes.survivors(tree) if tree and seen else ()
        return Remains(marker, survivors, self._unseen.left_s(marker.token))

    def end_load(self, marker: SwapMarker) -> None:
        """End the processes of a load, in a thread of its own. For a swap whose process was dead
        when its marker was read. Does nothing for a load on another machine, or in another pid
        namespace: that cannot be ended from here.
        """
        tree = marker.holder.tree
        if tree and marker.holder.place == self.processes.here():
            threads.start(
                threading.Thread(
                    target=self._end_tree, args=(tree,), name="holdfast-load", daemon=True
                )
            )

    def _end_tree(self, tree: str) -> None:
        with suppress(HoldfastError, OSError, MemoryError):
            # What cannot be ended is waited for.
            self.processes.end_tree(tree, SWAP_LOAD_GRACE_S)

    def owns(self, process: Holder, workflow: Workflow) -> bool:
        """Is a workflow that process's own, or the one under whose `workflows run` this process was
        started?
        """
        return (
            same_process(process, workflow.owner) or (workflow.name, workflow.token) == self._within
        )

    def is_here(self, holder: Holder) -> bool:
        """Does a process run on this machine, so that it sees our files?"""
        return holder.host_id in ("", self.processes.here().host_id)

    def _after(self, change: Change) -> None:
        for workflow in change.cleared:
            if workflow.preempt_signal_path is not None and self.is_here(workflow.owner):
                self.signals.clear(workflow.preempt_signal_path, workflow.name, workflow.token)
        for workflow, path in _unasked(change.workflows.values()):
            if not self.is_here(workflow.owner):
                continue
            swap = self.signals.swap_of(path, workflow.name, workflow.token)
            # A swap that had begun before this change and was not under way in it is over, and was
            # killed before it could take back its signal.
            if 0 < swap < change.revision and (
                change.marker is None or change.marker.token != swap
            ):
                self.signals.clear(path, workflow.name, workflow.token)
        for workflow in change.asked:
            if self.is_here(workflow.owner):
                self.give_signal(workflow)
        self._mirror.catch_up()

    def give_signal(self, workflow: Workflow) -> None:
        """Make a workflow's signal file. One that cannot be made is only warned of: the record says
        the same, and whoever runs the workflow under `workflows run` or `running()` is told by the
        store.
        """
        path = workflow.preempt_signal_path
        if path is None:
            return
        wrong = self.signals.give(path, workflow.name, workflow.token, workflow.preempt_swap or 0)
        if wrong is not None:
            _warn(workflow.name, wrong)
        with suppress(HoldfastError):
            if not self._still_asked(workflow):
                # Whoever took the request back since, or the workflow out, came too early to find
                # the file.
                self.signals.clear(path, workflow.name, workflow.token)

    def _still_asked(self, workflow: Workflow) -> bool:
        row = self.store.get(WORKFLOWS, workflow.name)
        return (
            row is not None
            and row.record.token == workflow.token
            and row.record.preempt in ASKED_STATES
        )

    def _probe(self, holder: Holder) -> Liveness:
        return probe(self._placed(holder), self.processes, embedded=self.store.embedded)

    def _placed(self, holder: Holder) -> Holder:
        if not holder.host_id and self.store.embedded:
            # Written by another program, which knows pid and start alone; the files are this
            # machine's, and so was it.
            return replace(holder, **self.processes.here()._asdict())
        return holder


def _warn(name: str, wrong: str) -> None:
    # Loaded here, since there is mostly nothing to warn of.
    import logging

    logging.getLogger("holdfast.workflows").warning("no signal file workflow=%s: %s", name, wrong)


_LATER_S = 0.001
"""A lease is fresh up to and including its last instant, so the look comes after it."""


class Watch:
    """Some processes, of whose death whoever waits is told by the kernel."""

    def __init__(self, room: Room, holders: Iterable[Holder]) -> None:
        self._room = room
        self._holders = list(holders)[:SWAP_WATCHED_MAX]
        self._fds: list[int] = []
        self._too_late = False

    def __enter__(self) -> "Watch":
        for holder in self._holders:
            fd = self._room.death(holder)
            if fd is not None:
                self._fds.append(fd)
            elif self._room.verdicts_on([holder])[holder] is Liveness.DEAD:
                # It died since it was looked at, and nobody will tell of that any more.
                self._too_late = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._fds:
            os.close(fd)

    def wait(self, ears: Listener, timeout_s: float | None, stop_fd: int | None = None) -> bool:
        """Sleep until a process dies, a notice comes or the time is over; not at all if one is dead
        already. False when the descriptor `stop_fd` became readable.
        """
        if self._too_late:
            return True
        stops = [] if stop_fd is None else [stop_fd]
        return ears.wait(timeout_s, also=[*self._fds, *stops]).ready.isdisjoint(stops)


def next_expiry_s(room: Room, workflows: Iterable[Workflow]) -> float | None:
    """How long until the first time to live passes; None when there is none to wait for."""
    now, leases = (
        room.store.now(),
        [workflow.lease for workflow in workflows if not _lives_on(room, workflow)],
    )
    ends = [
        (lease.expires_at - room.steady.believed(now, since=lease.granted_at)).total_seconds()
        for lease in leases
    ]
    return max(min(ends), 0.0) + _LATER_S if ends else None


def _lives_on(room: Room, workflow: Workflow) -> bool:
    """Is it not swept when its time passes? Then a waiter must not wake for that: it would look
    again at once, for ever.
    """
    return (
        not workflow.lease.explicit
        and room.verdicts_on([workflow.owner])[workflow.owner] is Liveness.ALIVE
    )
