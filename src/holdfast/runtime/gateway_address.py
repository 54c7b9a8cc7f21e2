"""From a name or an id to the agent that a gateway is to serve, and how the gateway reaches it.

It is here because the domains of agents and gateways do not know each other.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.adapters.agent_files import ManifestFiles
from holdfast.domains.agents import Agent, Reason
from holdfast.domains.agents.control import (
    check_generation,
    check_own,
    check_session,
    manifest_in,
    not_trusted,
)
from holdfast.domains.agents.resolution import Resolution
from holdfast.domains.gateway.adapter import AdapterSpec, TmuxSpec, spec_of_manifest
from holdfast.kernel.errors import InvalidValue, NotFound, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import MANIFEST_BYTES_MAX
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.gateway_identity import gateway_key, owner_for, owner_id, owner_of
from holdfast.runtime.paths import gateway_agent


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
    """The agent of that name or id; `by_manifest`, also the settings of its adapter.

    An agent has one key, whether `agent` is its name or its id. Raises Ambiguous for a name that
    several live agents have, and for a word under which another agent's gateway is kept. With
    `by_manifest` it raises NotFound when there is no such agent, and the errors of `adapter_of` for
    a manifest that is invalid or leads to another agent: a prompt would reach the wrong one.
    """
    try:
        with closing(connected(settings, create=False)) as hf:
            found = _found(hf, agent)
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


def _found(hf: Holdfast, agent: str) -> Resolution:
    """The agent of that name or id, or of that gateway key: an agent whose name is another's id has
    a key of its own, and its queue knows its owner.
    """
    found = hf.agents.resolve(agent)
    if found.reason is not Reason.MISSING:
        return found
    owner = owner_of(gateway_agent(agent), hf.settings, hf.store)
    return found if owner is None else hf.agents.resolve(owner_id(owner, hf.settings.agents.prefix))


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
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(f"it is no JSON object: {error}") from None
