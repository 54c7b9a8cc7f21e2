"""One agent's durable queue of requests: what was accepted is delivered once, in order, to the instance it was meant for.

record.py       what is remembered of an agent: its epoch, its instance, and who serves it
adapter.py      the port to the agent
spec.py         which adapter, with which settings, as a value
drafting.py     what may be asked for
status.py       how a gateway and its agent are doing
admission.py    why something is refused
proof.py        how a gateway proves that it is one
gateway.py      who serves, epochs, reconciliation, and recovery after a restart
delivery.py     the slot: from claim to end, and interrupts beside it
"""

from holdfast.domains.gateway.adapter import Adapter, Answer, Delivery, Sighting, Surface
from holdfast.domains.gateway.delivery import Worker
from holdfast.domains.gateway.gateway import Gateway
from holdfast.domains.gateway.spec import AdapterSpec, spec_of_manifest
from holdfast.domains.gateway.status import Status

__all__ = [
    "Adapter",
    "AdapterSpec",
    "Answer",
    "Delivery",
    "Gateway",
    "Sighting",
    "Status",
    "Surface",
    "Worker",
    "spec_of_manifest",
]
