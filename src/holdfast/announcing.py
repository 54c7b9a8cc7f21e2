"""An agent's gateway and its record in the registry of agents: where the gateway learns how its agent is reached, and where it
says where it listens. The rooms of both do not know each other, so it is done here."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import Holdfast, connected
from holdfast.domains.agents import Agent, Gateway
from holdfast.domains.agents.control import check_own, check_session
from holdfast.domains.gateway.spec import AdapterSpec, TmuxSpec, spec_of_manifest
from holdfast.kernel.errors import HoldfastError, InvalidValue, NotFound
from holdfast.kernel.settings import Settings

PROTOCOL = "v1"


def reached_by(agent: str, settings: Settings) -> AdapterSpec:
    """How a live agent of that name or id is reached, by its manifest.

    Raises NotFound when there is no such agent, InvalidValue for a manifest that says nothing of use, and ManifestMismatch or
    TmuxSessionMismatch for one that leads to another agent: what is typed there would reach the wrong one.
    """
    with _agents(settings) as hf:
        found = hf.agents.resolve(agent)
    if found.record is None:
        why = f" ({found.reason.value})" if found.reason is not None else ""
        raise NotFound(
            f"there is no live agent {agent}{why}: start one with `holdfast agents start {agent} -- COMMAND`, or say how yours "
            "is reached with --adapter",
            agent=agent,
        )
    document = document_in(Path(found.record.runtime.manifest_path))
    check_own(found.record, str(document.get("agent_id")), str(document.get("agent_name")))
    spec = spec_of_manifest(document)
    if isinstance(spec, TmuxSpec):
        check_session(found.record, spec.session)
    return spec


def document_in(path: Path) -> dict[str, Any]:
    """What a manifest's file holds. Raises InvalidValue."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidValue(f"the manifest {path} cannot be read: {error}", path=str(path)) from None


@contextmanager
def announced(agent: str, settings: Settings, *, host: str, port: int, state_path: Path) -> Iterator[None]:
    """For the time of a block, the record of a live agent says where its gateway listens.

    Where there is no such record, or the store does not answer, the gateway serves all the same: that is logged.
    """
    gateway = Gateway(host=host, port=port, state_path=str(state_path), protocol_version=PROTOCOL)
    told = _attach(agent, settings, gateway)
    try:
        yield
    finally:
        if told is not None:
            _detach(told, settings, gateway)


def _attach(agent: str, settings: Settings, gateway: Gateway) -> Agent | None:
    try:
        with _agents(settings) as hf:
            record = hf.agents.resolve(agent).record
            return None if record is None else hf.agents.attach_gateway(record.agent_id, record.generation_id, gateway)
    except HoldfastError as error:
        _warn("its agent's record does not say where the gateway is: %s", error)
        return None


def _detach(told: Agent, settings: Settings, gateway: Gateway) -> None:
    try:
        with _agents(settings) as hf:
            record = hf.agents.get(told.agent_id)
            # A later gateway, or a later generation, has said its own.
            if record.generation_id == told.generation_id and record.gateway == gateway:
                hf.agents.attach_gateway(told.agent_id, told.generation_id, None)
    except NotFound:
        return
    except HoldfastError as error:
        _warn("its agent's record still says where the gateway was: %s", error)


@contextmanager
def _agents(settings: Settings) -> Iterator[Holdfast]:
    with closing(connected(settings, create=False)) as hf:
        yield hf


def _warn(event: str, error: HoldfastError) -> None:
    logging.getLogger("holdfast.gateway").warning(event, error.message)
