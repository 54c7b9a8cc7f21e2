"""The gateway over HTTP: what is answered, what is refused, and who is let in."""

import http.client
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX, PROMPT_BYTES_MAX
from holdfast.kernel.store import Batch, Entry
from holdfast.primitives.queue import RequestState
from holdfast.surfaces.http.access import bearer_token, same_token, served_hosts
from holdfast.surfaces.http.events import event_id, place_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.gateway_http import TOKEN, Served, aged, served
from tests.unit.scripted_agent import ScriptedAgent

pytestmark = pytest.mark.prove


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests after which nothing is stored: one for all of them."""
    with served(tmp_path_factory.mktemp("untouched"), work=False) as made:
        yield made
        assert made.gateway.queue.list() == []


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Served]:
    """Without a worker: what is accepted stays."""
    with served(tmp_path, depth_max=5, work=False) as made:
        yield made


def test_a_prompt_is_accepted_durably_then_answered(gate: Served) -> None:
    said = gate.prompt("hello")
    assert said.status_code == 202
    accepted = said.json()
    assert set(accepted) == {"request_id", "state", "accepted_at", "queue_depth", "epoch"}
    assert (accepted["state"], accepted["epoch"]) == ("accepted", 1)
    done = gate.ended(accepted["request_id"])
    assert (done["state"], done["receipt"], done["result"]["text"]) == (
        "completed",
        "answered",
        "re: hello",
    )
    assert done["accepted_at"] <= done["started_at"] <= done["finished_at"]
    listed = gate.http.get("/v1/requests", params={"state": "completed"}).json()["requests"]
    assert [one["request_id"] for one in listed] == [accepted["request_id"]]
    assert gate.http.get("/v1/requests", params={"state": "failed"}).json() == {"requests": []}


def test_health_stays_ok_while_the_agent_is_away(gate: Served) -> None:
    gate.agent.instance_id = None
    status = gate.http.get("/v1/status").json()
    assert status["managed_agent_connectivity"] == "unavailable"
    assert status["managed_agent_recovery"] == "awaiting_rebind"
    assert status["request_admission"] == "blocked_unavailable"
    assert (status["gateway_health"], status["gateway_port"]) == ("healthy", gate.port)
    assert httpx.get(f"{gate.url}/health", timeout=PATIENCE_S).json() == {
        "protocol_version": "v1",
        "status": "ok",
    }
    refused = gate.prompt()
    assert (refused.status_code, refused.json()["code"]) == (503, "upstream_unavailable")
    assert refused.json()["fields"]["request_admission"] == "blocked_unavailable"
    gate.agent.instance_id = "one"
    until(lambda: gate.http.get("/v1/status").json()["request_admission"] == "open")
    assert gate.prompt().status_code == 202


def test_a_replaced_agent_blocks_until_an_operator_decides(idle: Served) -> None:
    old = idle.prompt("old").json()["request_id"]
    idle.agent.instance_id = "two"
    status = idle.http.get("/v1/status").json()
    assert (status["managed_agent_instance_epoch"], status["request_admission"]) == (
        2,
        "blocked_reconciliation",
    )
    refused = idle.prompt()
    assert (refused.status_code, refused.json()["code"]) == (409, "blocked")
    assert refused.json()["fields"]["request_admission"] == "blocked_reconciliation"
    wrong = idle.http.post("/v1/reconcile", json={"action": "replay", "epoch": 1})
    assert wrong.status_code == 409
    missing = idle.http.post(
        "/v1/reconcile", json={"action": "replay", "epoch": 2, "requests": ["nosuch"]}
    )
    assert missing.status_code == 404
    done = idle.http.post("/v1/reconcile", json={"action": "replay", "epoch": 2})
    assert done.json() == {"action": "replay", "epoch": 2, "requests": [old], "left": []}
    assert idle.prompt().status_code == 202


def test_an_idempotency_key_again_answers_the_same_request(idle: Served) -> None:
    first, again = idle.prompt("a", key="k"), idle.prompt("a", key="k")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["request_id"] == again.json()["request_id"]
    other = idle.prompt("b", key="k")
    assert (other.status_code, other.json()["code"]) == (409, "collision")
    assert idle.http.get("/v1/status").json()["queue_depth"] == 1


def test_finished_requests_are_pruned_but_not_those_of_a_day(idle: Served) -> None:
    old, young, waits = (
        idle.prompt(text, key=text).json()["request_id"] for text in ("old", "young", "waits")
    )
    for request_id in (old, young):
        idle.http.delete(f"/v1/requests/{request_id}")
    aged(idle.store, "gpu", old)
    hasty = idle.http.post("/v1/prune", json={"keep_s": 3600})
    assert (hasty.status_code, hasty.json()["code"], hasty.json()["fields"]["least"]) == (
        422,
        "invalid_value",
        86400,
    )
    bodies: list[Any] = [{"keep_finished": -1}, {"keep_s": "86400"}, {"keep": 1}, []]
    for wrong in bodies:
        assert idle.http.post("/v1/prune", json=wrong).status_code == 422
    assert idle.http.post("/v1/prune").json() == {"removed": 0}
    assert idle.http.post("/v1/prune", json={"keep_finished": 0}).json() == {"removed": 1}
    assert [one["request_id"] for one in idle.http.get("/v1/requests").json()["requests"]] == [
        young,
        waits,
    ]
    assert idle.prompt("young", key="young").json()["request_id"] == young
    logged = read_events(idle, "0~0", "request.pruned")[-1][1]
    assert (logged["subject"], logged["data"]) == ("gpu", {"agent": "gpu", "removed": 1})


def test_an_expected_epoch(idle: Served) -> None:
    assert idle.prompt(expected_epoch=1).status_code == 202
    refused = idle.prompt(expected_epoch=2)
    assert (refused.status_code, refused.json()["fields"]["epoch"]) == (409, 1)


def test_a_waiting_request_is_cancelled_and_no_other(idle: Served) -> None:
    first, second = (idle.prompt(text).json()["request_id"] for text in "ab")
    idle.gateway.claim()
    ended = idle.http.delete(f"/v1/requests/{second}")
    assert (ended.status_code, ended.json()["state"], ended.json()["error_code"]) == (
        200,
        "failed",
        "cancelled",
    )
    assert idle.http.delete(f"/v1/requests/{first}").status_code == 409
    assert idle.http.delete("/v1/requests/nosuch").status_code == 404
    assert idle.http.get("/v1/requests/nosuch").json()["code"] == "not_found"


def test_a_full_queue_is_429(idle: Served) -> None:
    assert [idle.prompt(str(n)).status_code for n in range(7)] == [202] * 5 + [429] * 2
    assert idle.prompt().json()["code"] == "full"


def test_an_interrupt_is_recorded_and_reaches_a_busy_agent(tmp_path: Path) -> None:
    with served(tmp_path, ScriptedAgent(instant=False)) as gate:
        long = gate.prompt("long").json()["request_id"]
        assert gate.agent.began.wait(PATIENCE_S)
        said = gate.http.post(
            "/v1/requests", json={"schema_version": 1, "kind": "interrupt", "payload": {}}
        )
        assert gate.ended(said.json()["request_id"])["result"]["stopped"] == long
        assert gate.ended(long)["error_code"] == "interrupted"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"schema_version":1,"kind":"reboot","payload":{}}',
        b'{"schema_version":2,"kind":"interrupt","payload":{}}',
        b'{"schema_version":"1","kind":"interrupt","payload":{}}',
        b'{"kind":"interrupt","payload":{}}',
        b'{"schema_version":1,"kind":"interrupt","payload":{},"more":1}',
        b'{"schema_version":1,"kind":"interrupt","payload":{"prompt":"x"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":""}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":7}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"a\\u001b[201~b"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"a\\u0000b"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"a\\rb"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"\\ud800"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"sort it\\udb40\\udc72\\udb40\\udc6d"}}',
        b'{"schema_version":1,"kind":"submit_prompt","payload":{"prompt":"x"},"expected_epoch":"1"}',
        b"[" * 100_000,
    ],
)
def test_a_bad_body_is_422_and_stores_nothing(untouched: Served, body: bytes) -> None:
    said = untouched.http.post(
        "/v1/requests", content=body, headers={"Content-Type": "application/json"}
    )
    assert said.status_code == 422, said.text
    assert set(said.json()) == {"code", "message", "fields"}
    assert untouched.gateway.queue.head().depth == 0


@pytest.mark.parametrize("key", ["", "x" * 257, "tab\tin"])
def test_a_bad_key_is_422(untouched: Served, key: str) -> None:
    assert untouched.prompt(key=key).status_code == 422


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/requests/x?wait_s=26", 422),
        ("/v1/requests/x?wait_s=-1", 422),
        ("/v1/requests/x?wait_s=nan", 422),
        ("/v1/requests/-x", 422),
        ("/v1/requests?state=nosuch", 422),
        ("/v1/requests?limit=-1", 422),
        ("/v1/requests?stat=failed", 422),
        ("/v1/status?x=1", 422),
        ("/v1/requests/..%2f..%2fetc", 404),
        ("/v1/nosuch", 404),
        ("/", 404),
    ],
)
def test_what_cannot_be_asked_for(untouched: Served, path: str, status: int) -> None:
    said = untouched.http.get(path)
    assert said.status_code == status, said.text
    assert set(said.json()) == {"code", "message", "fields"}


def test_a_body_that_is_too_large_is_413_with_and_without_a_length(untouched: Served) -> None:
    large = b"x" * (HTTP_BODY_BYTES_MAX + 1)
    said = untouched.http.post("/v1/requests", content=large)
    assert (said.status_code, said.json()["code"]) == (413, "too_large")

    def pieces() -> Iterator[bytes]:
        for _ in range(HTTP_BODY_BYTES_MAX // 65536 + 2):
            yield b"x" * 65536

    chunked = untouched.http.post(
        "/v1/requests", content=pieces(), headers={"Content-Type": "application/json"}
    )
    assert (chunked.status_code, chunked.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize(("status", "token"), [(413, True), (401, False)])
def test_a_client_that_sends_all_before_it_listens_gets_its_refusal(
    untouched: Served, status: int, token: bool
) -> None:
    """The connection was closed under it, and it saw that instead of the answer."""
    for _ in range(5):
        with closing(
            http.client.HTTPConnection("127.0.0.1", untouched.port, timeout=PATIENCE_S)
        ) as client:
            headers = {"Authorization": f"Bearer {TOKEN}"} if token else {}
            client.request("POST", "/v1/requests", body=b"x" * 5_000_000, headers=headers)
            assert client.getresponse().status == status


def test_an_unknown_state_is_refused_by_name(untouched: Served) -> None:
    said = untouched.http.get("/v1/requests?state=done").json()
    assert said["message"].startswith("state: ")


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("character", ["x", "\n", "ä", "漢", "🙂"])
def test_the_longest_prompt_is_accepted_and_one_byte_more_is_not(
    idle: Served, character: str, escaped: bool
) -> None:
    count, more = divmod(PROMPT_BYTES_MAX, len(character.encode()))
    text = "-" * more + character * (count - 1) + "." * len(character.encode())
    assert len(text.encode()) == PROMPT_BYTES_MAX

    def post(prompt: str) -> httpx.Response:
        body = {"schema_version": 1, "kind": "submit_prompt", "payload": {"prompt": prompt}}
        return idle.http.post(
            "/v1/requests", content=json.dumps(body, ensure_ascii=escaped).encode()
        )

    stored = idle.http.get(f"/v1/requests/{post(text).json()['request_id']}").json()
    assert stored["payload"] == {"prompt": text}
    refused = post(text + ".")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_value")


PATHS = [
    ("GET", "/v1/status"),
    ("GET", "/v1/requests"),
    ("GET", "/v1/requests/x"),
    ("DELETE", "/v1/requests/x"),
    ("POST", "/v1/requests"),
    ("POST", "/v1/reconcile"),
    ("POST", "/v1/detach"),
    ("GET", "/v1/events"),
    ("GET", "/schema/openapi.json"),
    ("GET", "/schema"),
    ("GET", "/nosuch"),
]


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ä"],
)
def test_nobody_is_let_in_without_the_token(untouched: Served, authorization: str | None) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode()}
    with httpx.Client(base_url=untouched.url, headers=headers, timeout=PATIENCE_S) as bare:
        for method, path in PATHS:
            said = bare.request(method, path)
            assert (said.status_code, said.json()["code"]) == (401, "unauthorized"), (method, path)
            assert said.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in said.text
    assert not untouched.detached.is_set()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""]
)
def test_another_host_is_refused_also_with_the_token(untouched: Served, host: str) -> None:
    for path in ("/v1/status", "/health"):
        said = untouched.http.get(path, headers={"Host": host.format(port=untouched.port)})
        assert (said.status_code, said.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_a_page_of_another_origin_is_refused_also_with_the_token(
    untouched: Served, origin: str
) -> None:
    for path in ("/v1/status", "/health"):
        said = untouched.http.get(path, headers={"Origin": origin})
        assert (said.status_code, said.json()["code"]) == (403, "forbidden")
        assert "access-control-allow-origin" not in said.headers
    assert untouched.http.get("/v1/status", headers={"Origin": untouched.url}).status_code == 200


def test_the_names_of_loopback_are_served(untouched: Served) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert (
            untouched.http.get(
                "/v1/status", headers={"Host": f"{host}:{untouched.port}"}
            ).status_code
            == 200
        )
    assert "lab.example:80" in served_hosts("0.0.0.0", 9, ["Lab.example:80"])
    assert "[fe80::1]:9" in served_hosts("fe80::1", 9)


def test_detaching_is_asked_for_over_http(idle: Served) -> None:
    assert idle.http.post("/v1/detach").status_code == 202
    assert idle.detached.is_set()


def test_waiting_ends_when_the_request_does_and_not_before(tmp_path: Path) -> None:
    with served(tmp_path, ScriptedAgent(instant=False)) as gate:
        request_id = gate.prompt("long").json()["request_id"]
        assert gate.agent.began.wait(PATIENCE_S)
        early = gate.http.get(f"/v1/requests/{request_id}", params={"wait_s": 0.05}).json()
        assert early["state"] == "running"
        releaser = threading.Timer(0.1, gate.agent.answers.set)
        releaser.start()
        assert gate.ended(request_id)["state"] == "completed"
        releaser.join()


def read_events(
    gate: Served, last: str | None, until: str, number: int = 1
) -> list[tuple[str, dict[str, Any]]]:
    """Events until so many of a kind have come; then hang up."""
    headers = {} if last is None else {"Last-Event-ID": last}
    found: list[tuple[str, dict[str, Any]]] = []
    name = ""
    with gate.http.stream("GET", "/v1/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("id: "):
                name = line[4:]
            if line.startswith("data: "):
                found.append((name, json.loads(line[6:])))
                if sum(entry["kind"] == until for _, entry in found) == number:
                    break
    return found


def test_events_are_resumed_behind_each_one_without_gap_or_repetition(gate: Served) -> None:
    for n in range(4):
        gate.ended(gate.prompt(str(n)).json()["request_id"])
    everything = read_events(gate, "0~0", "request.completed", 4)
    kinds = [entry["kind"] for _, entry in everything]
    assert kinds[:2] == ["gateway.attached", "gateway.instance_seen"]
    assert (
        kinds[2:]
        == ["request.accepted", "request.running", "request.delivered", "request.completed"] * 4
    )
    revisions = [entry["revision"] for _, entry in everything]
    for cut, (name, _) in enumerate(everything[:-1], start=1):
        left = 4 - sum(kind == "request.completed" for kind in kinds[:cut])
        again = read_events(gate, name, "request.completed", left)
        assert [entry["revision"] for _, entry in again] == revisions[cut:]


def test_events_begin_with_now_without_an_id_and_come_as_they_happen(gate: Served) -> None:
    gate.ended(gate.prompt("before").json()["request_id"])
    with ThreadPoolExecutor(1) as pool:
        with gate.http.stream("GET", "/v1/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": events"
            asked = pool.submit(gate.prompt, "after")
            data = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
            request_id = asked.result().json()["request_id"]
    assert (data["kind"], data["subject"]) == ("request.accepted", request_id)


def test_events_tell_of_this_agent_alone(gate: Served) -> None:
    gate.store.transact(
        lambda tx: tx.append(
            actor="x", kind="request.accepted", subject="y", data={"agent": "cpu"}
        ),
        scope=[],
    )
    gate.store.transact(
        lambda tx: tx.append(actor="x", kind="job.registered", subject="z", data={"agent": "gpu"}),
        scope=[],
    )
    gate.ended(gate.prompt().json()["request_id"])
    subjects = {entry["subject"] for _, entry in read_events(gate, "0~0", "request.completed")}
    assert not subjects & {"y", "z"}


def test_an_id_of_another_journal_is_reported_and_all_events_repeat(gate: Served) -> None:
    """As after the queue was copied to another store: nothing is skipped in silence."""
    gate.ended(gate.prompt("before").json()["request_id"])
    with gate.http.stream("GET", "/v1/events", headers={"Last-Event-ID": "7.8.9~10"}) as stream:
        lines = stream.iter_lines()
        assert (
            next(line for line in lines if line.startswith("event: "))
            == "event: journal.begun_anew"
        )
        assert (
            next(line for line in lines if line.startswith("event: ")) == "event: gateway.attached"
        )


@pytest.mark.parametrize("last", ["", "x", "1", "1~", "~1", "1~x", "../etc~1", "1~" + "1" * 300])
def test_an_id_that_was_never_given_is_422(untouched: Served, last: str) -> None:
    assert untouched.http.get("/v1/events", headers={"Last-Event-ID": last}).status_code == 422


def test_a_stream_ends_with_the_server_and_holds_nothing_up(tmp_path: Path) -> None:
    ended = threading.Event()
    with served(tmp_path) as gate:
        begun = threading.Event()

        def follow() -> None:
            with httpx.stream(
                "GET",
                f"{gate.url}/v1/events",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=PATIENCE_S,
            ) as stream:
                begun.set()
                for _ in stream.iter_lines():
                    continue
            ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert begun.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert ended.is_set()


def test_what_was_acknowledged_by_a_stopping_server_is_stored(tmp_path: Path) -> None:
    """Requests come in while the server stops: each is either refused, or stored."""
    acknowledged: list[str] = []
    with served(tmp_path, depth_max=10_000, work=False) as gate:
        begun = threading.Barrier(9)

        def ask(number: int) -> None:
            with httpx.Client(
                base_url=gate.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
            ) as http:
                body = {"schema_version": 1, "kind": "submit_prompt", "payload": {"prompt": "x"}}
                begun.wait()
                while True:
                    try:
                        acknowledged.append(
                            http.post("/v1/requests", json=body).json()["request_id"]
                        )
                    except httpx.HTTPError:
                        return

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        begun.wait()
        while len(acknowledged) < 50:
            threading.Event().wait(0.01)
    for thread in threads:
        thread.join(PATIENCE_S)
    from holdfast.stores.sqlite.store import SqliteStore

    store = SqliteStore(tmp_path / "queue.sqlite", boot_id="boot-1")
    from holdfast.primitives.journal import Journal
    from holdfast.primitives.queue import Queue

    kept = {
        request.request_id
        for request in Queue(store, Journal(store, actor="x"), "gpu").list(
            state=RequestState.ACCEPTED
        )
    }
    store.close()
    assert set(acknowledged) <= kept


def test_concurrent_accepts_share_commits_and_a_refusal_is_one_alone(tmp_path: Path) -> None:
    with served(tmp_path, depth_max=100, work=False) as gate:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda n: gate.prompt(str(n)).status_code, range(120)))
        assert (answers.count(202), answers.count(429)) == (100, 20)
        assert gate.gateway.queue.head().depth == 100


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    old = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            tokens = set(pool.map(lambda _: bearer_token(path), range(8)))
    finally:
        os.umask(old)
    assert len(tokens) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["token"]
    (token,) = tokens
    assert (
        same_token(token, token)
        and not same_token(token[:-1], token)
        and not same_token("ä", token)
    )


def test_a_token_that_others_can_read_or_that_is_invalid_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "token"
    bearer_token(path)
    path.chmod(0o644)
    with pytest.raises(StoreUnavailable, match="others may read it"):
        bearer_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(StoreUnavailable, match="holds no token"):
        bearer_token(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        bearer_token(path)


def test_an_event_id_is_a_place_and_a_revision() -> None:
    def entry(revision: int) -> Entry:
        from datetime import UTC, datetime

        return Entry(
            revision=revision, at=datetime.now(UTC), actor="x", kind="k", subject="s", data={}
        )

    batch = Batch([entry(n) for n in (5, 7, 6)], "6.0")
    assert [e.revision for e in batch.behind(7)] == [6]
    assert [e.revision for e in batch.behind(0)] == [5, 7, 6]
    assert place_of(event_id("", 0)) == ("", 0)
    assert place_of(event_id("12.3", 4)) == ("12.3", 4)
    with pytest.raises(InvalidValue):
        place_of("12.3")


def test_half_a_request_and_a_hang_up_disturb_nobody(idle: Served) -> None:
    with socket.create_connection(("127.0.0.1", idle.port)) as half:
        half.sendall(
            f"POST /v1/requests HTTP/1.1\r\nHost: 127.0.0.1:{idle.port}\r\nAuthorization: Bearer "
            f"{TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
    assert idle.prompt().status_code == 202
    assert idle.gateway.queue.head().depth == 1
