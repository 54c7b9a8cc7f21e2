"""`holdfast gateway` as a user types it, with a real agent behind a real gateway."""

import json
import socket
import stat
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

import holdfast
from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.gateway.proof import CHALLENGE_HEADER, is_proof
from holdfast.kernel.errors import Collision, Full, InvalidValue, NotFound, Unavailable
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX, PROMPT_BYTES_MAX
from holdfast.stores.sqlite.store import SqliteStore
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import AGENT, DILIGENT, GatewayProcess
from tests.surfaces.command import CommandLine
from tests.surfaces.gateway_http import aged

pytestmark = pytest.mark.prove


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path) as made:
        yield made.start("--queue-max", "3")


@pytest.fixture
def command(gate: GatewayProcess) -> CommandLine:
    names = ("HOLDFAST_STORE", "HOLDFAST_GATEWAY_ROOT")
    return CommandLine(gate.folder, **{name: gate.environment[name] for name in names})


def test_a_day_with_a_gateway(gate: GatewayProcess, command: CommandLine) -> None:
    said = command("gateway", "prompt", AGENT, "hello", "--wait")
    assert (said.status, said.out) == (0, "did hello\n\n"), said
    for dash in ("", "-"):
        from_stdin = command.shell(
            f"printf 'two\\nlines\\n' | holdfast gateway prompt {AGENT} {dash} --wait --json"
        )
        assert json.loads(from_stdin.out)["payload"] == {"prompt": "two\nlines"}
    status = json.loads(command("gateway", "status", AGENT, "--json").out)
    assert (status["gateway_health"], status["request_admission"], status["backend"]) == (
        "healthy",
        "open",
        "command",
    )
    assert "request_admission" in command("gateway", "status", AGENT).out
    listed = command("gateway", "requests", AGENT, "--state", "completed").out.splitlines()
    assert [line.split("\t")[-1] for line in listed] == ["hello", "two lines", "two lines"]

    running = command("gateway", "prompt", AGENT, "long").out.strip()
    waiting = command("gateway", "prompt", AGENT, "never", "--key", "k").out.strip()
    assert command("gateway", "prompt", AGENT, "never", "--key", "k").out.strip() == waiting
    assert command("gateway", "prompt", AGENT, "another", "--key", "k").status == 4
    late = ("prompt", AGENT, "late", "--wait", "--timeout", "0.1", "--json")
    timed_out = command("gateway", *late)
    assert (timed_out.status, json.loads(timed_out.out)["state"]) == (5, "accepted")
    assert command("gateway", "prompt", AGENT, "too many").status == 4
    cancelled = command("gateway", "cancel", AGENT, waiting, "--json")
    assert (cancelled.status, json.loads(cancelled.out)["error_code"]) == (0, "cancelled")
    assert command("gateway", "cancel", AGENT, waiting).status == 1
    assert command("gateway", "cancel", AGENT, "nosuch").status == 1
    stopped = json.loads(command("gateway", "interrupt", AGENT, "--json").out)["result"]
    assert (stopped["disposition"], stopped["stopped"]) == ("accepted", running)

    def error_code() -> str | None:
        requests = json.loads(command("gateway", "requests", AGENT, "--json").out)
        code: str | None = next(
            one["error_code"] for one in requests if one["request_id"] == running
        )
        return code

    # `interrupt` returns when the signal is sent. The request ends later, when its program has
    # ended.
    until(lambda: error_code() is not None)
    assert error_code() == "interrupted"
    long = command("gateway", "prompt", AGENT, "long again").out.strip()
    until(lambda: "long again" in gate.asked())
    waited = command("gateway", "interrupt", AGENT, "--wait", "--json")
    assert waited.status == 0, waited
    assert (json.loads(waited.out)["request_id"], json.loads(waited.out)["error_code"]) == (
        long,
        "interrupted",
    )
    idle = command("gateway", "interrupt", AGENT, "--wait", "--json")
    assert (idle.status, json.loads(idle.out)["result"]["disposition"]) == (0, "no_op")
    assert command("gateway", "reconcile", AGENT, "replay", "--epoch", "1").status == 4
    assert command("gateway", "prompt", AGENT, "x", "--epoch", "7").status == 4
    for size in (PROMPT_BYTES_MAX + 1, HTTP_BODY_BYTES_MAX + 1):
        too_long = command.shell(
            f"head -c {size} /dev/zero | tr '\\0' x | holdfast gateway prompt {AGENT}"
        )
        assert (too_long.status, len(too_long.err.splitlines())) == (2, 1)

    assert command("gateway", "detach", AGENT).status == 0
    assert gate.wait() == 0
    gone = json.loads(command("gateway", "status", AGENT, "--json").out)
    assert gone["gateway_health"] == "not_attached"
    assert (gone["request_admission"], gone["managed_agent_connectivity"]) == (
        "blocked_unavailable",
        "unavailable",
    )
    assert (gone["gateway_port"], gone["managed_agent_instance_epoch"]) == (None, 1)
    # The command that starts it again is shown.
    assert f"holdfast gateway serve {AGENT}" in command("gateway", "status", AGENT).out
    refused = command("gateway", "prompt", AGENT, "x")
    assert (refused.status, f"holdfast gateway serve {AGENT}" in refused.err) == (6, True)


def test_the_library_and_the_command_line_say_the_same(
    gate: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_STORE", "HOLDFAST_GATEWAY_ROOT"):
        monkeypatch.setenv(name, gate.environment[name])
    with holdfast.connect() as hf:
        gateway = hf.gateway(AGENT)
        done = gateway.prompt("hello", wait_s=PATIENCE_S)
        assert done["result"]["text"] == "did hello\n"
        names = (name for name, _ in gateway.events("0~0"))
        assert next(names) and next(names)
        with pytest.raises(NotFound):
            gateway.request("nosuch")
        with pytest.raises(InvalidValue):
            gateway.prompt("\x1b")
        gateway.prompt("long", idempotency_key="k")
        with pytest.raises(Collision):
            gateway.prompt("other", idempotency_key="k")
        gateway.prompt("a"), gateway.prompt("b")
        with pytest.raises(Full) as caught:
            gateway.prompt("c")
        assert caught.value.fields["depth_max"] == 3
        address = json.loads((gate.root / "run" / "current-instance.json").read_text())
        token = (gate.root / "token").read_text().strip()
        far = hf.gateway(AGENT, url=f"http://127.0.0.1:{address['port']}", token=token)
        assert far.status()["queue_depth"] == 3
        with pytest.raises(holdfast.HoldfastError) as refused:
            hf.gateway(AGENT, url=f"http://127.0.0.1:{address['port']}", token="wrong").status()
        assert (refused.value.code, refused.value.fields) == ("error", {})
        with pytest.raises(InvalidValue):
            hf.gateway(AGENT, url="http://127.0.0.1:1")
        with pytest.raises(Unavailable):
            hf.gateway(AGENT, url="http://127.0.0.1:1", token="x").prompt("x")
        for url in ("ftp://x", "127.0.0.1:1", "http://x:port", "http://x/path"):
            with pytest.raises(InvalidValue):
                hf.gateway(AGENT, url=url, token="x")


def test_finished_requests_are_pruned_by_hand(gate: GatewayProcess, command: CommandLine) -> None:
    old, young = (
        gate.client.prompt(text, wait_s=PATIENCE_S, idempotency_key=text)["request_id"]
        for text in ("old", "young")
    )
    _age(gate, old)
    hasty = command("gateway", "prune", AGENT, "--keep-days", "0.5")
    assert (hasty.status, len(hasty.err.splitlines())) == (2, 1), hasty
    for more, removed in (([], 0), (["--keep-days", "2"], 1), (["--keep", "0"], 0)):
        pruned = command("gateway", "prune", AGENT, *more, "--json")
        assert json.loads(pruned.out) == {"removed": removed}, more
    assert [one["request_id"] for one in gate.client.requests()] == [young]
    assert gate.client.prompt("young", idempotency_key="young")["request_id"] == young
    until(lambda: '"request.pruned"' in (gate.root / "events.jsonl").read_text())
    assert gate.asked() == ["old", "young"]
    gate.stop()
    assert command("gateway", "prune", AGENT).status == 6


def _age(gate: GatewayProcess, request_id: str) -> None:
    with closing(SqliteStore(gate.root / "queue.sqlite", boot_id="boot-1")) as store:
        aged(store, AGENT, request_id)


@contextmanager
def between(gate: GatewayProcess, *, losses: int) -> Iterator[GatewayClient]:
    """A client whose first calls reach the gateway, and get no answer."""
    instance, token = gate.client.folder.instance(), gate.client.folder.token.read_text().strip()
    assert instance is not None
    port, left = instance.port, [None] * losses

    class PassingOn(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {
                name: value
                for name, value in self.headers.items()
                if name not in ("Host", "Content-Length")
            }
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}{self.path}", data=sent, headers=headers
            )
            with urllib.request.urlopen(asked) as answer:
                body = answer.read()
            if left:
                left.pop()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), PassingOn) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            yield GatewayClient(AGENT, root=gate.root, url=url, token=token)
            assert not left, "nothing was lost"
        finally:
            server.shutdown()


def test_a_prune_whose_answer_is_lost_is_asked_for_again(gate: GatewayProcess) -> None:
    _age(gate, str(gate.client.prompt("old", wait_s=PATIENCE_S)["request_id"]))
    with between(gate, losses=2) as client:
        assert client.prune(keep_finished=0) == {"removed": 0}
    assert gate.client.requests() == []
    # A call that is not safe to repeat is not repeated: a restarted gateway would be stopped too.
    with between(gate, losses=1) as client, pytest.raises(Unavailable) as caught:
        client.detach()
    assert caught.value.fields["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("ask", "outcome"),
    [
        (lambda client: client.prompt("x"), "unknown"),
        (lambda client: client.prune(), "unknown"),
        (lambda client: client.requests(), "none"),
    ],
    ids=["prompt", "prune", "requests"],
)
def test_a_gateway_that_goes_while_it_is_asked_may_have_done_it(
    tmp_path: Path, ask: Callable[[GatewayClient], object], outcome: str
) -> None:
    """A second try that found nobody said that nothing was done, though the first one may have
    been.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        client = GatewayClient(
            AGENT, root=tmp_path, url=f"http://127.0.0.1:{server.getsockname()[1]}", token="t"
        )
        asking = pool.submit(ask, client)
        connection, _ = server.accept()
        server.close()
        connection.recv(1)
        connection.close()
        with pytest.raises(Unavailable) as caught:
            asking.result(PATIENCE_S)
    assert caught.value.fields["outcome"] == outcome


def test_everything_in_the_folder_is_its_owners_alone(gate: GatewayProcess) -> None:
    gate.client.prompt("x", wait_s=PATIENCE_S)
    for path in [gate.root, *gate.root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, (path, oct(mode))


def test_the_token_is_nowhere_but_in_its_file(gate: GatewayProcess) -> None:
    token = (gate.root / "token").read_text().strip()
    gate.client.prompt("x", wait_s=PATIENCE_S)
    gate.stop()
    for path in gate.folder.rglob("*"):
        if path.is_file() and path != gate.root / "token":
            assert token.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ([], 1, "--adapter"),
        (["--adapter", "tmux"], 2, "--session"),
        (["--session", "a"], 1, "--adapter"),
        (["--adapter", "tmux", "--session", "a", "--", "ls"], 2, "--adapter tmux"),
        (["--adapter", "command"], 2, "--adapter command"),
        (["--adapter", "command", "--session", "x", "--", "ls"], 2, "--session"),
        (["--adapter", "acp"], 2, "a program behind --"),
        (["--adapter", "acp", "--tool", "shell"], 2, "shell"),
        (["--tool", "nosuch"], 1, "nosuch"),
        (["--tool", "claude", "--adapter", "codex_app_server"], 2, "--adapter codex_app_server"),
        (["--adapter", "codex_app_server", "--mode", "plan", "--", "codex"], 2, "--mode"),
        (["--adapter", "tmux", "--session", "a", "--tool", "claude"], 2, "--tool"),
        (["--adapter", "acp", "--question-timeout", "-1", "--", "ls"], 2, "--question-timeout"),
        (["--adapter", "rest", "--url", "http://h"], 2, "--terminal"),
        (["--adapter", "rest"], 2, "--url"),
        (["--adapter", "tmux", "--session", "a", "--url", "http://h"], 2, "--url"),
        (["--adapter", "rest", "--url", "nonsense", "--terminal", "t"], 2, "url"),
        (["--adapter", "rest", "--url", "http://[::", "--terminal", "t"], 2, "http://[::"),
        (["--adapter", "rest", "--url", "http://h:99999", "--terminal", "t"], 2, "http://h:99999"),
        (["--adapter", "rest", "--url", "http://a..b", "--terminal", "t"], 2, "http://a..b"),
        (["--adapter", "command", "--answer-timeout", "nan", "--", "ls"], 2, "--answer-timeout"),
        (["--adapter", "managed", "--base-url", "http://h"], 2, "--agent-ref"),
        (["--adapter", "command", "--host", "192.0.2.1", "--", "ls"], 2, "--expose"),
        (["--adapter", "command", "--host", "", "--expose", "--", "ls"], 2, "host"),
        (["--adapter", "command", "--expose", "--host", "192.0.2.1", "--", "ls"], 6, "192.0.2.1"),
    ],
)
def test_wrong_options_fail_in_one_line_that_names_them(
    tmp_path: Path, words: list[str], status: int, named: str
) -> None:
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, *words)
    assert (said.status, len(said.err.splitlines())) == (status, 1), said
    assert named in said.err
    assert not list(tmp_path.rglob("current-instance.json"))


@pytest.mark.parametrize(
    ("url", "token", "says"),
    [
        ("http://a..b:9100", b"x", "no address of a gateway"),
        (f"http://{'a' * 64}:9100", b"x", "no address of a gateway"),
        ("http://127.0.0.1:9100", b"\xff", "the token has characters"),
        ("http://127.0.0.1:9100", "€".encode(), "the token has characters"),
        ("http://127.0.0.1:9100", b"a\nb", "the token has characters"),
    ],
)
def test_a_wrong_address_or_token_fails_in_one_line(
    tmp_path: Path, url: str, token: bytes, says: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(token)
    words = ("gateway", "status", AGENT, "--url", url, "--token-file", str(path))
    said = CommandLine(tmp_path)(*words)
    assert (said.status, len(said.err.splitlines())) == (2, 1), said
    assert says in said.err


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"adapter": 1}', b'{"adapter": ' + b"[" * 100_000]
)
def test_an_invalid_manifest_fails_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, "--manifest", str(path))
    assert (said.status, len(said.err.splitlines())) == (2, 1), said


def test_the_adapter_from_a_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    argv = [sys.executable, "-c", DILIGENT, str(tmp_path / "asked")]
    manifest.write_text(
        json.dumps({"schema_version": 1, "adapter": {"kind": "command", "argv": argv}})
    )
    with GatewayProcess(tmp_path, "--manifest", str(manifest)) as gate:
        gate.start("--log-json")
        assert gate.client.prompt("x", wait_s=PATIENCE_S)["state"] == "completed"
    manifest.write_text("{")
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, "--manifest", str(manifest))
    assert said.status == 2, said


def test_an_agent_behind_a_protocol_from_a_manifest_and_from_a_profile(tmp_path: Path) -> None:
    program = str(Path(__file__).parents[1] / "agents" / "protocol_program.py")
    argv = [sys.executable, program, "acp", str(tmp_path)]
    manifest = tmp_path / "manifest.json"
    adapter = {"kind": "acp", "command": argv, "mode": "plan"}
    document = {"schema_version": 1, "working_directory": str(tmp_path), "adapter": adapter}
    manifest.write_text(json.dumps(document))
    with GatewayProcess(tmp_path, "--manifest", str(manifest)) as gate:
        gate.start()
        assert gate.client.prompt("say one", wait_s=PATIENCE_S)["result"]["text"] == "one"
        assert gate.client.status()["backend"] == "acp"
        gate.stop()
    assert (tmp_path / "modes").read_text() == "plan\n"
    profiles = tmp_path / "config" / "holdfast" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "mine.toml").write_text(f"[launch]\nprotocol = {json.dumps(argv)}\n")
    words = ("--tool", "mine", "--working-directory", str(tmp_path))
    with GatewayProcess(tmp_path, *words) as gate:
        gate.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        gate.start()
        assert gate.client.prompt("say two", wait_s=PATIENCE_S)["result"]["text"] == "two"
        gate.stop()
    # The same program in the same folder goes on with its conversation.
    assert (tmp_path / "sessions").read_text() == "s-1\n"


class Stranger(BaseHTTPRequestHandler):
    """Listens where a gateway was, answers as it did, and remembers what it was sent."""

    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.heard.append(str(self.headers))
        body = b'{"protocol_version":"v1","status":"ok","proof":"%s"}' % (b"0" * 64)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        return


def test_the_token_is_not_sent_to_a_stranger_on_the_port_of_a_killed_gateway(
    gate: GatewayProcess, command: CommandLine
) -> None:
    note = gate.root / "run" / "current-instance.json"
    port = json.loads(note.read_text())["port"]
    token = (gate.root / "token").read_text().strip()
    gate.kill()
    assert note.exists(), "a killed gateway leaves its note"
    with ThreadingHTTPServer(("127.0.0.1", port), Stranger) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            for words in (
                ("prompt", AGENT, "secret words"),
                ("interrupt", AGENT),
                ("detach", AGENT),
            ):
                ran = command("gateway", *words)
                assert ran.status == 6, ran
            assert (
                json.loads(command("gateway", "status", AGENT, "--json").out)["gateway_health"]
                == "not_attached"
            )
        finally:
            server.shutdown()
    assert len(Stranger.heard) == 4
    assert all(token not in heard and "Authorization" not in heard for heard in Stranger.heard)


def test_a_proof_from_another_port_is_refused(gate: GatewayProcess) -> None:
    """A stranger on the old port could ask the gateway on its new one, whose token is the same."""
    instance = gate.client.folder.instance()
    assert instance is not None
    token = gate.client.folder.token.read_text().strip()
    with urllib.request.urlopen(_asking(instance.port, "c" * 20)) as answer:
        proof = json.loads(answer.read())["proof"]
    assert is_proof(proof, token, "c" * 20, instance.port)
    for wrong in (
        (token, "c" * 20, instance.port + 1),
        (token, "d" * 20, instance.port),
        ("other", "c" * 20, instance.port),
    ):
        assert not is_proof(proof, *wrong)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(_asking(instance.port, "short"))


def _asking(port: int, challenge: str) -> urllib.request.Request:
    return urllib.request.Request(
        f"http://127.0.0.1:{port}/health", headers={CHALLENGE_HEADER: challenge}
    )
