"""What callers are told when the state says no."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.domains.workflows.records import (
    Loaded,
    Remains,
    SwapMarker,
    UnknownRecipe,
    Workflow,
    who,
)
from holdfast.kernel import clock
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import (
    DeadlockDetected,
    EAgain,
    Fenced,
    Held,
    LeaseLost,
    LockTimeout,
    NotFound,
    NotLoaded,
)
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.text import counted


def swap_under_way(recipe: str, marker: SwapMarker, *, abandoned: bool = False) -> EAgain:
    """A registration for another recipe than the one that is being loaded, or for one that is not
    loaded yet. `abandoned` says that the process of the swap is dead, and its load still runs.
    """
    swap = "reload of" if marker.reload else "swap to"
    state = "was killed, and its load still runs" if abandoned else "is under way"
    return EAgain(
        f"a {swap} {marker.recipe} by {who(marker.holder)} {state}, so nothing may begin with "
        f"{recipe}: try again "
        "when it is over, or wait for that with --wait; `holdfast swap status` shows it",
        recipe=recipe,
        target=marker.recipe,
        holder_pid=marker.holder.pid,
        token=marker.token,
    )


def not_loaded(recipe: str, loaded: Loaded) -> NotLoaded:
    """Work that would begin on another recipe than its own, or on nobody knows what."""
    current, unknown = loaded
    return NotLoaded(
        f"{recipe} is not loaded: {loaded_words(loaded)}. Load it with `holdfast swap to "
        f"{shlex.quote(recipe)} -- COMMAND`, "
        "wait until somebody has with --wait, or begin on whatever is loaded with --any-recipe",
        recipe=recipe,
        loaded=None if current is None else current.recipe,
        loaded_at=None if current is None else clock.render(current.loaded_at),
        by=current.by if current is not None else unknown.by if unknown is not None else None,
        token=current.token
        if current is not None
        else unknown.token
        if unknown is not None
        else None,
        failed=None if unknown is None else unknown.recipe,
        exit_status=None if unknown is None else unknown.exit_status,
    )


def loaded_words(loaded: Loaded) -> str:
    """What is loaded, in words."""
    if loaded.unknown is not None:
        return f"what is loaded is unknown, since {unknown_words(loaded.unknown)}"
    if loaded.current is None:
        return "nothing was ever loaded"
    current = loaded.current
    return (
        f"{current.recipe} is, by the swap of {current.by or 'another program'} at "
        f"{_at(current.loaded_at)}"
    )


def unknown_words(unknown: UnknownRecipe) -> str:
    """Which load left the device unknown, in words."""
    load = f"the load of {unknown.recipe}" + (f" by {unknown.by}" if unknown.by else "")
    if unknown.ended_at is None:
        words = f"{load}, begun at {_at(unknown.began_at)}, has not ended"
    else:
        words = f"{load} failed at {_at(unknown.ended_at)} ({unknown.why})"
    return words if unknown.before is None else f"{words}; before it, {unknown.before} was loaded"


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def swap_deadlock(recipe: str, marker: SwapMarker, own: Sequence[Workflow]) -> DeadlockDetected:
    """A swap that would wait for another swap, which waits for work of the first swap's own
    process.
    """
    return _deadlock(f"the swap to {recipe}", recipe, marker, own)


def registration_deadlock(
    name: str, recipe: str, marker: SwapMarker, own: Sequence[Workflow]
) -> DeadlockDetected:
    """A registration that would wait for a swap, which waits for work of the same owner."""
    return _deadlock(f"the registration of {name} for {recipe}", recipe, marker, own)


def _deadlock(
    waiter: str, recipe: str, marker: SwapMarker, own: Sequence[Workflow]
) -> DeadlockDetected:
    cycle = (
        f"{waiter} would wait for the swap to {marker.recipe} by {who(marker.holder)}, which "
        f"waits for {named(own)}"
    )
    return DeadlockDetected(
        f"{cycle}: that work belongs to the same process, so neither would ever go on. Release "
        "it, and try again",
        recipe=recipe,
        target=marker.recipe,
        holder_pid=marker.holder.pid,
        conflicts=[workflow.name for workflow in own],
        cycle=cycle,
    )


def own_work(recipe: str, own: Sequence[Workflow]) -> DeadlockDetected:
    """A swap that would wait for work of its own process."""
    cycle = f"the swap to {recipe} would wait for {named(own)}"
    return DeadlockDetected(
        f"{cycle}: that work belongs to the process that swaps, so it would wait for itself. "
        "Release it first",
        recipe=recipe,
        conflicts=[workflow.name for workflow in own],
        cycle=cycle,
    )


def held(workflow: Workflow) -> Held:
    """A registration under a name that is another's."""
    return Held(
        f"workflow {workflow.name} is {who(workflow.owner)}'s, with recipe {workflow.recipe}: "
        "choose another name, or wait "
        "until it is released",
        workflow=workflow.name,
        owner_pid=workflow.owner.pid,
        recipe=workflow.recipe,
    )


def swept(name: str, token: int) -> LeaseLost:
    """A renewal of what is not there any more."""
    return LeaseLost(
        f"workflow {name} is not registered any more: it was swept, since its owner was dead or "
        "its time to live had passed. "
        "Stop work that needs its recipe, and register again",
        workflow=name,
        token=token,
    )


def fenced(workflow: Workflow, token: int) -> Fenced:
    """A write for a registration that another has succeeded."""
    return Fenced(
        f"token {token} is not the one of workflow {workflow.name}, which is "
        f"{who(workflow.owner)}'s now: stop work on it",
        workflow=workflow.name,
        token=token,
        current=workflow.token,
    )


def no_such(name: str) -> NotFound:
    """There is no such workflow."""
    return NotFound(
        f"there is no workflow {name}: it was released or swept, or never registered; `holdfast "
        "workflows list` shows those "
        "there are",
        workflow=name,
    )


def swap_lost(recipe: str, token: int) -> LeaseLost:
    """The swap is not the caller's any more."""
    return LeaseLost(
        f"the swap to {recipe} has lost its lock, so {recipe} does not count as loaded: stop "
        "loading, look with "
        "`holdfast swap status`, and begin again",
        recipe=recipe,
        token=token,
    )


def swap_in_the_way(
    recipe: str, marker: SwapMarker | None, timeout_s: float, remains: Remains | None = None
) -> LockTimeout:
    """Another swap did not end in time, or its load did not."""
    other = "another swap"
    if marker is not None:
        other = (
            f"a swap to {marker.recipe} by {who(marker.holder)}, under way since "
            f"{marker.begun_at:%Y-%m-%d %H:%MZ},"
        )
    words = f"{other} did not end within {timeout_s:g} s"
    if remains is not None:
        words = f"no swap to {recipe} within {timeout_s:g} s: {remains_words(remains)}"
    return LockTimeout(
        f"{words}; nothing was changed: wait for it, or allow more time",
        recipe=recipe,
        target=None if marker is None else marker.recipe,
        holder_pid=None if marker is None else marker.holder.pid,
        holders=[]
        if marker is None
        else [_blocker(who(marker.holder), marker.recipe, marker.begun_at, marker.holder)],
        timeout_s=timeout_s,
        outcome="none",
    )


def load_survives(recipe: str, remains: Remains) -> Held:
    """The load of a dead swap has not ended, and is not to be waited for."""
    return Held(
        f"no swap to {recipe}: {remains_words(remains)}; nothing was changed. --policy wait ends "
        "that load and waits for it",
        recipe=recipe,
        target=remains.marker.recipe,
        survivors=[pid for pid, _ in remains.survivors],
    )


def remains_words(remains: Remains) -> str:
    """What is left of a swap, in words."""
    swap = f"the swap to {remains.marker.recipe} by {who(remains.marker.holder)}"
    count = len(remains.survivors)
    if count:
        lives = "lives" if count == 1 else "live"
        processes = counted(count, "process", "processes")
        return (
            f"{swap} was killed, and {processes} of its load {lives}: "
            f"{survivors_named(remains.survivors)}"
        )
    if remains.left_s is not None:
        return (
            f"{swap} has lost its lock, and its load, which cannot be seen from here, may run for "
            f"{remains.left_s:.0f} s more"
        )
    return f"{swap} was killed, and its load has not ended yet"


def not_drained(recipe: str, conflicts: Sequence[Workflow], timeout_s: float) -> LockTimeout:
    """Running work did not end in time."""
    return LockTimeout(
        f"no swap to {recipe} within {timeout_s:g} s: {listed(conflicts, since=True)}; nothing "
        "was changed. Wait for that work "
        "to end, or allow more time",
        recipe=recipe,
        conflicts=[workflow.name for workflow in conflicts],
        holders=[_blocker(one.name, one.recipe, one.started_at, one.owner) for one in conflicts],
        timeout_s=timeout_s,
        outcome="none",
    )


def _blocker(by: str, recipe: str, since: datetime, process: Holder) -> dict[str, Any]:
    """Who was in the way of a swap, with which recipe, since when, for programs."""
    found: dict[str, Any] = to_plain(
        {"by": by, "recipe": recipe, "since": since, "process": process}
    )
    return found


def refused(recipe: str, conflicts: Sequence[Workflow]) -> Held:
    """Running work cannot be preempted, and is not to be waited for."""
    return Held(
        f"no swap to {recipe}: {listed(conflicts)}; nothing was changed. Wait for that work with "
        "--policy wait, or end it",
        recipe=recipe,
        conflicts=[workflow.name for workflow in conflicts],
    )


def named(workflows: Sequence[Workflow]) -> str:
    """Workflows with their recipes and owners, in words."""
    return ", ".join(
        f"workflow {workflow.name} ({workflow.recipe}, {who(workflow.owner)})"
        for workflow in workflows
    )


def listed(conflicts: Sequence[Workflow], *, since: bool = False) -> str:
    """Workflows in the way, in words; with when they began, if wanted."""
    return ", ".join(
        f"workflow {workflow.name} ({workflow.recipe}, "
        f"{who(workflow.owner)}{_since(workflow) if since else ''}) "
        + (_STATES[workflow.preempt.value] if workflow.preemptible else "is not preemptible")
        for workflow in conflicts
    )


def _since(workflow: Workflow) -> str:
    return f", since {workflow.started_at:%Y-%m-%d %H:%MZ}"


_STATES = {
    "none": "runs",
    "requested": "was asked to yield",
    "yielded": "is yielding",
    "ignored": "has not yielded",
}
