"""How an agent of the registry is reached by its gateway, and what that gateway is kept under. The rooms of both do not know
each other, so it is done here."""

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.app import connected
from holdfast.domains.agents import Agent, Reason
from holdfast.domains.agents.control import check_own, check_session
from holdfast.domains.gateway.spec import AdapterSpec, TmuxSpec, spec_of_manifest
from holdfast.kernel.errors import InvalidValue, NotFound, Unavailable
from holdfast.kernel.settings import Settings
from holdfast.places import gateway_key


class Served(NamedTuple):
    """An agent to be served: what its gateway is kept under, its id, where it has a record, and how it is reached, where its
    manifest says so."""

    key: str
    agent_id: str | None
    spec: AdapterSpec | None


def to_be_served(agent: str, settings: Settings, *, by_manifest: bool) -> Served:
    """What is to be known of an agent of that name or id before it is served; `by_manifest`, also how it is reached.

    One agent has one key, whether it is called by its name or by its id. Raises Ambiguous for a name that several live agents
    have. By the manifest it raises NotFound when there is no such agent, InvalidValue for one that says nothing of use, and
    ManifestMismatch or TmuxSessionMismatch for one that leads to another agent: what is typed there would reach the wrong one.
    """
    try:
        with closing(connected(settings, create=False)) as hf:
            found = hf.agents.resolve(agent)
    except Unavailable:
        if by_manifest:
            raise
        return Served(gateway_key(agent, None), None, None)
    if found.reason is Reason.AMBIGUOUS:
        found.unwrap()
    if not by_manifest:
        return Served(gateway_key(agent, found.record), None if found.record is None else found.record.agent_id, None)
    if found.record is None:
        why = f" ({found.reason.value})" if found.reason is not None else ""
        raise NotFound(
            f"there is no live agent {agent}{why}: start one with `holdfast agents start {agent} -- COMMAND`, or say how yours "
            "is reached with --adapter",
            agent=agent,
        )
    return Served(gateway_key(agent, found.record), found.record.agent_id, reach_of(found.record))


def reach_of(record: Agent) -> AdapterSpec:
    """How the agent of a record is reached, by its manifest."""
    document = document_in(Path(record.runtime.manifest_path))
    check_own(record, str(document.get("agent_id")), str(document.get("agent_name")))
    spec = spec_of_manifest(document)
    if isinstance(spec, TmuxSpec):
        check_session(record, spec.session)
    return spec


def document_in(path: Path) -> dict[str, Any]:
    """What a manifest's file holds. Raises InvalidValue."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(f"the manifest {path} cannot be read: {error}", path=str(path)) from None
