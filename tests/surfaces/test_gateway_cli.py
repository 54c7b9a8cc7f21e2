"""`holdfast gateway` as a user types it, with a real agent behind a real gateway."""

import json
import re
import stat
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

import holdfast
from holdfast.domains.gateway.proof import CHALLENGE_HEADER, is_proof
from holdfast.kernel.errors import Collision, Full, InvalidValue, NotFound, Unavailable
from tests.hazards.gateway_process import AGENT, DILIGENT, GatewayProcess
from tests.patience import until
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.slow


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
    from_stdin = command.shell(f"printf 'two\\nlines\\n' | holdfast gateway prompt {AGENT} --wait --json")
    assert json.loads(from_stdin.out)["payload"] == {"prompt": "two\nlines"}
    status = json.loads(command("gateway", "status", AGENT, "--json").out)
    assert (status["gateway_health"], status["request_admission"], status["backend"]) == ("healthy", "open", "command")
    assert "request_admission" in command("gateway", "status", AGENT).out
    listed = command("gateway", "requests", AGENT, "--state", "completed").out.splitlines()
    assert [line.split("\t")[-1] for line in listed] == ["hello", "two lines"]

    running = command("gateway", "prompt", AGENT, "long").out.strip()
    waiting = command("gateway", "prompt", AGENT, "never", "--key", "k").out.strip()
    assert command("gateway", "prompt", AGENT, "never", "--key", "k").out.strip() == waiting
    other = command("gateway", "prompt", AGENT, "another", "--key", "k")
    assert (other.status, "idempotency key" in other.err) == (4, True)
    timed_out = command("gateway", "prompt", AGENT, "late", "--wait", "--timeout", "0.1")
    assert (timed_out.status, "is accepted" in timed_out.out) == (5, True)
    assert command("gateway", "prompt", AGENT, "too many").status == 4
    cancelled = command("gateway", "cancel", AGENT, waiting)
    assert (cancelled.status, "cancelled" in cancelled.out) == (0, True)
    assert command("gateway", "cancel", AGENT, waiting).status == 1
    assert command("gateway", "cancel", AGENT, "nosuch").status == 1
    stopped = command("gateway", "interrupt", AGENT)
    assert stopped.out == f"{AGENT} was interrupted, which ends {running}\n"
    ended = json.loads(command("gateway", "requests", AGENT, "--json").out)
    assert [one["error_code"] for one in ended if one["request_id"] == running] == ["interrupted"]
    long = command("gateway", "prompt", AGENT, "long again").out.strip()
    until(lambda: "long again" in gate.asked())
    waited = command("gateway", "interrupt", AGENT, "--wait", "--json")
    assert waited.status == 0, waited
    assert (json.loads(waited.out)["request_id"], json.loads(waited.out)["error_code"]) == (long, "interrupted")
    idle = command("gateway", "interrupt", AGENT, "--wait")
    assert (idle.status, idle.out.startswith("nothing to stop")) == (0, True)
    assert command("gateway", "reconcile", AGENT, "replay", "--epoch", "1").status == 4
    assert command("gateway", "prompt", AGENT, "x", "--epoch", "7").status == 4

    assert command("gateway", "detach", AGENT).status == 0
    assert gate.wait() == 0
    gone = json.loads(command("gateway", "status", AGENT, "--json").out)
    assert gone["gateway_health"] == "not_attached"
    assert re.search(rf"what to do +holdfast gateway serve {AGENT}\n", command("gateway", "status", AGENT).out)
    refused = command("gateway", "prompt", AGENT, "x")
    assert (refused.status, "holdfast gateway serve" in refused.err) == (6, True)


def test_the_library_and_the_command_line_say_the_same(gate: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_STORE", "HOLDFAST_GATEWAY_ROOT"):
        monkeypatch.setenv(name, gate.environment[name])
    with holdfast.connect() as hf:
        gateway = hf.gateway(AGENT)
        done = gateway.prompt("hello", wait_s=30)
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
        with pytest.raises(holdfast.HoldfastError, match="token is missing or wrong"):
            hf.gateway(AGENT, url=f"http://127.0.0.1:{address['port']}", token="wrong").status()
        with pytest.raises(InvalidValue):
            hf.gateway(AGENT, url="http://127.0.0.1:1")
        with pytest.raises(Unavailable):
            hf.gateway(AGENT, url="http://127.0.0.1:1", token="x").prompt("x")
        for url in ("ftp://x", "127.0.0.1:1", "http://x:port", "http://x/path"):
            with pytest.raises(InvalidValue):
                hf.gateway(AGENT, url=url, token="x")


def test_everything_in_the_folder_is_its_owners_alone(gate: GatewayProcess) -> None:
    gate.client.prompt("x", wait_s=30)
    for path in [gate.root, *gate.root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, (path, oct(mode))


def test_the_token_is_nowhere_but_in_its_file(gate: GatewayProcess) -> None:
    token = (gate.root / "token").read_text().strip()
    gate.client.prompt("x", wait_s=30)
    gate.stop()
    for path in gate.folder.rglob("*"):
        if path.is_file() and path != gate.root / "token":
            assert token.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--adapter"),
        (["--adapter", "tmux"], "session"),
        (["--adapter", "tmux", "--session", "a", "--", "ls"], "means nothing beside --adapter tmux"),
        (["--adapter", "command"], "argv"),
        (["--adapter", "command", "--session", "x", "--", "ls"], "--session means nothing"),
        (["--adapter", "rest", "--url", "http://h"], "terminal"),
        (["--adapter", "rest", "--url", "nonsense", "--terminal", "t"], "no URL"),
        (["--adapter", "rest", "--url", "http://[::", "--terminal", "t"], "no URL"),
        (["--adapter", "rest", "--url", "http://h:99999", "--terminal", "t"], "no URL"),
        (["--adapter", "command", "--answer-timeout", "nan", "--", "ls"], "answer_timeout_s"),
        (["--adapter", "managed", "--base-url", "http://h"], "managed_agent_ref"),
        (["--adapter", "command", "--host", "192.0.2.1", "--", "ls"], "cannot listen"),
    ],
)
def test_wrong_options_are_told_in_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, *words)
    assert said.status in (1, 2, 6), said
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert not list(tmp_path.rglob("current-instance.json"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"adapter": 1}', b'{"adapter": ' + b"[" * 100_000])
def test_a_manifest_that_is_none_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, "--manifest", str(path))
    assert (said.status, len(said.err.splitlines())) == (2, 1), said
    assert "manifest" in said.err


def test_the_adapter_from_a_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    argv = [sys.executable, "-c", DILIGENT, str(tmp_path / "asked")]
    manifest.write_text(json.dumps({"schema_version": 1, "adapter": {"kind": "command", "argv": argv}}))
    with GatewayProcess(tmp_path, "--manifest", str(manifest)) as gate:
        gate.start("--log-json")
        assert gate.client.prompt("x", wait_s=30)["state"] == "completed"
    manifest.write_text("{")
    said = CommandLine(tmp_path)("gateway", "serve", AGENT, "--manifest", str(manifest))
    assert (said.status, "cannot be read" in said.err) == (2, True)


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
            for words in (("prompt", AGENT, "secret words"), ("interrupt", AGENT), ("detach", AGENT)):
                ran = command("gateway", *words)
                assert (ran.status, "another program listens" in ran.err) == (6, True), ran
            assert json.loads(command("gateway", "status", AGENT, "--json").out)["gateway_health"] == "not_attached"
        finally:
            server.shutdown()
    assert len(Stranger.heard) == 4
    assert all(token not in heard and "Authorization" not in heard for heard in Stranger.heard)


def test_a_proof_that_was_got_elsewhere_is_none(gate: GatewayProcess) -> None:
    """A stranger on the old port could ask the gateway on its new one, whose token is the same."""
    instance = gate.client.folder.instance()
    assert instance is not None
    token = gate.client.folder.token.read_text().strip()
    with urllib.request.urlopen(_asking(instance.port, "c" * 20)) as answer:
        proof = json.loads(answer.read())["proof"]
    assert is_proof(proof, token, "c" * 20, instance.port)
    for wrong in ((token, "c" * 20, instance.port + 1), (token, "d" * 20, instance.port), ("other", "c" * 20, instance.port)):
        assert not is_proof(proof, *wrong)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(_asking(instance.port, "short"))


def _asking(port: int, challenge: str) -> urllib.request.Request:
    return urllib.request.Request(f"http://127.0.0.1:{port}/health", headers={CHALLENGE_HEADER: challenge})
