"""Health checks of a gateway, against real servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.adapters import gateway_health
from holdfast.adapters.gateway_health import GatewayHealth
from holdfast.domains.agents import GatewayAddress
from holdfast.kernel.holder import Liveness
from tests.harness.timeouts import PATIENCE_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is waited for, however busy the machine is."""
    monkeypatch.setattr(gateway_health, "GATEWAY_PROBE_S", PATIENCE_S)


def gateway(port: int, host: str = "127.0.0.1") -> GatewayAddress:
    return GatewayAddress(host=host, port=port, state_path="/s.json", protocol_version="v1")


@contextmanager
def serving(answer: bytes, status: int = 200) -> Iterator[int]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/health"]


def test_a_gateway_that_answers_ok_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy for everything must not be asked for what is on this machine.
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    with serving(b'{"protocol_version": "v1", "status": "ok"}') as port:
        assert GatewayHealth().liveness(gateway(port)) is Liveness.ALIVE


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"protocol_version": "v2", "status": "ok"}', 200),
        (b'{"protocol_version": "v1"}', 503),
        (b"hello", 200),
        (b"[]", 200),
        (b"{" * 3000, 200),
        (b" " * 100_000, 200),
    ],
)
def test_another_program_that_answers_there_is_unknown(answer: bytes, status: int) -> None:
    with serving(answer, status) as port:
        assert GatewayHealth().liveness(gateway(port)) is Liveness.UNKNOWN


def test_where_nothing_listens_it_is_dead() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert GatewayHealth().liveness(gateway(taken.getsockname()[1])) is Liveness.DEAD


def test_one_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_health, "GATEWAY_PROBE_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert GatewayHealth().liveness(gateway(silent.getsockname()[1])) is Liveness.UNKNOWN


@pytest.mark.parametrize("host", ["no such host", "a\nb", "x" * 200, "..", "[::"])
def test_an_invalid_gateway_host_is_unknown(host: str) -> None:
    assert GatewayHealth().liveness(gateway(9, host)) is Liveness.UNKNOWN
