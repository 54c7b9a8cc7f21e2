"""The process of a server, from its first moment to its last."""

import gc
import http.client
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Held, HoldfastError, StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_CONNECTIONS_MAX,
    SERVER_REAP_EVERY_S,
    SERVER_THREADS,
    SERVER_WAITS_MAX,
)
from holdfast.operations.jobs import mirror
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.paths import server_root
from holdfast.surfaces.cli.output import answer, remark
from holdfast.surfaces.http.access import bearer_token
from holdfast.surfaces.http.http_server import HttpServer, bound, serve
from holdfast.surfaces.http.server.application import ServerSide

_log = logging.getLogger("holdfast.serve")
_FDS_A_THREAD = 16
"""A thread's connections to the store's files, and what it sleeps by."""
_PROBE_S = 1.0
_EVERY_ADDRESS = ("0.0.0.0", "::")


def run(
    connected: Callable[[], Holdfast],
    *,
    host: str,
    port: int,
    more_hosts: Sequence[str],
    as_json: bool,
) -> None:
    """Serve a store until told to stop.

    Raises Held when a server of this store has the port, StoreUnavailable when another program has
    it.
    """
    _allow_descriptors()
    with connected() as hf:
        folder = ServerFolder(server_root(hf.settings))
        folder.prepare()
        with _listening(hf, folder, host, port) as listening:
            instance = ServerInstance(
                process=hf.processes.current("serve"), host=host, port=listening.getsockname()[1]
            )
            folder.write_instance(instance, hf.processes)
            try:
                _serve(hf, folder, instance, listening, more_hosts, as_json=as_json)
            finally:
                folder.remove_instance(instance)


def _serve(
    hf: Holdfast,
    folder: ServerFolder,
    instance: ServerInstance,
    listening: socket.socket,
    more_hosts: Sequence[str],
    *,
    as_json: bool,
) -> None:
    token = bearer_token(folder.token)
    side = ServerSide(
        hf,
        token=token,
        host=instance.host,
        port=instance.port,
        more_hosts=more_hosts,
        ended_file=folder.ended(instance.port),
    )
    named = bool(more_hosts) or instance.host not in _EVERY_ADDRESS
    server = HttpServer(
        side.app,
        on_begun=lambda: _begun(side, folder, instance, named=named, as_json=as_json),
        on_stop=side.end_waits,
    )
    # What is loaded by now stays loaded: the collector need not look at it again and again.
    gc.freeze()
    with JobReaper(hf):
        serve(server, listening)


def _begun(
    side: ServerSide, folder: ServerFolder, instance: ServerInstance, *, named: bool, as_json: bool
) -> None:
    link = side.new_link()
    if as_json:
        answer(
            to_json(
                {"url": side.url, "link": link, "token_file": str(folder.token), "pid": os.getpid()}
            )
        )
    else:
        answer(
            f"serving at {side.url}, token in {_from_home(folder.token)}\nfor a browser, once: "
            f"{link}"
        )
    if instance.host not in ("127.0.0.1", "::1", "localhost"):
        remark("it is served beyond this machine, without TLS: put a proxy with TLS in front of it")
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


def _listening(hf: Holdfast, folder: ServerFolder, host: str, port: int) -> socket.socket:
    try:
        return bound(host, port)
    except StoreUnavailable as error:
        if not error.fields.get("in_use"):
            raise
        other = next((one for one in folder.living(hf.processes) if one.port == port), None)
        if other is not None:
            raise Held(
                f"process {other.process.pid} serves this store at {other.host} port {port} "
                "already: `holdfast serve --link` "
                "prints a link to it",
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
    """Does a server of ours answer there?"""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=_PROBE_S)) as connection:
            connection.request("GET", "/health")
            return b'"status":"ok"' in connection.getresponse().read(500)
    except (OSError, http.client.HTTPException):
        return False


def _allow_descriptors() -> None:
    """Let this process have as many open as its bounds may need, as far as it may say so itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HTTP_CONNECTIONS_MAX + _FDS_A_THREAD * (SERVER_THREADS + SERVER_WAITS_MAX) + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
        )


class JobReaper:
    """Reaps jobs now and then for the time of a `with` block, in a thread.

    Clients that only listen to the server would otherwise not learn of a worker's death. A store
    that is away is asked again.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-reaping", daemon=True)

    def __enter__(self) -> "JobReaper":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SERVER_REAP_EVERY_S):
            try:
                if self._hf.jobs.reap():
                    mirror(self._hf)
            except HoldfastError as error:
                _log.info("not reaped: %s", error.message)
