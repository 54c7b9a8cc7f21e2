"""One change to the workflows: what it begins with, and the verbs that it is made of.

Every change begins with the same two steps, so that no decision rests on the dead: those who are
gone are swept, and a marker that nobody stands behind is cleared. Both happen under the latch, and
are told in the journal.
"""

from collections.abc import Mapping
from datetime import datetime

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
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.store import Damage, ReadTx, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import SteadyClock

Verdicts = Mapping[Holder, Liveness]
"""What is known of processes, found out before the transaction that decides by it. A death is
final, so it keeps.
"""

ASKED_STATES = (Preempt.REQUESTED, Preempt.IGNORED)


def gone(workflow: Workflow, verdicts: Verdicts, now: datetime, steady: SteadyClock) -> bool:
    """Is a workflow over? A process of which nothing is known counts as alive."""
    return steady.reclaimable(workflow.lease, verdicts.get(workflow.owner, Liveness.ALIVE), now)


def workflows_in(tx: ReadTx, damaged: Damage) -> list[Workflow]:
    """All of them, by name, but for damaged ones, which are told of."""
    return [row.record for row in tx.range(WORKFLOWS, damaged=damaged)]


def marker_in(tx: ReadTx) -> SwapMarker | None:
    """The marker, whoever stands behind it."""
    row = tx.get(SWAP_MARKER, ONLY)
    return None if row is None else row.record


def loaded_in(tx: ReadTx) -> Loaded:
    """What is known of what is loaded: never both. Holdfast stores one of the two; another program
    that writes into its file a recipe that it has loaded may leave a failed load beside it. The
    later one counts.
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
    """A transaction over the workflows, of whom all that are left live, and whose marker is a live
    swap's.

    `spare` is name and token of a workflow that is there to the end of this change, since it tells
    of its own end. `damaged` are records of workflows that cannot be read: nobody can say whether
    those live. `swept` and `orphan` are what was taken out at the beginning. `abandoned` says that
    the process of the swap under way is dead, so that only processes of its load are left. `unseen`
    says that this swap has lost its lock, and that its load cannot be seen from here. `cleared` and
    `asked` are the workflows whose signal files are to go or to come once it is committed.
    """

    def __init__(
        self,
        tx: Tx,
        journal: Journal,
        verdicts: Verdicts,
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
            if (workflow.name, workflow.token) != spare and gone(
                workflow, verdicts, tx.now, steady
            ):
                self._sweep(workflow, verdicts)
        if self.marker is not None and _orphaned(self.marker, verdicts, swap_lock, unseen):
            self._clear_orphan(self.marker, verdicts)
        # A process that was dead before this transaction began can complete its swap neither before
        # nor after it.
        self.abandoned = (
            self.marker is not None and verdicts.get(self.marker.holder.leader) is Liveness.DEAD
        )
        self.unseen = self.marker is not None and unseen.left_s(self.marker.token) is not None

    # --- workflows ---

    def put(self, workflow: Workflow) -> None:
        """Write a workflow, new or not."""
        self.workflows[workflow.name] = workflow
        self.tx.put(WORKFLOWS, workflow.name, workflow)

    def enter(self, workflow: Workflow) -> None:
        """A workflow comes."""
        self.put(workflow)
        data = {"recipe": workflow.recipe, "who": who(workflow.owner), "token": workflow.token}
        self.tell(
            "workflow.registered", workflow.name, {**data, "preemptible": workflow.preemptible}
        )
        self.tx.notify(CHANGED)

    def leave(self, workflow: Workflow) -> None:
        """A workflow goes of its own will; if it was asked to, it has yielded."""
        if workflow.preempt in ASKED_STATES:
            self.tell(ports.YIELDED, self._target(workflow), _asked_of(workflow))
        self._remove(workflow)
        self.tell(
            "workflow.released", workflow.name, {"recipe": workflow.recipe, "token": workflow.token}
        )

    # --- asking to yield ---

    def ask(self, workflow: Workflow) -> None:
        """Ask a workflow to yield, for the swap under way or for an operator."""
        asked = moved(
            workflow, Preempt.REQUESTED, None if self.marker is None else self.marker.token
        )
        self.put(asked)
        self.asked.append(asked)
        self.tell(ports.ASKED, self._target(asked), _asked_of(asked))
        self.tx.notify(topic_of(asked.name))

    def settle(self, workflow: Workflow) -> None:
        """A workflow says that it yields."""
        self.cleared.append(workflow)
        if workflow.preempt in ASKED_STATES:
            self.tell(ports.YIELDED, self._target(workflow), _asked_of(workflow))
            self.put(moved(workflow, Preempt.YIELDED))

    def ignore(self, workflow: Workflow) -> None:
        """A workflow was given its time to yield, and is still there."""
        self.put(moved(workflow, Preempt.IGNORED))
        self.tell(ports.IGNORED, self._target(workflow), _asked_of(workflow))

    # --- the swap ---

    def mark(self, marker: SwapMarker, *, needed: bool) -> None:
        """A swap begins. One that is not needed loads nothing, and is journalled when it ends."""
        self.marker = marker
        self.tx.put(SWAP_MARKER, ONLY, marker)
        if needed:
            self.tell(
                ports.STARTED, marker.recipe, {"who": who(marker.holder), "token": marker.token}
            )
        self.tx.notify(CHANGED)

    def drain(self, marker: SwapMarker) -> None:
        """A swap is about to wait for work. Whoever waits for the swap looks again: the work may be
        its own.
        """
        if marker.phase is not Phase.WAITING:
            self._advance(marker, Phase.WAITING)
            self.tx.notify(CHANGED)

    def begin_load(self, marker: SwapMarker) -> Loaded:
        """The load begins: from here on nobody knows what is loaded, until the load has succeeded.
        Returns what was known before, for `abandon`.
        """
        known = loaded_in(self.tx)
        self._put_unknown(
            _unknown(marker, known, began_at=self.tx.now, why="the load has not ended")
        )
        self._advance(marker, Phase.LOADING)
        return known

    def load(self, marker: SwapMarker) -> None:
        """A load has succeeded: its recipe is the current one."""
        before = _last_known(loaded_in(self.tx))
        by = who(marker.holder)
        loaded = CurrentRecipe(
            recipe=marker.recipe, loaded_at=self.tx.now, token=marker.token, by=by
        )
        self._put_known(Loaded(loaded, None))
        self._unmark(marker)
        self.tell(
            ports.COMPLETED, marker.recipe, {"who": by, "token": marker.token, "before": before}
        )

    def skip(self, marker: SwapMarker) -> None:
        """A swap ends that was not needed: its recipe was loaded already, and still is."""
        self._unmark(marker)
        self.tell(
            ports.NOT_NEEDED, marker.recipe, {"who": who(marker.holder), "token": marker.token}
        )

    def fail(self, marker: SwapMarker, why: str, exit_status: int | None) -> None:
        """A load has failed: nobody knows what is loaded."""
        self._end_load(marker, why, exit_status)
        self._unmark(marker)
        data = {"who": who(marker.holder), "token": marker.token, "why": why, "unknown": True}
        self.tell(
            ports.FAILED,
            marker.recipe,
            data if exit_status is None else {**data, "exit_status": exit_status},
        )

    def abandon(self, marker: SwapMarker, kind: str, why: str, known: Loaded | None) -> None:
        """A swap ends without having loaded anything. `known` is what `begin_load` returned, if it
        came so far.
        """
        if known is not None:
            self._put_known(known)
        self._unmark(marker)
        self.tell(
            kind, marker.recipe, {"who": who(marker.holder), "token": marker.token, "why": why}
        )

    def tell(self, kind: str, subject: str, data: Mapping[str, object]) -> None:
        """Tell the journal."""
        self._journal.append(self.tx, kind=kind, subject=subject, data=data)

    # --- inside ---

    def _sweep(self, workflow: Workflow, verdicts: Verdicts) -> None:
        dead = verdicts.get(workflow.owner) is Liveness.DEAD
        if dead and workflow.preempt in ASKED_STATES:
            self.tell(
                ports.YIELDED,
                self._target(workflow),
                {**_asked_of(workflow), "how": "its process ended"},
            )
        self._remove(workflow)
        self.swept.append(workflow)
        self.tell(
            "workflow.swept",
            workflow.name,
            {
                "recipe": workflow.recipe,
                "who": who(workflow.owner),
                "token": workflow.token,
                "why": "dead" if dead else "expired",
            },
        )

    def _remove(self, workflow: Workflow) -> None:
        del self.workflows[workflow.name]
        self.tx.delete(WORKFLOWS, workflow.name)
        self.cleared.append(workflow)
        self.tx.notify(CHANGED)
        self.tx.notify(topic_of(workflow.name))

    def _clear_orphan(self, marker: SwapMarker, verdicts: Verdicts) -> None:
        self.orphan = marker
        dead = verdicts.get(marker.holder) is Liveness.DEAD
        why = "its holder is dead" if dead else "its holder does not have the swap lock"
        data = {"who": who(marker.holder), "token": marker.token, "why": why}
        # A program that does not say how far its swap had come may have begun to load.
        if marker.phase in (Phase.LOADING, None):
            self._end_load(marker, f"the swap ended while it loaded: {why}", None)
            data["unknown"] = True
        self._unmark(marker)
        self.tell(ports.ORPHANED, marker.recipe, data)

    def _advance(self, marker: SwapMarker, phase: Phase) -> None:
        self.marker = replace(marker, phase=phase)
        self.tx.put(SWAP_MARKER, ONLY, self.marker)

    def _end_load(self, marker: SwapMarker, why: str, exit_status: int | None) -> None:
        known = loaded_in(self.tx)
        unknown = known.unknown
        if unknown is None or unknown.token != marker.token:
            unknown = _unknown(marker, known, began_at=marker.begun_at, why=why)
        self._put_unknown(replace(unknown, ended_at=self.tx.now, exit_status=exit_status, why=why))

    def _put_unknown(self, unknown: UnknownRecipe) -> None:
        self._put_known(Loaded(None, unknown))

    def _put_known(self, known: Loaded) -> None:
        """Store what is known of what is loaded: one of the two records, or none."""
        if known.current is None:
            self.tx.delete(CURRENT_RECIPE, ONLY)
        else:
            self.tx.put(CURRENT_RECIPE, ONLY, known.current)
        if known.unknown is None:
            self.tx.delete(UNKNOWN_RECIPE, ONLY)
        else:
            self.tx.put(UNKNOWN_RECIPE, ONLY, known.unknown)

    def _unmark(self, marker: SwapMarker) -> None:
        """No swap is under way any more, and whom it asked to yield need not."""
        self.marker = None
        self.tx.delete(SWAP_MARKER, ONLY)
        self.tx.notify(CHANGED)
        for workflow in list(self.workflows.values()):
            if workflow.preempt_swap == marker.token and workflow.preempt is not Preempt.NONE:
                self.put(moved(workflow, Preempt.NONE))
                self.cleared.append(workflow)
                self.tx.notify(topic_of(workflow.name))
            elif workflow.preempt is Preempt.IGNORED:
                # An operator's request still stands, and the next swap gives it time anew.
                self.put(moved(workflow, Preempt.REQUESTED))

    def _target(self, workflow: Workflow) -> str:
        """The recipe for which a workflow was asked to yield; its own where an operator asked."""
        mine = self.marker is not None and workflow.preempt_swap == self.marker.token
        return self.marker.recipe if self.marker is not None and mine else workflow.recipe


def _unknown(marker: SwapMarker, known: Loaded, *, began_at: datetime, why: str) -> UnknownRecipe:
    return UnknownRecipe(
        recipe=marker.recipe,
        before=_last_known(known),
        began_at=began_at,
        why=why,
        token=marker.token,
        by=who(marker.holder),
    )


def _last_known(known: Loaded) -> str | None:
    """The recipe that was known to be loaded last."""
    if known.current is not None:
        return known.current.recipe
    return None if known.unknown is None else known.unknown.before


def _asked_of(workflow: Workflow) -> dict[str, object]:
    return {
        "who": workflow.name,
        "process": who(workflow.owner),
        "workflow_recipe": workflow.recipe,
    }


def _orphaned(
    marker: SwapMarker, verdicts: Verdicts, swap_lock: SwapLock, unseen: UnseenLoads
) -> bool:
    """Does nobody stand behind a marker? The lock is asked even if the holder cannot be seen: no
    living swap is without it.

    The lock dies with the process that swaps, and the processes of its load may live longer. While
    one of them is seen to live, the marker stays. Where they cannot be seen, it stays until their
    guardian must have ended them.
    """
    verdict = verdicts.get(marker.holder)
    if verdict is Liveness.DEAD:
        return True
    held = swap_lock.is_held()
    if not marker.holder.tree:
        return not held
    if held or verdict is not Liveness.UNKNOWN:
        unseen.forget()
        return False
    return unseen.note(marker.token) == 0
