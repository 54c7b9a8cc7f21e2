"""A registration on its way: what a workflow asks for, the swap that may be in the way, and the record it becomes."""

import time
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.workflows import refusing
from holdfast.domains.workflows.change import Change, current_in
from holdfast.domains.workflows.record import Workflow, same_process
from holdfast.domains.workflows.room import Room, Sight
from holdfast.domains.workflows.signals import Signals
from holdfast.domains.workflows.spaces import CHANGED
from holdfast.domains.workflows.swap import OnWait
from holdfast.domains.workflows.watch import Watch
from holdfast.kernel.errors import EAgain, InvalidValue
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import WORKFLOW_TTL_MAX_S
from holdfast.kernel.names import check_id, check_label
from holdfast.kernel.store import Listener


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


def checked_terms(
    signals: Signals, name: str, recipe: str, owner: Holder, ttl_s: float, preemptible: bool, path: str | None
) -> Terms:
    """What a workflow asks for, if it may. Raises InvalidName and InvalidValue."""
    check_id(name, "workflow")
    check_label(recipe, "recipe")
    check_ttl(ttl_s)
    if path is not None and not preemptible:
        raise InvalidValue("a signal path without `preemptible` would never be used: say both", field="preempt_signal_path")
    checked = None if path is None else signals.checked(path, name)
    return Terms(name, recipe, owner, float(ttl_s), preemptible, checked)


class Registering:
    """One registration of this process."""

    def __init__(self, room: Room, terms: Terms) -> None:
        self._room = room
        self._terms = terms

    def within(self, wait_s: float, on_wait: OnWait | None, stop_fd: int | None) -> Registered:
        """Register, and wait so long for the end of a swap that is in the way. Raises EAgain and Held."""
        deadline_s = time.monotonic() + wait_s
        if not wait_s:
            return self._register()
        with self._room.store.listen([CHANGED]) as ears:
            while True:
                try:
                    return self._register()
                except EAgain:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        raise
                if not self._sleep(ears, left_s, on_wait, stop_fd):
                    deadline_s = time.monotonic()

    def _register(self) -> Registered:
        terms = self._terms

        def body(change: Change) -> tuple[Registered, bool]:
            if change.marker is not None and change.marker.recipe != terms.recipe:
                raise refusing.swap_under_way(terms.recipe, change.marker)
            current = current_in(change.tx)
            before = change.workflows.get(terms.name)
            if before is not None and not same_process(before.owner, terms.owner):
                raise refusing.held(before)
            workflow = self._written(change, before)
            return Registered(workflow, current is None or current.recipe != terms.recipe), before is None

        registered, new = self._room.change(body)
        if new and terms.path is not None:
            # What a dead one of that name left there says nothing to this one.
            self._room.signals.clear(terms.path, terms.name, registered.workflow.token - 1)
        return registered

    def _written(self, change: Change, before: Workflow | None) -> Workflow:
        terms = self._terms
        now, token = change.tx.now, change.tx.revision if before is None else before.token
        path = terms.path or (self._room.signals.path_of(terms.name, token) if terms.preemptible else None)
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
            workflow = Workflow(name=terms.name, owner=terms.owner, started_at=now, last_renewed_at=now, token=token, **asked)
            change.enter(workflow)
        return workflow

    def _sleep(self, ears: Listener, left_s: float, on_wait: OnWait | None, stop_fd: int | None) -> bool:
        """Until something changes, or the swap that is in the way dies. False when there is to be no more waiting."""
        sight: Sight = self._room.look()
        if sight.marker is not None and on_wait is not None:
            on_wait([sight.marker])
        with Watch(self._room, [] if sight.marker is None else [sight.marker.holder]) as watch:
            return watch.wait(ears, left_s, stop_fd)


def check_ttl(ttl_s: float) -> float:
    """Return a time to live that is possible. Raises InvalidValue."""
    if not 0 < ttl_s <= WORKFLOW_TTL_MAX_S:
        raise InvalidValue(f"a time to live of {ttl_s} s is not possible: give a positive number of seconds", field="ttl_s")
    return ttl_s


def check_seconds(seconds: float, field: str) -> float:
    """Return how long something may take, if it can be. Raises InvalidValue."""
    if not seconds >= 0:
        raise InvalidValue(f"{field} is {seconds}: give seconds from 0 on", field=field)
    return seconds
