"""A gateway and the agent that it runs behind a protocol: whichever is killed, at any point, no
prompt is sent twice, and no two agents work at a time.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import Unavailable
from holdfast.processes.scan import stat
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import GatewayProcess

pytestmark = pytest.mark.prove

PROGRAM = str(Path(__file__).parents[1] / "agents" / "protocol_program.py")
ADAPTERS = {"acp": "acp", "app": "codex_app_server"}


class Stage:
    """The gateway of an agent behind a protocol, with what the agent has noted."""

    def __init__(self, folder: Path, kind: str, *how: str) -> None:
        self.folder, self.kind = folder, kind
        self.gate = self.gateway(*how)

    def gateway(self, *how: str) -> GatewayProcess:
        words = (sys.executable, PROGRAM, self.kind, str(self.folder), *how)
        return GatewayProcess(self.folder, "--adapter", ADAPTERS[self.kind], "--", *words)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def agent(self) -> int:
        """The agent's process that was started last."""
        return int(self.lines("starts")[-1])

    def prompt(self, text: str) -> dict[str, Any]:
        return self.gate.client.prompt(text, wait_s=PATIENCE_S)

    def ended(self, request_id: str) -> dict[str, Any]:
        return self.gate.client.request(request_id, wait_s=PATIENCE_S)

    def begin_long(self) -> tuple[str, int, int]:
        """Deliver a prompt whose answer never ends; return its id, and the pids of the agent and
        of a grandchild in a session of its own.
        """
        request_id = self.gate.client.prompt("child")["request_id"]
        until(lambda: self.lines("children"))
        program, grandchild = map(int, self.lines("children")[-1].split())
        until(lambda: self.gate.client.request(request_id)["receipt"] == "delivered")
        return request_id, program, grandchild


@pytest.fixture(params=["acp", "app"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path, request.param)
    yield made
    if made.gate.process is not None:
        made.gate.stop()


def gone(pid: int) -> bool:
    return state_of(pid) in (None, "Z", "X")


def test_a_gateway_that_is_killed_takes_its_agent_along(stage: Stage) -> None:
    stage.gate.start()
    request_id, program, grandchild = stage.begin_long()
    stage.gate.kill()
    until(lambda: gone(program) and gone(grandchild))
    stage.gate.start()
    done = stage.ended(request_id)
    assert (done["state"], done["error_code"]) == ("failed", "interrupted_by_restart")
    assert "outcome is unknown" in done["error_detail"]
    done = stage.prompt("say again")
    assert (done["state"], done["result"]["text"], done["epoch"]) == ("completed", "again", 1)
    assert stage.lines("prompts") == ["child", "say again"]
    assert stage.lines("sessions") == ["s-1"]


def test_the_next_gateway_ends_what_a_killed_guardian_has_left(stage: Stage) -> None:
    stage.gate.start()
    _, program, grandchild = stage.begin_long()
    seen = stat(program)
    assert seen is not None
    os.kill(stage.gate.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
    os.kill(seen.parent, signal.SIGKILL)
    until(lambda: gone(seen.parent))
    stage.gate.kill()
    # The program itself may have ended with its input.
    assert not gone(grandchild)
    stage.gate.start()
    assert stage.prompt("say again")["result"]["text"] == "again"
    assert gone(program) and gone(grandchild)


def test_an_agent_whose_guardian_is_killed_is_replaced(stage: Stage) -> None:
    stage.gate.start()
    request_id, program, grandchild = stage.begin_long()
    seen = stat(program)
    assert seen is not None
    os.kill(seen.parent, signal.SIGKILL)
    assert stage.ended(request_id)["error_code"] == "agent_gone"
    assert stage.prompt("say again")["result"]["text"] == "again"
    assert gone(program) and gone(grandchild)


def test_prompts_that_wait_survive_the_end_of_the_agent(stage: Stage) -> None:
    stage.gate.start()
    first, program, _ = stage.begin_long()
    waiting = [stage.gate.client.prompt(f"say {number}")["request_id"] for number in range(3)]
    os.kill(program, signal.SIGKILL)
    assert stage.ended(first)["error_code"] == "agent_gone"
    for number, request_id in enumerate(waiting):
        done = stage.ended(request_id)
        assert (done["state"], done["result"]["text"]) == ("completed", str(number))
    assert stage.lines("prompts") == ["child", "say 0", "say 1", "say 2"]
    assert stage.gate.client.status()["managed_agent_instance_epoch"] == 1


def test_an_idle_agent_that_is_killed_is_back_for_the_next_prompt(stage: Stage) -> None:
    stage.gate.start()
    assert stage.prompt("say one")["result"]["text"] == "one"
    program = stage.agent
    os.kill(program, signal.SIGKILL)
    until(lambda: stage.agent != program)
    assert stage.prompt("say two")["result"]["text"] == "two"
    assert stage.lines("prompts") == ["say one", "say two"]


def test_prompts_of_a_lost_conversation_wait_for_a_decision(stage: Stage) -> None:
    stage.gate.start()
    assert stage.prompt("say one")["result"]["text"] == "one"
    stage.gate.client.prompt("hold")
    until(lambda: "hold" in stage.lines("prompts"))
    waiting = stage.gate.client.prompt("say two")["request_id"]
    stage.gate.kill()
    stage.gate = stage.gateway("forgets").start()
    until(lambda: stage.gate.client.status()["managed_agent_recovery"] == "reconciliation_required")
    assert stage.lines("prompts") == ["say one", "hold"]
    stage.gate.client.reconcile("replay", epoch=2)
    assert stage.ended(waiting)["result"]["text"] == "two"


@pytest.mark.parametrize(
    "point",
    [
        "protocol.started",
        "protocol.noted",
        "protocol.begun",
        "gateway.delivery.before",
        "gateway.delivery.after",
        "gateway.end.before",
        "gateway.end.after",
    ],
)
def test_a_gateway_killed_at_any_point_sends_nothing_twice(stage: Stage, point: str) -> None:
    stage.gate.start(dies_at=point)
    if not point.startswith("protocol"):
        # It may die before it has answered the client.
        with suppress(Unavailable):
            stage.gate.client.prompt("say one")
    stage.gate.wait()
    stage.gate.start()
    for request in stage.gate.client.requests():
        done = stage.ended(request["request_id"])
        assert done["error_code"] in (None, "interrupted_by_restart")
    assert stage.prompt("say two")["result"]["text"] == "two"
    prompts = stage.lines("prompts")
    assert prompts.count("say one") <= 1 and prompts.count("say two") == 1
    running = [pid for pid in map(int, stage.lines("starts")) if not gone(pid)]
    assert running == [stage.agent]


def test_a_gateway_that_stops_in_order_leaves_no_process(stage: Stage) -> None:
    stage.gate.start()
    _, program, grandchild = stage.begin_long()
    assert stage.gate.stop() == 0
    assert gone(program) and gone(grandchild)
    assert not (stage.gate.root / "run" / "agent-process.json").exists()
