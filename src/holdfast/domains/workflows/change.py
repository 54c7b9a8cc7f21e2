"""One transaction over the workflows: how it begins, and the steps it is made of.

Every change begins with the same two steps, so that no decision depends on dead processes: it
sweeps ended workflows, and clears an orphaned swap marker. Both steps happen under the latch and
are written to the journal.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.domains.workflows import ports
from holdfast.domains.workflows.ports import SwapLock
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Loaded,
    Phase,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    UnseenLoads,
    Workflow,
    moved,
    who,
)
from holdfast.domains.workflows.wire import (
    CHANGED,
    CURRENT_RECIPE,
    ONLY,
    SWAP_MARKER,
    UNKNOWN_RECIPE,
    WORKFLOWS,
    topic_of,
)
from holdfast.kernel.holder import Liveness, ProbedLiveness
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, ReadTx, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import SteadyClock

ASKED_STATES = (Preempt.REQUESTED, Preempt.IGNORED)


def has_ended(
    workflow: Workflow, probed: ProbedLiveness, now: datetime, steady: SteadyClock
) -> bool:
    """Whether a workflow may be swept. A process that was not probed counts as alive."""
    return steady.reclaimable(workflow.lease, probed.get(workflow.owner, Liveness.ALIVE), now)


def workflows_in(tx: ReadTx, damaged: Damage) -> list[Workflow]:
    """All workflows by name; damaged records are added to `damaged`."""
    return [row.record for row in tx.range(WORKFLOWS, damaged=damaged)]


def marker_in(tx: ReadTx) -> SwapMarker | None:
    """The marker, orphaned or not."""
    row = tx.get(SWAP_MARKER, ONLY)
    return None if row is None else row.record


def loaded_in(tx: ReadTx) -> Loaded:
    """What is known to be loaded: at most one of the two. Holdfast stores only one; another program
    that writes its own loaded recipe into the file may leave a failed load there. The later counts.
    """
    current, unknown = tx.get(CURRENT_RECIPE, ONLY), tx.get(UNKNOWN_RECIPE, ONLY)
    if current is None or unknown is None:
        return Loaded(
            None if current is None else current.record, None if unknown is None else unknown.record
        )
    if current.record.loaded_at >= (unknown.record.ended_at or unknown.record.began_at):
        return Loaded(current.record, None)
    return Loaded(None, unknown.record)


class Change:
    """A transaction in which all workflows live, and the marker, if any, is not orphaned.

    `spare` is name and token of a workflow that is not swept: its owner is ending it.

    damaged     unreadable records of workflows, which may be live
    swept       the ended workflows that were removed at the beginning
    orphan      the orphaned marker that was cleared at the beginning
    abandoned   the process of the swap is dead, so only processes of its load are left
    unseen      the swap has lost its lock, and its load cannot be seen from here
    cleared     workflows whose signal files to remove after the commit
    asked       workflows whose signal files to make after the commit
    """

    def __init__(
        self,
        tx: Tx,
        journal: Journal,
        probed: ProbedLiveness,
        swap_lock: SwapLock,
        steady: SteadyClock,
        unseen: UnseenLoads,
        *,
        spare: tuple[str, int] | None = None,
    ) -> None:
        self.tx = tx
        self.revision = tx.revision
        self._journal = journal
        self.cleared: list[Workflow] = []
        self.asked: list[Workflow] = []
        self.swept: list[Workflow] = []
        self.orphan: SwapMarker | None = None
        self.damaged: Damage = []
        self.workflows = {workflow.name: workflow for workflow in workflows_in(tx, self.damaged)}
        self.marker = marker_in(tx)
        for workflow in list(self.workflows.values()):
            if (workflow.name, workflow.token) != spare and has_ended(
                workflow, probed, tx.now, steady
            ):
                self._sweep(workflow, probed)
        if self.marker is not None and _is_orphaned(self.marker, probed, swap_lock, unseen):
            self._clear_orphan(self.marker, probed)
        # The process was dead before this transaction began, so it cannot complete its swap.
        self.abandoned = (
            self.marker is not None and probed.get(self.marker.holder.leader) is Liveness.DEAD
        )
        self.unseen = self.marker is not None and unseen.left_s(self.marker.token) is not None

    def log(self, kind: str, subject: str, data: Mapping[str, object]) -> None:
        self._journal.append(self.tx, kind=kind, subject=subject, data=data)

    # --- workflows ---

    def put(self, workflow: Workflow) -> None:
        self.workflows[workflow.name] = workflow
        self.tx.put(WORKFLOWS, workflow.name, workflow)

    def add(self, workflow: Workflow) -> None:
        self.put(workflow)
        self._log_workflow("workflow.registered", workflow, preemptible=workflow.preemptible)
        self.tx.notify(CHANGED)

    def release(self, workflow: Workflow) -> None:
        """Remove a workflow for its owner. If it was asked to yield, it has."""
        if workflow.preempt in ASKED_STATES:
            self._log_request(ports.YIELDED, workflow)
        self._remove(workflow)
        data = {"recipe": workflow.recipe, "token": workflow.token}
        self.log("workflow.released", workflow.name, data)

    def _sweep(self, workflow: Workflow, probed: ProbedLiveness) -> None:
        dead = probed.get(workflow.owner) is Liveness.DEAD
        if dead and workflow.preempt in ASKED_STATES:
            self._log_request(ports.YIELDED, workflow, how="its process ended")
        self._remove(workflow)
        self.swept.append(workflow)
        self._log_workflow("workflow.swept", workflow, why="dead" if dead else "expired")

    def _log_workflow(self, kind: str, workflow: Workflow, **more: object) -> None:
        data = {"recipe": workflow.recipe, "who": who(workflow.owner), "token": workflow.token}
        self.log(kind, workflow.name, {**data, **more})

    def _remove(self, workflow: Workflow) -> None:
        del self.workflows[workflow.name]
        self.tx.delete(WORKFLOWS, workflow.name)
        self.cleared.append(workflow)
        self.tx.notify(CHANGED)
        self.tx.notify(topic_of(workflow.name))

    # --- requests to yield ---

    def ask(self, workflow: Workflow) -> None:
        """Ask a workflow to yield, for the swap under way or, without one, for an operator."""
        asked = moved(
            workflow, Preempt.REQUESTED, None if self.marker is None else self.marker.token
        )
        self.put(asked)
        self.asked.append(asked)
        self._log_request(ports.ASKED, asked)
        self.tx.notify(topic_of(asked.name))

    def accept(self, workflow: Workflow) -> None:
        self.cleared.append(workflow)
        if workflow.preempt in ASKED_STATES:
            self._log_request(ports.YIELDED, workflow)
            self.put(moved(workflow, Preempt.YIELDED))

    def ignore(self, workflow: Workflow) -> None:
        """The workflow did not yield in the grace time."""
        self.put(moved(workflow, Preempt.IGNORED))
        self._log_request(ports.IGNORED, workflow)

    def _log_request(self, kind: str, workflow: Workflow, **more: object) -> None:
        # The subject is the recipe of the swap that asked; if an operator did, the workflow's own.
        marker = self.marker
        mine = marker is not None and workflow.preempt_swap == marker.token
        recipe = marker.recipe if marker is not None and mine else workflow.recipe
        process = {"process": who(workflow.owner), "workflow_recipe": workflow.recipe}
        self.log(kind, recipe, {"who": workflow.name, **process, **more})

    # --- the swap ---

    def begin_swap(self, marker: SwapMarker, *, needed: bool) -> None:
        """Write the marker. A swap that is not needed loads nothing, and is logged at its end."""
        self.marker = marker
        self.tx.put(SWAP_MARKER, ONLY, marker)
        if needed:
            self._log_swap(ports.STARTED, marker)
        self.tx.notify(CHANGED)

    def begin_wait(self, marker: SwapMarker) -> None:
        """The swap waits for work. Wakes the waiters for this swap: if the work is their own, they
        must give up, or both would wait for ever.
        """
        if marker.phase is not Phase.WAITING:
            self._set_phase(marker, Phase.WAITING)
            self.tx.notify(CHANGED)

    def begin_load(self, marker: SwapMarker) -> Loaded:
        """The load begins: until it has succeeded, it is unknown what is loaded. Returns what was
        known before, for `cancel_swap`.
        """
        known = loaded_in(self.tx)
        self._put_loaded(
            Loaded(None, _unknown(marker, known, self.tx.now, "the load has not ended"))
        )
        self._set_phase(marker, Phase.LOADING)
        return known

    def complete_load(self, marker: SwapMarker) -> None:
        """The load has succeeded: its recipe is the current one."""
        before = _last_known(loaded_in(self.tx))
        by = who(marker.holder)
        loaded = CurrentRecipe(
            recipe=marker.recipe, loaded_at=self.tx.now, token=marker.token, by=by
        )
        self._put_loaded(Loaded(loaded, None))
        self._end_swap(marker)
        self._log_swap(ports.COMPLETED, marker, before=before)

    def skip_load(self, marker: SwapMarker) -> None:
        """The swap was not needed: its recipe was loaded already, and still is."""
        self._end_swap(marker)
        self._log_swap(ports.NOT_NEEDED, marker)

    def fail_load(self, marker: SwapMarker, why: str, exit_status: int | None) -> None:
        """The load has failed: it is unknown what is loaded."""
        self._end_load(marker, why, exit_status)
        self._end_swap(marker)
        status = {} if exit_status is None else {"exit_status": exit_status}
        self._log_swap(ports.FAILED, marker, why=why, unknown=True, **status)

    def cancel_swap(self, marker: SwapMarker, kind: str, why: str, known: Loaded | None) -> None:
        """The swap ends and has loaded nothing. `known` is what `begin_load` returned, if the swap
        came so far.
        """
        if known is not None:
            self._put_loaded(known)
        self._end_swap(marker)
        self._log_swap(kind, marker, why=why)

    def _clear_orphan(self, marker: SwapMarker, probed: ProbedLiveness) -> None:
        self.orphan = marker
        dead = probed.get(marker.holder) is Liveness.DEAD
        why = "its holder is dead" if dead else "its holder does not have the swap lock"
        # A program that does not report its progress may have begun to load.
        loading = marker.phase in (Phase.LOADING, None)
        if loading:
            self._end_load(marker, f"the swap ended while it loaded: {why}", None)
        self._end_swap(marker)
        self._log_swap(ports.ORPHANED, marker, why=why, **({"unknown": True} if loading else {}))

    def _log_swap(self, kind: str, marker: SwapMarker, **more: object) -> None:
        data = {"who": who(marker.holder), "token": marker.token, **more}
        self.log(kind, marker.recipe, data)

    def _set_phase(self, marker: SwapMarker, phase: Phase) -> None:
        self.marker = replace(marker, phase=phase)
        self.tx.put(SWAP_MARKER, ONLY, self.marker)

    def _end_load(self, marker: SwapMarker, why: str, exit_status: int | None) -> None:
        known = loaded_in(self.tx)
        unknown = known.unknown
        if unknown is None or unknown.token != marker.token:
            unknown = _unknown(marker, known, marker.begun_at, why)
        ended = replace(unknown, ended_at=self.tx.now, exit_status=exit_status, why=why)
        self._put_loaded(Loaded(None, ended))

    def _put_loaded(self, loaded: Loaded) -> None:
        spaces: tuple[Space[Any], Space[Any]] = (CURRENT_RECIPE, UNKNOWN_RECIPE)
        for space, record in zip(spaces, loaded, strict=True):
            if record is None:
                self.tx.delete(space, ONLY)
            else:
                self.tx.put(space, ONLY, record)

    def _end_swap(self, marker: SwapMarker) -> None:
        """Remove the marker, and withdraw the requests to yield of this swap."""
        self.marker = None
        self.tx.delete(SWAP_MARKER, ONLY)
        self.tx.notify(CHANGED)
        for workflow in list(self.workflows.values()):
            if workflow.preempt_swap == marker.token and workflow.preempt is not Preempt.NONE:
                self.put(moved(workflow, Preempt.NONE))
                self.cleared.append(workflow)
                self.tx.notify(topic_of(workflow.name))
            elif workflow.preempt is Preempt.IGNORED:
                # An operator made this request, so it stays. The next swap gives it a new grace
                # time.
                self.put(moved(workflow, Preempt.REQUESTED))


def _unknown(marker: SwapMarker, known: Loaded, began_at: datetime, why: str) -> UnknownRecipe:
    return UnknownRecipe(
        recipe=marker.recipe,
        before=_last_known(known),
        began_at=began_at,
        why=why,
        token=marker.token,
        by=who(marker.holder),
    )


def _last_known(known: Loaded) -> str | None:
    if known.current is not None:
        return known.current.recipe
    return None if known.unknown is None else known.unknown.before


def _is_orphaned(
    marker: SwapMarker, probed: ProbedLiveness, swap_lock: SwapLock, unseen: UnseenLoads
) -> bool:
    """Whether no swap and no load is behind a marker.

    The lock is probed even if the holder cannot be seen: every live swap has it. The lock ends with
    the process that swaps, but processes of its load may live longer. The marker stays while one of
    them is seen alive. Where they cannot be seen, it stays until their guardian must have ended
    them.
    """
    liveness = probed.get(marker.holder)
    if liveness is Liveness.DEAD:
        return True
    held = swap_lock.is_held()
    if not marker.holder.tree:
        return not held
    if held or liveness is not Liveness.UNKNOWN:
        unseen.forget()
        return False
    return unseen.note(marker.token) == 0
