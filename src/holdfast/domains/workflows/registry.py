"""The registry of workflows: which work needs which recipe, and which may begin."""

from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.domains.workflows.change import ASKED_STATES, Change, loaded_in
from holdfast.domains.workflows.context import WorkflowsContext, WorkflowsSnapshot
from holdfast.domains.workflows.messages import fenced, no_such, swept
from holdfast.domains.workflows.ports import (
    Signals,
    SwapEvent,
    SwapLock,
    SwapLogMirror,
    event_of,
)
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    OnWait,
    OrphanLoad,
    Policy,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.domains.workflows.registration import (
    Registered,
    Registration,
    Terms,
    check_ttl,
)
from holdfast.domains.workflows.swap import Swap, SwapTerms
from holdfast.domains.workflows.wire import WORKFLOWS
from holdfast.domains.workflows.work import OnLost, OnPreempt, Work
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.holder import THIS_PROCESS, Holder, Processes, ThisProcess
from holdfast.kernel.limits import LIST_MAX, SWAP_GRACE_S, SWAP_TIMEOUT_S, WORKFLOW_TTL_S
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Store, Tx
from holdfast.primitives.journal import Journal, Lag


class SwapStatus(NamedTuple):
    """What is loaded, the swap under way, if there is one, and the live workflows.

    `unknown` replaces `current` when a load failed, was killed, or has not ended yet. Both are None
    when nothing was ever loaded.
    """

    current: CurrentRecipe | None
    marker: SwapMarker | None
    workflows: list[Workflow]
    unknown: UnknownRecipe | None = None


class ReconciledMarker(NamedTuple):
    """The marker of a live swap, and the orphaned marker that was cleared."""

    live: SwapMarker | None
    cleared: SwapMarker | None


class Workflows:
    """Workflows and swaps on one store.

    Promised: while a swap is under way, no work begins with another recipe. No swap goes on before
    all work with another recipe has ended, yielded, died or expired. Work of a process tree that is
    seen to live does not expire. The next call clears what a dead swap left behind, once, and never
    what a live swap needs. A recipe counts as loaded only from the end of a load that succeeded to
    the beginning of the next. Not promised: that a program stops when its time to live has passed.
    Its next renewal raises.

    `within` is name and token of the workflow under whose `holdfast workflows run` this process was
    started.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        *,
        swap_lock: SwapLock,
        signals: Signals,
        mirror: SwapLogMirror | None = None,
        label: str = "",
        within: tuple[str, int] | None = None,
    ) -> None:
        self._context = WorkflowsContext(
            store, journal, processes, swap_lock, signals, mirror, within
        )
        self.mirror = mirror
        self._label = label

    def register(
        self,
        name: str,
        recipe: str,
        *,
        owner: Holder | ThisProcess = THIS_PROCESS,
        ttl_s: float = WORKFLOW_TTL_S,
        preemptible: bool = False,
        preempt_signal_path: str | None = None,
        loaded_only: bool = False,
        wait_s: float = 0,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> Registered:
        """Register work that needs a recipe, and return whether that must be loaded first: such
        work must not begin before a swap.

        With `loaded_only` it is registered only if the recipe is loaded, or nothing was ever
        loaded: for work that begins at once. The owner's own workflow of that name is renewed, on
        the new terms, with its old token and signal path. Sweeps first. `wait_s` is how long to
        wait for the end of a swap that blocks and, with `loaded_only`, for the recipe to be loaded;
        `on_wait` is called with the reasons. The wait also ends when the descriptor `stop_fd`
        becomes readable.

        Raises EAgain when a live swap blocks, NotLoaded when another recipe is loaded or it is
        unknown which, Held when another live owner has the name, DeadlockDetected when it would
        wait for a swap that waits for the same owner's work, InvalidName and InvalidValue before
        anything is stored.
        """
        if isinstance(owner, ThisProcess):
            owner = self._context.processes.current(self._label)
        terms = Terms(name, recipe, owner, ttl_s, preemptible, preempt_signal_path, loaded_only)
        registration = Registration(self._context, terms)
        return registration.run(_check_seconds(wait_s, "wait_s"), on_wait, stop_fd)

    def renew(self, name: str, token: int, *, ttl_s: float | None = None) -> Workflow:
        """Extend a workflow from now, on the store's clock, by its time to live or by a new one,
        which it keeps.

        A clock that was set back does not shorten the lease. Raises LeaseLost when the workflow was
        swept, Fenced when another was registered under the name since.
        """
        check_id(name, "workflow")
        if ttl_s is not None:
            check_ttl(ttl_s)

        def body(tx: Tx) -> Workflow:
            row = tx.get(WORKFLOWS, name)
            workflow = _own(None if row is None else row.record, swept(name, token), token)
            renewed = replace(
                workflow,
                last_renewed_at=max(tx.now, workflow.last_renewed_at),
                ttl_seconds=ttl_s or workflow.ttl_seconds,
            )
            tx.put(WORKFLOWS, name, renewed)
            return renewed

        # A renewal neither sweeps nor reconciles, so it need not latch the whole space.
        return self._context.store.transact(body, scope=[rows(WORKFLOWS)])

    def release(self, name: str, token: int) -> Workflow:
        """Remove a workflow and its signal file; if it was asked to yield, it has. Raises NotFound,
        Fenced.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            workflow = _own(change.workflows.get(name), no_such(name), token)
            change.release(workflow)
            return workflow

        return self._context.change(body, spare=(name, token))

    def get(self, name: str) -> Workflow:
        """A live workflow. Raises NotFound."""
        found = {workflow.name: workflow for workflow in self.list_workflows(damaged=[])}
        if check_id(name, "workflow") not in found:
            raise no_such(name)
        return found[name]

    def list_workflows(self, *, damaged: Damage | None = None) -> list[Workflow]:
        """The live workflows, by name. Sweeps the others, and clears an orphaned marker. A damaged
        record raises, unless `damaged` is a list, to which it is added.
        """
        return self.swap_status(damaged=damaged).workflows

    def sweep(self) -> list[Workflow]:
        """Remove and return every workflow whose owner is dead or whose time has passed."""
        if self._context.look().clean():
            return []
        return self._context.change(lambda change: change.swept)

    # --- requests to yield ---

    def request_preempt(self, name: str) -> Workflow:
        """Ask a workflow to yield, as a swap does. A second request changes nothing. Raises
        NotFound; InvalidValue when it is not preemptible.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            workflow = change.workflows.get(name)
            if workflow is None:
                raise no_such(name)
            if not workflow.preemptible:
                raise InvalidValue(
                    f"workflow {name} was not registered as preemptible: wait for its end",
                    workflow=name,
                )
            if workflow.preempt is Preempt.NONE:
                change.ask(workflow)
            return change.workflows[name]

        return self._context.change(body)

    def preempt_requested(self, name: str, token: int) -> bool:
        """Whether the caller's workflow was asked to yield. Costs one read, and no write. Raises
        LeaseLost when it was swept, Fenced when another has the name.
        """
        row = self._context.store.get(WORKFLOWS, check_id(name, "workflow"))
        workflow = _own(None if row is None else row.record, swept(name, token), token)
        path = workflow.preempt_signal_path
        return workflow.preempt in ASKED_STATES or (
            path is not None and self._context.signals.given(path)
        )

    def clear_preempt_signal(self, name: str, token: int) -> Workflow:
        """Say that the workflow yields: removes its signal file, and notes that in the swap log.
        Release the workflow next. Harmless without a request. Raises LeaseLost, Fenced.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            change.accept(_own(change.workflows.get(name), swept(name, token), token))
            return change.workflows[name]

        return self._context.change(body, spare=(name, token))

    def running(
        self,
        name: str,
        recipe: str,
        *,
        owner: Holder | ThisProcess = THIS_PROCESS,
        ttl_s: float = WORKFLOW_TTL_S,
        preemptible: bool = False,
        preempt_signal_path: str | None = None,
        any_recipe: bool = False,
        wait_s: float = 0,
        on_wait: OnWait | None = None,
        on_preempt: OnPreempt | None = None,
        on_lost: OnLost | None = None,
    ) -> Work:
        """A workflow for the time of a `with` block: registered at its beginning, renewed in the
        background at a third of its time to live, released at its end. `on_preempt` and `on_lost`
        are called in a thread of its own.

        It begins only if its recipe is loaded, or nothing was ever loaded; with `any_recipe` on
        whatever is loaded. Raises what `register` raises; LeaseLost at the end if it was swept
        meanwhile.
        """
        register = partial(
            self.register,
            name,
            recipe,
            owner=owner,
            ttl_s=ttl_s,
            preemptible=preemptible,
            preempt_signal_path=preempt_signal_path,
            loaded_only=not any_recipe,
            wait_s=wait_s,
            on_wait=on_wait,
        )
        return Work(self, self._context, register, on_preempt, on_lost)

    # --- swaps ---

    def swap(
        self,
        recipe: str,
        *,
        grace_s: float = SWAP_GRACE_S,
        timeout_s: float = SWAP_TIMEOUT_S,
        policy: Policy | str = Policy.WAIT,
        reload: bool = False,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
        tree: str | None = None,
    ) -> Swap:
        """A swap to a recipe, for the time of a `with` block that loads it.

        Look at `needed` in the block: it is False when the recipe is loaded already. Then nobody
        was asked to yield, the recipe stays loaded until the block ends, and the block must load
        nothing. With `reload` it is loaded again all the same, once work with this recipe has ended
        too.

        The block begins once no work with another recipe is left. Preemptible work is asked to
        yield and given `grace_s` for it. Other work, and work that did not yield, is waited for, or
        makes the swap be refused at once, by `policy`. If the block ends well, the recipe is the
        current one; if it raises, it is unknown what is loaded. Work is never killed.

        At the beginning raises LockTimeout when another swap or running work did not end within
        `timeout_s`, Held when refused by policy, DeadlockDetected when it would wait for work of
        its own process or for a swap that does; nothing has changed then. At the end raises
        LeaseLost when the swap lock was lost meanwhile; it is unknown then what is loaded.
        `on_wait` is called with the reasons when a wait begins, and when they change. When the
        descriptor `stop_fd` becomes readable, the wait ends as if its time were over.

        `tree` is the process tree of a command that loads. If this process is killed, the swap is
        over when the last process of that tree is gone. Until then no work is registered, and no
        other swap begins: the next swap ends the tree.
        """
        check_new_label(recipe, "recipe")
        _check_seconds(grace_s, "grace_s")
        _check_seconds(timeout_s, "timeout_s")
        try:
            policy = Policy(policy)
        except ValueError:
            possible = ", ".join(policy.value for policy in Policy)
            raise InvalidValue(
                f"{ascii(policy)[:40]} is not a swap policy: use one of {possible}",
                field="policy",
            ) from None
        me = self._context.processes.current(self._label)
        holder = me if tree is None else replace(me, tree=tree)
        terms = SwapTerms(recipe, holder, grace_s, timeout_s, policy, reload, on_wait, stop_fd)
        return Swap(self._context, terms)

    def orphan_load(self, marker: SwapMarker) -> OrphanLoad | None:
        """The load of a swap that is over; None for a live swap."""
        return self._context.orphan_load(marker)

    def reconcile_swap_marker(self) -> ReconciledMarker:
        """Clear an orphaned marker; return the cleared marker, or that of the live swap."""
        if self._context.look().marker is None:
            return ReconciledMarker(None, None)
        return self._context.change(lambda change: ReconciledMarker(change.marker, change.orphan))

    def swap_status(self, *, damaged: Damage | None = None) -> SwapStatus:
        """What is loaded, which swap is under way and which workflows live. Sweeps, and reconciles
        the marker. For `damaged` see `list_workflows`.
        """
        snapshot = self._context.look()
        if damaged is not None:
            damaged.extend(snapshot.damaged)
        elif snapshot.damaged:
            raise snapshot.damaged[0]
        if self._context.settled(snapshot):
            return SwapStatus(
                snapshot.loaded.current, None, snapshot.workflows, snapshot.loaded.unknown
            )

        def body(change: Change) -> SwapStatus:
            current, unknown = loaded_in(change.tx)
            return SwapStatus(current, change.marker, list(change.workflows.values()), unknown)

        return self._context.change(body)

    def swap_log(self, limit: int = LIST_MAX) -> list[SwapEvent]:
        """The last lines of the swap log, oldest first."""
        entries = (entry for batch in self._context.journal.since() for entry in batch.entries)
        events = [event for entry in entries if (event := event_of(entry)) is not None]
        return events[max(len(events) - limit, 0) :]

    def snapshot(self) -> WorkflowsSnapshot:
        """Everything as it is stored, and the liveness of the processes. Changes nothing."""
        return self._context.look()

    def swap_log_lag(self) -> Lag | None:
        """How far the file of the swap log is behind; None without a file. Raises OSError."""
        return None if self.mirror is None else self.mirror.lag()


def _check_seconds(seconds: float, field: str) -> float:
    if not seconds >= 0:
        raise InvalidValue(f"{field} is {seconds}: give seconds from 0 on", field=field)
    return seconds


def _own(workflow: Workflow | None, missing: HoldfastError, token: int) -> Workflow:
    """The workflow, if it is the registration with this token. Raises `missing` when there is none,
    and Fenced.
    """
    if workflow is None:
        raise missing
    if workflow.token != token:
        raise fenced(workflow, token)
    return workflow
