"""Which agent a gateway's queue belongs to, and under which key the queue is kept.

One agent's explicit id may be another agent's name. The agent that is served first gets that word
as its key, and its queue records the owner. The other agent gets a key of its own, and is addressed
by its other word. It is here because the domains of agents and gateways do not know each other.
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

_DIGEST_CHARS = 12


def owner_for(record: Agent) -> str:
    """The owner that a queue records: the agent's name if its id is derived from that, else its
    id.
    """
    derived = id_of(record.agent_name) == record.agent_id
    return f"name {bare(record.agent_name)}" if derived else f"id {record.agent_id}"


def owner_id(owner: str, prefix: str) -> str:
    """The id of the agent that a queue records as its owner, with the configured prefix."""
    kind, _, name = owner.partition(" ")
    return id_of(prefix + name) if kind == "name" else name


def owner_of(key: str, settings: Settings, store: Store) -> str | None:
    """The owner that the queue under a key records; None if there is no such queue, or it does not
    know its owner. `store` is the configured one, in which the queue may live. Raises the errors of
    a store that is damaged or does not answer.
    """
    if not store.embedded:
        row = store.get(ATTACHMENTS, key)
        return None if row is None else row.record.owner
    folder = GatewayFolder(gateway_root(settings, "x").with_name(key))
    url = f"sqlite:{folder.queue}"
    opened = open_store(url, namespace=settings.namespace, boot_id=Procfs().boot_id(), create=False)
    with closing(opened) as queue:
        row = queue.get(ATTACHMENTS, key)
    return None if row is None else row.record.owner


def gateway_key(agent: str, record: Agent | None, settings: Settings, store: Store) -> str:
    """The key of an agent's gateway. With a record: its name if its id is derived from that, else
    its id; or a key of its own where another agent has that word. So an agent has one key, whether
    it is addressed by its name or its id.

    Raises Ambiguous for an agent that is addressed by another agent's word, InvalidName, and the
    errors of the store that has the queues.
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
        # The folder is another user's: a queue that this user may not read, it cannot serve either.
        first = None
    if first in (None, owner):
        return plain
    if gateway_agent(agent) == plain:
        other = record.agent_id if kind == "name" else bare(record.agent_name)
        raise Ambiguous(
            f"the gateway under {plain} is that of the agent with the {first}: call the one with "
            f"the {owner} {other}",
            agent=agent,
            agent_id=record.agent_id,
        )
    from hashlib import sha256

    digest = sha256(owner.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: ID_CHARS_MAX - _DIGEST_CHARS - 1]}-{digest}"


def gateway_place(settings: Settings, agent: str, key_of: Callable[[], str]) -> Path:
    """The folder of the gateway that serves an agent, by its name or id. The registry is asked for
    the key only when no gateway runs under the given word. Raises InvalidName.
    """
    root = gateway_root(settings, agent)
    return root if GatewayFolder(root).instance() is not None else root.with_name(key_of())
