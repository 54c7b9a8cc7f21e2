"""One registration: its terms, the swap that may block it, and the record it becomes."""

from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.workflows.change import Change, loaded_in
from holdfast.domains.workflows.context import WorkflowsContext
from holdfast.domains.workflows.messages import deadlock, name_held, not_loaded, swap_under_way
from holdfast.domains.workflows.records import (
    Loaded,
    OnWait,
    Phase,
    SwapMarker,
    Workflow,
    same_process,
)
from holdfast.domains.workflows.wire import CHANGED
from holdfast.kernel.errors import EAgain, InvalidValue, NotLoaded
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import WORKFLOW_TTL_MAX_S
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.store import Listener
from holdfast.primitives.deadline import Deadline, earliest


class Registered(NamedTuple):
    """A registered workflow, and whether its recipe must be loaded first. `renewed` says that it
    was registered before, by the same process.
    """

    workflow: Workflow
    swap_needed: bool
    renewed: bool = False


class Terms(NamedTuple):
    """What a caller asks for."""

    name: str
    recipe: str
    owner: Holder
    ttl_s: float
    preemptible: bool
    path: str | None
    loaded_only: bool


class Registration:
    """One registration of this process. Raises InvalidName and InvalidValue for wrong terms."""

    def __init__(self, context: WorkflowsContext, terms: Terms) -> None:
        check_id(terms.name, "workflow")
        check_new_label(terms.recipe, "recipe")
        check_ttl(terms.ttl_s)
        if terms.path is not None and not terms.preemptible:
            raise InvalidValue(
                "a signal path without `preemptible` would never be used: give both",
                field="preempt_signal_path",
            )
        path = None if terms.path is None else context.signals.checked(terms.path, terms.name)
        self._context = context
        self._terms = terms._replace(ttl_s=float(terms.ttl_s), path=path)

    def run(self, wait_s: float, on_wait: OnWait | None, stop_fd: int | None) -> Registered:
        """Register. Wait up to `wait_s` for the end of a swap that blocks, or for the recipe to be
        loaded. Raises EAgain, Held, NotLoaded, and DeadlockDetected instead of a wait that would
        never end.
        """
        if not wait_s:
            return self._register(waits=False)
        deadline = Deadline(wait_s)
        with self._context.store.listen([CHANGED]) as listener:
            while True:
                try:
                    return self._register(waits=not deadline.passed())
                except (EAgain, NotLoaded):
                    if deadline.passed():
                        raise
                if not self._sleep(listener, deadline.left_s(), on_wait, stop_fd):
                    deadline.end()

    def _register(self, *, waits: bool) -> Registered:
        terms = self._terms

        def body(change: Change) -> Registered:
            loaded = loaded_in(change.tx)
            marker = change.marker
            if marker is not None and self._is_blocked(marker, loaded):
                own = self._context.own_conflicts(change, terms.owner, marker)
                if waits and own and marker.phase is Phase.WAITING:
                    waiter = f"the registration of {terms.name} for {terms.recipe}"
                    raise deadlock(waiter, terms.recipe, marker, own)
                raise swap_under_way(terms.recipe, marker, abandoned=change.abandoned)
            before = change.workflows.get(terms.name)
            if before is not None and not same_process(before.owner, terms.owner):
                raise name_held(before)
            # Where nothing was ever loaded, nothing is known to be wrong.
            if terms.loaded_only and not loaded.has(terms.recipe) and loaded != Loaded(None, None):
                raise not_loaded(terms.recipe, loaded)
            workflow = self._write(change, before)
            return Registered(workflow, not loaded.has(terms.recipe), before is not None)

        registered = self._context.change(body)
        if not registered.renewed and terms.path is not None:
            # A dead workflow of that name may have left a signal there. Without this, the new one
            # would yield to a request that was never made to it.
            self._context.signals.clear(terms.path, terms.name, registered.workflow.token - 1)
        return registered

    def _is_blocked(self, marker: SwapMarker, loaded: Loaded) -> bool:
        """Whether this registration must wait for the end of a swap."""
        if marker.recipe != self._terms.recipe:
            return True
        if marker.reload and not same_process(marker.holder, self._terms.owner):
            # The swap waits for work that uses this recipe: more of it would make it wait longer.
            return True
        return self._terms.loaded_only and not loaded.has(marker.recipe)

    def _write(self, change: Change, before: Workflow | None) -> Workflow:
        terms = self._terms
        now, token = change.tx.now, change.tx.revision if before is None else before.token
        path = terms.path or (
            self._context.signals.path_of(terms.name, token) if terms.preemptible else None
        )
        if before is not None and before.preempt_signal_path is not None:
            # A signal may be there already, and the owner knows the path.
            path = before.preempt_signal_path
        changed: dict[str, Any] = {
            "recipe": terms.recipe,
            "ttl_seconds": terms.ttl_s,
            "preemptible": terms.preemptible,
            "preempt_signal_path": path,
        }
        if before is not None:
            workflow = replace(before, **changed, last_renewed_at=max(now, before.last_renewed_at))
            change.put(workflow)
            if workflow.recipe != before.recipe:
                # A swap to that recipe need not wait for it any more.
                change.tx.notify(CHANGED)
        else:
            workflow = Workflow(
                name=terms.name,
                owner=terms.owner,
                started_at=now,
                last_renewed_at=now,
                token=token,
                **changed,
            )
            change.add(workflow)
        return workflow

    def _sleep(
        self, listener: Listener, left_s: float | None, on_wait: OnWait | None, stop_fd: int | None
    ) -> bool:
        """Sleep until something changes, or the blocking swap dies. False when `stop_fd` became
        readable.
        """
        snapshot = self._context.look()
        marker = snapshot.marker
        orphan = None if marker is None else self._context.orphan_load(marker)
        reason = orphan or marker or snapshot.loaded.current or snapshot.loaded.unknown
        if reason is not None and on_wait is not None:
            on_wait([reason])
        limit_s = earliest(left_s, None if orphan is None else orphan.left_s)
        watched = [] if marker is None else [marker.holder]
        return self._context.sleep(watched, listener, limit_s, stop_fd)


def check_ttl(ttl_s: float) -> float:
    """Return a possible time to live. Raises InvalidValue."""
    if not 0 < ttl_s <= WORKFLOW_TTL_MAX_S:
        raise InvalidValue(
            f"a time to live of {ttl_s} s is not possible: give a positive number of seconds",
            field="ttl_s",
        )
    return ttl_s
