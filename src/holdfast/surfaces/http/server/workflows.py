"""Workflows and swaps over HTTP.

A swap itself is not: it is held by a process that can be seen to die, and a client behind a
connection cannot. Nor does a client choose where a signal file appears: that is a path on the
server's machine.
"""

from typing import Annotated

from msgspec import Meta

from holdfast.domains.workflows import SwapEvent, Workflow
from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import LIST_MAX, WORKFLOW_TTL_S
from holdfast.kernel.store import Damage
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import workflows as answers
from holdfast.surfaces.http.server.desk import Turn
from holdfast.surfaces.http.server.fields import Id, Label, Pid, Token, Ttl, Wait
from holdfast.surfaces.http.server.operation import operation


class RegisterWorkflow(Plain, frozen=True, kw_only=True):
    """Work of a process on the server's machine that needs a recipe."""

    name: Id
    recipe: Label
    pid: Pid
    ttl_s: Ttl = WORKFLOW_TTL_S
    preemptible: bool = False
    loaded_only: bool = False
    wait_s: Wait = 0.0


class RenewWorkflow(Plain, frozen=True, kw_only=True):
    """The workflow that goes on."""

    name: Id
    token: Token
    ttl_s: Ttl | None = None


class OwnWorkflow(Plain, frozen=True, kw_only=True):
    """A workflow, and the token that shows whose it is."""

    name: Id
    token: Token


class OfWorkflow(Plain, frozen=True, kw_only=True):
    """A workflow."""

    name: Id


class SwapLog(Plain, frozen=True, kw_only=True):
    """How many of the last lines."""

    tail: Annotated[int, Meta(ge=1, le=LIST_MAX)] = LIST_MAX


class Asked(Plain, frozen=True, kw_only=True):
    """Whether a workflow was asked to yield."""

    requested: bool


@operation("GET", "/v1/workflows")
def list_(hf: Holdfast, damaged: Damage) -> list[Workflow]:
    """The workflows that live. Sweeps those that do not."""
    return hf.workflows.list_workflows(damaged=damaged)


@operation("GET", "/v1/workflows/{name}", problems=(404,))
def get(hf: Holdfast, asked: OfWorkflow) -> Workflow:
    """A workflow that lives."""
    return hf.workflows.get(asked.name)


@operation("POST", "/v1/workflows", problems=(404, 409))
def register(hf: Holdfast, asked: RegisterWorkflow, turn: Turn) -> answers.RegisteredView:
    """Register the work of a process, and wait up to `wait_s` for the end of a swap that is in the
    way.

    It is over with that process, or when it was not renewed in time. Work whose answer says
    `swap_needed` must not begin before a swap. With `loaded_only` it is refused instead unless its
    recipe is loaded, or nothing was ever loaded; then `wait_s` also waits for it to be loaded.
    """
    registered = hf.workflows.register(
        asked.name,
        asked.recipe,
        owner=hf.processes.of(asked.pid),
        ttl_s=asked.ttl_s,
        preemptible=asked.preemptible,
        loaded_only=asked.loaded_only,
        wait_s=asked.wait_s,
        stop_fd=turn.stop_fd,
    )
    return answers.registered_view(registered)


@operation("POST", "/v1/workflows/{name}/renew", problems=(409, 412))
def renew(hf: Holdfast, asked: RenewWorkflow) -> Workflow:
    """Extend a workflow from now by its time to live. Whoever is refused was swept: stop work, and
    register again.
    """
    return hf.workflows.renew(asked.name, asked.token, ttl_s=asked.ttl_s)


@operation("POST", "/v1/workflows/{name}/release", problems=(404, 412))
def release(hf: Holdfast, asked: OwnWorkflow) -> Workflow:
    """End a workflow, and remove its signal file."""
    return hf.workflows.release(asked.name, asked.token)


@operation("POST", "/v1/workflows/{name}/preempt", problems=(404,))
def preempt(hf: Holdfast, asked: OfWorkflow) -> Workflow:
    """Ask a preemptible workflow to yield, as a swap does. Asking twice is asking once."""
    return hf.workflows.request_preempt(asked.name)


@operation("GET", "/v1/workflows/{name}/preempt", problems=(409, 412))
def preempt_requested(hf: Holdfast, asked: OwnWorkflow) -> Asked:
    """Was the caller's workflow asked to yield?"""
    return Asked(requested=hf.workflows.preempt_requested(asked.name, asked.token))


@operation("POST", "/v1/workflows/{name}/yield", problems=(404, 409, 412))
def yield_(hf: Holdfast, asked: OwnWorkflow) -> Workflow:
    """Say that the workflow yields: its signal file goes. It is to be released next."""
    return hf.workflows.clear_preempt_signal(asked.name, asked.token)


@operation("POST", "/v1/upkeep/workflows/sweep")
def sweep(hf: Holdfast) -> list[Workflow]:
    """Take out workflows whose process is dead or whose time has passed, with their signal
    files.
    """
    return hf.workflows.sweep()


@operation("GET", "/v1/swap")
def swap_status(hf: Holdfast) -> answers.SwapView:
    """What is loaded, the swap that is under way, and the workflows. Clears what a dead swap left
    behind.
    """
    return answers.swap_view(hf.workflows.swap_status(damaged=[]))


@operation("POST", "/v1/swap/reconcile")
def swap_reconcile(hf: Holdfast) -> answers.SwapReconciled:
    """Clear the marker of a swap that nobody stands behind."""
    return answers.reconciled_view(hf.workflows.reconcile_swap_marker())


@operation("GET", "/v1/swap/log")
def swap_log(hf: Holdfast, asked: SwapLog) -> list[SwapEvent]:
    """What happened to swaps, oldest first."""
    return hf.workflows.swap_log(asked.tail)


OPERATIONS = [
    *(list_, get, register, renew, release, preempt, preempt_requested, yield_, sweep),
    *(swap_status, swap_reconcile, swap_log),
]
