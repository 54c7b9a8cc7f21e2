"""How the HTTP server does as its clients become more: requests, and watchers of its events."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.measure import Contender, Lab, Series
from bench.report import Row, Scale, Verdict, growth_verdict
from bench.scale import BLOCKS, Growth, series_of

NAME = "scale-http"

_SIZES = (1, 10, 50, 200)
_QUICK_SIZES = (1, 3, 5)
_READ, _POST, _EVENT = "Holdfast, read", "Holdfast, durable POST", "Holdfast, last of all watchers"
_TIMEOUT_S = 20.0
_SECONDS = 0.5
_JOB = {"prompt": "one of many", "agent": "claude", "agent_session": "tmux:agent-00"}
_RATE = Scale("clients", "requests a second, more is better", lambda sample: sample.rate)
_WORST = Scale(
    "clients", "milliseconds of the slowest, less is better", lambda sample: sample.worst_s * 1000
)
_DELAY = Scale("watchers", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)


def measure(lab: Lab) -> list[Row]:
    if not (find_spec("litestar") and find_spec("uvicorn")):
        return []
    sizes = _QUICK_SIZES if lab.quick else _SIZES
    growth = Growth(quick=lab.quick)
    series: list[Series] = []
    with lab.folder() as folder, _served(folder):
        for size in sizes:
            for name, cast in ((_READ, Reading), (_POST, Posting)):
                run = lab.race(prepare=_nothing, cast=cast, seconds=_SECONDS, threads=size)
                found = tuple(run(folder) for _ in range(1 if lab.quick else BLOCKS))
                series.append(Series(Contender(name, "", run, size=size), found))
            for took_s in _watched(folder, size, 3 * BLOCKS):
                growth.note(size, _EVENT, [took_s])
    return [_rates(series), _worst(series), _events(growth, sizes)]


def _rates(series: list[Series]) -> Row:
    return Row(
        name="scale-http-rate",
        title="HTTP: requests a second with more clients",
        says="Each client has a connection that stays open to `holdfast serve`, and sends a request "
        "as soon as the last one is answered. A read is one job by its id; a POST registers a job, "
        "durably. The clients are threads of one process beside the server.",
        series=series,
        verdicts=[
            growth_verdict(_RATE, series, name, since=1, at_most=1.0) for name in (_READ, _POST)
        ],
        kind="scale",
        scale=_RATE,
    )


def _worst(series: list[Series]) -> Row:
    return Row(
        name="scale-http-worst",
        title="HTTP: slowest answer with more clients",
        says="The slowest answer of each round, of the same requests.",
        series=series,
        verdicts=[],
        kind="scale",
        scale=_WORST,
        logarithmic=True,
    )


def _events(growth: Growth, sizes: tuple[int, ...]) -> Row:
    series = series_of(growth.samples, [_EVENT])
    most = next(one for one in series if one.contender.size == sizes[-1])
    return Row(
        name="scale-http-events",
        title="HTTP: time until all watchers have an event",
        says="Each watcher reads the event stream, as the page does. The time is from the start of "
        "a POST that registers a job until the last watcher has the event.",
        series=series,
        verdicts=[
            Verdict(
                f"ms until {sizes[-1]} watchers have it",
                "",
                most.spread(lambda sample: sample.p50_s * 1000),
                None,
            )
        ],
        kind="scale",
        scale=_DELAY,
        logarithmic=True,
    )


def _nothing(_: Path) -> None:
    """The server is there already."""


@contextmanager
def _served(folder: Path) -> Iterator[None]:
    """The server of a store in a process of its own, with one job."""
    environment = {**os.environ, "HOLDFAST_STORE": f"sqlite:{folder}/store.sqlite"}
    words = ["serve", "--port", "0", "--no-gateways", "--json"]
    command = [sys.executable, "-m", "holdfast.surfaces.cli.entry", *words]
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            (folder / "served.json").write_bytes(server.stdout.readline())
            job = _Client(folder).ask("POST", "/v1/jobs", _JOB)
            (folder / "job").write_text(job["job_id"])
            yield
        finally:
            server.kill()


class _Client:
    """One connection to the server."""

    def __init__(self, folder: Path) -> None:
        served = json.loads((folder / "served.json").read_text())
        self._host = served["url"].removeprefix("http://")
        self._token = Path(served["token_file"]).read_text().strip()
        address, _, port = self._host.rpartition(":")
        self.socket = socket.create_connection((address, int(port)), _TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """A request as bytes."""
        content = b"" if body is None else json.dumps(body).encode()
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        ).encode() + content

    def answer(self, request: bytes) -> bytes:
        """Send a request, and return the body of its answer."""
        self.socket.sendall(request)
        answer = self.socket.recv(65536)
        head, separator, body = answer.partition(b"\r\n\r\n")
        while not separator or len(body) < _length(head):
            answer += self.socket.recv(65536)
            head, separator, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(answer[:500].decode())
        return body

    def ask(self, method: str, path: str, body: object = None) -> dict[str, str]:
        """Send a request, and return what was answered."""
        found: dict[str, str] = json.loads(self.answer(self.request(method, path, body)))
        return found


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


class _Asking:
    """Sends one request again and again; each thread has a connection of its own."""

    def __init__(self, folder: Path, make: Callable[[_Client], bytes]) -> None:
        self._folder = folder
        self._request = make(_Client(folder))
        self._own = threading.local()

    def __call__(self) -> bool:
        client: _Client | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = _Client(self._folder)
        return bool(client.answer(self._request))

    def close(self) -> None:
        """The connections end with their process."""


class Reading(_Asking):
    """Reads a job."""

    def __init__(self, folder: Path, _: int) -> None:
        path = f"/v1/jobs/{(folder / 'job').read_text()}"
        super().__init__(folder, lambda client: client.request("GET", path))


class Posting(_Asking):
    """Registers a job."""

    def __init__(self, folder: Path, _: int) -> None:
        super().__init__(folder, lambda client: client.request("POST", "/v1/jobs", _JOB))


def _watched(folder: Path, watchers: int, times: int) -> list[float]:
    """How long an event took to reach all watchers, in seconds."""
    teller = _Client(folder)
    took = []
    with ExitStack() as stack:
        watching = [_Client(folder).socket for _ in range(watchers)]
        for connection in watching:
            stack.callback(connection.close)
            connection.sendall(teller.request("GET", "/v1/events"))
        # The first event comes to all only once all streams have begun.
        _await(watching, b"text/event-stream")
        for _ in range(times):
            before = time.perf_counter()
            job = teller.ask("POST", "/v1/jobs", _JOB)
            _await(watching, job["job_id"].encode())
            took.append(time.perf_counter() - before)
    return took


def _await(watching: Sequence[socket.socket], word: bytes) -> None:
    """Read each connection until a word came."""
    poll = select.poll()
    missing = {connection.fileno(): connection for connection in watching}
    got = dict.fromkeys(missing, b"")
    for fd in missing:
        poll.register(fd, select.POLLIN)
    while missing:
        ready = poll.poll(_TIMEOUT_S * 1000)
        if not ready:
            raise RuntimeError(f"{len(missing)} watchers waited in vain for {word!r}")
        for fd, _ in ready:
            got[fd] += missing[fd].recv(65536)
            if word in got[fd]:
                del missing[fd]
                poll.unregister(fd)
