"""Whose a gateway's queue is, and so what it is kept under.

One agent's given id may be another agent's name. For gateways that word is the one's that was
served first, as its queue says; the other's is kept under a key that nobody else has, and is called
by the other word that it has. The rooms of agents and gateways do not know each other, so it is
done here.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import bare, id_of
from holdfast.domains.gateway.records import ATTACHMENTS
from holdfast.kernel.errors import Ambiguous, Unavailable
from holdfast.kernel.limits import ID_CHARS_MAX
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.processes.procfs import Procfs
from holdfast.runtime.paths import gateway_agent, gateway_root
from holdfast.stores.factory import open_store

_APART_CHARS = 12


def owner_for(record: Agent) -> str:
    """What a queue says of the agent that it belongs to: its name, if its id follows from that,
    else its id.
    """
    derived = id_of(record.agent_name) == record.agent_id
    return f"name {bare(record.agent_name)}" if derived else f"id {record.agent_id}"


def called(owner: str, prefix: str) -> str:
    """The id of the agent that a queue says it belongs to, where agents are named with that
    prefix.
    """
    kind, _, name = owner.partition(" ")
    return id_of(prefix + name) if kind == "name" else name


def owner_of(key: str, settings: Settings, store: Store) -> str | None:
    """What the queue under a key says of its owner; None for one that is not there, or does not
    know. `store` is that of the settings, in which the queue may live. Raises what a store does
    that is damaged, or does not answer.
    """
    if not store.embedded:
        row = store.get(ATTACHMENTS, key)
        return None if row is None else row.record.owner
    url = f"sqlite:{GatewayFolder(_folder(settings, key)).queue}"
    opened = open_store(url, namespace=settings.namespace, boot_id=Procfs().boot_id(), create=False)
    with closing(opened) as queue:
        row = queue.get(ATTACHMENTS, key)
    return None if row is None else row.record.owner


def gateway_key(agent: str, record: Agent | None, settings: Settings, store: Store) -> str:
    """What the gateway of an agent is kept under, once its record is known: its name, if its id
    follows from that, else its id; and a key of its own where another agent has that word. So it
    has one, whichever of the two it is called by.

    Raises Ambiguous for an agent that is called by a word which is another's, InvalidName, and what
    a store does in which the queues live.
    """
    if record is None:
        return gateway_agent(agent)
    owner = owner_for(record)
    kind, _, name = owner.partition(" ")
    plain = name if kind == "name" else gateway_agent(name)
    try:
        first = owner_of(plain, settings, store)
    except Unavailable:
        if not store.embedded:
            raise
        # It is another user's folder: what this one may not read, it may not serve or ask either.
        first = None
    if first in (None, owner):
        return plain
    if gateway_agent(agent) == plain:
        other = record.agent_id if kind == "name" else bare(record.agent_name)
        raise Ambiguous(
            f"what is kept under {plain} is the gateway of the agent with the {first}: call the "
            f"one with the {owner} {other}",
            agent=agent,
            agent_id=record.agent_id,
        )
    return _apart(plain, owner)


def gateway_place(settings: Settings, agent: str, key_of: Callable[[], str]) -> Path:
    """The folder of the gateway that serves an agent, by its name or id. The registry is asked for
    its key only when none runs under what the agent was called. Raises InvalidName.
    """
    root = gateway_root(settings, agent)
    return root if GatewayFolder(root).instance() is not None else root.with_name(key_of())


def _folder(settings: Settings, key: str) -> Path:
    return gateway_root(settings, "x").with_name(key)


def _apart(plain: str, owner: str) -> str:
    from hashlib import sha256

    digest = sha256(owner.encode()).hexdigest()[:_APART_CHARS]
    return f"{plain[: ID_CHARS_MAX - _APART_CHARS - 1]}-{digest}"
