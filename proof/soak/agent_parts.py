"""Agents that publish themselves, refresh, are resolved, and leave."""

from holdfast.kernel.errors import Ambiguous, Held, LeaseLost, NotFound
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

NAMES = [f"agent{number}" for number in range(4)]
_LEASE_S = 2.0


def agent(child: Child, hf: Holdfast) -> bool:
    """One generation of a name at a time: while it lives and refreshes, it is the one that is
    found.
    """
    if child.draining:
        return False
    name = child.draw.choice(NAMES)
    me = hf.processes.current()
    try:
        record = hf.agents.publish(
            name, holder=me, lease_s=_LEASE_S, backend="command", tool="t", manifest_path="/m.json"
        )
    except Held:
        child.count("refused")
        child.pause(0.2)
        return True
    child.tell(
        "published", agent=record.agent_id, token=record.token, generation=record.generation_id
    )
    try:
        for _ in range(child.draw.randrange(4)):
            child.pause(0.1)
            hf.agents.refresh(record.agent_id, record.generation_id, token=record.token)
            found = hf.agents.resolve(name).record
            if found is not None and found.token < record.token:
                child.wrong(
                    f"{name} is found with token {found.token}, after {record.token} was given"
                )
        hf.agents.remove(record.agent_id, record.generation_id, token=record.token)
    except (LeaseLost, NotFound):
        # Stopped for longer than its lease: another has taken over, or came and went.
        child.count("fenced")
    child.did()
    return True


def resolver(child: Child, hf: Holdfast) -> bool:
    """A name leads to one live record, or to none."""
    if child.draining:
        return False
    try:
        found = hf.agents.resolve_live_agent_record(child.draw.choice(NAMES))
    except Ambiguous as error:
        child.wrong(f"two live records: {error.message}")
        return True
    if found is not None and not found.token:
        child.wrong(f"a live record without a token: {found.agent_id}")
    child.did()
    child.pause(0.1)
    return True
