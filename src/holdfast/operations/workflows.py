"""Workflows and swaps.

A swap itself is no operation: it belongs to a process that can be seen to die, and a client behind
a connection cannot. Nor does a client choose where a signal file appears: that is a path on the
server's machine.
"""

from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from holdfast.domains.workflows import (
    CurrentRecipe,
    Registered,
    SwapEvent,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.domains.workflows.messages import describe_unknown
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Blocked, Fenced, LeaseLost, NotFound
from holdfast.kernel.limits import LIST_MAX, WORKFLOW_TTL_S
from holdfast.kernel.store import Damage
from holdfast.operations.fields import Id, Label, Pid, Token, Ttl, WaitSeconds
from holdfast.operations.operation import Argument, Flag, Positional, Request, Wait, operation
from holdfast.runtime.connection import Holdfast

_Name = Annotated[Id, Positional()]

recipe_flag = Flag("--recipe", metavar="RECIPE", help="What it needs loaded, such as llama-70b.")
preemptible_flag = Flag(
    "--preemptible",
    help="It may be asked to yield, by a signal file that it looks for where stopping is safe.",
)
wait_flag = Flag(
    "-w",
    "--wait",
    help="Wait this long until it may begin: a swap has ended, its recipe is loaded.  "
    "[default: refuse at once, exit status 4]",
)


class RegisterWorkflow(Request, frozen=True, kw_only=True):
    """Work of a process on the server's machine that needs a recipe."""

    name: _Name
    recipe: Annotated[Label, recipe_flag, Argument()]
    pid: Annotated[
        Pid,
        Flag("--pid", help="The process that does the work, such as a script's own: $$."),
    ]
    ttl_s: Annotated[
        Ttl,
        Flag(
            "--ttl",
            show_default=True,
            help="It ends this long after its last renewal, even if its process lives.",
        ),
    ] = WORKFLOW_TTL_S
    preemptible: Annotated[
        bool,
        preemptible_flag,
        Argument("May a swap ask you to yield? Then read pending.", default=True),
    ] = False
    loaded_only: Annotated[
        bool,
        Flag(
            "--loaded-only",
            help="Refuse unless its recipe is loaded, or nothing was ever loaded: "
            "for work that begins at once.",
        ),
        Argument(
            "Begin on whatever is loaded, not only on this recipe.",
            name="any_recipe",
            choose=(True, False),
        ),
    ] = False
    wait_s: Annotated[WaitSeconds, wait_flag] = 0.0


class WorkflowKey(Request, frozen=True, kw_only=True):
    """A workflow."""

    name: _Name


class OwnWorkflow(WorkflowKey, frozen=True, kw_only=True):
    """A workflow, and the token that shows whose it is."""

    token: Annotated[
        Token, Flag("--token", metavar="TOKEN", within=None, help="What `register` printed.")
    ]


class RenewWorkflow(OwnWorkflow, frozen=True, kw_only=True):
    """The workflow that goes on."""

    ttl_s: Annotated[Ttl | None, Flag("--ttl", help="Another time to live from now on.")] = None


class SwapLog(Request, frozen=True, kw_only=True):
    """How many of the last lines."""

    tail: Annotated[
        Annotated[int, Meta(ge=1, le=LIST_MAX)],
        Flag("-n", "--tail", default=0, within=(0, None), help="How many of the last; 0 for all."),
    ] = LIST_MAX


class PreemptRequested(Plain, frozen=True, kw_only=True):
    """Whether a workflow was asked to yield."""

    requested: bool


class RegisteredView(Workflow, frozen=True, kw_only=True):
    """A workflow, and whether its recipe is yet to be loaded."""

    swap_needed: bool


class SwapView(Plain, frozen=True, kw_only=True):
    """What is loaded, the swap that is under way, and the workflows that live.

    `unknown` describes a load that failed or has not ended: then nobody knows what is loaded, and
    `current` is null.
    """

    current: CurrentRecipe | None
    unknown: UnknownRecipe | None
    swap: SwapMarker | None
    workflows: list[Workflow]


class SwapReconciled(Plain, frozen=True, kw_only=True):
    """The swap that lives, and the dead one that was cleared."""

    swap: SwapMarker | None
    cleared: SwapMarker | None


@operation("GET /v1/workflows", cli="workflows list")
def list_(hf: Holdfast, damaged: Damage) -> list[Workflow]:
    """The workflows that live. Sweeps those that do not."""
    return hf.workflows.list_workflows(damaged=damaged)


@operation("GET /v1/workflows/{name}", errors=(NotFound,))
def get(hf: Holdfast, request: WorkflowKey) -> Workflow:
    """A workflow that lives."""
    return hf.workflows.get(request.name)


@operation(
    "POST /v1/workflows", cli="workflows register", mcp="use_recipe", errors=(NotFound, Blocked)
)
def register(hf: Holdfast, request: RegisterWorkflow, wait: Wait) -> RegisteredView:
    """Register the work of a process, and wait up to `wait_s` for the end of a swap in the way.

    It is over with that process, or when it was not renewed in time. Work whose result says
    `swap_needed` must not begin before a swap. With `loaded_only` it is refused instead unless its
    recipe is loaded, or nothing was ever loaded; then `wait_s` also waits for it to be loaded.
    """
    return view_of(register_with_signal(hf, request, wait, None))


def register_with_signal(
    hf: Holdfast, request: RegisterWorkflow, wait: Wait, signal_path: str | None
) -> Registered:
    """Register with a signal file that the caller chose."""
    fields = asdict(request)
    owner = hf.processes.of(fields.pop("pid"))
    return hf.workflows.register(
        **fields, owner=owner, preempt_signal_path=signal_path, **wait.fields
    )


def view_of(registered: Registered) -> RegisteredView:
    """A registered workflow as surfaces show it."""
    return RegisteredView(**asdict(registered.workflow), swap_needed=registered.swap_needed)


@operation("POST /v1/workflows/{name}/renew", cli="workflows renew", errors=(LeaseLost, Fenced))
def renew(hf: Holdfast, request: RenewWorkflow) -> Workflow:
    """Extend a workflow from now by its time to live.

    A refused workflow was swept: stop work, and register again.
    """
    return hf.workflows.renew(request.name, request.token, ttl_s=request.ttl_s)


@operation("POST /v1/workflows/{name}/release", cli="workflows release", errors=(NotFound, Fenced))
def release(hf: Holdfast, request: OwnWorkflow) -> Workflow:
    """End a workflow, and remove its signal file."""
    return hf.workflows.release(request.name, request.token)


@operation("POST /v1/workflows/{name}/preempt", errors=(NotFound,))
def preempt(hf: Holdfast, request: WorkflowKey) -> Workflow:
    """Ask a preemptible workflow to yield, as a swap does. A second request changes nothing."""
    return hf.workflows.request_preempt(request.name)


@operation("GET /v1/workflows/{name}/preempt", errors=(LeaseLost, Fenced))
def preempt_requested(hf: Holdfast, request: OwnWorkflow) -> PreemptRequested:
    """Was the caller's workflow asked to yield?"""
    return PreemptRequested(requested=hf.workflows.preempt_requested(request.name, request.token))


@operation("POST /v1/workflows/{name}/yield", errors=(NotFound, LeaseLost, Fenced))
def yield_(hf: Holdfast, request: OwnWorkflow) -> Workflow:
    """Say that the workflow yields: its signal file goes. Release it next."""
    return hf.workflows.clear_preempt_signal(request.name, request.token)


@operation("POST /v1/upkeep/workflows/sweep", cli="workflows sweep")
def sweep(hf: Holdfast) -> list[Workflow]:
    """Remove workflows whose process is dead or whose time has passed, with their signal files."""
    return hf.workflows.sweep()


@operation("GET /v1/swap", cli="swap status")
def swap_status(hf: Holdfast, damaged: Damage) -> SwapView:
    """What is loaded, the swap under way, and the workflows. Clears a dead swap's marker."""
    found = hf.workflows.swap_status(damaged=damaged)
    return SwapView(
        current=found.current,
        unknown=found.unknown,
        swap=found.marker,
        workflows=found.workflows,
    )


def recipes(hf: Holdfast) -> dict[str, Any]:
    """`swap_status` in short, for a reader that only needs names."""
    found = hf.workflows.swap_status(damaged=[])
    return {
        "current": None if found.current is None else found.current.recipe,
        "unknown": None if found.unknown is None else describe_unknown(found.unknown),
        "swapping_to": None if found.marker is None else found.marker.recipe,
        "workflows": [
            {
                "name": one.name,
                "recipe": one.recipe,
                "pid": one.owner.pid,
                "preemptible": one.preemptible,
                "preempt": one.preempt.value,
            }
            for one in found.workflows
        ],
    }


@operation("POST /v1/swap/reconcile", cli="swap reconcile")
def swap_reconcile(hf: Holdfast) -> SwapReconciled:
    """Clear the marker of a dead swap. Every other operation does the same when it meets one."""
    found = hf.workflows.reconcile_swap_marker()
    return SwapReconciled(swap=found.live, cleared=found.cleared)


@operation("GET /v1/swap/log", cli="swap log")
def swap_log(hf: Holdfast, request: SwapLog) -> list[SwapEvent]:
    """What happened to swaps, oldest first."""
    return hf.workflows.swap_log(request.tail)


OPERATIONS = [
    *(list_, get, register, renew, release, preempt, preempt_requested, yield_, sweep),
    *(swap_status, swap_reconcile, swap_log),
]
