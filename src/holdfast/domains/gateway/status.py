"""How a gateway and its agent are doing: one picture, made of what is recorded and what was last seen."""

from typing import Literal

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Sighting
from holdfast.domains.gateway.record import Attachment
from holdfast.kernel.codec import Value
from holdfast.primitives.queue.record import Head

PROTOCOL_VERSION = "v1"

Admission = Literal["open", "blocked_unavailable", "blocked_reconciliation"]


class Status(Value, frozen=True, kw_only=True):
    """The control plane and the agent behind it. That the gateway is healthy says nothing of its agent."""

    schema_version: int = 1
    protocol_version: str = PROTOCOL_VERSION
    agent: str
    gateway_health: Literal["healthy", "not_attached"] = "healthy"
    managed_agent_connectivity: Literal["connected", "unavailable"]
    managed_agent_recovery: Literal["idle", "awaiting_rebind", "reconciliation_required"]
    request_admission: Admission
    terminal_surface_eligibility: Literal["ready", "not_ready", "unknown"]
    active_execution: Literal["idle", "running"]
    queue_depth: int
    backend: str
    gateway_host: str | None = None
    gateway_port: int | None = None
    managed_agent_instance_epoch: int
    managed_agent_instance_id: str | None = None
    detail: str = ""


def admission_of(attachment: Attachment, seen: Sighting) -> Admission:
    """May requests be accepted? What an operator must decide comes first: waiting for the agent would not help."""
    if attachment.reconciling:
        return "blocked_reconciliation"
    return "open" if seen.instance_id is not None else "blocked_unavailable"


def status_of(agent: str, backend: str, attachment: Attachment, seen: Sighting, head: Head) -> Status:
    """Put the picture together."""
    there = seen.instance_id is not None
    recovery: Literal["idle", "awaiting_rebind", "reconciliation_required"] = "idle" if there else "awaiting_rebind"
    return Status(
        agent=agent,
        managed_agent_connectivity="connected" if there else "unavailable",
        managed_agent_recovery="reconciliation_required" if attachment.reconciling else recovery,
        request_admission=admission_of(attachment, seen),
        terminal_surface_eligibility=seen.surface.value if there else "unknown",
        active_execution="running" if head.running else "idle",
        queue_depth=head.depth,
        backend=backend,
        managed_agent_instance_epoch=attachment.epoch,
        managed_agent_instance_id=attachment.instance_id,
        detail=seen.detail,
    )


def left_by(last: Status) -> Status:
    """What is still true of a status when nobody serves any more: nothing is admitted, and nobody looks at the agent. Epoch,
    instance, queue, and that an operator must decide, are recorded and stay."""
    decide = last.request_admission == "blocked_reconciliation"
    return replace(
        last,
        gateway_health="not_attached",
        managed_agent_connectivity="unavailable",
        managed_agent_recovery="reconciliation_required" if decide else "awaiting_rebind",
        request_admission="blocked_reconciliation" if decide else "blocked_unavailable",
        terminal_surface_eligibility="unknown",
        gateway_host=None,
        gateway_port=None,
    )
