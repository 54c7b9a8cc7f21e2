"""The process of `holdfast serve`, from start to end."""

import http.client
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Held, HoldfastError, StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_CONNECTIONS_MAX,
    SERVER_REAP_EVERY_S,
    SERVER_THREADS,
    SERVER_WAITS_MAX,
)
from holdfast.runtime.configuration import server_root
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.output import answer, printable, remark
from holdfast.surfaces.cli.serve import warn_if_exposed
from holdfast.surfaces.http.access import bearer_token
from holdfast.surfaces.http.http_server import HttpServer, bound, serve_alone
from holdfast.surfaces.http.server.application import ServerSide

_log = logging.getLogger("holdfast.serve")
_FDS_A_THREAD = 16
"""A thread's connections to the store's files, and what it sleeps by."""
_FDS_OF_GATEWAYS = 1 << 16
_PROBE_S = 1.0
_EVERY_ADDRESS = ("0.0.0.0", "::")


def serve_store(
    hf: Holdfast,
    *,
    host: str,
    port: int,
    more_hosts: Sequence[str],
    as_json: bool,
    gateways: bool = True,
) -> None:
    """Serve a store until stopped, and host the gateways of this machine beside it. Raises Held
    when a server of this store has the port, StoreUnavailable when another program has it.
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
            with JobReaper(hf), _hosting(hf) if gateways else nullcontext():
                serve_alone(server, listening)
        finally:
            folder.remove_instance(instance)


@contextmanager
def _hosting(hf: Holdfast) -> Iterator[None]:
    """Hosts the gateways of all agents, as soon as no other process does. A server whose user has
    no state folder serves all the same.
    """
    # Here, as the modules of gateways need this one.
    from holdfast.surfaces.cli.gateway_host_process import hosted_gateways

    with ExitStack() as hosting:
        if not hf.store.ephemeral:
            try:
                hosting.enter_context(hosted_gateways(hf, program="holdfast serve", stand_by=True))
            except HoldfastError as error:
                remark(f"no gateways are hosted (--no-gateways): {error.message}")
        yield


def _announce_store(
    side: ServerSide, folder: ServerFolder, host: str, *, named: bool, as_json: bool
) -> None:
    link = side.new_link()
    token_file = printable(str(folder.token))
    where = {"url": side.url, "link": link, "token_file": token_file, "pid": os.getpid()}
    token = _from_home(folder.token)
    line = f"serving at {side.url}, token in {token}\nfor a browser, once: {link}"
    answer(to_json(where) if as_json else line)
    warn_if_exposed(host)
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


def allow_descriptors(*, gateways: bool = False) -> None:
    """Raise the limit of open files to what the bounds of a server need, as far as allowed; with
    `gateways`, to what hundreds of gateways need beside it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HTTP_CONNECTIONS_MAX + _FDS_A_THREAD * (SERVER_THREADS + SERVER_WAITS_MAX) + 256
    if gateways:
        wanted += _FDS_OF_GATEWAYS
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
