"""Workflows, swaps and loads in words, and the errors that say them."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.domains.workflows.records import (
    Loaded,
    OrphanLoad,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    Workflow,
    who,
)
from holdfast.kernel import clock, errors
from holdfast.kernel.codec import to_plain
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.text import counted

STATES = {
    Preempt.NONE: "runs",
    Preempt.REQUESTED: "was asked to yield",
    Preempt.YIELDED: "is yielding",
    Preempt.IGNORED: "has not yielded",
}
"""What a workflow does."""


def describe_conflicts(conflicts: Sequence[Workflow], *, since: bool = False) -> str:
    """Workflows that block a swap, each with its state and, if wanted, its start."""
    return ", ".join(
        f"workflow {one.name} ({one.recipe}, {who(one.owner)}"
        + (f", since {one.started_at:%Y-%m-%d %H:%MZ}) " if since else ") ")
        + (STATES[one.preempt] if one.preemptible else "is not preemptible")
        for one in conflicts
    )


def describe_loaded(loaded: Loaded) -> str:
    if loaded.unknown is not None:
        return f"what is loaded is unknown, since {describe_unknown(loaded.unknown)}"
    if loaded.current is None:
        return "nothing was ever loaded"
    current = loaded.current
    return (
        f"{current.recipe} is, by the swap of {current.by or 'another program'} at "
        f"{_at(current.loaded_at)}"
    )


def describe_unknown(unknown: UnknownRecipe) -> str:
    load = f"the load of {unknown.recipe}" + (f" by {unknown.by}" if unknown.by else "")
    if unknown.ended_at is None:
        words = f"{load}, started at {_at(unknown.began_at)}, has not ended"
    else:
        words = f"{load} failed at {_at(unknown.ended_at)} ({unknown.why})"
    return words if unknown.before is None else f"{words}; before it, {unknown.before} was loaded"


def describe_orphan_load(orphan: OrphanLoad) -> str:
    swap = f"the swap to {orphan.marker.recipe} by {who(orphan.marker.holder)}"
    if count := len(orphan.survivors):
        lives = "lives" if count == 1 else "live"
        processes = counted(count, "process", "processes")
        names = survivors_named(orphan.survivors)
        return f"{swap} was killed, and {processes} of its load {lives}: {names}"
    if orphan.left_s is not None:
        return (
            f"{swap} has lost its lock, and its load, which cannot be seen from here, may run for "
            f"{orphan.left_s:.0f} s more"
        )
    return f"{swap} was killed, and its load has not ended yet"


# --- errors of a registration ---


def swept(name: str, token: int) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"workflow {name} is not registered any more: it was swept, since its owner was dead or "
        "its time to live had passed. Stop work that needs its recipe, and register again",
        workflow=name,
        token=token,
    )


def no_such(name: str) -> errors.NotFound:
    return errors.NotFound(
        f"there is no workflow {name}: it was released or swept, or never registered; `holdfast "
        "workflows list` shows the registered ones",
        workflow=name,
    )


def fenced(workflow: Workflow, token: int) -> errors.Fenced:
    return errors.Fenced(
        f"token {token} is not that of workflow {workflow.name}, which now belongs to "
        f"{who(workflow.owner)}: stop work on it",
        workflow=workflow.name,
        token=token,
        current=workflow.token,
    )


def name_held(workflow: Workflow) -> errors.Held:
    return errors.Held(
        f"workflow {workflow.name} belongs to {who(workflow.owner)}, with recipe "
        f"{workflow.recipe}: choose another name, or wait until it is released",
        workflow=workflow.name,
        owner_pid=workflow.owner.pid,
        recipe=workflow.recipe,
    )


def swap_under_way(recipe: str, marker: SwapMarker, *, abandoned: bool) -> errors.EAgain:
    swap = "reload of" if marker.reload else "swap to"
    state = "was killed, and its load still runs" if abandoned else "is under way"
    return errors.EAgain(
        f"a {swap} {marker.recipe} by {who(marker.holder)} {state}, so nothing may begin with "
        f"{recipe}: try again when it is over, or wait for that with --wait; `holdfast swap "
        "status` shows it",
        recipe=recipe,
        target=marker.recipe,
        holder_pid=marker.holder.pid,
        token=marker.token,
    )


def not_loaded(recipe: str, loaded: Loaded) -> errors.NotLoaded:
    current, unknown = loaded
    known = current or unknown
    return errors.NotLoaded(
        f"{recipe} is not loaded: {describe_loaded(loaded)}. Load it with `holdfast swap to "
        f"{shlex.quote(recipe)} -- COMMAND`, wait until it is loaded with --wait, or begin on "
        "whatever is loaded with --any-recipe",
        recipe=recipe,
        loaded=None if current is None else current.recipe,
        loaded_at=None if current is None else clock.render(current.loaded_at),
        by=None if known is None else known.by,
        token=None if known is None else known.token,
        failed=None if unknown is None else unknown.recipe,
        exit_status=None if unknown is None else unknown.exit_status,
    )


# --- errors of a swap ---


def deadlock(
    waiter: str, recipe: str, marker: SwapMarker, own: Sequence[Workflow]
) -> errors.DeadlockDetected:
    """The error for a waiter that would wait for a swap which waits for the waiter's own work."""
    cycle = (
        f"{waiter} would wait for the swap to {marker.recipe} by {who(marker.holder)}, which "
        f"waits for {_named(own)}"
    )
    return errors.DeadlockDetected(
        f"{cycle}: that work belongs to the same process, so neither would ever go on. Release "
        "it, and try again",
        recipe=recipe,
        target=marker.recipe,
        holder_pid=marker.holder.pid,
        conflicts=_names(own),
        cycle=cycle,
    )


def waits_for_itself(recipe: str, own: Sequence[Workflow]) -> errors.DeadlockDetected:
    cycle = f"the swap to {recipe} would wait for {_named(own)}"
    return errors.DeadlockDetected(
        f"{cycle}: that work belongs to the process that swaps, so it would wait for itself. "
        "Release it first",
        recipe=recipe,
        conflicts=_names(own),
        cycle=cycle,
    )


def work_in_the_way(recipe: str, stubborn: Sequence[Workflow]) -> errors.Held:
    return errors.Held(
        f"no swap to {recipe}: {describe_conflicts(stubborn)}; nothing was changed. Wait for that "
        "work with --policy wait, or end it",
        recipe=recipe,
        conflicts=_names(stubborn),
    )


def load_in_the_way(recipe: str, orphan: OrphanLoad) -> errors.Held:
    return errors.Held(
        f"no swap to {recipe}: {describe_orphan_load(orphan)}; nothing was changed. --policy wait "
        "ends that load and waits for it",
        recipe=recipe,
        target=orphan.marker.recipe,
        survivors=[one.pid for one in orphan.survivors],
    )


def work_timeout(
    recipe: str, conflicts: Sequence[Workflow], timeout_s: float
) -> errors.LockTimeout:
    return errors.LockTimeout(
        f"no swap to {recipe} within {timeout_s:g} s: {describe_conflicts(conflicts, since=True)}; "
        "nothing was changed. Wait for that work to end, or allow more time",
        recipe=recipe,
        conflicts=_names(conflicts),
        holders=[_blocker(one.name, one.recipe, one.started_at, one.owner) for one in conflicts],
        timeout_s=timeout_s,
        outcome="none",
    )


def swap_timeout(
    recipe: str, marker: SwapMarker | None, orphan: OrphanLoad | None, timeout_s: float
) -> errors.LockTimeout:
    """The error for another swap, or its load, that did not end in time."""
    limit, other = f"within {timeout_s:g} s", "another swap"
    blockers = []
    if marker is not None:
        by = who(marker.holder)
        other = (
            f"a swap to {marker.recipe} by {by}, under way since {marker.begun_at:%Y-%m-%d %H:%MZ},"
        )
        blockers = [_blocker(by, marker.recipe, marker.begun_at, marker.holder)]
    words = f"{other} did not end {limit}"
    if orphan is not None:
        words = f"no swap to {recipe} {limit}: {describe_orphan_load(orphan)}"
    return errors.LockTimeout(
        f"{words}; nothing was changed: wait for it, or allow more time",
        recipe=recipe,
        target=None if marker is None else marker.recipe,
        holder_pid=None if marker is None else marker.holder.pid,
        holders=blockers,
        timeout_s=timeout_s,
        outcome="none",
    )


def swap_lost(recipe: str, token: int) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"the swap to {recipe} has lost its lock, so {recipe} does not count as loaded: stop "
        "loading, check `holdfast swap status`, and begin again",
        recipe=recipe,
        token=token,
    )


def _names(workflows: Sequence[Workflow]) -> list[str]:
    return [workflow.name for workflow in workflows]


def _named(workflows: Sequence[Workflow]) -> str:
    return ", ".join(f"workflow {one.name} ({one.recipe}, {who(one.owner)})" for one in workflows)


def _blocker(by: str, recipe: str, since: datetime, process: Holder) -> Any:
    """What blocked a swap, for programs."""
    return to_plain({"by": by, "recipe": recipe, "since": since, "process": process})


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
