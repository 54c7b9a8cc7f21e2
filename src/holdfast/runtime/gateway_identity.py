"""Which agent a gateway serves: from a name or an id to the agent's record, how the gateway reaches
it, and the key under which its queue is kept.

One agent's explicit id may be another agent's name. The agent that is served first gets that word
as its key, and its queue records the owner. The other agent gets a key of its own, and is addressed
by its other word. It is here because the domains of agents and gateways do not know each other.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.adapters.agent_files import ManifestFiles
from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.profiles import profile_named, profiles_folder
from holdfast.domains.agents import Agent, Reason, houmao_manifest
from holdfast.domains.agents.control import (
    check_generation,
    check_own,
    check_session,
    manifest_in,
    not_trusted,
)
from holdfast.domains.agents.records import PREFIXES, bare, id_of
from holdfast.domains.gateway.adapter import AdapterSpec, TmuxSpec, spec_of_manifest
from holdfast.domains.gateway.records import ATTACHMENTS
from holdfast.kernel.errors import Ambiguous, HoldfastError, InvalidValue, NotFound, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import ID_CHARS_MAX, MANIFEST_BYTES_MAX
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import (
    actor_here,
    gateway_agent,
    gateway_root,
    gateways_folder,
)
from holdfast.runtime.connection import Holdfast, connected
from holdfast.stores.url import open_store

_DIGEST_CHARS = 12


def owner_for(record: Agent) -> str:
    """The owner that a queue records: the agent's name if its id is derived from that, else its
    id.
    """
    name = bare(record.agent_name)
    if id_of(record.agent_name) != record.agent_id:
        return f"id {record.agent_id}"
    # Where names have no prefix, `gpu` and `HOUMAO-gpu` may be two agents.
    return f"name {name}" if name != record.agent_name else f"unprefixed {name}"


def owner_of(key: str, settings: Settings, store: Store) -> str | None:
    """The owner that the queue under a key records; None if there is no such queue, or it does not
    know its owner. `store` is the configured one, in which the queue may live. Raises the errors of
    a store that is damaged or does not answer.
    """
    if store.embedded:
        url = f"sqlite:{GatewayFolder(gateway_root(settings, 'x').with_name(key)).queue}"
        boot_id = Procfs().boot_id()
        with closing(
            open_store(url, namespace=settings.namespace, boot_id=boot_id, create=False)
        ) as queue:
            row = queue.get(ATTACHMENTS, key)
    else:
        row = store.get(ATTACHMENTS, key)
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
    plain = name if kind != "id" else gateway_agent(name)
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
        other = record.agent_id if kind != "id" else bare(record.agent_name)
        raise Ambiguous(
            f"the gateway under {plain} is that of the agent with the {first}: call the one with "
            f"the {owner} {other}",
            agent=agent,
            agent_id=record.agent_id,
        )
    digest = sha256(owner.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: ID_CHARS_MAX - _DIGEST_CHARS - 1]}-{digest}"


def gateway_folder(hf: Holdfast, record: Agent) -> GatewayFolder:
    """The folder of the gateway of a published agent. Raises as `gateway_key`."""
    # Never the word that another agent's gateway may be kept under.
    own = id_of(record.agent_name) == record.agent_id
    word = record.agent_id if own else bare(record.agent_name)
    key = gateway_key(word, record, hf.settings, hf.store)
    return GatewayFolder(gateways_folder(hf.settings) / hf.settings.namespace / key)


def gateway_client(
    agent: str,
    settings: Settings,
    connection: Callable[[], AbstractContextManager[Holdfast]],
    *,
    url: str | None = None,
    token: str | None = None,
) -> GatewayClient:
    """A client of the gateway that serves an agent, by its name or id. The registry is asked for
    the key only when no gateway runs under the given word; where the store does not answer, the
    word is the key. Raises InvalidName.
    """
    root = gateway_root(settings, agent)
    if GatewayFolder(root).instance() is None:
        with suppress(HoldfastError), connection() as hf:
            record = hf.agents.resolve(agent).record
            root = root.with_name(gateway_key(agent, record, settings, hf.store))
    actor = settings.actor or actor_here()
    return GatewayClient(agent, root=root, url=url, token=token, actor=actor)


class Served(NamedTuple):
    """An agent that is to be served: the key of its gateway, its record, its adapter's settings if
    its manifest has them, and the owner of the queue by its record.
    """

    key: str
    record: Agent | None = None
    spec: AdapterSpec | None = None
    owner: str | None = None


Adapt = Callable[[AdapterSpec], AdapterSpec]
"""Changes the settings of a manifest's adapter, as the user's options say."""


def resolve_served(
    agent: str, settings: Settings, *, by_manifest: bool, adapt: Adapt = lambda spec: spec
) -> Served:
    """The agent of that name, id or key; `by_manifest`, also the settings of its adapter.

    An agent has one key, whether `agent` is its name or its id. Raises Ambiguous for a name that
    several live agents have, and for a word under which another agent's gateway is kept. With
    `by_manifest` it raises NotFound when there is no such agent, and the errors of `adapter_of` for
    a manifest that is invalid or leads to another agent: a prompt would reach the wrong one.
    """
    try:
        with connected(settings, create=False) as hf:
            found = hf.agents.resolve(agent)
            if found.reason is Reason.MISSING:
                # An agent whose name is another's id has a key of its own. Its queue knows its id.
                owner = owner_of(gateway_agent(agent), settings, hf.store)
                if owner is not None:
                    kind, _, name = owner.partition(" ")
                    # Without a prefix here, only Houmao gave an agent of a name one.
                    prefix = settings.agents.prefix or PREFIXES[1]
                    derived = {"name": prefix + name, "unprefixed": name}.get(kind)
                    found = hf.agents.resolve(name if derived is None else id_of(derived))
            key = gateway_key(agent, found.record, settings, hf.store)
    except Unavailable:
        if by_manifest:
            raise
        return Served(gateway_agent(agent))
    if found.reason is Reason.AMBIGUOUS:
        found.unwrap()
    if found.record is None and not by_manifest:
        return Served(key)
    if found.record is None:
        why = f" ({found.reason.value})" if found.reason is not None else ""
        raise NotFound(
            f"there is no live agent {agent}{why}: start one with `holdfast agents start {agent} "
            "-- COMMAND`, or describe yours with --adapter",
            agent=agent,
        )
    spec = adapter_of(found.record, adapt, of_its_generation=True) if by_manifest else None
    return Served(key, found.record, spec, owner_for(found.record))


def process_of(record: Agent | None, spec: AdapterSpec) -> Holder | None:
    """The process that a gateway with this adapter may type to; None when no record names one."""
    if (
        record is None
        or record.holder is None
        or not isinstance(spec, TmuxSpec)
        or record.session_name != spec.session
    ):
        return None
    # Without its tree: what the process started is not the agent.
    return record.holder.leader


def adapter_of(
    record: Agent, adapt: Adapt = lambda spec: spec, *, of_its_generation: bool = False
) -> AdapterSpec:
    """The settings of the adapter in the manifest of a record. An agent is published before its
    manifest is written, so the manifest of an earlier generation is refused only with
    `of_its_generation`. Raises one of the errors under Untrusted.
    """
    try:
        document = _document(manifest_in(ManifestFiles(), record))
        check_own(record, str(document.get("agent_id")), str(document.get("agent_name")))
        if of_its_generation and "generation_id" in document:
            check_generation(record, str(document["generation_id"]))
        spec = spec_of_manifest(document)
    except InvalidValue as error:
        raise not_trusted(record, error.message) from None
    spec = adapt(spec)
    if isinstance(spec, TmuxSpec):
        check_session(record, spec.session)
    return spec


def document_in(path: Path) -> dict[str, Any]:
    """The document in a manifest's file. Raises InvalidValue."""
    try:
        data = ManifestFiles().read(str(path))
        return _document(b"" if data is None else data)
    except (OSError, InvalidValue) as error:
        raise InvalidValue(f"the manifest {path} cannot be read: {error}", path=str(path)) from None


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > MANIFEST_BYTES_MAX:
        raise InvalidValue(f"it has more than {MANIFEST_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(f"it is no JSON object: {error}") from None
    document = houmao_manifest.to_current(found)
    is_foreign = found.get("schema_version") == houmao_manifest.VERSION
    if is_foreign and document["adapter"] == houmao_manifest.TERMINAL:
        document["adapter"] = _adopted_terminal(str(document["tool"]))
    return document


def _adopted_terminal(tool: str) -> dict[str, Any]:
    """The adapter of an agent that another system started in tmux. Its hooks report nothing to us,
    but the profile of its tool, if there is one, knows its screen.
    """
    try:
        profile = profile_named(tool, profiles_folder(os.environ))
    except NotFound:
        return dict(houmao_manifest.TERMINAL)
    return {
        **houmao_manifest.TERMINAL,
        "profile": profile.name,
        "interrupt": profile.keys.interrupt,
    }
