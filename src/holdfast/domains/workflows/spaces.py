"""The four spaces of workflows, which every change latches together."""

from typing import Any

from holdfast.domains.workflows.record import CurrentRecipe, SwapMarker, UnknownRecipe, Workflow
from holdfast.domains.workflows.wire import CURRENT_LAYOUT, MARKER_LAYOUT, UNKNOWN_LAYOUT, WORKFLOWS_LAYOUT
from holdfast.kernel.space import Space

WORKFLOWS = Space("workflows", Workflow, layout=WORKFLOWS_LAYOUT)
SWAP_MARKER = Space("swap_marker", SwapMarker, layout=MARKER_LAYOUT)
CURRENT_RECIPE = Space("current_recipe", CurrentRecipe, layout=CURRENT_LAYOUT)
UNKNOWN_RECIPE = Space("unknown_recipe", UnknownRecipe, layout=UNKNOWN_LAYOUT)

SCOPE: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE]

CHANGED = "workflows"
"""Notified when a workflow came or went, and when a swap began, came to wait for work, ended or let go of its lock."""


def topic_of(name: str) -> str:
    """Notified when a workflow is asked to yield, or need not any more, or has been swept."""
    return f"workflows/{name}"
