"""What a gateway's store remembers of its agent, and the status that is shown to users."""

from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Observation
from holdfast.domains.gateway.state import AgentState, Question
from holdfast.kernel.codec import Instant, Plain, Record, Value
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx
from holdfast.primitives.queue.queue import FIRST_EPOCH
from holdfast.primitives.queue.records import Head, Receipt


class Server(Plain, frozen=True, kw_only=True):
    """The process that serves an agent's queue. It may write only while its `token` is the recorded
    one.
    """

    process: Holder
    lease: Lease
    token: int


class Attachment(Record, frozen=True, kw_only=True):
    """An agent as its gateway knows it. It survives every restart, also a clean one.

    `epoch` grows by one with each other instance that is seen, and never goes back. With
    `reconciling`, an operator must decide what becomes of the requests of earlier epochs. `owner`
    is the agent that the queue belongs to, once that is known: one agent's id may be another
    agent's name.
    """

    epoch: int = FIRST_EPOCH
    instance_id: str | None = None
    reconciling: bool = False
    server: Server | None = None
    owner: str | None = None


ATTACHMENTS = Space("gateways", Attachment)


def attachment_in(tx: ReadTx, agent: str) -> Attachment:
    row = tx.get(ATTACHMENTS, agent)
    return Attachment() if row is None else row.record


INTERRUPTED_BY_RESTART = "interrupted_by_restart"
LOST_TO_A_RESTART = {
    Receipt.ACCEPTED: "the gateway ended while this ran; delivery unknown: look at the agent "
    "before asking again",
    Receipt.DELIVERED: "the gateway ended while this ran; it was delivered, and its outcome is "
    "unknown",
    Receipt.ANSWERED: "the gateway ended while this ran; it was answered, and the answer was lost",
}
"""The detail of a request that ran when its gateway ended, by how far it got."""

ReconcileAction = Literal["replay", "discard"]


class Reconciled(Value, frozen=True, kw_only=True):
    """The result of an operator's decision. While some requests of earlier epochs are `left`,
    admission stays blocked.
    """

    action: ReconcileAction
    epoch: int
    requests: list[str]
    left: list[str]


PROTOCOL_VERSION = "v1"

Recovery = Literal["idle", "awaiting_rebind", "reconciliation_required"]
Admission = Literal["open", "blocked_unavailable", "blocked_reconciliation"]


class GatewayStatus(Value, frozen=True, kw_only=True):
    """A gateway and the agent behind it. A healthy gateway says nothing about its agent."""

    schema_version: int = 1
    protocol_version: str = PROTOCOL_VERSION
    agent: str
    gateway_health: Literal["healthy", "not_attached"] = "healthy"
    managed_agent_connectivity: Literal["connected", "unavailable"]
    managed_agent_recovery: Recovery
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
    agent_state: AgentState = AgentState.UNKNOWN
    """What the agent does; `agent_state_since` is when that was first seen, and `activity` what it
    works on.
    """
    agent_state_since: Instant | None = None
    activity: str = ""
    session_id: str | None = None
    """The agent's own name of its conversation."""
    questions: tuple[Question, ...] = ()


_ELIGIBILITY: dict[AgentState, Literal["ready", "unknown"]] = {
    AgentState.READY: "ready",
    AgentState.UNKNOWN: "unknown",
}


def admission_of(attachment: Attachment, seen: Observation) -> Admission:
    """May requests be accepted? Reconciliation is named first: waiting for the agent would not end
    it.
    """
    if attachment.reconciling:
        return "blocked_reconciliation"
    return "open" if seen.instance_id is not None else "blocked_unavailable"


def status_of(
    agent: str,
    backend: str,
    attachment: Attachment,
    seen: Observation,
    head: Head,
    served_at: tuple[str, int] | None,
    since: datetime | None,
) -> GatewayStatus:
    host, port = served_at or (None, None)
    there = seen.instance_id is not None
    recovery: Recovery = "idle" if there else "awaiting_rebind"
    return GatewayStatus(
        agent=agent,
        managed_agent_connectivity="connected" if there else "unavailable",
        managed_agent_recovery="reconciliation_required" if attachment.reconciling else recovery,
        request_admission=admission_of(attachment, seen),
        terminal_surface_eligibility=_ELIGIBILITY.get(seen.state, "not_ready")
        if there
        else "unknown",
        active_execution="running" if head.running else "idle",
        queue_depth=head.depth,
        backend=backend,
        gateway_host=host,
        gateway_port=port,
        managed_agent_instance_epoch=attachment.epoch,
        managed_agent_instance_id=attachment.instance_id,
        detail=seen.detail,
        agent_state=state_of(seen),
        agent_state_since=since,
        activity=seen.activity,
        session_id=seen.session_id,
        questions=seen.questions,
    )


def state_of(seen: Observation) -> AgentState:
    """What the agent does. A terminal without its process has an agent that has exited."""
    if seen.instance_id is None:
        return AgentState.EXITED if seen.reason else AgentState.UNKNOWN
    return seen.state


def left_by(last: GatewayStatus) -> GatewayStatus:
    """What remains true of the last status when the gateway has stopped: nothing is admitted, and
    nobody looks at the agent. Epoch, instance, queue and a due reconciliation stay as recorded.
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
        agent_state=AgentState.UNKNOWN,
        agent_state_since=None,
        activity="",
        questions=(),
    )
