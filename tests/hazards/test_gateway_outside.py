"""A real gateway and what happens around it: a full disk, others that start at once, streams and
keys across restarts, prompts of exactly the longest size.
"""

import errno
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.kernel.errors import Collision, HoldfastError, StoreUnavailable, Unavailable
from holdfast.kernel.limits import PROMPT_BYTES_MAX
from tests.harness.disk import mounted
from tests.harness.ports import has_unread
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import TmuxServer, delivered
from tests.hazards.gateway_process import DILIGENT, GatewayProcess

pytestmark = pytest.mark.prove

SIZES = (
    "import sys; data = sys.stdin.buffer.read(); print(len(data), data == b'\\xf0\\x9f\\x99\\x82' "
    "* (len(data) // 4))"
)


def fill(path: Path) -> None:
    """Until there is not one byte left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    size = 1 << 20
    try:
        while size:
            try:
                os.write(fd, b"x" * size)
            except OSError:
                size //= 2
    finally:
        os.close(fd)


def test_a_full_disk_refuses_what_cannot_be_kept_and_loses_nothing_that_was(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    words = ("--adapter", "command", "--", sys.executable, "-c", DILIGENT, str(log))
    with (
        mounted(tmp_path / "disk", "size=8m", "mode=700") as disk,
        GatewayProcess(disk, *words) as gate,
    ):
        gate.log = log
        gate.start()
        client = gate.client
        slow = str(client.prompt("slow 1.5")["request_id"])
        until(lambda: gate.asked() == ["slow 1.5"])
        fill(disk / "filler")
        kept = {slow: "slow 1.5"}
        kept |= _handed_in_until_it_is_full(client)
        assert client.status()["gateway_health"] == "healthy"
        # It has ended by now, and that cannot be written down.
        until(lambda: gate.programs() == [])
        (disk / "filler").unlink()
        until(lambda: client.status()["queue_depth"] == 0)
        assert client.prompt("after", wait_s=PATIENCE_S)["state"] == "completed"
        found = {one["request_id"]: one for one in client.requests()}
        assert {name for name, one in found.items() if one["state"] == "completed"} >= set(kept)
        asked = gate.asked()
        assert len(asked) == len(set(asked)) and set(kept.values()) <= set(asked)
        assert gate.stop() == 0
        events = [
            json.loads(line) for line in (gate.root / "events.jsonl").read_text().splitlines()
        ]
        revisions = [event["revision"] for event in events]
        assert revisions == sorted(set(revisions))
        logged = [event["subject"] for event in events if event["kind"] == "request.accepted"]
        assert logged == list(found)


def _handed_in_until_it_is_full(client: GatewayClient) -> dict[str, str]:
    kept: dict[str, str] = {}
    for number in range(200):
        text = f"{number}:{'y' * 20_000}"
        try:
            kept[str(client.prompt(text)["request_id"])] = text
        except StoreUnavailable:
            return kept
    raise AssertionError("it was never full")


def test_events_that_did_not_fit_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = GatewayFolder(tmp_path / "gateways" / "gpu")
    folder.prepare()
    folder.append_events([b"1"], bytes_max=1000)
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:4])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            folder.append_events([b"22", b"333"], bytes_max=1000)
    folder.append_events([b"22", b"333"], bytes_max=1000)
    assert folder.events.read_bytes() == b"1\n22\n333\n"


def test_one_of_several_gateways_started_at_once_serves(gate: GatewayProcess) -> None:
    for _ in range(2):
        several = [GatewayProcess(gate.folder) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            served = list(pool.map(_serves, several))
        assert sorted(served) == [False, False, False, True], (gate.folder / "stderr").read_text()[
            -2000:
        ]
        assert gate.client.prompt("x", wait_s=PATIENCE_S)["state"] == "completed"
        # The second time they find what a killed one left.
        several[served.index(True)].kill()


def _serves(one: GatewayProcess) -> bool:
    try:
        one.start()
    except AssertionError:
        assert one.wait() == 4
        return False
    return True


def test_a_stream_is_resumed_behind_its_last_event_across_kills(gate: GatewayProcess) -> None:
    gate.start()
    heard: list[tuple[str, dict[str, object]]] = []
    listening, over = threading.Event(), threading.Event()

    def listen() -> None:
        last: str | None = None
        while not over.is_set():
            with suppress(Unavailable):
                for name, event in gate.client.events(last):
                    heard.append((name, event))
                    last = name
                    listening.set()
            over.wait(0.05)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        while not listening.is_set():
            # Without an id a stream starts now, and no event reports when that is.
            gate.client.prompt("hello", wait_s=PATIENCE_S)
        for turn in range(3):
            for number in range(4):
                with suppress(Unavailable):
                    gate.client.prompt(f"{turn}.{number}")
            gate.kill()
            gate.start()
        done = gate.client.prompt("end", wait_s=PATIENCE_S)
        until(
            lambda: (
                heard[-1][1]["subject"] == done["request_id"]
                and heard[-1][1]["kind"] == "request.completed"
            )
        )
    finally:
        over.set()
        gate.stop()
        listener.join(PATIENCE_S)
    logged = [
        json.loads(line)["revision"]
        for line in (gate.root / "events.jsonl").read_text().splitlines()
    ]
    revisions = [event["revision"] for _, event in heard]
    begun = logged.index(revisions[0])
    assert revisions == logged[begun : begun + len(revisions)]


def test_a_key_stands_for_its_request_across_restarts_and_epochs(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    attached.start()

    def again() -> object:
        return attached.client.prompt("once", idempotency_key="k")["request_id"]

    first = again()
    assert attached.client.request(str(first), wait_s=PATIENCE_S)["state"] == "completed"
    attached.kill()
    attached.start()
    assert again() == first
    tmux.replace()
    until(lambda: attached.client.status()["managed_agent_instance_epoch"] == 2)
    assert again() == first
    assert attached.stop() == 0
    attached.start()
    assert again() == first
    with pytest.raises(Collision):
        attached.client.prompt("other", idempotency_key="k")
    assert tmux.typed() == delivered(b"once")


@pytest.mark.parametrize("action", ["replay", "discard"])
@pytest.mark.parametrize("point", ["gateway.claimed", "gateway.delivery.before"])
def test_what_was_claimed_for_a_replaced_tmux_session_is_decided_by_the_operator(
    tmux: TmuxServer, attached: GatewayProcess, point: str, action: str
) -> None:
    attached.start(stops_at=point)
    assert attached.process is not None
    pid, client = attached.process.pid, attached.client
    with ThreadPoolExecutor(1) as pool:
        # It may stand still before it has answered.
        asking = pool.submit(client.prompt, "old")
        until(lambda: state_of(pid) == "T")
        tmux.replace()
        attached.process.send_signal(signal.SIGCONT)
        old = str(asking.result(PATIENCE_S)["request_id"])
    until(
        lambda: (
            client.status()["request_admission"] == "blocked_reconciliation"
            and client.request(old)["state"] == "accepted"
        )
    )
    assert (client.request(old)["epoch"], client.status()["managed_agent_instance_epoch"]) == (1, 2)
    assert tmux.heard() == []
    assert client.reconcile(action, epoch=2)["requests"] == [old]  # type: ignore[arg-type]
    if action == "replay":
        # It reaches the same point once more, and is continued.
        until(lambda: state_of(pid) == "T")
        attached.process.send_signal(signal.SIGCONT)
    done = client.request(old, wait_s=PATIENCE_S)
    assert (done["state"], done["error_code"]) == (
        ("completed", None) if action == "replay" else ("failed", "discarded")
    )
    assert tmux.typed() == delivered(*([b"old"] if action == "replay" else []))
    assert client.status()["request_admission"] == "open"


def test_an_interrupt_that_comes_between_delivery_and_answer_stops_that_request(
    gate: GatewayProcess,
) -> None:
    gate.start(stops_at="gateway.delivery.after")
    assert gate.process is not None
    pid, instance = gate.process.pid, gate.client.folder.instance()
    assert instance is not None
    with ThreadPoolExecutor(2) as pool:
        # It may stand still before it has answered.
        asking = pool.submit(gate.client.prompt, "long")
        until(lambda: state_of(pid) == "T")
        interrupting = pool.submit(gate.client.interrupt, wait_s=PATIENCE_S)
        # Sent while the gateway is stopped, so that it is the first thing that the gateway reads.
        until(lambda: has_unread(instance.port))
        gate.process.send_signal(signal.SIGCONT)
        done, long = interrupting.result(PATIENCE_S), str(asking.result(PATIENCE_S)["request_id"])
    assert done["state"] == "completed"
    assert done["result"].get("stopped") == long
    assert gate.client.request(long, wait_s=PATIENCE_S)["error_code"] == "interrupted"
    until(lambda: gate.programs() == [])


def test_hostile_prompts_pass_the_whole_way_byte_for_byte_and_run_nothing(
    tmux: TmuxServer, attached: GatewayProcess
) -> None:
    hostile = (
        'it\'s "quoted" \\ $(touch pwned) `touch pwned`; touch pwned\n\n\tC-c Enter Escape '
        ":kill-server\n"
        "#{pid} #(touch pwned) %0 =claude ä 漢字 🙂 \u202e -- "
    )
    large = (
        (hostile * (100_000 // len(hostile.encode()) + 1))
        .encode()[:100_000]
        .decode("utf-8", "ignore")
    )
    attached.start()
    client = attached.client
    for prompt in (hostile, large):
        assert client.prompt(prompt, wait_s=PATIENCE_S)["state"] == "completed"
    for control in ("\x1b[201~rm -r x", "a\rb", "\x03", "\x00", "\x7f", "\x9b"):
        with pytest.raises(HoldfastError) as caught:
            client.prompt(control)
        assert caught.value.code == "invalid_value"
    assert tmux.typed() == delivered(hostile.encode(), large.encode())
    assert len(client.requests()) == 2
    assert not list(tmux.folder.rglob("pwned"))
    assert not Path("pwned").exists()


def test_a_prompt_of_exactly_the_longest_size_arrives_and_one_byte_more_is_refused(
    tmp_path: Path,
) -> None:
    longest = "🙂" * (PROMPT_BYTES_MAX // 4)
    with GatewayProcess(
        tmp_path, "--adapter", "command", "--", sys.executable, "-c", SIZES
    ) as gate:
        gate.start()
        assert (
            gate.client.prompt(longest, wait_s=PATIENCE_S)["result"]["text"]
            == f"{PROMPT_BYTES_MAX} True\n"
        )
        with pytest.raises(HoldfastError) as caught:
            gate.client.prompt(longest + "x")
        assert caught.value.code == "invalid_value"
    with GatewayProcess(
        tmp_path / "as_argument",
        "--adapter",
        "command",
        "--prompt-as",
        "argument",
        "--",
        "sh",
        "-c",
        'printf %s "$0" | wc -c',
    ) as gate:
        gate.folder.mkdir()
        gate.start()
        assert (
            gate.client.prompt("x" * (128 * 1024 - 1), wait_s=PATIENCE_S)["result"]["text"]
            == f"{128 * 1024 - 1}\n"
        )
        with pytest.raises(HoldfastError) as caught:
            gate.client.prompt("x" * 128 * 1024)
        assert caught.value.code == "invalid_value"
        assert gate.client.status()["queue_depth"] == 0
