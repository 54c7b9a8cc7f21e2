"""The form of workflows, marker and recipe in `workflows.json`, and their spaces.

    {"current_recipe": {...} or null, "swap_in_progress": {...} or null, "unknown_recipe": {...} or
    null, "workflows": [...]}

A process is written as its pid and its start in nanoseconds since boot, with boot, machine and pid
namespace. A file of another program may lack those three: its processes are then judged by pid and
start alone. An owner or holder with a process tree also has the id of that tree. Instants are RFC
3339; seconds since 1970 are read too. Every change latches the four spaces together.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import UNSET

from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Phase,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.kernel import clock
from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Record
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, OneFile, Wire
from holdfast.kernel.limits import WORKFLOW_TTL_MAX_S, WORKFLOW_TTL_S
from holdfast.kernel.space import Space

R = TypeVar("R", bound=Record)

FOLDER = "workflows"
FILE = "workflows.json"
STATE_LOCK, SWAP_LOCK, SWAP_LOG = ".workflows.lock", ".swap.lock", "swap_log.jsonl"
"""Files beside it: the lock around each change, the lock of a swap, and the swap log."""

ONLY = "only"
"""The key of the marker, and of the current or unknown recipe: there is at most one of each."""

_NS_A_TICK = 10_000_000
"""A tick of /proc is a hundredth of a second on every machine that Linux runs on today."""


# Each `_from_file` function raises KeyError, TypeError or ValueError for a document of another
# form.


def workflow_to_file(workflow: Workflow) -> Document:
    return {
        **workflow.others,
        "name": workflow.name,
        "recipe": workflow.recipe,
        **_process("owner", workflow.owner),
        "started_at": clock.render(workflow.started_at),
        "last_renewed_at": clock.render(workflow.last_renewed_at),
        "ttl_seconds": workflow.ttl_seconds,
        "preemptible": workflow.preemptible,
        "preempt_signal_path": workflow.preempt_signal_path,
        "token": workflow.token,
        "preempt": workflow.preempt.value,
        "preempt_swap": workflow.preempt_swap,
    }


def workflow_from_file(key: str, document: Document) -> Workflow:
    rest = dict(document)
    if rest.pop("name", key) != key:
        raise ValueError(f"the entry of {key} is named {document['name']}")
    started_at = _instant(rest.pop("started_at"))
    renewed_at = _instant(rest.pop("last_renewed_at", None) or clock.render(started_at))
    ttl_s = float(rest.pop("ttl_seconds", WORKFLOW_TTL_S))
    if not 0 < ttl_s <= WORKFLOW_TTL_MAX_S:
        raise ValueError(f"a time to live of {ttl_s} s is not possible")
    # Raises for an end beyond the calendar, which would otherwise fail each later look.
    leases.grant(renewed_at, WORKFLOW_TTL_MAX_S)
    return Workflow(
        name=key,
        recipe=_text(rest.pop("recipe")),
        owner=_holder("owner", rest),
        started_at=started_at,
        last_renewed_at=renewed_at,
        ttl_seconds=ttl_s,
        preemptible=bool(rest.pop("preemptible", False)),
        preempt_signal_path=rest.pop("preempt_signal_path", None),
        token=int(rest.pop("token", 0)),
        preempt=Preempt(rest.pop("preempt", "none")),
        preempt_swap=rest.pop("preempt_swap", None),
        others=rest,
    )


def marker_to_file(marker: SwapMarker) -> Document:
    return {
        **marker.others,
        "target_recipe": marker.recipe,
        **_process("holder", marker.holder),
        "begun_at": clock.render(marker.begun_at),
        "token": marker.token,
        "phase": None if marker.phase is None else marker.phase.value,
        "reload": marker.reload,
    }


def marker_from_file(_: str, document: Document) -> SwapMarker:
    rest = dict(document)
    phase = rest.pop("phase", None)
    return SwapMarker(
        recipe=_text(rest.pop("target_recipe")),
        holder=_holder("holder", rest),
        begun_at=_instant(rest.pop("begun_at")),
        token=int(rest.pop("token", 0)),
        phase=None if phase is None else Phase(phase),
        reload=bool(rest.pop("reload", False)),
        others=rest,
    )


def current_to_file(current: CurrentRecipe) -> Document:
    return {
        **current.others,
        "recipe": current.recipe,
        "loaded_at": clock.render(current.loaded_at),
        "token": current.token,
        "by": current.by,
    }


def current_from_file(_: str, document: Document) -> CurrentRecipe:
    rest = dict(document)
    return CurrentRecipe(
        recipe=_text(rest.pop("recipe")),
        loaded_at=_instant(rest.pop("loaded_at")),
        token=int(rest.pop("token", 0)),
        by=_text(rest.pop("by", "")),
        others=rest,
    )


def unknown_to_file(unknown: UnknownRecipe) -> Document:
    return {
        **unknown.others,
        "recipe": unknown.recipe,
        "before": unknown.before,
        "began_at": clock.render(unknown.began_at),
        "ended_at": None if unknown.ended_at is None else clock.render(unknown.ended_at),
        "exit_status": unknown.exit_status,
        "why": unknown.why,
        "token": unknown.token,
        "by": unknown.by,
    }


def unknown_from_file(_: str, document: Document) -> UnknownRecipe:
    rest = dict(document)
    before, ended_at = rest.pop("before", None), rest.pop("ended_at", None)
    status = rest.pop("exit_status", None)
    return UnknownRecipe(
        recipe=_text(rest.pop("recipe")),
        before=None if before is None else _text(before),
        began_at=_instant(rest.pop("began_at")),
        ended_at=None if ended_at is None else _instant(ended_at),
        exit_status=None if status is None else int(status),
        why=_text(rest.pop("why", "")),
        token=int(rest.pop("token", 0)),
        by=_text(rest.pop("by", "")),
        others=rest,
    )


def _single(
    part: str, write: Callable[[R], Document], read: Callable[[str, Document], R]
) -> OneFile[R]:
    return OneFile(
        FOLDER,
        FILE,
        Wire(write, read),
        part=part,
        spread=lambda value: [(ONLY, value)] if value else [],
        gather=lambda documents: documents.get(ONLY),
        lock=STATE_LOCK,
    )


WORKFLOWS_LAYOUT = OneFile(
    FOLDER,
    FILE,
    Wire(workflow_to_file, workflow_from_file),
    part="workflows",
    spread=lambda value: [(_text(document["name"]), document) for document in value or ()],
    gather=lambda documents: [document for _, document in sorted(documents.items())],
    lock=STATE_LOCK,
)
MARKER_LAYOUT = _single("swap_in_progress", marker_to_file, marker_from_file)
CURRENT_LAYOUT = _single("current_recipe", current_to_file, current_from_file)
UNKNOWN_LAYOUT = _single("unknown_recipe", unknown_to_file, unknown_from_file)


def _process(what: str, holder: Holder) -> Document:
    process = {
        f"{what}_pid": holder.pid,
        f"{what}_start_ns": holder.start_ticks * _NS_A_TICK,
        f"{what}_boot_id": holder.boot_id,
        f"{what}_host_id": holder.host_id,
        f"{what}_pid_ns": holder.pid_ns,
        f"{what}_label": holder.label,
    }
    return {**process, f"{what}_tree": holder.tree} if holder.tree else process


def _holder(what: str, rest: Document) -> Holder:
    tree = rest.pop(f"{what}_tree", None)
    return Holder(
        pid=int(rest.pop(f"{what}_pid")),
        start_ticks=int(rest.pop(f"{what}_start_ns")) // _NS_A_TICK,
        boot_id=_text(rest.pop(f"{what}_boot_id", "")),
        host_id=_text(rest.pop(f"{what}_host_id", "")),
        pid_ns=int(rest.pop(f"{what}_pid_ns", 0)),
        label=_text(rest.pop(f"{what}_label", "")),
        tree=UNSET if tree is None else _text(tree),
    )


def _instant(value: Any) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    return clock.parse(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


WORKFLOWS = Space("workflows", Workflow, layout=WORKFLOWS_LAYOUT)
SWAP_MARKER = Space("swap_marker", SwapMarker, layout=MARKER_LAYOUT)
CURRENT_RECIPE = Space("current_recipe", CurrentRecipe, layout=CURRENT_LAYOUT)
UNKNOWN_RECIPE = Space("unknown_recipe", UnknownRecipe, layout=UNKNOWN_LAYOUT)

SCOPE: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE]

CHANGED = "workflows"
"""Notified when a workflow came or went, and when a swap began, began to wait for work, ended or
released its lock.
"""


def topic_of(name: str) -> str:
    """Notified when a workflow is asked to yield, when that is withdrawn, and when it was swept."""
    return f"workflows/{name}"
