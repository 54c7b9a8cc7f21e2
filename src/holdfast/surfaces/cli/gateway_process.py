"""A gateway from its start to its end: as the process of `holdfast gateway serve AGENT`, or beside
others in a thread of the process that hosts the gateways of all agents.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from holdfast.adapters.gateway_folder import Detached
from holdfast.adapters.gateway_mirror import GatewayMirror
from holdfast.domains.agents import GatewayAddress as Place
from holdfast.domains.gateway import AdapterSpec, DeliveryWorker
from holdfast.domains.gateway.request import away
from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import QUEUE_DEPTH_MAX
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.gateway_announcement import PROTOCOL, Announcement, announced
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from holdfast.runtime.gateway_identity import Adapt, Served, process_of
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.serve import LOOPBACK, warn_if_exposed
from holdfast.surfaces.http.access import bearer_token
from holdfast.surfaces.http.gateway import GatewaySide
from holdfast.surfaces.http.http_server import HttpServer, bound, in_url, serve, serve_alone


class GatewayRun:
    """One gateway of an agent, reached as `spec` says, from its start to its end. `adapt` changes
    what a later generation's manifest says. `hosted` is the connection that the gateways of one
    process share; None: this is the only gateway of its process.
    """

    def __init__(
        self,
        agent: str,
        served: Served,
        spec: AdapterSpec,
        settings: Settings,
        *,
        adapt: Adapt = lambda spec: spec,
        host: str = LOOPBACK[0],
        port: int = 0,
        more_hosts: Sequence[str] = (),
        depth_max: int = QUEUE_DEPTH_MAX,
        hosted: Holdfast | None = None,
        on_begun: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self.serving = False
        """Does it answer?"""
        self._agent = agent
        self._served = served
        self._spec = spec
        self._settings = settings
        self._adapt = adapt
        self._host = host
        self._port = port
        self._more_hosts = more_hosts
        self._depth_max = depth_max
        self._hosted = hosted
        self._on_begun = on_begun
        self._process = process_of(served.record, spec)
        self._lost = ""
        self._stopping = False
        self._server: HttpServer | None = None
        self._worker: DeliveryWorker | None = None
        self._parts: GatewayParts | None = None
        self._announcement: Announcement | None = None

    def serve(self) -> None:
        """Serve until stopped.

        Raises Held while another gateway serves the agent, AgentGone when the process on its record
        is not there to be served, and LeaseLost when another gateway takes over, or the agent is
        reached otherwise by then.
        """
        with bound(self._host, self._port) as listening:
            self._port = listening.getsockname()[1]
            parts = self._open()
            try:
                self._serve_attached(parts, listening)
            finally:
                parts.close()
        if self._lost:
            raise LeaseLost(self._lost, agent=self._agent)

    def stop(self) -> None:
        """Begin to stop, from any thread."""
        self._stopping = True
        if self._server is not None:
            self._server.stop()

    def _open(self) -> GatewayParts:
        taken_over = f"another gateway has taken over {self._agent}: this one has ended"
        parts = open_gateway(
            self._served.key,
            self._spec,
            self._settings,
            owner=self._served.owner,
            process=lambda: self._process,
            depth_max=self._depth_max,
            shared=None if self._hosted is None else self._hosted.store,
            on_lost=lambda: self._lose(taken_over),
        )
        self._parts, self._worker = parts, parts.worker
        if self._hosted is None:
            # Somebody asked for this gateway. A host has looked before it began.
            parts.folder.remove_detached()
        return parts

    def _serve_attached(self, parts: GatewayParts, listening: socket.socket) -> None:
        if self._process is not None and parts.gateway.seen.reason:
            raise away(self._agent, parts.gateway.seen)
        parts.gateway.served_at = (self._host, self._port)
        place = Place(
            host=self._host,
            port=self._port,
            state_path=str(parts.folder.state_path),
            protocol_version=PROTOCOL,
        )
        self._announcement = Announcement(
            self._agent,
            self._settings,
            place,
            folder=parts.folder,
            agent_id=None if self._served.record is None else self._served.record.agent_id,
            spec=self._spec,
            by_manifest=self._served.spec is not None,
            seen=lambda: parts.gateway.seen.instance_id,
            belong=parts.gateway.belong,
            bind=self._bind,
            adapt=self._adapt,
            connect=None if self._hosted is None else self._lend,
        )
        with announced(self._announcement, on_lost=self._lose):
            self._serve_requests(parts, listening)

    def _lend(self) -> AbstractContextManager[Holdfast]:
        assert self._hosted is not None
        return nullcontext(self._hosted)

    def _serve_requests(self, parts: GatewayParts, listening: socket.socket) -> None:
        side = GatewaySide(
            parts.gateway,
            token=bearer_token(parts.folder.token),
            host=self._host,
            port=self._port,
            more_hosts=self._more_hosts,
            detach=self._detach,
        )
        self._server = HttpServer(side.app, on_begun=self._begun, on_stop=side.end_waits)
        mirror = GatewayMirror(parts.gateway, parts.folder, host=self._host, port=self._port)
        mirror.start()
        parts.worker.start()
        try:
            # It may have been lost or stopped before there was a server to stop.
            if not self._lost and not self._stopping:
                (serve_alone if self._hosted is None else serve)(self._server, listening)
        finally:
            self.serving = False
            parts.worker.stop()
            mirror.close()

    def _begun(self) -> None:
        self.serving = True
        self._on_begun(self._served.key, self._port)

    def _bind(self, process: Holder | None) -> None:
        self._process = process

    def _detach(self) -> None:
        """Stop because somebody asked for it: no host starts it again for this generation."""
        generation_id = None if self._announcement is None else self._announcement.generation_id
        if generation_id is not None and self._parts is not None:
            self._parts.folder.write_detached(Detached(generation_id=generation_id))
        self.stop()

    def _lose(self, why: str) -> None:
        self._lost = why
        if self._worker is not None:
            # At once: the server first gives the answers it owes.
            self._worker.cease()
        if self._server is not None:
            self._server.stop()


def announce_gateway(agent: str, host: str, port: int) -> None:
    """Say where the only gateway of this process is."""
    answer(f"gateway of {agent} at http://{in_url(host)}:{port}")
    warn_if_exposed(host)


def serve_gateway(
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
    """Serve an agent as the only gateway of this process, until stopped. For the arguments and
    errors see `GatewayRun`.
    """
    GatewayRun(
        agent,
        served,
        spec,
        settings,
        adapt=adapt,
        host=host,
        port=port,
        more_hosts=more_hosts,
        depth_max=depth_max,
        on_begun=lambda key, port: announce_gateway(key, host, port),
    ).serve()
