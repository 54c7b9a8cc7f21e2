"""A registration on its way: what a workflow asks for, the swap that may be in the way, and the
record it becomes.
"""

import time
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.workflows import refusal
from holdfast.domains.workflows.change import Change, loaded_in
from holdfast.domains.workflows.context import Room, Sight, Watch
from holdfast.domains.workflows.ports import Signals
from holdfast.domains.workflows.records import (
    Loaded,
    Phase,
    SwapMarker,
    Workflow,
    same_process,
    waits_for,
)
from holdfast.domains.workflows.swap import OnWait
from holdfast.domains.workflows.wire import CHANGED
from holdfast.kernel.errors import EAgain, InvalidValue, NotLoaded
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import WORKFLOW_TTL_MAX_S
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.store import Listener
from holdfast.primitives.deadline import earliest


class Registered(NamedTuple):
    """A registration, and whether its recipe is yet to be loaded."""

    workflow: Workflow
    swap_needed: bool


class Terms(NamedTuple):
    """What a workflow asks for."""

    name: str
    recipe: str
    owner: Holder
    ttl_s: float
    preemptible: bool
    path: str | None
    loaded_only: bool


def checked_terms(
    signals: Signals,
    name: str,
    recipe: str,
    owner: Holder,
    ttl_s: float,
    preemptible: bool,
    path: str | None,
    loaded_only: bool,
) -> Terms:
    """What a workflow asks for, if it may. Raises InvalidName and InvalidValue."""
    check_id(name, "workflow")
    check_new_label(recipe, "recipe")
    check_ttl(ttl_s)
    if path is not None and not preemptible:
        raise InvalidValue(
            "a signal path without `preemptible` would never be used: say both",
            field="preempt_signal_path",
        )
    checked = None if path is None else signals.checked(path, name)
    return Terms(name, recipe, owner, float(ttl_s), preemptible, checked, loaded_only)


class Registering:
    """One registration of this process."""

    def __init__(self, room: Room, terms: Terms) -> None:
        self._room = room
        self._terms = terms

    def within(self, wait_s: float, on_wait: OnWait | None, stop_fd: int | None) -> Registered:
        """Register, and wait so long for the end of a swap that is in the way, or for the recipe to
        be loaded. Raises EAgain, Held, NotLoaded, and DeadlockDetected instead of a wait that would
        not end.
        """
        deadline_s = time.monotonic() + wait_s
        if not wait_s:
            return self._register(waits=False)
        with self._room.store.listen([CHANGED]) as ears:
            while True:
                try:
                    return self._register(waits=time.monotonic() < deadline_s)
                except (EAgain, NotLoaded):
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        raise
                if not self._sleep(ears, left_s, on_wait, stop_fd):
                    deadline_s = time.monotonic()

    def _register(self, *, waits: bool) -> Registered:
        terms = self._terms

        def body(change: Change) -> tuple[Registered, bool]:
            loaded = loaded_in(change.tx)
            if change.marker is not None and self._is_in_the_way(change.marker, loaded):
                if waits:
                    self._check_own(change, change.marker)
                raise refusal.swap_under_way(
                    terms.recipe, change.marker, abandoned=change.abandoned
                )
            before = change.workflows.get(terms.name)
            if before is not None and not same_process(before.owner, terms.owner):
                raise refusal.held(before)
            # Where nothing was ever loaded, nothing is known to be wrong either.
            if terms.loaded_only and not loaded.has(terms.recipe) and loaded != Loaded(None, None):
                raise refusal.not_loaded(terms.recipe, loaded)
            workflow = self._written(change, before)
            return Registered(workflow, not loaded.has(terms.recipe)), before is None

        registered, new = self._room.change(body)
        if new and terms.path is not None:
            # What a dead one of that name left there says nothing to this one.
            self._room.signals.clear(terms.path, terms.name, registered.workflow.token - 1)
        return registered

    def _is_in_the_way(self, marker: SwapMarker, loaded: Loaded) -> bool:
        """Must this registration wait for the end of a swap?"""
        if marker.recipe != self._terms.recipe:
            return True
        if marker.reload and not same_process(marker.holder, self._terms.owner):
            # Work that uses the recipe is waited for, so no more of it may begin.
            return True
        return self._terms.loaded_only and not loaded.has(marker.recipe)

    def _check_own(self, change: Change, marker: SwapMarker) -> None:
        """Raises DeadlockDetected when the swap that is in the way waits for work of this very
        owner.
        """
        own = [
            one
            for one in change.workflows.values()
            if self._room.owns(self._terms.owner, one) and waits_for(marker, one)
        ]
        if own and marker.phase is Phase.WAITING:
            raise refusal.registration_deadlock(self._terms.name, self._terms.recipe, marker, own)

    def _written(self, change: Change, before: Workflow | None) -> Workflow:
        terms = self._terms
        now, token = change.tx.now, change.tx.revision if before is None else before.token
        path = terms.path or (
            self._room.signals.path_of(terms.name, token) if terms.preemptible else None
        )
        if before is not None and before.preempt_signal_path is not None:
            # A signal may lie there already, and its owner knows where.
            path = before.preempt_signal_path
        asked: dict[str, Any] = {
            "recipe": terms.recipe,
            "ttl_seconds": terms.ttl_s,
            "preemptible": terms.preemptible,
            "preempt_signal_path": path,
        }
        if before is not None:
            workflow = replace(before, **asked, last_renewed_at=max(now, before.last_renewed_at))
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
                **asked,
            )
            change.enter(workflow)
        return workflow

    def _sleep(
        self, ears: Listener, left_s: float, on_wait: OnWait | None, stop_fd: int | None
    ) -> bool:
        """Until something changes, or the swap that is in the way dies. False when there is to be
        no more waiting.
        """
        sight: Sight = self._room.look()
        over = sight.marker is not None and self._room.is_over(sight.marker)
        remains = self._room.remains(sight.marker) if sight.marker is not None and over else None
        in_the_way = remains or sight.marker or sight.loaded.current or sight.loaded.unknown
        if in_the_way is not None and on_wait is not None:
            on_wait([in_the_way])
        with Watch(self._room, [] if sight.marker is None else [sight.marker.holder]) as watch:
            return watch.wait(
                ears, earliest(left_s, None if remains is None else remains.left_s), stop_fd
            )


def check_ttl(ttl_s: float) -> float:
    """Return a time to live that is possible. Raises InvalidValue."""
    if not 0 < ttl_s <= WORKFLOW_TTL_MAX_S:
        raise InvalidValue(
            f"a time to live of {ttl_s} s is not possible: give a positive number of seconds",
            field="ttl_s",
        )
    return ttl_s


def check_seconds(seconds: float, field: str) -> float:
    """Return how long something may take, if it can be. Raises InvalidValue."""
    if not seconds >= 0:
        raise InvalidValue(f"{field} is {seconds}: give seconds from 0 on", field=field)
    return seconds
