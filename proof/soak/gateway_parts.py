"""Clients of a gateway that is killed and started again."""

import secrets

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.kernel.errors import Fenced, Full, Unavailable
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

AGENT = "gpu"


def client(child: Child, hf: Holdfast) -> bool:
    """Sends a prompt until it is accepted, with one key."""
    if child.draining:
        return False
    gateway = GatewayClient(AGENT, root=child.folder / "gateways" / "default" / AGENT)
    prompt, key = f"{child.name}.{child.board.of(child.slot, 'operations')}", secrets.token_hex(8)
    for _ in range(100):
        try:
            answer = gateway.prompt(prompt, idempotency_key=key)
        except (Unavailable, Full, Fenced):
            child.pause(0.2)
            continue
        child.tell("accepted", request=answer["request_id"], prompt=prompt)
        child.did()
        break
    child.pause(0.5)
    return True
