"""One change to the workflows: what it begins with, and the verbs that it is made of.

Every change begins with the same two steps, so that no decision rests on the dead: those who are gone are swept, and a marker
that nobody stands behind is cleared. Both happen under the latch, and are told in the journal.
"""

from collections.abc import Mapping
from datetime import datetime

from holdfast.domains.workflows import swap_log
from holdfast.domains.workflows.record import CurrentRecipe, Preempt, SwapMarker, Workflow, moved, who
from holdfast.domains.workflows.spaces import CHANGED, CURRENT_RECIPE, SWAP_MARKER, WORKFLOWS, topic_of
from holdfast.domains.workflows.swap_lock import SwapLock
from holdfast.domains.workflows.wire import ONLY
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.lease import reclaimable
from holdfast.kernel.store import Damage, ReadTx, Tx
from holdfast.primitives.journal import Journal

Verdicts = Mapping[Holder, Liveness]
"""What is known of processes, found out before the transaction that decides by it. A death is final, so it keeps."""

ASKED_STATES = (Preempt.REQUESTED, Preempt.IGNORED)


def gone(workflow: Workflow, verdicts: Verdicts, now: datetime) -> bool:
    """Is a workflow over? A process of which nothing is known counts as alive."""
    return reclaimable(workflow.lease, verdicts.get(workflow.owner, Liveness.ALIVE), now)


def workflows_in(tx: ReadTx, damaged: Damage) -> list[Workflow]:
    """All of them, by name, but for damaged ones, which are told of."""
    return [row.record for row in tx.range(WORKFLOWS, damaged=damaged)]


def marker_in(tx: ReadTx) -> SwapMarker | None:
    """The marker, whoever stands behind it."""
    row = tx.get(SWAP_MARKER, ONLY)
    return None if row is None else row.record


def current_in(tx: ReadTx) -> CurrentRecipe | None:
    """What the last successful swap loaded."""
    row = tx.get(CURRENT_RECIPE, ONLY)
    return None if row is None else row.record


class Change:
    """A transaction over the workflows, of whom all that are left live, and whose marker is a live swap's.

    `spare` is name and token of a workflow that is there to the end of this change, since it tells of its own end. `damaged`
    are records of workflows that cannot be read: nobody can say whether those live. `swept` and `orphan` are what was taken
    out at the beginning. `cleared` and `asked` are the workflows whose signal files are to go or to come once it is committed.
    """

    def __init__(
        self, tx: Tx, journal: Journal, verdicts: Verdicts, swap_lock: SwapLock, *, spare: tuple[str, int] | None = None
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
            if (workflow.name, workflow.token) != spare and gone(workflow, verdicts, tx.now):
                self._sweep(workflow, verdicts)
        if self.marker is not None and _orphaned(self.marker, verdicts, swap_lock):
            self._clear_orphan(self.marker, verdicts)

    # --- workflows ---

    def put(self, workflow: Workflow) -> None:
        """Write a workflow, new or not."""
        self.workflows[workflow.name] = workflow
        self.tx.put(WORKFLOWS, workflow.name, workflow)

    def enter(self, workflow: Workflow) -> None:
        """A workflow comes."""
        self.put(workflow)
        data = {"recipe": workflow.recipe, "who": who(workflow.owner), "token": workflow.token}
        self.tell("workflow.registered", workflow.name, {**data, "preemptible": workflow.preemptible})
        self.tx.notify(CHANGED)

    def leave(self, workflow: Workflow) -> None:
        """A workflow goes of its own will; if it was asked to, it has yielded."""
        if workflow.preempt in ASKED_STATES:
            self.tell(swap_log.YIELDED, self._target(workflow), _asked_of(workflow))
        self._remove(workflow)
        self.tell("workflow.released", workflow.name, {"recipe": workflow.recipe, "token": workflow.token})

    # --- asking to yield ---

    def ask(self, workflow: Workflow) -> None:
        """Ask a workflow to yield, for the swap under way or for an operator."""
        asked = moved(workflow, Preempt.REQUESTED, None if self.marker is None else self.marker.token)
        self.put(asked)
        self.asked.append(asked)
        self.tell(swap_log.ASKED, self._target(asked), _asked_of(asked))
        self.tx.notify(topic_of(asked.name))

    def settle(self, workflow: Workflow) -> None:
        """A workflow says that it yields."""
        self.cleared.append(workflow)
        if workflow.preempt in ASKED_STATES:
            self.tell(swap_log.YIELDED, self._target(workflow), _asked_of(workflow))
            self.put(moved(workflow, Preempt.YIELDED))

    def ignore(self, workflow: Workflow) -> None:
        """A workflow was given its time to yield, and is still there."""
        self.put(moved(workflow, Preempt.IGNORED))
        self.tell(swap_log.IGNORED, self._target(workflow), _asked_of(workflow))

    # --- the swap ---

    def mark(self, marker: SwapMarker) -> None:
        """A swap begins."""
        self.marker = marker
        self.tx.put(SWAP_MARKER, ONLY, marker)
        self.tell(swap_log.STARTED, marker.recipe, {"who": who(marker.holder), "token": marker.token})
        self.tx.notify(CHANGED)

    def load(self, marker: SwapMarker) -> None:
        """A swap ends well: its recipe is the current one."""
        before = current_in(self.tx)
        by = who(marker.holder)
        loaded = CurrentRecipe(recipe=marker.recipe, loaded_at=self.tx.now, token=marker.token, by=by)
        self.tx.put(CURRENT_RECIPE, ONLY, loaded)
        self._unmark(marker)
        self.tell(
            swap_log.COMPLETED, marker.recipe, {"who": by, "token": marker.token, "before": before.recipe if before else None}
        )

    def abandon(self, marker: SwapMarker, kind: str, why: str) -> None:
        """A swap ends without effect."""
        self._unmark(marker)
        self.tell(kind, marker.recipe, {"who": who(marker.holder), "token": marker.token, "why": why})

    def tell(self, kind: str, subject: str, data: Mapping[str, object]) -> None:
        """Tell the journal."""
        self._journal.append(self.tx, kind=kind, subject=subject, data=data)

    # --- inside ---

    def _sweep(self, workflow: Workflow, verdicts: Verdicts) -> None:
        dead = verdicts.get(workflow.owner) is Liveness.DEAD
        if dead and workflow.preempt in ASKED_STATES:
            self.tell(swap_log.YIELDED, self._target(workflow), {**_asked_of(workflow), "how": "its process ended"})
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
        self._unmark(marker)
        self.orphan = marker
        dead = verdicts.get(marker.holder) is Liveness.DEAD
        why = "its holder is dead" if dead else "its holder does not have the swap lock"
        self.tell(swap_log.ORPHANED, marker.recipe, {"who": who(marker.holder), "token": marker.token, "why": why})

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


def _asked_of(workflow: Workflow) -> dict[str, object]:
    return {"who": workflow.name, "process": who(workflow.owner), "workflow_recipe": workflow.recipe}


def _orphaned(marker: SwapMarker, verdicts: Verdicts, swap_lock: SwapLock) -> bool:
    """Does nobody stand behind a marker? Asked of the lock even if its holder cannot be seen: no living swap is without it."""
    return verdicts.get(marker.holder) is Liveness.DEAD or not swap_lock.is_held()
