"""The processes of `holdfast serve` and `holdfast gateway serve`, from start to end."""

import gc
import http.client
import logging
import os
import resource
import socket
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from holdfast.adapters.gateway_mirror import GatewayMirror
from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.domains.agents import GatewayAddress as Place
from holdfast.domains.gateway import AdapterSpec, DeliveryWorker
from holdfast.domains.gateway.request import away
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Held, HoldfastError, LeaseLost, StoreUnavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import (
    HTTP_CONNECTIONS_MAX,
    SERVER_REAP_EVERY_S,
    SERVER_THREADS,
    SERVER_WAITS_MAX,
)
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import server_root
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.gateway_announcement import PROTOCOL, Announcement, announced
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from holdfast.runtime.gateway_identity import Adapt, Served, process_of
from holdfast.surfaces.cli.output import answer, printable, remark
from holdfast.surfaces.cli.serve import LOOPBACK
from holdfast.surfaces.http.access import bearer_token
from holdfast.surfaces.http.gateway import GatewaySide
from holdfast.surfaces.http.http_server import HttpServer, bound, in_url, serve
from holdfast.surfaces.http.server.application import ServerSide

_log = logging.getLogger("holdfast.serve")
_FDS_A_THREAD = 16
"""A thread's connections to the store's files, and what it sleeps by."""
_PROBE_S = 1.0
_EVERY_ADDRESS = ("0.0.0.0", "::")


def serve_store(
    hf: Holdfast, *, host: str, port: int, more_hosts: Sequence[str], as_json: bool
) -> None:
    """Serve a store until stopped. Raises Held when a server of this store has the port,
    StoreUnavailable when another program has it.
    """
    folder = ServerFolder(server_root(hf.settings))
    folder.prepare()
    with _bound_for_store(hf, folder, host, port) as listening:
        instance = ServerInstance(
            process=hf.processes.current("serve"), host=host, port=listening.getsockname()[1]
        )
        folder.write_instance(instance, hf.processes)
        try:
            side = ServerSide(
                hf,
                token=bearer_token(folder.token),
                host=host,
                port=instance.port,
                more_hosts=more_hosts,
                ended_file=folder.ended(instance.port),
            )
            named = bool(more_hosts) or host not in _EVERY_ADDRESS
            server = HttpServer(
                side.app,
                on_begun=lambda: _announce_store(side, folder, host, named=named, as_json=as_json),
                on_stop=side.end_waits,
            )
            with JobReaper(hf):
                _serve(server, listening)
        finally:
            folder.remove_instance(instance)


def _announce_store(
    side: ServerSide, folder: ServerFolder, host: str, *, named: bool, as_json: bool
) -> None:
    link = side.new_link()
    token_file = printable(str(folder.token))
    where = {"url": side.url, "link": link, "token_file": token_file, "pid": os.getpid()}
    token = _from_home(folder.token)
    line = f"serving at {side.url}, token in {token}\nfor a browser, once: {link}"
    answer(to_json(where) if as_json else line)
    _warn_if_exposed(host)
    if not named:
        remark(
            "others are refused, as nothing says by which name they reach it: begin it with "
            "--allow-host NAME:PORT"
        )


def _from_home(path: Path) -> str:
    """A path as a user writes it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


def _bound_for_store(hf: Holdfast, folder: ServerFolder, host: str, port: int) -> socket.socket:
    try:
        return bound(host, port)
    except StoreUnavailable as error:
        if not error.fields.get("in_use"):
            raise
        other = next((one for one in folder.living(hf.processes) if one.port == port), None)
        if other is not None:
            raise Held(
                f"process {other.process.pid} serves this store at {other.host} port {port} "
                "already: `holdfast serve --link` prints a link to it",
                pid=other.process.pid,
                port=port,
            ) from None
        who = "a Holdfast server of another store" if _is_ours(host, port) else "another program"
        raise StoreUnavailable(
            f"{who} has port {port} of {host}: choose another with --port, or 0 for a free one",
            outcome="none",
            in_use=True,
        ) from None


def _is_ours(host: str, port: int) -> bool:
    """Does a server of Holdfast answer there?"""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=_PROBE_S)) as connection:
            connection.request("GET", "/health")
            return b'"status":"ok"' in connection.getresponse().read(500)
    except (OSError, http.client.HTTPException):
        return False


def allow_descriptors() -> None:
    """Raise the limit of open files to what the bounds of a server need, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HTTP_CONNECTIONS_MAX + _FDS_A_THREAD * (SERVER_THREADS + SERVER_WAITS_MAX) + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        least = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))


class JobReaper:
    """Reaps jobs from time to time for a `with` block, in a thread. Clients that only listen to the
    server would otherwise not learn of a worker's death.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-reaping", daemon=True)

    def __enter__(self) -> "JobReaper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SERVER_REAP_EVERY_S):
            try:
                if self._hf.jobs.reap():
                    self._hf.catch_up()
            except HoldfastError as error:
                # The store is away; the next round tries again.
                _log.info("not reaped: %s", error.message)


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
    """Serve an agent, reached as `spec` says, until stopped. `adapt` changes what a later
    generation's manifest says.

    Raises Held while another gateway serves it, AgentGone when the process on its record is not
    there to be served, and LeaseLost when another gateway takes over, or the agent is reached
    otherwise by then.
    """
    run = _GatewayRun(process_of(served.record, spec))
    taken_over = f"another gateway has taken over {agent}: this one has ended"
    with bound(host, port) as listening:
        parts = open_gateway(
            served.key,
            spec,
            settings,
            owner=served.owner,
            process=lambda: run.process,
            depth_max=depth_max,
            on_lost=lambda: run.lose(taken_over),
        )
        run.worker = parts.worker
        try:
            if run.process is not None and parts.gateway.seen.reason:
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
                bind=run.bind,
                adapt=adapt,
            )
            with announced(announcement, settings, on_lost=run.lose):
                _serve_requests(parts, listening, host, port, more_hosts, run)
        finally:
            parts.close()
    if run.lost:
        raise LeaseLost(run.lost, agent=agent)


class _GatewayRun:
    """A gateway that runs: the agent's process by its record, and how to stop the gateway."""

    def __init__(self, process: Holder | None) -> None:
        self.process = process
        self.lost = ""
        self.server: HttpServer | None = None
        self.worker: DeliveryWorker | None = None

    def bind(self, process: Holder | None) -> None:
        self.process = process

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def lose(self, why: str) -> None:
        self.lost = why
        if self.worker is not None:
            # At once: the server first gives the answers it owes.
            self.worker.cease()
        self.stop()


def _serve_requests(
    parts: GatewayParts,
    listening: socket.socket,
    host: str,
    port: int,
    more_hosts: Sequence[str],
    run: _GatewayRun,
) -> None:
    gateway = parts.gateway
    token = bearer_token(parts.folder.token)
    side = GatewaySide(
        gateway, token=token, host=host, port=port, more_hosts=more_hosts, detach=run.stop
    )
    run.server = HttpServer(
        side.app,
        on_begun=lambda: _announce_gateway(gateway.agent, host, port),
        on_stop=side.end_waits,
    )
    mirrored = GatewayMirror(gateway, parts.folder, host=host, port=port)
    mirrored.start()
    parts.worker.start()
    try:
        # It may have been lost before there was a server to stop.
        if not run.lost:
            _serve(run.server, listening)
    finally:
        parts.worker.stop()
        mirrored.close()


def _announce_gateway(agent: str, host: str, port: int) -> None:
    answer(f"gateway of {agent} at http://{in_url(host)}:{port}")
    _warn_if_exposed(host)


def _warn_if_exposed(host: str) -> None:
    if host not in LOOPBACK:
        remark("it is served beyond this machine, without TLS: put a proxy with TLS in front of it")


def _serve(server: HttpServer, listening: socket.socket) -> None:
    # What is loaded by now stays loaded: the garbage collector need not check it again.
    gc.freeze()
    serve(server, listening)
