"""The process of a gateway, from its first moment to its last."""

import gc
import os
from collections.abc import Sequence

from holdfast.adapters.gateway_mirror import Mirror
from holdfast.domains.gateway import AdapterSpec
from holdfast.hosting import open_gateway
from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.settings import Settings
from holdfast.surfaces.cli.output import answer, remark
from holdfast.surfaces.http.bearer import bearer_token
from holdfast.surfaces.http.gateway.server import GatewaySide
from holdfast.surfaces.http.serving import HttpServer, bound, serve


def run(
    agent: str, spec: AdapterSpec, settings: Settings, *, host: str, port: int, more_hosts: Sequence[str], depth_max: int
) -> None:
    """Serve an agent until told to stop. Raises Held while another gateway serves it, and LeaseLost when one takes over."""
    taken_over: list[bool] = []
    servers: list[HttpServer] = []

    def lost() -> None:
        taken_over.append(True)
        stop()

    def stop() -> None:
        for server in servers:
            server.stop()

    listening = bound(host, port)
    # What others may make of files that are begun from here on is nothing.
    os.umask(0o077)
    with listening:
        port = listening.getsockname()[1]
        parts = open_gateway(agent, spec, settings, depth_max=depth_max, on_lost=lost)
        try:
            parts.gateway.served_at = (host, port)
            token = bearer_token(parts.folder.token)
            side = GatewaySide(parts.gateway, token=token, host=host, port=port, more_hosts=more_hosts, detach=stop)
            mirror = Mirror(parts.gateway, parts.folder, host=host, port=port)
            servers.append(HttpServer(side.app, on_begun=lambda: _begun(agent, host, port), on_stop=side.end_waits))
            mirror.start()
            parts.worker.start()
            # What is loaded by now stays loaded: the collector need not look at it again and again.
            gc.freeze()
            try:
                serve(servers[0], listening)
            finally:
                parts.worker.stop()
                mirror.close()
        finally:
            parts.close()
    if taken_over:
        raise LeaseLost(f"another gateway has taken over {agent}: this one has ended", agent=agent)


def _begun(agent: str, host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    answer(f"gateway of {agent} at http://{shown}:{port}")
    if host not in ("127.0.0.1", "::1", "localhost"):
        remark("it is served beyond this machine, without TLS: put a proxy with TLS before it")
