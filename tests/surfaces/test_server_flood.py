"""Floods of connections without a token, against a real `holdfast serve` at its real limit: those
with a token are served.
"""

import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.kernel.limits import HTTP_CONNECTIONS_MAX
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove

MANY = HTTP_CONNECTIONS_MAX + 500
FILES = 3 * HTTP_CONNECTIONS_MAX


class Target:
    """A server, and the token that it takes."""

    def __init__(self, announced: dict[str, Any]) -> None:
        self.url = str(announced["url"])
        self.port = int(self.url.rpartition(":")[2])
        token = Path(announced["token_file"]).read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}
        self.pid = int(announced["pid"])

    def asks(self, path: str) -> bytes:
        reported = f"Host: 127.0.0.1:{self.port}\r\nAuthorization: {self.headers['Authorization']}"
        return f"GET {path} HTTP/1.1\r\n{reported}\r\n\r\n".encode()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"this process may open {hard} files: a flood needs {FILES}")
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    process = say.start("serve", "--json", "--port", "0")
    # Behind the start, which leaves the server its own.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    try:
        assert process.stdout is not None
        yield Target(json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _silent(_: Target) -> bytes:
    return b""


def _slow_head(_: Target) -> bytes:
    return b"GET /v1/locks HTTP/1.1\r\nHost: 127.0"


def _slow_body(target: Target) -> bytes:
    return f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nContent-Length: 900\r\n\r\n{{".encode()


def _refused_body(target: Target) -> bytes:
    return f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nContent-Length: 90000\r\n\r\n{{".encode()


def _wrong_token(target: Target) -> bytes:
    return f"GET /v1/locks HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nAuthorization: Bearer {'x' * 43}\r\n\r\n".encode()


@pytest.mark.parametrize("sent", [_silent, _slow_head, _slow_body, _refused_body, _wrong_token])
def test_those_with_a_token_are_served_in_a_flood(
    target: Target, sent: Callable[[Target], bytes]
) -> None:
    flood: list[socket.socket] = []
    with socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S) as stream:
        try:
            stream.sendall(target.asks("/v1/events"))
            reported = stream.makefile("rb")
            assert reported.readline() == b"HTTP/1.1 200 OK\r\n"
            data = sent(target)
            for number in range(MANY):
                one = socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
                flood.append(one)
                _push(one, data)
                if number % 500 == 250:
                    # A new connection, in the middle of it.
                    assert (
                        httpx.get(
                            f"{target.url}/v1/locks", headers=target.headers, timeout=PATIENCE_S
                        ).status_code
                        == 200
                    )
            job = {"prompt": "news", "agent": "a", "agent_session": "s"}
            made = httpx.post(
                f"{target.url}/v1/jobs", headers=target.headers, json=job, timeout=PATIENCE_S
            )
            assert made.status_code == 200
            # The stream was there all the time.
            assert any(b"job.registered" in line for line in iter(reported.readline, b""))
            until(lambda: _open_at(target.pid, target.port) <= HTTP_CONNECTIONS_MAX)
        finally:
            for one in flood:
                one.close()


def test_an_authenticated_request_comes_before_a_simultaneous_crowd(
    target: Target,
) -> None:
    """All that had come were accepted before the first byte of any was read: a crowd behind
    somebody pushed it out unread.
    """
    crowd = [
        socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
        for _ in range(HTTP_CONNECTIONS_MAX)
    ]
    try:
        until(lambda: _open_at(target.pid, target.port) >= HTTP_CONNECTIONS_MAX)
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
        known = socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
        crowd.append(known)
        known.sendall(target.asks("/v1/locks"))
        for _ in range(MANY):
            one = socket.socket()
            one.setblocking(False)
            # As many as the kernel keeps; the others knock again later.
            one.connect_ex(("127.0.0.1", target.port))
            crowd.append(one)
        os.kill(target.pid, signal.SIGCONT)
        assert known.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
    finally:
        os.kill(target.pid, signal.SIGCONT)
        for one in crowd:
            one.close()


def _push(one: socket.socket, data: bytes) -> None:
    try:
        one.send(data)
    except OSError:
        # It had to make room already.
        return


def _open_at(pid: int, port: int) -> int:
    """How many connections a process has at a port of its own, as the kernel counts them."""
    mine = f":{port:04X}"
    inodes = {
        row[9]
        for row in (
            line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        )
        if row[1].endswith(mine) and row[3] != "0A"
    }
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += str(fd.readlink()).removeprefix("socket:[").removesuffix("]") in inodes
        except OSError:
            continue
    return found
