"""The gateway over HTTP: durable accepts beside the same server's hello."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench import work
from bench.measure import Contender, Lab, Sample, Series, ratio
from bench.report import Row, Verdict

NAME = "gateway"

_AGENT = "bench"
_AT_LEAST = {1: 0.35, 32: 0.5}
"""The target for each number of connections."""
_ABSENT = ["the gateway, whose extra `server` is not installed"]


def measure(lab: Lab) -> list[Row]:
    return lab.rows(
        {f"Gateway, {connections}": partial(_row, lab, connections) for connections in _AT_LEAST}
    )


def _row(lab: Lab, connections: int) -> Row:
    series = _series(lab, connections) if find_spec("litestar") and find_spec("uvicorn") else []
    verdicts = []
    if series:
        rate = ratio(series[0], series[1], lambda sample: sample.rate)
        least = _AT_LEAST[connections]
        verdicts = [
            Verdict(
                "throughput, durable POST to hello",
                f"at least {least:g}",
                rate,
                rate.median >= least,
                _SYNCED,
            )
        ]
    many = "one connection" if connections == 1 else f"{connections} connections"
    return Row(
        name=f"gateway-{connections}",
        title="Gateway",
        variant=many,
        says="Prompts of a hundred characters are sent to a gateway by POST /v1/requests over "
        "connections that stay open. Each is answered when it is stored durably. The peer is "
        "GET /health of the same server, with the same checks. The agent is busy all the "
        "time, so only accepting is measured. The client is one process that shares the "
        "processors with the server.",
        series=series,
        verdicts=verdicts,
        absent=[] if series else _ABSENT,
    )


_SYNCED = (
    "An accept waits for the disk, and hello does not; with one connection nobody shares the sync. "
    "The rest is the check of the request, its record and its journal entry."
)


def _series(lab: Lab, connections: int) -> list[Series]:
    return lab.interleave(
        [
            Contender("Holdfast, accepts", work.FULL, _round(lab, Accepting, connections)),
            Contender(
                "the same server's hello", "", _round(lab, Greeting, connections), limit=True
            ),
        ],
        judged=lambda series: [ratio(series[0], series[1], lambda sample: sample.rate)],
    )


def _round(
    lab: Lab, cast: "Callable[[Path, int], _Asking]", connections: int
) -> Callable[[Path], Sample]:
    race = lab.race(prepare=_nothing, cast=cast, seconds=1.5, warm_up_s=0.5, threads=connections)

    def run(folder: Path) -> Sample:
        with _served(folder):
            return race(folder)

    return run


def _nothing(_: Path) -> None:
    """The server is there already."""


@contextmanager
def _served(folder: Path) -> Iterator[None]:
    """A gateway in a process of its own, before an agent that never ends its first prompt."""
    environment = {
        **os.environ,
        "HOLDFAST_STORE": f"sqlite:{folder}/store.sqlite",
        "HOLDFAST_GATEWAY_ROOT": str(folder),
    }
    serve = [
        "gateway",
        "serve",
        _AGENT,
        "--queue-max",
        "100000000",
        "--adapter",
        "command",
        "--",
        "sleep",
        "1000000",
    ]
    command = [sys.executable, "-m", "holdfast.surfaces.cli.entry", *serve]
    server = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        if not server.stdout.readline().startswith("gateway of"):
            raise RuntimeError("the gateway did not start")
        yield
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
        _end_agent(folder)


def _end_agent(folder: Path) -> None:
    """End what the killed gateway left running, unless it has ended by itself."""
    note = folder / "default" / _AGENT / "run" / "agent-process.json"
    with suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(json.loads(note.read_text())["pid"], 9)


class _Asking:
    """One request, built once and sent repeatedly; each thread has its own connection."""

    def __init__(self, folder: Path, request: Callable[[str, str], bytes]) -> None:
        root = folder / "default" / _AGENT
        self._port = json.loads((root / "run" / "current-instance.json").read_text())["port"]
        token = (root / "token").read_text().strip()
        self._request = request(f"127.0.0.1:{self._port}", token)
        self._own = threading.local()

    def __call__(self) -> bool:
        connection: socket.socket | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = socket.create_connection(("127.0.0.1", self._port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self._request)
        answer = connection.recv(65536)
        head, separator, body = answer.partition(b"\r\n\r\n")
        while not separator or len(body) < _length(head):
            answer += connection.recv(65536)
            head, separator, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(answer[:500].decode())
        return True

    def close(self) -> None:
        """The connections end with their process."""


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


class Accepting(_Asking):
    """Sends a prompt."""

    def __init__(self, folder: Path, _: int) -> None:
        super().__init__(folder, _prompt)


class Greeting(_Asking):
    """Asks whether the server answers."""

    def __init__(self, folder: Path, _: int) -> None:
        super().__init__(folder, _hello)


def _prompt(host: str, token: str) -> bytes:
    body = json.dumps(
        {"schema_version": 1, "kind": "submit_prompt", "payload": {"prompt": "x" * 100}}
    ).encode()
    head = f"POST /v1/requests HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    return (
        f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def _hello(host: str, token: str) -> bytes:
    return f"GET /health HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
