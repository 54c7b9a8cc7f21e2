"""Workflows and swaps: what is answered of them."""

from msgspec.structs import asdict

from holdfast.domains.workflows import (
    CurrentRecipe,
    Registered,
    SwapMarker,
    SwapStatus,
    UnknownRecipe,
    Workflow,
)
from holdfast.domains.workflows.registry import Reconciled
from holdfast.kernel.codec import Plain


class RegisteredView(Workflow, frozen=True, kw_only=True):
    """A workflow, and whether its recipe is yet to be loaded."""

    swap_needed: bool


class SwapView(Plain, frozen=True, kw_only=True):
    """What is loaded, the swap that is under way, and the workflows that live. `unknown` tells of a
    load that failed or has not ended: then nobody knows what is loaded, and `current` is null.
    """

    current: CurrentRecipe | None
    unknown: UnknownRecipe | None
    swap: SwapMarker | None
    workflows: list[Workflow]


class SwapReconciled(Plain, frozen=True, kw_only=True):
    """The swap that lives, and the one that nobody stood behind."""

    swap: SwapMarker | None
    cleared: SwapMarker | None


def registered_view(registered: Registered) -> RegisteredView:
    """A registration."""
    return RegisteredView(**asdict(registered.workflow), swap_needed=registered.swap_needed)


def swap_view(found: SwapStatus) -> SwapView:
    """How things stand."""
    return SwapView(
        current=found.current, unknown=found.unknown, swap=found.marker, workflows=found.workflows
    )


def reconciled_view(found: Reconciled) -> SwapReconciled:
    """What was cleared, or lives."""
    return SwapReconciled(swap=found.live, cleared=found.cleared)
