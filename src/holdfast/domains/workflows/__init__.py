"""Workflows: who needs which recipe on the GPU, and when it may be swapped.

record.py    a workflow, the marker of a swap, what is loaded, and what a request to yield may become
wire.py      their form in `workflows.json`
spaces.py    the four spaces, and what is notified
change.py    one change: it sweeps and reconciles first, then its verbs
remains.py   what a swap leaves when its process dies while it loads
room.py      what every operation shares
registry.py  register, renew, release, list, sweep, asking to yield
swap.py      one swap, from the lock to the new recipe
work.py      a workflow that runs: renewed in the background, told when it is to yield
watch.py     deaths and times, for whoever waits
swap_lock.py, signals.py, swap_log.py    the ports: a lock that dies with its process, signal files, the log and its mirror
refusing.py  what callers are told when the state says no
"""

from holdfast.domains.workflows.record import CurrentRecipe, Phase, Preempt, SwapMarker, UnknownRecipe, Workflow
from holdfast.domains.workflows.registering import Registered
from holdfast.domains.workflows.registry import Reconciled, SwapStatus, Workflows
from holdfast.domains.workflows.swap import Policy, Swap
from holdfast.domains.workflows.swap_log import SwapEvent
from holdfast.domains.workflows.work import Work

__all__ = [
    "CurrentRecipe",
    "Phase",
    "Policy",
    "Preempt",
    "Reconciled",
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
