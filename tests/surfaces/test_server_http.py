"""The server over HTTP: who is let in, who waits, who is slow, and what happens when it stops."""

import contextlib
import gc
import hmac
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_CODE_BYTES_MAX,
    HTTP_HEADER_BYTES_MAX,
    SERVER_LINK_S,
    SERVER_LINKS_MAX,
    SERVER_SESSION_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.store import Batch
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.http.access import served_hosts
from holdfast.surfaces.http.events import event_id
from holdfast.surfaces.http.http_server import BoundedConnection, Crowd
from holdfast.surfaces.http.server.executor import ClientWait
from holdfast.surfaces.http.server.sessions import Sessions
from tests.harness.stores import store_url
from tests.harness.timeouts import NEVER_S, PATIENCE_S, until
from tests.stores.postgres_server import running
from tests.surfaces.server_http import TOKEN, Served, served

pytestmark = pytest.mark.prove

HELD = {"names": ["router-1"], "by": "first", "ttl_s": 600}


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with connect(store_url(request, tmp_path)) as hf, served(hf) as world:
        yield world


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    with connect(f"sqlite:{tmp_path}/store.sqlite") as hf, served(hf) as world:
        yield world


def waits(hf: Holdfast, name: str = "router-1") -> list[str]:
    return [one.by for one in hf.locks.status(name).queue]


def acquire(server: Served, by: str, **more: object) -> httpx.Response:
    return server.http.post("/v1/locks/acquire", json={**HELD, "by": by, **more})


# --- who is let in ---


@pytest.mark.parametrize(
    ("status", "code", "headers"),
    [
        (401, "unauthorized", {"Authorization": ""}),
        (401, "unauthorized", {"Authorization": f"Bearer {'x' * 43}"}),
        (401, "unauthorized", {"Authorization": f"Basic {TOKEN}"}),
        (401, "unauthorized", {"Authorization": "", "Cookie": f"holdfast_session_PORT={TOKEN}"}),
        (401, "unauthorized", {"Authorization": "", "Cookie": "holdfast_session_PORT=SESSION"}),
        (401, "unauthorized", {"Authorization": "Basic SESSION"}),
        (403, "forbidden", {"Host": "evil.example"}),
        (403, "forbidden", {"Host": "127.0.0.1:1"}),
        (403, "forbidden", {"Origin": "http://evil.example"}),
        (403, "forbidden", {"Origin": "null"}),
        (413, "too_large", {"Content-Length": str(HTTP_BODY_BYTES_MAX + 1)}),
        (413, "too_large", {"Content-Length": "-1"}),
    ],
)
def test_a_stranger_is_refused_and_the_server_continues(
    small: Served, status: int, code: str, headers: dict[str, str]
) -> None:
    reported = {
        "Host": f"127.0.0.1:{small.port}",
        "Authorization": f"Bearer {TOKEN}",
        "Content-Length": "2",
        **headers,
    }
    session = small.side.sessions.begin(small.side.sessions.new_code())
    assert session is not None
    head = "".join(f"{name}: {value}\r\n" for name, value in reported.items())
    head = head.replace("PORT", str(small.port)).replace("SESSION", session)
    with socket.create_connection(("127.0.0.1", small.port)) as client:
        client.sendall(
            f"POST /v1/locks/kick HTTP/1.1\r\n{head}Content-Type: application/json\r\n\r\n{{}}".encode()
        )
        said = client.makefile("rb").read()
    if headers.get("Content-Length") == "-1":
        # Not even HTTP.
        assert said.startswith(b"HTTP/1.1 400 ")
    else:
        assert (
            said.startswith(f"HTTP/1.1 {status} ".encode())
            and json.loads(said.partition(b"\r\n\r\n")[2])["code"] == code
        )
    assert small.http.get("/v1/locks").json() == []


def test_a_body_without_a_length_is_bounded_too(small: Served) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    said = small.http.post(
        "/v1/locks/kick", content=endless(), headers={"Content-Type": "application/json"}
    )
    assert (said.status_code, said.json()["code"]) == (413, "too_large")
    assert f"may have {HTTP_BODY_BYTES_MAX} bytes" in said.json()["message"]
    assert small.http.get("/v1/locks").status_code == 200


def test_a_head_that_comes_whole_at_once_is_bounded_too(small: Served) -> None:
    # In two parts, it is the protocol that refuses it.
    assert small.http.get(
        "/v1/locks", headers={"X-Long": "x" * HTTP_HEADER_BYTES_MAX}
    ).status_code in (400, 413)
    assert (
        small.http.get(
            "/v1/locks", headers={"X-Long": "x" * (HTTP_HEADER_BYTES_MAX // 2)}
        ).status_code
        == 200
    )


def test_only_routes_without_store_data_need_no_token(small: Served) -> None:
    small.hf.locks.acquire("a-name-of-the-store", by="someone", ttl_s=600)
    assert httpx.get(f"{small.url}/health", timeout=PATIENCE_S).json()["status"] == "ok"
    for path in ("/", "/assets/page.js", "/schema", "/schema/openapi.json"):
        response = httpx.get(f"{small.url}{path}", timeout=PATIENCE_S)
        assert (
            response.status_code == 200
            and "a-name-of-the-store" not in response.text
            and TOKEN not in response.text
        )
    for path in (
        "/ready",
        "/v1/store",
        "/v1/overview",
        "/v1/events",
        "/metrics",
        "/nosuch",
        "/v1/sessions/end",
        "/enter/x",
    ):
        assert httpx.get(f"{small.url}{path}", timeout=PATIENCE_S).status_code == 401
    assert small.http.get("/ready").json() == {
        "status": "ready",
        "store": "sqlite",
        "namespace": "default",
    }
    assert small.http.get("/nosuch").json()["code"] == "not_found"
    assert (
        small.http.get("/nosuch/{x}").json()["message"]
        == "there is nothing at /nosuch/{x}: GET /schema lists what there is"
    )
    assert small.http.put("/v1/locks").json()["code"] == "method_not_allowed"
    assert (
        small.http.put("/v1/locks").json()["message"]
        == "/v1/locks does not take PUT: GET /schema lists what it takes"
    )
    assert small.http.get("/v1/locks", params={"nmae": "x"}).json()["code"] == "invalid_value"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../v1/locks",
        "/assets/%2e%2e/v1/locks",
        "/assets%2F..%2Fv1%2Flocks",
        "/schema/../v1/locks",
        "/v1/sessions/../locks",
        "/health/../v1/locks",
        "//v1/locks",
        "/assets//v1/locks",
    ],
)
def test_no_path_leads_around_the_token(small: Served, path: str) -> None:
    with socket.create_connection(("127.0.0.1", small.port)) as client:
        client.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{small.port}\r\nConnection: close\r\n\r\n".encode()
        )
        said = client.makefile("rb").read()
    assert said.split(b" ")[1] in (b"401", b"404", b"405"), said


def test_a_page_comes_in_by_a_link_once_and_gets_no_cookie(small: Served) -> None:
    link = small.http.post("/v1/links").json()["url"]
    url, _, code = link.partition("/#/enter/")
    assert url == small.url
    with httpx.Client(base_url=small.url, timeout=PATIENCE_S) as page:
        foreign = page.post(
            "/v1/sessions", json={"code": code}, headers={"Origin": "http://evil.example"}
        )
        assert foreign.status_code == 403
        entered = page.post("/v1/sessions", json={"code": code}, headers={"Origin": small.url})
        assert entered.status_code == 200 and "set-cookie" not in entered.headers
        session = entered.json()["session"]
        assert TOKEN not in session
        again = page.post("/v1/sessions", json={"code": code})
        assert (again.status_code, again.json()["code"]) == (401, "unauthorized")
        assert "holdfast serve --link" in again.json()["message"]
        for wrong in (b"", b"{}", b'{"code": 5}', b'{"code": "x", "more": 1}', b"[" * 900):
            assert page.post("/v1/sessions", content=wrong).status_code == 422
        assert (
            page.post(
                "/v1/sessions", content=b'{"code": "%s"}' % (b"x" * HTTP_CODE_BYTES_MAX)
            ).status_code
            == 413
        )
        assert page.get("/v1/locks").status_code == 401
        page.headers["Authorization"] = f"Bearer {session}"
        assert page.get("/v1/locks").json() == []
        kick = {"name": "x", "why": "y"}
        assert (
            page.post(
                "/v1/locks/kick", json=kick, headers={"Origin": "http://evil.example"}
            ).status_code
            == 403
        )
        assert (
            page.post("/v1/locks/kick", json=kick, headers={"Origin": small.url}).status_code == 404
        )
        assert page.post("/v1/sessions/end").status_code == 204
        assert page.get("/v1/locks").status_code == 401
    assert small.http.post("/v1/sessions/end").json()["code"] == "invalid_value", (
        "the token was taken for a session"
    )


def test_clients_leave_the_port_out_that_is_https_own() -> None:
    assert {"localhost", "localhost:80", "[::1]"} < served_hosts("127.0.0.1", 80)
    assert "localhost" not in served_hosts("127.0.0.1", 8470)


def test_an_error_that_names_a_path_which_is_not_utf_8_is_that_error(tmp_path: Path) -> None:
    with connect(f"sqlite:{tmp_path}/odd-\udcff.sqlite") as hf, served(hf) as world:
        answer = world.http.get("/v1/jobs/none/log")
    assert answer.status_code == 404 and "odd-\\udcff" in answer.json()["message"]


def test_a_missing_body_is_refused_with_the_missing_fields(small: Served) -> None:
    response = small.http.post("/v1/locks/acquire")
    assert (
        response.status_code == 422
        and "missing required field `names`" in response.json()["message"]
    )


def test_sessions_end_outlive_a_restart_and_die_with_the_token() -> None:
    now = [1000.0]
    sessions = Sessions("secret" * 8, 8470, now_s=lambda: now[0])
    code = sessions.new_code()
    secret = sessions.begin(code)
    assert secret is not None and sessions.begin(code) is None
    assert Sessions("secret" * 8, 8470, now_s=lambda: now[0]).lets_in(secret)
    assert not Sessions("another" * 8, 8470, now_s=lambda: now[0]).lets_in(secret)
    assert not Sessions("secret" * 8, 8471, now_s=lambda: now[0]).lets_in(secret), (
        "the server of another port knows it"
    )
    name, end, signature = secret.split(".")
    # What the cookies of earlier versions were signed with: some of those were sent to others.
    old = hmac.new(b"secret" * 8, f"session {name}.{end}".encode(), "sha256").hexdigest()
    forgeries = (
        f"{name}.{int(end) + 1}.{signature}",
        f"{name[::-1]}.{end}.{signature}",
        f"{name}.{end}.{old}",
    )
    for forged in (*forgeries, "", "x", f"{secret}\n"):
        assert not sessions.lets_in(forged)
    now[0] += SERVER_SESSION_S + 1
    assert not sessions.lets_in(secret)
    late = sessions.new_code()
    now[0] += SERVER_LINK_S + 1
    assert sessions.begin(late) is None
    first = sessions.new_code()
    for _ in range(SERVER_LINKS_MAX):
        sessions.new_code()
    assert sessions.begin(first) is None


def test_a_log_out_outlives_a_restart_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.surfaces.http.server.sessions.SERVER_ENDED_MAX", 3)
    now, file = [1000.0], tmp_path / "ended.json"

    def started() -> Sessions:
        return Sessions("secret" * 8, 8470, ended_file=file, now_s=lambda: now[0])

    sessions = started()
    secrets = []
    for _ in range(4):
        secrets.append(str(sessions.begin(sessions.new_code())))
        now[0] += 1
    for one in secrets:
        sessions.end(one)
        with pytest.raises(InvalidValue):
            sessions.end(one)
    assert [started().lets_in(one) for one in secrets[1:]] == [False] * 3
    assert len(json.loads(file.read_bytes())) == 3
    now[0] += SERVER_SESSION_S
    sessions.end(str(sessions.begin(sessions.new_code())))
    assert len(json.loads(file.read_bytes())) == 1, "those that ended by themselves are kept"
    file.write_bytes(b"{")
    with pytest.raises(StoreUnavailable):
        started()


def test_the_reference_is_a_page_that_asks_nobody_else_for_anything(small: Served) -> None:
    page = small.http.get("/schema")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for words in ("POST /v1/locks/acquire", "GET /v1/jobs/{job_id}", "takes", "GrantView"):
        assert words in page.text
    assert not re.search(r"(src|href)=.?(https?:)?//|<script|@import|url\(", page.text)
    document = small.http.get("/schema/openapi.json").json()
    assert document["openapi"].startswith("3.1")


# --- waiting ---


def test_a_wait_ends_when_it_is_its_turn(server: Served) -> None:
    token = acquire(server, "first").json()["token"]
    with ThreadPoolExecutor() as threads:
        second = threads.submit(acquire, server, "second", timeout_s=25)
        until(lambda: waits(server.hf) == ["second"])
        assert server.http.post("/v1/locks/release", json={"token": token}).json() == {
            "released": token
        }
        assert second.result(PATIENCE_S).json()["token"] > token


def test_a_timeout_names_the_holder_and_the_queue_position(small: Served) -> None:
    acquire(small, "first")
    held = small.hf.locks.status("router-1").holds[0]
    with ThreadPoolExecutor() as threads:
        second = threads.submit(acquire, small, "second", timeout_s=25)
        until(lambda: waits(small.hf) == ["second"])
        late = acquire(small, "third", timeout_s=0)
        assert (late.status_code, late.json()["code"]) == (504, "lock_timeout")
        fields = late.json()["fields"]
        assert [(one["by"], one["since"], one["process"]) for one in fields["holders"]] == [
            ("first", to_plain(held.since), None)
        ]
        assert (fields["position"], [one["by"] for one in fields["ahead"]]) == (2, ["second"])
        for path in ("locks", "network/routers"):
            looked = small.http.post(
                f"/v1/{path}/wait", json={"names": ["router-1"], "timeout_s": 0}
            ).json()
            assert (looked["free"], [one["by"] for one in looked["holders"]]) == (False, ["first"])
        small.hf.locks.release_token(held.token)
        second.result(PATIENCE_S)


def test_a_client_that_hangs_up_leaves_the_queue(server: Served) -> None:
    acquire(server, "first")
    body = json.dumps({**HELD, "by": "gone", "timeout_s": 25}).encode()
    with _asked(server, "/v1/locks/acquire", body):
        until(lambda: waits(server.hf) == ["gone"])
    until(lambda: waits(server.hf) == [])
    assert [hold.by for hold in server.hf.locks.status("router-1").holds] == ["first"]


def test_a_grant_to_a_disconnected_client_is_released(small: Served) -> None:
    """The grant is made while nobody listens any more: the wait is over for its own reasons, and
    must not leave it behind.
    """
    hf, release = small.hf, threading.Event()
    acquire_, before = hf.locks.acquire, threading.Event()

    def late(*names: object, **how: object) -> object:
        before.set()
        assert release.wait(PATIENCE_S)
        return acquire_(*names, **how)  # type: ignore[arg-type]

    hf.locks.acquire = late  # type: ignore[method-assign, assignment]
    with _asked(small, "/v1/locks/acquire", json.dumps(HELD).encode()):
        assert before.wait(PATIENCE_S)
    hf.locks.acquire = acquire_  # type: ignore[method-assign]
    # The server has seen that the connection is closed when it has none but this test's own.
    until(lambda: all(map(was_ended, waits_of(small))))
    release.set()
    until(lambda: not waits_of(small))
    until(lambda: hf.locks.status("router-1").holds == ())


class _HeldBack:
    """Locks whose first grant is made at once and reaches its taker only on request."""

    def __init__(self, served: Served) -> None:
        self._real = served.hf.locks.acquire
        self.made, self.tell = threading.Event(), threading.Event()
        served.hf.locks.acquire = self._acquire  # type: ignore[method-assign, assignment]

    def _acquire(self, *names: object, **how: object) -> object:
        grant = self._real(*names, **how)  # type: ignore[arg-type]
        if not self.made.is_set():
            self.made.set()
            assert self.tell.wait(PATIENCE_S)
        return grant


def test_a_loss_already_reported_to_the_job_is_not_undone(small: Served) -> None:
    """A client hangs up just as it is granted, and asks again: the second request enters what the
    first was given.
    """
    first = _HeldBack(small)
    with _asked(small, "/v1/locks/acquire", json.dumps(HELD).encode()):
        assert first.made.wait(PATIENCE_S)
    until(lambda: all(map(was_ended, waits_of(small))))
    again = small.http.post("/v1/locks/acquire", json=HELD).json()
    first.tell.set()
    until(lambda: not waits_of(small))
    small.side._executor._quick.submit(lambda: None).result(PATIENCE_S)
    assert [hold.token for hold in small.hf.locks.status("router-1").holds] == [again["token"]]


def test_a_grant_being_released_is_not_reused_but_acquired_again(small: Served) -> None:
    grants = small.side._executor._grants
    before = acquire(small, "first").json()["token"]
    assert grants.withdraw(before)
    again = small.http.post("/v1/locks/acquire", json=HELD).json()
    assert again["token"] > before and not again["reentered"]
    assert [hold.token for hold in small.hf.locks.status("router-1").holds] == [again["token"]]
    assert grants.issue([again["token"]]) == set() and not grants.withdraw(again["token"])


def test_a_job_picked_for_a_disconnected_client_is_pending_again(server: Served) -> None:
    with _asked(
        server, "/v1/queue/pick", json.dumps({"agent_session": "s", "wait_s": 25}).encode()
    ):
        until(lambda: len(waits_of(server)) == 1)
    until(lambda: not waits_of(server))
    server.http.post("/v1/jobs", json={"prompt": "x", "agent_session": "s"})
    assert server.hf.jobs.list_jobs()[0].status.value == "pending"
    assert server.http.post("/v1/queue/pick", json={"agent_session": "s"}).status_code == 200
    assert server.http.post("/v1/queue/pick", json={"agent_session": "s"}).status_code == 204


def test_a_waiter_gets_store_unavailable_in_time_when_postgresql_stops() -> None:
    # Long enough for all of them to come into line before the first one's time is over.
    limit_s = 10
    with (
        running() as database,
        connect(database.database()) as hf,
        served(hf) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        assert acquire(server, "first").is_success
        waiting = [
            threads.submit(acquire, server, f"waits-{number}", timeout_s=limit_s)
            for number in range(3)
        ]
        until(lambda: len(waits(hf)) == len(waiting))
        database.crash()
        gone_s = time.monotonic()
        answer = [
            (one.status_code, one.json()["code"], one.json()["message"])
            for one in (each.result() for each in waiting)
        ]
        # Its own limit, and a moment each for the last check and for leaving the queue: no more
        # than for a queued one.
        assert time.monotonic() - gone_s < limit_s + TRANSACT_TIMEOUT_S
        assert [(status, code) for status, code, _ in answer] == 3 * [(503, "store_unavailable")]
        assert all("check that it runs" in message for _, _, message in answer)
        database.start()


def test_when_too_many_wait_the_others_get_what_is_free(small: Served) -> None:
    acquire(small, "first")
    small.side._executor._waits_max = 2
    with ThreadPoolExecutor() as threads:
        # Long enough for all requests made while they wait.
        two = [threads.submit(acquire, small, f"waits-{n}", timeout_s=10) for n in range(2)]
        until(lambda: len(waits(small.hf)) == 2)
        third = acquire(small, "third", timeout_s=20)
        assert (third.status_code, third.json()["code"]) == (429, "full")
        assert waits(small.hf) == ["waits-0", "waits-1"] or waits(small.hf) == [
            "waits-1",
            "waits-0",
        ]
        assert acquire(small, "third", names=["router-2"]).status_code == 200
        assert (
            small.http.post("/v1/queue/pick", json={"agent_session": "s", "wait_s": 5}).status_code
            == 429
        )
        free = small.http.post("/v1/locks/wait", json={"names": ["router-1"], "by": "x"})
        assert free.status_code == 429
        assert small.http.get("/v1/locks/router-1/explain").status_code == 200
        assert [one.result(PATIENCE_S).status_code for one in two] == [504, 504]


# --- slow ones ---


def test_five_hundred_slow_connections_are_closed_in_time_and_hold_up_nobody(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = []
    try:
        for head_s in (NEVER_S, 0.5):
            monkeypatch.setattr(BoundedConnection, "head_s", head_s)
            slow += [_slow(small.port) for _ in range(250)]
            # The first of them are never closed, so that a client that waited for that would not get
            # an answer.
            for n in range(20):
                assert acquire(small, f"job-{n}", names=[f"free-{n}-{head_s}"]).status_code == 200
        assert all(_closed(client, PATIENCE_S) for client in slow[250:])
        assert not any(_closed(client, 0.001) for client in slow[:250])
        assert small.http.get("/v1/locks").status_code == 200
    finally:
        for client in slow:
            client.close()


def test_at_the_limit_the_longest_idle_connection_is_closed(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "connections_max", 10)
    monkeypatch.setattr(BoundedConnection, "head_s", NEVER_S)
    acquire(small, "first")
    with _asked(
        small, "/v1/locks/acquire", json.dumps({**HELD, "by": "waits", "timeout_s": 20}).encode()
    ) as waiting:
        until(lambda: waits(small.hf) == ["waits"])
        slow = [_slow(small.port) for _ in range(40)]
        for _ in range(5):
            assert httpx.get(f"{small.url}/health", timeout=PATIENCE_S).status_code == 200
        # One that is being answered is no idle one.
        assert waits(small.hf) == ["waits"]
        assert not _closed(waiting, 0.1)
        until(lambda: sum(_closed(client, 0.05) for client in slow) >= 30)
        for client in slow:
            client.close()


def test_authenticated_connections_survive_a_crowd_of_strangers(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that had been idle longest was closed, with a token or not."""
    monkeypatch.setattr(BoundedConnection, "connections_max", 10)
    monkeypatch.setattr(BoundedConnection, "head_s", NEVER_S)
    ask = f"GET /v1/locks HTTP/1.1\r\nHost: 127.0.0.1:{small.port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", small.port), timeout=PATIENCE_S) as known:
        answers = known.makefile("rb")
        known.sendall(ask)
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
        until(lambda: answers.readline() == b"\r\n")
        assert answers.read(2) == b"[]"
        # The beginning of another request, so that it is not closed as idle.
        known.sendall(ask[:20])
        slow = [_slow(small.port) for _ in range(40)]
        until(lambda: sum(_closed(client, 0.05) for client in slow) >= 30)
        known.sendall(ask[20:])
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
        for client in slow:
            client.close()


def test_unauthenticated_clients_that_read_no_answer_are_dropped(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted as being answered, for a minute each, and clients with a token were turned
    away.
    """
    monkeypatch.setattr(BoundedConnection, "connections_max", 5)
    monkeypatch.setattr(BoundedConnection, "read_s", NEVER_S)
    stuck = threading.Semaphore(0)
    pause = BoundedConnection.pause_writing

    def paused(self: BoundedConnection) -> None:
        pause(self)
        stuck.release()

    monkeypatch.setattr(BoundedConnection, "pause_writing", paused)
    # Long answers that need no token, and more of them than fit into the buffers between.
    asked = f"GET /schema/openapi.json HTTP/1.1\r\nHost: 127.0.0.1:{small.port}\r\n\r\n"
    strangers: list[socket.socket] = []
    pouring: list[threading.Thread] = []
    try:
        for _ in range(5):
            stranger = socket.socket()
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.connect(("127.0.0.1", small.port))
            strangers.append(stranger)
            pouring.append(threading.Thread(target=_pour, args=(stranger, asked.encode() * 100)))
            pouring[-1].start()
            assert stuck.acquire(timeout=PATIENCE_S)
        for _ in range(10):
            answer = httpx.get(
                f"{small.url}/v1/locks",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=PATIENCE_S,
            )
            assert answer.status_code == 200
    finally:
        for stranger in strangers:
            with contextlib.suppress(OSError):
                # To close it would not wake the thread that sends.
                stranger.shutdown(socket.SHUT_RDWR)
        for thread in pouring:
            thread.join()
        for stranger in strangers:
            stranger.close()


def _pour(client: socket.socket, data: bytes) -> None:
    """Send for as long as somebody takes it."""
    try:
        while True:
            client.sendall(data)
    except OSError:
        return


def test_making_room_takes_as_long_whatever_is_open() -> None:
    """It looked at all connections each time that one came."""

    def steps(many: int) -> int:
        crowd, counted = Crowd(), 0
        connections = [BoundedConnection.__new__(BoundedConnection) for _ in range(many)]

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        for one in connections:
            crowd.add_stranger(one)
        # Other tests leave callbacks of the garbage collector behind, which would be counted.
        gc.disable()
        sys.setprofile(count)
        try:
            for _ in range(5):
                first = crowd.first_to_go()
                assert first is not None
                crowd.remove(first)
                crowd.add_stranger(first)
                crowd.add_busy(first)
                crowd.add_idle(first)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert len(crowd) == many
        return counted

    assert steps(10) == steps(10_000)


def test_a_slow_body_is_given_up(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "body_s", 0.3)
    head = (
        f"POST /v1/locks/kick HTTP/1.1\r\nHost: 127.0.0.1:{small.port}\r\nAuthorization: Bearer "
        f"{TOKEN}\r\n"
    )
    with socket.create_connection(("127.0.0.1", small.port)) as client:
        client.sendall(
            f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode()
        )
        assert _closed(client, PATIENCE_S)
    assert small.http.get("/v1/locks").status_code == 200


# --- what else ---


def test_events_are_streamed_as_they_happen_and_after_an_id(server: Served) -> None:
    with server.http.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": events"
        first = server.hf.jobs.register_job("x", agent="a", agent_session="s")
        name, kind, data = (next(line for line in lines if line) for _ in range(3))
    assert (
        kind == "event: job.registered"
        and json.loads(data.removeprefix("data: "))["subject"] == first.job_id
    )
    second = server.hf.jobs.register_job("y", agent="a", agent_session="s")
    with server.http.stream(
        "GET", "/v1/events", headers={"Last-Event-ID": name.removeprefix("id: ")}
    ) as stream:
        reported = next(line for line in stream.iter_lines() if line.startswith("data: "))
    assert json.loads(reported.removeprefix("data: "))["subject"] == second.job_id
    assert server.http.get("/v1/events", headers={"Last-Event-ID": "nonsense"}).status_code == 422


def test_a_follower_away_longer_than_the_journal_is_kept_learns_so(small: Served) -> None:
    for number in range(3):
        small.hf.jobs.register_job(str(number), agent="a", agent_session="s")
    first = small.hf.log.tail(3)[0][0]
    last = {"Last-Event-ID": event_id("", first.revision)}
    for keep, said in ((3, "event: job.registered"), (1, "event: journal.cut_short")):
        small.hf.store.transact(partial(small.hf.log.trim, keep_entries=keep), scope=[])
        with small.http.stream("GET", "/v1/events", headers=last) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("event: ")) == said


def test_a_server_whose_store_is_gone_is_not_ready(small: Served, tmp_path: Path) -> None:
    assert small.http.get("/ready").status_code == 200
    (tmp_path / "store.sqlite").rename(tmp_path / "elsewhere")
    response = small.http.get("/ready")
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
    assert small.http.get("/health").status_code == 200
    (tmp_path / "elsewhere").rename(tmp_path / "store.sqlite")
    assert small.http.get("/ready").status_code == 200


def test_the_event_stream_ends_cleanly_when_the_store_is_down(
    small: Served, caplog: pytest.LogCaptureFixture
) -> None:
    journal = small.hf.store.journal
    with small.http.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": events"
        small.hf.store.journal = _away  # type: ignore[method-assign]
        small.hf.locks.acquire("router-1", by="somebody", ttl_s=60)
        small.hf.jobs.register_job("x", agent="a", agent_session="s")
        assert [line for line in lines if line] == []
    small.hf.store.journal = journal  # type: ignore[method-assign]
    assert [record.message for record in caplog.records if record.levelname != "DEBUG"] == [
        "a stream of events ends: away"
    ]


def _away(*_: object, **__: object) -> Batch:
    raise StoreUnavailable("away", outcome="none")


def test_a_damaged_record_hides_no_other_and_is_reported(tmp_path: Path) -> None:
    import sqlite3

    with connect(f"sqlite:{tmp_path}/store.sqlite") as hf, served(hf) as world:
        kept, damaged = (
            hf.jobs.register_job(word, agent="a", agent_session="s").job_id for word in "ab"
        )
        with sqlite3.connect(tmp_path / "store.sqlite") as database:
            table = next(
                name
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
                if name.endswith("s_jobs")
            )
            database.execute(f"UPDATE {table} SET value = ? WHERE key = ?", (b"{}", damaged))
        database.close()
        listed = world.http.get("/v1/jobs")
        assert [job["job_id"] for job in listed.json()] == [kept]
        assert listed.headers["Holdfast-Damaged"] == "1"
        assert (world.http.get(f"/v1/jobs/{damaged}").status_code) == 500
        assert world.http.get(f"/v1/jobs/{damaged}").json()["code"] == "record_invalid"


def test_a_waiter_is_answered_when_the_server_stops(tmp_path: Path) -> None:
    with connect(f"sqlite:{tmp_path}/store.sqlite") as hf, ThreadPoolExecutor() as threads:
        with served(hf) as world:
            acquire(world, "first")
            client = httpx.Client(
                base_url=world.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
            )
            waiting = threads.submit(
                client.post, "/v1/locks/acquire", json={**HELD, "by": "second", "timeout_s": 25}
            )
            until(lambda: waits(hf) == ["second"])
        reported = waiting.result(PATIENCE_S)
        assert (reported.status_code, reported.json()["code"], reported.json()["fields"]) == (
            503,
            "unavailable",
            {"outcome": "none"},
        )
        assert waits(hf) == []
        client.close()


def waits_of(served: Served) -> Collection[ClientWait]:
    """The calls that wait in a server. Nothing public shows them, and a client that hangs up must
    not leave one behind.
    """
    return served.side._executor._waits


def was_ended(wait: ClientWait) -> bool:
    """Was this call, which still runs, asked to end?"""
    assert wait.stop_fd is not None
    return bool(select.select([wait.stop_fd], [], [], 0)[0])


def _asked(server: Served, path: str, body: bytes) -> socket.socket:
    """A request that was sent whole, of which the answer is not read."""
    client = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer "
        f"{TOKEN}\r\n"
    )
    client.sendall(
        f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return client


def _slow(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/locks/acquire HTTP/1.1\r\nHost: 127.0")
    return client


def _closed(client: socket.socket, limit_s: float) -> bool:
    client.settimeout(limit_s)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
