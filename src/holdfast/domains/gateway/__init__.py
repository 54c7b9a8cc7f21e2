"""A gateway: one agent's durable queue. An accepted request is delivered once, in order, to the
instance it was meant for.

state.py       what an agent does, and what it asks
records.py     the agent's epoch, instance and server; the status of a gateway
adapter.py     the port to the agent, and the settings of each kind of adapter
request.py     which requests are valid, and why one is refused
proof.py       how a gateway proves its identity before a client sends the token
gateway.py     attachment, epochs, admission, reconciliation, recovery
delivery.py    the worker: each request from its claim to its end, and interrupts
"""

from holdfast.domains.gateway.adapter import (
    Adapter,
    AdapterSpec,
    Answer,
    Delivery,
    Observation,
    spec_of_manifest,
)
from holdfast.domains.gateway.delivery import DeliveryWorker
from holdfast.domains.gateway.gateway import Gateway
from holdfast.domains.gateway.records import GatewayStatus
from holdfast.domains.gateway.state import AgentState, Question

__all__ = [
    "Adapter",
    "AdapterSpec",
    "AgentState",
    "Answer",
    "Delivery",
    "DeliveryWorker",
    "Gateway",
    "GatewayStatus",
    "Observation",
    "Question",
    "spec_of_manifest",
]
