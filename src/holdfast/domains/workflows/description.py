"""Workflows, swaps and loads in words, for messages."""

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.domains.workflows.records import (
    Loaded,
    OrphanLoad,
    Preempt,
    UnknownRecipe,
    Workflow,
    who,
)
from holdfast.kernel.holder import survivors_named
from holdfast.kernel.text import counted

_STATES = {
    Preempt.NONE: "runs",
    Preempt.REQUESTED: "was asked to yield",
    Preempt.YIELDED: "is yielding",
    Preempt.IGNORED: "has not yielded",
}


def describe_conflicts(conflicts: Sequence[Workflow], *, since: bool = False) -> str:
    """Workflows that block a swap, each with its state and, if wanted, its start."""
    return ", ".join(
        f"workflow {one.name} ({one.recipe}, {who(one.owner)}"
        + (f", since {one.started_at:%Y-%m-%d %H:%MZ}) " if since else ") ")
        + (_STATES[one.preempt] if one.preemptible else "is not preemptible")
        for one in conflicts
    )


def describe_loaded(loaded: Loaded) -> str:
    """What is loaded."""
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
    """The load that left the device unknown."""
    load = f"the load of {unknown.recipe}" + (f" by {unknown.by}" if unknown.by else "")
    if unknown.ended_at is None:
        words = f"{load}, begun at {_at(unknown.began_at)}, has not ended"
    else:
        words = f"{load} failed at {_at(unknown.ended_at)} ({unknown.why})"
    return words if unknown.before is None else f"{words}; before it, {unknown.before} was loaded"


def describe_orphan_load(orphan: OrphanLoad) -> str:
    """The load of a swap that is over."""
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


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
