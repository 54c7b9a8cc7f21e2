"""Workflows: who needs which recipe on the GPU, and when it may be swapped.

records.py       a workflow, the marker of a swap, the loaded recipe, and their spaces
wire.py          their form in `workflows.json`
context.py       what every operation shares, and waiting for deaths and expiries
change.py        one transaction: sweep and reconcile first, then the steps
registration.py  one registration, from its terms to its record
registry.py      register, renew, release, list, sweep, preempt
swap.py          one swap, from the lock to the new recipe
work.py          a running workflow: renewed in the background, notified when it should yield
ports.py         the swap lock, signal files and the swap log
messages.py      workflows, swaps and loads in words, and the errors that say them
"""

from holdfast.domains.workflows.ports import SwapEvent
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Phase,
    Policy,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.domains.workflows.registration import Registered
from holdfast.domains.workflows.registry import ReconciledMarker, SwapStatus, Workflows
from holdfast.domains.workflows.swap import Swap
from holdfast.domains.workflows.work import Work

__all__ = [
    "CurrentRecipe",
    "Phase",
    "Policy",
    "Preempt",
    "ReconciledMarker",
    "Registered",
    "Swap",
    "SwapEvent",
    "SwapMarker",
    "SwapStatus",
    "UnknownRecipe",
    "Work",
    "Workflow",
    "Workflows",
]
