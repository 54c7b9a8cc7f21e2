"""A real gateway with real agents: killed at every state and at random moments, its agent replaced,
gone and back.

`HOLDFAST_GATEWAY_KILLS` says how often it is killed at random moments under load.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.kernel.errors import Blocked, HoldfastError, Unavailable, UpstreamUnavailable
from holdfast.kernel.limits import TMUX_ANSWER_S
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import TmuxServer, delivered
from tests.hazards.gateway_process import AGENT, GatewayProcess

pytestmark = pytest.mark.prove

KILLS = int(os.environ.get("HOLDFAST_GATEWAY_KILLS", "3"))
POINTS = {
    "gateway.claimed": "delivery unknown",
    "gateway.delivery.before": "delivery unknown",
    "command.started": "delivery unknown",
    "command.noted": "delivery unknown",
    "command.begun": "delivery unknown",
    "gateway.delivery.after": "delivery unknown",
    "gateway.end.before": "it was delivered",
    "gateway.end.after": None,
}
"""Where it is killed, and what is said of the request that ran; None: it had ended."""
BEFORE_IT_BEGINS = (
    "gateway.claimed",
    "gateway.delivery.before",
    "command.started",
    "command.noted",
)


@pytest.mark.parametrize(("point", "said"), list(POINTS.items()))
def test_killed_at_each_state_with_work_accepted_and_running(
    gate: GatewayProcess, point: str, said: str | None
) -> None:
    # Before it serves it has nothing to carry out: the first that comes is the one it dies of.
    gate.start(dies_at=point)
    client = gate.client
    for text in ("first", "second", "third"):
        # It may be stored and its answer lost, the first one's too; by what is stored it is judged.
        with contextlib.suppress(Unavailable):
            client.prompt(text)
    assert gate.wait() == -signal.SIGKILL
    gate.start()
    stored = [one["request_id"] for one in gate.client.requests()]
    done = [gate.client.request(request_id, wait_s=PATIENCE_S) for request_id in stored]
    assert done[0]["payload"]["prompt"] == "first"
    if said is None:
        assert (done[0]["state"], done[0]["result"]["text"]) == ("completed", "did first\n")
    else:
        assert (done[0]["state"], done[0]["error_code"]) == ("failed", "interrupted_by_restart")
        assert said in done[0]["error_detail"]
    assert all(one["state"] == "completed" for one in done[1:])
    asked = gate.asked()
    assert len(asked) == len(set(asked))
    assert [text for text in asked if text != "first"] == [
        one["payload"]["prompt"] for one in done[1:]
    ]
    if point in BEFORE_IT_BEGINS:
        assert "first" not in asked
    assert gate.stop() == 0


class Load:
    """Threads that hand in prompts as fast as they are taken, and keep what was acknowledged."""

    def __init__(self, root: Path, threads: int = 3) -> None:
        self._root = root
        self._end = threading.Event()
        self._numbers = count()
        self.acknowledged: dict[str, str] = {}
        self.gone_wrong: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        client = GatewayClient(AGENT, root=self._root, timeout_s=PATIENCE_S)
        while not self._end.is_set():
            text = f"{next(self._numbers)} {random.choice(['0', '0.01', '0.05'])}"
            key = secrets.token_hex(8)
            while not self._end.is_set():
                try:
                    self.acknowledged[client.prompt(text, idempotency_key=key)["request_id"]] = text
                    break
                except HoldfastError as error:
                    if error.code not in ("unavailable", "full", "store_unavailable", "fenced"):
                        self.gone_wrong.append(error)
                        return
                    self._end.wait(0.05)
            self._end.wait(0.02)

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def test_killed_at_random_moments_under_load(
    gate: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.start()
    load = Load(gate.root)
    for _ in range(KILLS):
        time.sleep(random.uniform(0.0, 0.6))  # at a random moment: that is the point of it
        gate.kill()
        gate.start()
    before = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > before or load.gone_wrong)
    load.stop()
    assert load.gone_wrong == []
    client = gate.client
    until(lambda: client.status()["queue_depth"] == 0)
    requests = {one["request_id"]: one for one in client.requests(limit=10_000)}
    assert gate.stop() == 0

    assert set(load.acknowledged) <= set(requests), "an accepted request is lost"
    asked = gate.asked()
    assert len(asked) == len(set(asked)), "a request was delivered twice"
    assert not [text for text in asked if text.startswith("beside")], (
        "two programs of one agent at once"
    )
    in_order = sorted(requests.values(), key=lambda one: one["arrival"])
    order = [one["payload"]["prompt"] for one in in_order]
    assert len(order) == len(set(order)), "a retry became a second request"
    assert asked == [text for text in order if text in set(asked)], "out of order"
    for one in in_order:
        if one["state"] == "completed":
            assert one["payload"]["prompt"] in asked
        else:
            assert (one["state"], one["error_code"]) == ("failed", "interrupted_by_restart"), one
    interrupted = [one for one in in_order if one["state"] == "failed"]
    assert len(interrupted) <= KILLS, "one kill can only interrupt what had the slot"
    completed = [one for one in in_order if one["state"] == "completed"]
    assert len(completed) > 0
    with capsys.disabled():
        counts = (
            f"{KILLS} kills: {len(load.acknowledged)} acknowledged, {len(requests)} stored, "
            f"{len(asked)} delivered, "
        )
        print(f"{counts}{len(completed)} completed, {len(interrupted)} interrupted")
    _files_agree(gate, in_order)


def _files_agree(gate: GatewayProcess, requests: list[dict[str, object]]) -> None:
    """The mirrored events tell of each acceptance once, in order, whatever the kills cut off."""
    events = [json.loads(line) for line in (gate.root / "events.jsonl").read_text().splitlines()]
    accepted = [event["subject"] for event in events if event["kind"] == "request.accepted"]
    assert accepted == [one["request_id"] for one in requests]
    revisions = [event["revision"] for event in events]
    assert revisions == sorted(set(revisions))
    state = json.loads((gate.root / "state.json").read_text())
    assert (state["gateway_health"], state["queue_depth"]) == ("not_attached", 0)
    assert not (gate.root / "run" / "current-instance.json").exists()


def test_a_gateway_whose_queue_was_moved_to_another_kind_of_store_goes_on_in_its_folder(
    gate: GatewayProcess,
) -> None:
    gate.start()
    gate.client.request(str(gate.client.prompt("first")["request_id"]), wait_s=PATIENCE_S)
    assert gate.stop() == 0
    path = gate.root / "events.jsonl"
    lines = path.read_text().splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "cursor": "7.8.9"})
    path.write_text("\n".join(lines) + "\n")
    gate.start()
    second = gate.client.prompt("second")["request_id"]
    gate.client.request(str(second), wait_s=PATIENCE_S)
    assert gate.stop() == 0
    answer = [json.loads(line) for line in path.read_text().splitlines()[len(lines) :]]
    assert second in [event["subject"] for event in answer if event["kind"] == "request.accepted"]


def test_a_program_of_a_killed_gateway_does_not_run_beside_the_next(
    gate: GatewayProcess,
) -> None:
    gate.start()
    gate.client.prompt("long")
    until(lambda: gate.asked() == ["long"])
    note = json.loads((gate.root / "run" / "agent-process.json").read_text())
    gate.kill()
    gate.start()
    # By the time it serves, and not some time later.
    assert not _alive(note["pid"])
    done = gate.client.prompt("next", wait_s=PATIENCE_S)
    assert done["state"] == "completed"
    assert gate.asked() == ["long", "next"]


@pytest.mark.parametrize("point", ["command.started", "command.noted", "command.begun"])
def test_a_gateway_killed_while_it_begins_a_program_leaves_none_beside_the_next(
    gate: GatewayProcess, point: str
) -> None:
    gate.start(dies_at=point)
    with contextlib.suppress(Unavailable):
        gate.client.prompt("long")
    assert gate.wait() == -signal.SIGKILL
    if point in BEFORE_IT_BEGINS:
        # What waited for a word to begin ends without one, and needs no other gateway for that.
        until(lambda: gate.programs() == [])
        assert gate.asked() == []
    gate.start()
    assert gate.client.prompt("next", wait_s=PATIENCE_S)["state"] == "completed"
    assert gate.programs() == []
    assert gate.asked()[-1] == "next"


def _alive(pid: int) -> bool:
    from holdfast.processes.procfs import Procfs

    seen = Procfs().process_stat(pid)
    return seen is not None and not seen.zombie


def test_stopping_in_order_loses_nothing_and_forgets_nothing(gate: GatewayProcess) -> None:
    gate.start()
    long = gate.client.prompt("long")["request_id"]
    waiting = gate.client.prompt("after")["request_id"]
    until(lambda: gate.asked() == ["long"])
    before = gate.client.status()
    gate.client.interrupt(wait_s=PATIENCE_S)
    assert gate.client.request(long, wait_s=PATIENCE_S)["error_code"] == "interrupted"
    assert gate.client.request(waiting, wait_s=PATIENCE_S)["state"] == "completed"
    assert gate.stop() == 0
    gate.start()
    after = gate.client.status()
    same = ("managed_agent_instance_epoch", "managed_agent_instance_id", "managed_agent_recovery")
    assert [before[name] for name in same] == [after[name] for name in same]


def test_a_second_gateway_of_the_same_agent_is_refused(
    gate: GatewayProcess, tmp_path: Path
) -> None:
    gate.start()
    second = GatewayProcess(tmp_path)
    with pytest.raises(AssertionError, match="runs already"):
        second.start()
    assert second.wait() == 4
    assert gate.client.prompt("x", wait_s=PATIENCE_S)["state"] == "completed"


def test_a_gateway_of_another_name_on_the_same_tmux_session_is_refused(
    tmux: TmuxServer, attached: GatewayProcess, tmp_path: Path
) -> None:
    attached.start()
    words = [
        "gateway",
        "serve",
        "builder",
        "--adapter",
        "tmux",
        "--session",
        "claude",
        "--socket-path",
        str(tmux.socket),
    ]
    # Another project, with a store of its own.
    elsewhere = {
        "HOLDFAST_STORE": f"sqlite:{tmp_path}/other.sqlite",
        "HOLDFAST_GATEWAY_ROOT": str(tmp_path / "other"),
    }
    refused = subprocess.run(
        [sys.executable, "-c", "from holdfast.surfaces.cli import entry; entry.main()", *words],
        env={**attached.environment, **elsewhere},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert refused.returncode == 4
    assert (
        f"the gateway of {AGENT}, pid {attached.process and attached.process.pid}, types into"
        in refused.stderr
    )
    assert attached.client.prompt("x", wait_s=PATIENCE_S)["state"] == "completed"
    assert attached.stop() == 0
    assert "@holdfast_gateway" not in tmux("show-options", "-p", "-t", "=claude:")


def test_a_gateway_with_its_queue_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with GatewayProcess(tmp_path, store=postgres_url) as gate:
        gate.start()
        assert gate.client.prompt("x", wait_s=PATIENCE_S)["state"] == "completed"
        long = gate.client.prompt("long")["request_id"]
        waiting = gate.client.prompt("y")["request_id"]
        until(lambda: gate.asked() == ["x", "long"])
        gate.kill()
        gate.start()
        assert gate.client.request(waiting, wait_s=PATIENCE_S)["state"] == "completed"
        assert gate.client.request(long)["error_code"] == "interrupted_by_restart"
        assert not (gate.root / "queue.sqlite").exists()


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_a_tmux_session_replaced_while_the_gateway_runs(
    tmux: TmuxServer, attached: GatewayProcess, action: str
) -> None:
    attached.start()
    client = attached.client
    assert "heard 5 bytes" in client.prompt("hello", wait_s=PATIENCE_S)["result"]["text"]
    busy = client.prompt("work")["request_id"]
    old = client.prompt("old")["request_id"]
    until(lambda: tmux.heard() == [b"hello", b"work"])
    tmux.replace()
    until(lambda: client.status()["managed_agent_instance_epoch"] == 2)
    status = client.status()
    assert (status["managed_agent_recovery"], status["request_admission"]) == (
        "reconciliation_required",
        "blocked_reconciliation",
    )
    with pytest.raises(Blocked):
        client.prompt("lost")
    assert client.request(busy, wait_s=PATIENCE_S)["error_code"] == "upstream_unavailable"
    assert client.reconcile(action, epoch=2)["requests"] == [old]  # type: ignore[arg-type]
    assert client.prompt("again", wait_s=PATIENCE_S)["state"] == "completed"
    replayed = [b"old"] if action == "replay" else []
    assert tmux.typed() == delivered(b"hello", b"work", *replayed, b"again")


def test_a_tmux_session_replaced_while_nothing_waits_is_served_at_once(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    attached.start()
    client = attached.client
    client.prompt("hello", wait_s=PATIENCE_S)
    tmux.replace()
    until(lambda: client.status()["managed_agent_instance_epoch"] == 2)
    assert client.prompt("again", wait_s=PATIENCE_S)["state"] == "completed"
    assert tmux.typed() == delivered(b"hello", b"again")


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_a_tmux_session_replaced_while_the_gateway_is_down(
    tmux: TmuxServer, attached: GatewayProcess, action: str
) -> None:
    attached.start()
    busy = attached.client.prompt("work")["request_id"]
    old = attached.client.prompt("old")["request_id"]
    until(lambda: tmux.heard() == [b"work"])
    attached.kill()
    tmux.replace()
    attached.start()
    status = attached.client.status()
    assert (status["managed_agent_instance_epoch"], status["request_admission"]) == (
        2,
        "blocked_reconciliation",
    )
    assert attached.client.request(busy)["error_code"] == "interrupted_by_restart"
    assert attached.client.request(old)["state"] == "accepted"
    assert attached.client.reconcile(action, epoch=2)["requests"] == [old]  # type: ignore[arg-type]
    done = attached.client.request(old, wait_s=PATIENCE_S)
    expected = ("completed", None) if action == "replay" else ("failed", "discarded")
    assert (done["state"], done["error_code"]) == expected
    assert tmux.typed() == delivered(b"work", *([b"old"] if action == "replay" else []))


@pytest.mark.parametrize(
    ("point", "arrives"),
    [("tmux.loaded", False), ("tmux.pasted", True), ("gateway.delivery.after", True)],
)
def test_killed_within_a_delivery_to_tmux_mixes_no_two_prompts(
    tmux: TmuxServer, attached: GatewayProcess, point: str, arrives: bool
) -> None:
    attached.start(dies_at=point)
    with contextlib.suppress(Unavailable):
        attached.client.prompt("first")
    assert attached.wait() == -signal.SIGKILL
    attached.start()
    (first,) = attached.client.requests()
    assert first["error_code"] == "interrupted_by_restart"
    assert attached.client.prompt("second", wait_s=PATIENCE_S)["state"] == "completed"
    assert tmux.typed() == delivered(*([b"first"] if arrives else []), b"second")
    assert tmux("list-buffers") == ""
    assert list(attached.root.rglob("holdfast-*")) == []


def test_a_clean_stop_does_not_forget_the_tmux_session(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    attached.start()
    attached.client.prompt("hello", wait_s=PATIENCE_S)
    assert attached.stop() == 0
    tmux.replace()
    attached.start()
    assert attached.client.status()["managed_agent_instance_epoch"] == 2
    assert attached.stop() == 0
    attached.start()
    status = attached.client.status()
    assert (status["managed_agent_instance_epoch"], status["request_admission"]) == (2, "open")


def test_a_tmux_session_that_goes_and_comes_back_as_another(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    import httpx

    attached.start()
    tmux("new-session", "-d", "-s", "other")
    tmux("kill-session", "-t", "=claude")
    client = attached.client
    until(lambda: client.status()["managed_agent_connectivity"] == "unavailable")
    status = client.status()
    assert (status["managed_agent_recovery"], status["request_admission"]) == (
        "awaiting_rebind",
        "blocked_unavailable",
    )
    assert (
        httpx.get(f"http://127.0.0.1:{status['gateway_port']}/health", timeout=PATIENCE_S).json()[
            "status"
        ]
        == "ok"
    )
    with pytest.raises(UpstreamUnavailable):
        client.prompt("lost")
    tmux.listen()
    until(lambda: client.status()["managed_agent_connectivity"] == "connected")
    assert client.prompt("hello", wait_s=PATIENCE_S)["state"] == "completed"


def test_an_interrupt_reaches_a_busy_tmux_agent_at_once(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    attached.start()
    client = attached.client
    busy = client.prompt("work for long")["request_id"]
    until(lambda: tmux.heard() == [b"work for long"])
    # It would be busy for longer than that is waited for.
    done = client.interrupt(wait_s=PATIENCE_S)
    until(lambda: b"!" in tmux.heard())
    assert (done["state"], done["result"]["stopped"]) == ("completed", busy)
    assert client.request(busy, wait_s=PATIENCE_S)["error_code"] == "interrupted"
    assert client.prompt("next", wait_s=PATIENCE_S)["state"] == "completed"


def test_a_stopped_tmux_server_hangs_nothing_and_is_no_other_instance(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    attached.start()
    client = attached.client
    assert client.prompt("first", wait_s=PATIENCE_S)["state"] == "completed"
    tmux.stop()
    waiting = client.prompt("second")["request_id"]
    until(lambda: client.status()["managed_agent_connectivity"] == "unavailable")
    assert "did not answer" in client.status()["detail"]
    with pytest.raises(UpstreamUnavailable):
        client.prompt("third")
    tmux.go_on()
    assert client.request(waiting, wait_s=PATIENCE_S)["state"] == "completed"
    assert client.status()["managed_agent_instance_epoch"] == 1
    tmux.stop()
    begun_s = time.monotonic()
    assert attached.stop() == 0
    attached.start()
    assert attached.stop() == 0
    assert time.monotonic() - begun_s < 6 * TMUX_ANSWER_S
    tmux.go_on()
    assert tmux.typed() == delivered(b"first", b"second")
