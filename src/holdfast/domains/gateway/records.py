"""What is remembered of an agent, through every restart: its epoch, its last instance, and who
serves it.

How a gateway and its agent are doing: one picture, made of what is recorded and what was last seen.
"""

from typing import Literal

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Sighting
from holdfast.kernel.codec import Plain, Record, Value
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.space import Space
from holdfast.primitives.queue.queue import FIRST_EPOCH
from holdfast.primitives.queue.records import Head


class Server(Plain, frozen=True, kw_only=True):
    """The process that serves an agent's queue. What it writes counts only while `token` is the one
    recorded.
    """

    process: Holder
    lease: Lease
    token: int


class Attachment(Record, frozen=True, kw_only=True):
    """An agent as its gateway knows it.

    `epoch` grows by one with each other instance that is seen; it never goes back, and a clean stop
    forgets neither it nor the instance. `reconciling` says that an operator must decide what
    becomes of the requests of earlier epochs. `owner` says whose queue it is, once that is known:
    one agent's id may be another's name.
    """

    epoch: int = FIRST_EPOCH
    instance_id: str | None = None
    reconciling: bool = False
    server: Server | None = None
    owner: str | None = None


ATTACHMENTS = Space("gateways", Attachment)


PROTOCOL_VERSION = "v1"

Admission = Literal["open", "blocked_unavailable", "blocked_reconciliation"]


class Status(Value, frozen=True, kw_only=True):
    """The control plane and the agent behind it. That the gateway is healthy says nothing of its
    agent.
    """

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
    """May requests be accepted? What an operator must decide comes first: waiting for the agent
    would not help.
    """
    if attachment.reconciling:
        return "blocked_reconciliation"
    return "open" if seen.instance_id is not None else "blocked_unavailable"


def status_of(
    agent: str, backend: str, attachment: Attachment, seen: Sighting, head: Head
) -> Status:
    """Put the picture together."""
    there = seen.instance_id is not None
    recovery: Literal["idle", "awaiting_rebind", "reconciliation_required"] = (
        "idle" if there else "awaiting_rebind"
    )
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
    """What is still true of a status when nobody serves any more: nothing is admitted, and nobody
    looks at the agent. Epoch, instance, queue, and that an operator must decide, are recorded and
    stay.
    """
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
