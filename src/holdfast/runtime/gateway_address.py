"""How an agent of the registry is reached by its gateway, and what that gateway is kept under. The
rooms of both do not know each other, so it is done here.
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
from holdfast.runtime.gateway_identity import called, gateway_key, owner_for, owner_of
from holdfast.runtime.paths import gateway_agent


class Served(NamedTuple):
    """An agent to be served: what its gateway is kept under, its record, if it has one, how it is
    reached, where its manifest says so, and whose the queue is by its record.
    """

    key: str
    record: Agent | None = None
    spec: AdapterSpec | None = None
    owner: str | None = None


Adapt = Callable[[AdapterSpec], AdapterSpec]
"""Changes how an agent is reached, as the user says beside its manifest."""


def to_be_served(
    agent: str, settings: Settings, *, by_manifest: bool, adapt: Adapt = lambda spec: spec
) -> Served:
    """What is to be known of an agent of that name or id before it is served; `by_manifest`, also
    how it is reached.

    One agent has one key, whether it is called by its name or by its id. Raises Ambiguous for a
    name that several live agents have, and for a word under which another's gateway is kept. By the
    manifest it raises NotFound when there is no such agent, and what `reach_of` does for one that
    says nothing of use, or leads to another agent: what is typed there would reach the wrong one.
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
            "-- COMMAND`, or say how yours "
            "is reached with --adapter",
            agent=agent,
        )
    spec = reach_of(found.record, adapt, of_its_generation=True) if by_manifest else None
    return Served(key, found.record, spec, owner_for(found.record))


def _found(hf: Holdfast, agent: str) -> Resolution:
    """The agent of that name or id; or of that key, which a gateway tells of itself where another
    agent has its word.
    """
    found = hf.agents.resolve(agent)
    if found.reason is not Reason.MISSING:
        return found
    owner = owner_of(gateway_agent(agent), hf.settings, hf.store)
    return found if owner is None else hf.agents.resolve(called(owner, hf.settings.agents.prefix))


def process_of(record: Agent | None, spec: AdapterSpec) -> Holder | None:
    """The process that a gateway which reaches its agent so may type to; None when no record says
    it.
    """
    if (
        record is None
        or record.holder is None
        or not isinstance(spec, TmuxSpec)
        or record.session_name != spec.session
    ):
        return None
    # What it started is not the agent.
    return record.holder.leader


def reach_of(
    record: Agent, adapt: Adapt = lambda spec: spec, *, of_its_generation: bool = False
) -> AdapterSpec:
    """How the agent of a record is reached, by its manifest. An agent is published before its
    manifest is written, so that one of an earlier generation is refused only if it must be
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
    """What a manifest's file holds. Raises InvalidValue."""
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
