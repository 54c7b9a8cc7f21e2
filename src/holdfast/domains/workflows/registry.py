"""The registry of workflows: who needs which recipe, and who may begin."""

from typing import NamedTuple

from msgspec.structs import replace

from holdfast.domains.workflows import refusal
from holdfast.domains.workflows.change import Change, loaded_in
from holdfast.domains.workflows.context import Room, Sight
from holdfast.domains.workflows.ports import (
    Mirror,
    NoMirror,
    Signals,
    SwapEvent,
    SwapLock,
    event_of,
)
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Remains,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.domains.workflows.registration import (
    Registered,
    Registering,
    check_seconds,
    check_ttl,
    checked_terms,
)
from holdfast.domains.workflows.swap import OnWait, Policy, Swap
from holdfast.domains.workflows.wire import WORKFLOWS
from holdfast.domains.workflows.work import OnLost, OnPreempt, Work
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import THIS_PROCESS, Holder, Processes, ThisProcess
from holdfast.kernel.limits import LIST_MAX, SWAP_GRACE_S, SWAP_TIMEOUT_S, WORKFLOW_TTL_S
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.store import Damage, Store, Tx
from holdfast.primitives.journal import Journal, Lag


class SwapStatus(NamedTuple):
    """What is loaded, and the swap under way, if there is one.

    `unknown` is there instead of `current` when a load has failed, was killed, or has not ended
    yet. Both are None when nothing was ever loaded.
    """

    current: CurrentRecipe | None
    marker: SwapMarker | None
    workflows: list[Workflow]
    unknown: UnknownRecipe | None = None


class Reconciled(NamedTuple):
    """The marker of a live swap, and the one that nobody stood behind."""

    live: SwapMarker | None
    cleared: SwapMarker | None


class Workflows:
    """Workflows and swaps on one store.

    Promised: while a swap is under way nothing begins with another recipe, and no swap goes on
    before all work with another recipe has ended, yielded, died or run out of its time; work of a
    process tree that is seen to live does not run out of its time; what a dead swap left behind is
    cleared by the next one who looks, once, and a live swap is never broken; a recipe counts as
    loaded only from the end of a load that succeeded to the beginning of the next. Not promised:
    that a program stops when its time to live has passed. It is told at its next renewal.

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
        mirror: Mirror | None = None,
        label: str = "",
        within: tuple[str, int] | None = None,
    ) -> None:
        self._room = Room(
            store, journal, processes, swap_lock, signals, mirror or NoMirror(), within
        )
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
        """Register work that needs a recipe, and say whether that is yet to be loaded: such work
        must not begin before a swap.

        With `loaded_only` it is registered only if the recipe is loaded, or nothing was ever
        loaded: for work that begins at once. The owner's own workflow of that name is renewed, on
        the new terms, with its old token and signal path. Sweeps first. `wait_s` is how long to
        wait for the end of a swap that is in the way and, with `loaded_only`, for the recipe to be
        loaded; `on_wait` is told of what is in the way. The wait also ends when the descriptor
        `stop_fd` becomes readable.

        Raises EAgain when a live swap is in the way, NotLoaded when another recipe is loaded or it
        is unknown which, Held when another live owner has the name, DeadlockDetected when it would
        wait for a swap that waits for the same owner's work, InvalidName and InvalidValue before
        anything is stored.
        """
        holder = (
            self._room.processes.current(self._label) if isinstance(owner, ThisProcess) else owner
        )
        terms = checked_terms(
            self._room.signals,
            name,
            recipe,
            holder,
            ttl_s,
            preemptible,
            preempt_signal_path,
            loaded_only,
        )
        return Registering(self._room, terms).within(
            check_seconds(wait_s, "wait_s"), on_wait, stop_fd
        )

    def renew(self, name: str, token: int, *, ttl_s: float | None = None) -> Workflow:
        """Extend a workflow from now, on the store's clock, by its time to live or by another,
        which it has from then on.

        A clock that was stepped back takes nothing away. Raises LeaseLost when it was swept, Fenced
        when another has registered under the name since.
        """
        check_id(name, "workflow")
        if ttl_s is not None:
            check_ttl(ttl_s)

        def body(tx: Tx) -> Workflow:
            row = tx.get(WORKFLOWS, name)
            if row is None:
                raise refusal.swept(name, token)
            if row.record.token != token:
                raise refusal.fenced(row.record, token)
            at = max(tx.now, row.record.last_renewed_at)
            renewed = replace(
                row.record, last_renewed_at=at, ttl_seconds=ttl_s or row.record.ttl_seconds
            )
            tx.put(WORKFLOWS, name, renewed)
            return renewed

        return self._room.change_rows(body)

    def release(self, name: str, token: int) -> Workflow:
        """Take a workflow out, with its signal file; if it was asked to yield, it has. Raises
        NotFound, Fenced.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            workflow = _own(change, name, token)
            change.leave(workflow)
            return workflow

        return self._room.change(body, spare=(name, token))

    def get(self, name: str) -> Workflow:
        """A workflow that lives. Raises NotFound."""
        found = {workflow.name: workflow for workflow in self.list_workflows(damaged=[])}
        if check_id(name, "workflow") not in found:
            raise refusal.no_such(name)
        return found[name]

    def list_workflows(self, *, damaged: Damage | None = None) -> list[Workflow]:
        """The workflows that live, by name. Sweeps the others, and clears the marker of a dead
        swap. A damaged record raises, unless `damaged` is a list to tell of it in.
        """
        return self.swap_status(damaged=damaged).workflows

    def sweep(self) -> list[Workflow]:
        """Take out every workflow whose owner is dead or whose time has passed, and return them."""
        sight = self._room.look()
        return [] if sight.clean() else self._room.change(lambda change: change.swept)

    # --- asking to yield ---

    def request_preempt(self, name: str) -> Workflow:
        """Ask a workflow to yield, as a swap does. Asking twice is asking once. Raises NotFound;
        InvalidValue when it was not registered as preemptible.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            workflow = change.workflows.get(name)
            if workflow is None:
                raise refusal.no_such(name)
            if not workflow.preemptible:
                raise InvalidValue(
                    f"workflow {name} was not registered as preemptible: wait for its end",
                    workflow=name,
                )
            if workflow.preempt.value == "none":
                change.ask(workflow)
            return change.workflows[name]

        return self._room.change(body)

    def preempt_requested(self, name: str, token: int) -> bool:
        """Was the caller's workflow asked to yield? Costs one read, and no write. Raises LeaseLost
        when it was swept, Fenced when the name is another's.
        """
        row = self._room.store.get(WORKFLOWS, check_id(name, "workflow"))
        if row is None:
            raise refusal.swept(name, token)
        if row.record.token != token:
            raise refusal.fenced(row.record, token)
        path = row.record.preempt_signal_path
        return row.record.preempt.value in ("requested", "ignored") or (
            path is not None and self._room.signals.given(path)
        )

    def clear_preempt_signal(self, name: str, token: int) -> Workflow:
        """Say that the workflow yields: its signal file goes, and the swap log tells of it. It is
        to be released next. Harmless when nothing was asked. Raises LeaseLost, Fenced.
        """
        check_id(name, "workflow")

        def body(change: Change) -> Workflow:
            workflow = change.workflows.get(name)
            if workflow is None:
                raise refusal.swept(name, token)
            workflow = _own(change, name, token)
            change.settle(workflow)
            return change.workflows[name]

        return self._room.change(body, spare=(name, token))

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

        def register() -> Registered:
            return self.register(
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

        return Work(self, self._room, register, on_preempt, on_lost)

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
        """A swap to a recipe, for the time of a `with` block in which it is loaded.

        Look at `needed` in the block: it is False when the recipe is loaded already. Then nobody
        was asked to yield, the recipe stays loaded until the block ends, and the block must load
        nothing. With `reload` it is loaded again all the same, once work with this recipe has ended
        too.

        The block begins once no work with another recipe is left. Preemptible work is asked to
        yield and given `grace_s` for it. Work that is not, and work that did not yield, is waited
        for, or makes the swap be refused at once, by `policy`. If the block ends well, the recipe
        is the current one; if it raises, it is unknown what is loaded. Work is never killed.

        At the beginning raises LockTimeout when another swap or running work did not end within
        `timeout_s`, Held when it is refused by policy, DeadlockDetected when it would wait for work
        of its own process or for a swap that does; nothing has changed then. At the end raises
        LeaseLost when the swap lock was lost meanwhile; it is unknown then what is loaded.
        `on_wait` is told who is in the way when a wait begins, and when that changes. When the
        descriptor `stop_fd` becomes readable, the wait ends as if its time were over.

        `tree` is the process tree of a command that loads. If this process is killed, the swap is
        over when the last process of that tree is gone. Until then no work is registered, and no
        other swap begins: the next swap ends the tree.
        """
        check_new_label(recipe, "recipe")
        check_seconds(grace_s, "grace_s")
        check_seconds(timeout_s, "timeout_s")
        me = self._room.processes.current(self._label)
        return Swap(
            self._room,
            recipe,
            me if tree is None else replace(me, tree=tree),
            grace_s=grace_s,
            timeout_s=timeout_s,
            policy=_policy(policy),
            on_wait=on_wait,
            stop_fd=stop_fd,
            reload=reload,
        )

    def remains(self, marker: SwapMarker) -> Remains | None:
        """What is left of a swap whose process is dead or has lost the swap lock; None for a swap
        that is alive.
        """
        return self._room.remains(marker) if self._room.is_over(marker) else None

    def reconcile_swap_marker(self) -> Reconciled:
        """Clear the marker of a swap that nobody stands behind; say what was cleared, or which swap
        lives.
        """
        if self._room.look().marker is None:
            return Reconciled(None, None)
        return self._room.change(lambda change: Reconciled(change.marker, change.orphan))

    def swap_status(self, *, damaged: Damage | None = None) -> SwapStatus:
        """What is loaded, which swap is under way and which workflows live. Sweeps, and reconciles
        the marker. For `damaged` see `list_workflows`.
        """
        sight = self._room.look()
        if sight.damaged and damaged is None:
            raise sight.damaged[0]
        (damaged if damaged is not None else []).extend(sight.damaged)
        if self._room.settled(sight):
            return SwapStatus(sight.loaded.current, None, sight.workflows, sight.loaded.unknown)

        def body(change: Change) -> SwapStatus:
            current, unknown = loaded_in(change.tx)
            return SwapStatus(current, change.marker, list(change.workflows.values()), unknown)

        return self._room.change(body)

    def swap_log(self, limit: int = LIST_MAX) -> list[SwapEvent]:
        """The last lines of the swap log, oldest first."""
        entries = (entry for batch in self._room.journal.since() for entry in batch.entries)
        events = [event for entry in entries if (event := event_of(entry)) is not None]
        return events[max(len(events) - limit, 0) :]

    def sight(self) -> Sight:
        """Everything as it is stored, and what is known of the processes. Sweeps nothing and clears
        nothing.
        """
        return self._room.look()

    def swap_log_lag(self) -> Lag | None:
        """How far the file that mirrors the swap log is behind; None where there is none. Raises
        OSError.
        """
        return self._room.swap_log_lag()


def _own(change: Change, name: str, token: int) -> Workflow:
    workflow = change.workflows.get(name)
    if workflow is None:
        raise refusal.no_such(name)
    if workflow.token != token:
        raise refusal.fenced(workflow, token)
    return workflow


def _policy(value: Policy | str) -> Policy:
    try:
        return Policy(value)
    except ValueError:
        possible = ", ".join(policy.value for policy in Policy)
        raise InvalidValue(
            f"{ascii(value)[:40]} is no policy of a swap: use one of {possible}", field="policy"
        ) from None
