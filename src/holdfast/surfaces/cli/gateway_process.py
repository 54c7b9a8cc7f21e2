"""The process of a gateway, from its first moment to its last."""

import gc
import socket
from collections.abc import Sequence

from holdfast.adapters.gateway_mirror import Mirror
from holdfast.domains.agents import Gateway as Place
from holdfast.domains.gateway import AdapterSpec, Worker
from holdfast.domains.gateway.request import away
from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.holder import Holder
from holdfast.kernel.settings import Settings
from holdfast.runtime.gateway_address import Adapt, Served, process_of
from holdfast.runtime.gateway_announcement import PROTOCOL, Announcement, announced
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from holdfast.surfaces.cli.output import answer, remark
from holdfast.surfaces.http.access import bearer_token
from holdfast.surfaces.http.gateway import GatewaySide
from holdfast.surfaces.http.http_server import HttpServer, bound, serve


def run(
    agent: str,
    served: Served,
    spec: AdapterSpec,
    settings: Settings,
    *,
    adapt: Adapt,
    host: str,
    port: int,
    more_hosts: Sequence[str],
    depth_max: int,
) -> None:
    """Serve an agent, reached as `spec` says, until told to stop.

    `adapt` changes what a later generation's manifest says.

    Raises Held while another gateway serves it, AgentGone when the process on its record is not
    there to be served, and LeaseLost when another gateway takes over, or the agent is reached
    otherwise by then.
    """
    ending = _Ending()
    agent_process = _Recorded(process_of(served.record, spec))
    taken_over = f"another gateway has taken over {agent}: this one has ended"
    with bound(host, port) as listening:
        parts = open_gateway(
            served.key,
            spec,
            settings,
            owner=served.owner,
            process=lambda: agent_process.process,
            depth_max=depth_max,
            on_lost=lambda: ending.lose(taken_over),
        )
        ending.worker = parts.worker
        try:
            if agent_process.process is not None and parts.gateway.seen.reason:
                raise away(agent, parts.gateway.seen)
            port = listening.getsockname()[1]
            parts.gateway.served_at = (host, port)
            place = Place(
                host=host,
                port=port,
                state_path=str(parts.folder.state_path),
                protocol_version=PROTOCOL,
            )
            announcement = Announcement(
                agent,
                settings,
                place,
                folder=parts.folder,
                agent_id=None if served.record is None else served.record.agent_id,
                spec=spec,
                by_manifest=served.spec is not None,
                seen=lambda: parts.gateway.seen.instance_id,
                belong=parts.gateway.belong,
                bind=agent_process.bind,
                adapt=adapt,
            )
            with announced(announcement, settings, on_lost=ending.lose):
                _serve(parts, listening, more_hosts, ending)
        finally:
            parts.close()
    if ending.lost:
        raise LeaseLost(ending.lost, agent=agent)


class _Recorded:
    """Which process is the agent, by its record."""

    def __init__(self, process: Holder | None) -> None:
        self.process = process

    def bind(self, process: Holder | None) -> None:
        self.process = process


class _Ending:
    """How a server is told to end, by whoever learns first that it must."""

    def __init__(self) -> None:
        self.lost = ""
        self.server: HttpServer | None = None
        self.worker: Worker | None = None

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def lose(self, why: str) -> None:
        self.lost = why
        if self.worker is not None:
            # At once: the server takes its time over the answers it owes.
            self.worker.cease()
        self.stop()


def _serve(
    parts: GatewayParts, listening: socket.socket, more_hosts: Sequence[str], ending: _Ending
) -> None:
    gateway = parts.gateway
    assert gateway.served_at is not None
    host, port = gateway.served_at
    token = bearer_token(parts.folder.token)
    side = GatewaySide(
        gateway, token=token, host=host, port=port, more_hosts=more_hosts, detach=ending.stop
    )
    ending.server = HttpServer(
        side.app, on_begun=lambda: _begun(gateway.agent, host, port), on_stop=side.end_waits
    )
    mirror = Mirror(gateway, parts.folder, host=host, port=port)
    mirror.start()
    parts.worker.start()
    # What is loaded by now stays loaded: the collector need not look at it again and again.
    gc.freeze()
    try:
        # It may have been lost before there was a server to stop.
        if not ending.lost:
            serve(ending.server, listening)
    finally:
        parts.worker.stop()
        mirror.close()


def _begun(agent: str, host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    answer(f"gateway of {agent} at http://{shown}:{port}")
    if host not in ("127.0.0.1", "::1", "localhost"):
        remark("it is served beyond this machine, without TLS: put a proxy with TLS in front of it")
