"""Workflows and swaps in words."""

from collections.abc import Sequence
from shlex import quote

from holdfast.domains.workflows import CurrentRecipe, Preempt, SwapMarker, UnknownRecipe, Workflow
from holdfast.domains.workflows.messages import (
    describe_conflicts,
    describe_loaded,
    describe_orphan_load,
)
from holdfast.domains.workflows.records import Loaded, OrphanLoad, who
from holdfast.domains.workflows.swap import Obstacle
from holdfast.surfaces.cli.output import remark

STATES = {
    Preempt.NONE: "runs",
    Preempt.REQUESTED: "asked to yield",
    Preempt.YIELDED: "yielding",
    Preempt.IGNORED: "has not yielded",
}


def waiting_line(in_the_way: Sequence[Obstacle]) -> str:
    """Whom a swap, or a registration, waits for."""
    for one in in_the_way:
        if isinstance(one, OrphanLoad):
            return f"waiting: {describe_orphan_load(one)}"
    for one in in_the_way:
        if isinstance(one, SwapMarker):
            return f"waiting for a swap to {one.recipe} by {who(one.holder)} to end"
    for one in in_the_way:
        if isinstance(one, CurrentRecipe | UnknownRecipe):
            current = isinstance(one, CurrentRecipe)
            loaded = Loaded(one, None) if current else Loaded(None, one)  # type: ignore[arg-type]
            return f"waiting for its recipe to be loaded: {describe_loaded(loaded)}"
    return (
        f"waiting: {describe_conflicts([one for one in in_the_way if isinstance(one, Workflow)])}"
    )


class RecipeWaitNotes:
    """Says on stderr whom a command waits for, each time that this has changed."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._said = ""

    def __call__(self, in_the_way: Sequence[Obstacle]) -> None:
        line = waiting_line(in_the_way)
        if line != self._said and not self._quiet:
            remark(line)
        self._said = line


def swap_advice(recipe: str) -> str:
    """What to do before a recipe can be used."""
    return f"{recipe} is not loaded: `holdfast swap to {quote(recipe)} -- COMMAND` loads it"
