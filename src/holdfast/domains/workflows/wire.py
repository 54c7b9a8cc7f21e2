"""The form of workflows, marker and recipe in `workflows.json`, and their spaces.

    {"current_recipe": {...} or null, "swap_in_progress": {...} or null, "unknown_recipe": {...} or
    null, "workflows": [...]}

A process is written as its pid and its start in nanoseconds since boot, with boot, machine and pid
namespace. A file of another program may lack those three: its processes are then judged by pid and
start alone. An owner or holder with a process tree also has the id of that tree. Instants are RFC
3339; seconds since 1970 are read too. Every change latches the four spaces together.
"""

from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.domains.workflows.records import (
    CurrentRecipe,
    SwapMarker,
    UnknownRecipe,
    Workflow,
)
from holdfast.kernel import clock
from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, OneFile, Wire
from holdfast.kernel.limits import WORKFLOW_TTL_MAX_S, WORKFLOW_TTL_S
from holdfast.kernel.space import Space

R = TypeVar("R", Workflow, SwapMarker, CurrentRecipe, UnknownRecipe)

FOLDER = "workflows"
FILE = "workflows.json"
STATE_LOCK, SWAP_LOCK, SWAP_LOG = ".workflows.lock", ".swap.lock", "swap_log.jsonl"
"""Files beside it: the lock around each change, the lock of a swap, and the swap log."""

ONLY = "only"
"""The key of the marker, and of the current or unknown recipe: there is at most one of each."""

_NS_A_TICK = 10_000_000
"""A tick of /proc is a hundredth of a second on every machine that Linux runs on today."""


_FILE_NAMES: dict[tuple[type, str], str] = {(SwapMarker, "recipe"): "target_recipe"}
"""Fields that have another name in the file."""


def _document_of(record: R, process: str | None = None) -> Document:
    """A record in the file: the process under `process` as flat fields, instants as text."""
    document: Document = dict(record.others)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == process:
            document |= _process_fields(name, value)
        elif name not in ("others", "schema_version"):
            document[_FILE_NAMES.get((type(record), name), name)] = (
                clock.render(value) if isinstance(value, datetime) else value
            )
    return document


def _record_of(model: type[R], document: Document, process: str | None = None) -> R:
    """The record in a document of the file. An absent or empty field has its default; fields that
    Holdfast does not know are kept in `others`. Raises KeyError, TypeError or ValueError.
    """
    rest, found = dict(document), dict[str, Any]()
    for field in msgspec.structs.fields(model):
        if field.name == process:
            found[field.name] = _holder(field.name, rest)
        elif field.name not in ("others", "schema_version"):
            value = rest.pop(_FILE_NAMES.get((model, field.name), field.name), None)
            if field.name.endswith("_at") and value is not None:
                value = _instant(value)
            if value is not None or field.required:
                # Not strict: another program may write a number where we write a truth value.
                found[field.name] = msgspec.convert(value, field.type, strict=False)
    return model(**found, others=rest)


def _workflow_of(key: str, document: Document) -> Workflow:
    given = {"last_renewed_at": None, "ttl_seconds": None, "token": 0, **document, "name": key}
    if document.get("name", key) != key:
        raise ValueError(f"the entry of {key} is named {document['name']}")
    given["last_renewed_at"] = given["last_renewed_at"] or document["started_at"]
    if given["ttl_seconds"] is None:
        given["ttl_seconds"] = WORKFLOW_TTL_S
    workflow = _record_of(Workflow, given, "owner")
    if not 0 < workflow.ttl_seconds <= WORKFLOW_TTL_MAX_S:
        raise ValueError(f"a time to live of {workflow.ttl_seconds} s is not possible")
    # Raises for an end beyond the calendar, which would otherwise fail each later read.
    leases.grant(workflow.last_renewed_at, WORKFLOW_TTL_MAX_S)
    return workflow


def _single(part: str, model: type[R], process: str | None = None) -> OneFile[R]:
    return OneFile(
        FOLDER,
        FILE,
        Wire(
            lambda record: _document_of(record, process),
            lambda _, document: _record_of(model, {"token": 0, **document}, process),
        ),
        part=part,
        spread=lambda value: [(ONLY, value)] if value else [],
        gather=lambda documents: documents.get(ONLY),
        lock=STATE_LOCK,
    )


WORKFLOWS_LAYOUT = OneFile(
    FOLDER,
    FILE,
    Wire(lambda workflow: _document_of(workflow, "owner"), _workflow_of),
    part="workflows",
    spread=lambda value: [(_text(document["name"]), document) for document in value or ()],
    gather=lambda documents: [document for _, document in sorted(documents.items())],
    lock=STATE_LOCK,
)


def _process_fields(what: str, holder: Holder) -> Document:
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
        raise TypeError(f"{value!r:.40} is not text")
    return value


WORKFLOWS = Space("workflows", Workflow, layout=WORKFLOWS_LAYOUT)
SWAP_MARKER = Space(
    "swap_marker", SwapMarker, layout=_single("swap_in_progress", SwapMarker, "holder")
)
CURRENT_RECIPE = Space(
    "current_recipe", CurrentRecipe, layout=_single("current_recipe", CurrentRecipe)
)
UNKNOWN_RECIPE = Space(
    "unknown_recipe", UnknownRecipe, layout=_single("unknown_recipe", UnknownRecipe)
)

SCOPE: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE]

CHANGED = "workflows"
"""Notified when a workflow came or went, and when a swap began, began to wait for work, ended or
released its lock.
"""


def topic_of(name: str) -> str:
    """Notified when a workflow is asked to yield, when that is withdrawn, and when it was swept."""
    return f"workflows/{name}"
