"""A gateway and the process tree of its program: whichever is killed, no two trees of one agent
work at a time.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.processes.scan import stat
from holdfast.processes.trees import Trees
from holdfast.system.access import PRIVATE
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import GatewayProcess
from tests.processes.trees import end_left, needs_groups

pytestmark = pytest.mark.prove

AGENT = """
import os, signal, subprocess, sys, time
folder, how = sys.argv[1:3]
prompt = sys.stdin.read()


def write(name, text):
    with open(f"{folder}/.{name}", "w") as file:
        file.write(text)
    os.rename(f"{folder}/.{name}", f"{folder}/{name}")


if prompt == "long":
    ignore = "trap '' INT TERM; " if "deaf" in how else ""
    grandchild = subprocess.Popen(
        ["setsid", "sh", "-c", f"{ignore}echo $$ > {folder}/.grandchild; mv {folder}/.grandchild {folder}/grandchild; "
         "while :; do sleep 1000; done"],
        close_fds="closes" in how,
        env={**os.environ, **({"HOLDFAST_CUSTODY": ""} if "unmarked" in how else {})},
    )
    if "leaves" in how:
        while not os.path.exists(f"{folder}/grandchild"):
            time.sleep(0.01)
        print("left it")
        sys.exit(0)
    if "deaf" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    write("program", str(os.getpid()))
    time.sleep(1000)
else:
    old = open(f"{folder}/grandchild").read().strip()
    try:
        beside = open(f"/proc/{old}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        beside = False
    print("beside" if beside else "alone")
"""
"""With the prompt `long` it starts a grandchild in a session of its own and keeps working; with any
other it reports whether that grandchild still runs.
"""


class Stage:
    """A gateway whose program starts a grandchild."""

    def __init__(self, folder: Path, how: str) -> None:
        self.folder = folder
        self.gate = GatewayProcess(
            folder, "--adapter", "command", "--", sys.executable, "-c", AGENT, str(folder), how
        )

    def begin(self) -> None:
        """Deliver the prompt, and return when program and grandchild run."""
        self.gate.start()
        self.gate.client.prompt("long")
        until((self.folder / "grandchild").exists)
        until((self.folder / "program").exists)

    @property
    def grandchild(self) -> int:
        return int((self.folder / "grandchild").read_text())

    @property
    def program(self) -> int:
        return int((self.folder / "program").read_text())

    @property
    def guardian(self) -> int:
        """The guardian of the program, which is its parent."""
        seen = stat(self.program)
        assert seen is not None
        return seen.parent

    @property
    def trees(self) -> Path:
        return self.gate.root / "run" / "trees"

    def next_answer(self) -> str:
        """What the program of the next prompt says of the grandchild."""
        done = self.gate.client.prompt("next", wait_s=PATIENCE_S)
        assert done["state"] == "completed"
        return str(done["result"]["text"]).strip()


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[Stage]]:
    """Stages that a test makes; what they leave is ended."""
    made: list[Stage] = []
    yield made
    for stage in made:
        if stage.gate.process is not None:
            stage.gate.kill()
        for name in ("program", "grandchild"):
            with suppress(FileNotFoundError):
                end_left(int((stage.folder / name).read_text()), stage.folder)


@pytest.fixture
def stage(tmp_path: Path, stages: list[Stage], request: pytest.FixtureRequest) -> Stage:
    stages.append(Stage(tmp_path, getattr(request, "param", "keeps")))
    return stages[0]


def gone(pid: int) -> bool:
    """Has a process ended, whether or not it was waited for?"""
    return state_of(pid) in (None, "Z", "X")


@pytest.mark.parametrize("stage", ["keeps", "closes", "closes unmarked"], indirect=True)
def test_the_guardian_of_a_killed_gateway_ends_its_tree_without_another_gateway(
    stage: Stage,
) -> None:
    stage.begin()
    program, grandchild, guardian = stage.program, stage.grandchild, stage.guardian
    stage.gate.kill()
    # The guardian ends when the last process is gone. The FIFO shows that until it is swept.
    until(lambda: gone(guardian))
    assert gone(program) and gone(grandchild)
    assert Trees(lambda: stage.trees, lambda: PRIVATE).sweep(older_than_s=0) == 1
    assert list(stage.trees.iterdir()) == []


@pytest.mark.parametrize(
    "stage", ["keeps", "closes", "closes unmarked", "deaf", "deaf closes"], indirect=True
)
def test_the_next_gateway_delivers_only_when_the_tree_of_a_killed_one_is_gone(stage: Stage) -> None:
    stage.begin()
    program, grandchild = stage.program, stage.grandchild
    stage.gate.kill()
    stage.gate.start()
    # It serves from here on.
    assert gone(program) and gone(grandchild)
    assert stage.next_answer() == "alone"
    assert not (stage.gate.root / "run" / "agent-process.json").exists()


@pytest.mark.parametrize(
    "stage",
    ["keeps", "closes", pytest.param("closes unmarked", marks=needs_groups), "deaf", "deaf closes"],
    indirect=True,
)
def test_the_next_gateway_ends_the_tree_when_the_guardian_was_killed_too(stage: Stage) -> None:
    stage.begin()
    program, grandchild, guardian = stage.program, stage.grandchild, stage.guardian
    # The guardian first: it would begin to end the tree as soon as the gateway is dead.
    os.kill(guardian, signal.SIGKILL)
    until(lambda: gone(guardian))
    stage.gate.kill()
    assert not gone(program) and not gone(grandchild)
    named = json.loads((stage.gate.root / "run" / "agent-process.json").read_text())
    found = {
        one.pid for one in Trees(lambda: stage.trees, lambda: PRIVATE).survivors(named["tree"])
    }
    assert {program, grandchild} <= found
    stage.gate.start()
    assert gone(program) and gone(grandchild)
    assert stage.next_answer() == "alone"


def test_with_gateway_guardian_and_program_killed_the_next_gateway_ends_the_grandchild(
    stage: Stage,
) -> None:
    stage.begin()
    program, grandchild, guardian = stage.program, stage.grandchild, stage.guardian
    os.kill(guardian, signal.SIGKILL)
    until(lambda: gone(guardian))
    stage.gate.kill()
    os.kill(program, signal.SIGKILL)
    until(lambda: gone(program))
    assert not gone(grandchild)
    stage.gate.start()
    assert gone(grandchild)
    assert stage.next_answer() == "alone"


def test_a_gateway_outlives_the_guardian_of_its_program(stage: Stage) -> None:
    stage.begin()
    program, grandchild, guardian = stage.program, stage.grandchild, stage.guardian
    os.kill(guardian, signal.SIGKILL)
    until(lambda: state_of(guardian) is None or gone(guardian))
    # The program runs on, and its end is its request's.
    assert not gone(program)
    os.kill(program, signal.SIGKILL)
    (first,) = stage.gate.client.requests()
    done = stage.gate.client.request(first["request_id"], wait_s=PATIENCE_S)
    assert (done["state"], done["error_code"]) == ("failed", "agent_failed")
    assert gone(grandchild)
    assert stage.next_answer() == "alone"
    assert list(stage.trees.iterdir()) == []


@pytest.mark.parametrize("stage", ["keeps", "closes", "closes unmarked", "deaf"], indirect=True)
def test_an_interrupt_ends_a_grandchild_in_a_session_of_its_own_before_the_slot_is_free(
    stage: Stage,
) -> None:
    stage.begin()
    program, grandchild = stage.program, stage.grandchild
    assert os.getsid(grandchild) == grandchild != os.getsid(program)
    (first,) = stage.gate.client.requests()
    # It waits for the slot, and begins as soon as that is free.
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(stage.next_answer()))
    waiting.start()
    stage.gate.client.interrupt(wait_s=PATIENCE_S)
    done = stage.gate.client.request(first["request_id"], wait_s=PATIENCE_S)
    assert done["error_code"] == "interrupted"
    assert gone(program) and gone(grandchild)
    waiting.join(PATIENCE_S)
    assert answers == ["alone"]


@pytest.mark.parametrize(
    "stage", ["leaves", "leaves closes", "leaves closes unmarked"], indirect=True
)
def test_what_a_program_leaves_is_ended_and_its_answer_stands(stage: Stage) -> None:
    stage.gate.start()
    done = stage.gate.client.prompt("long", wait_s=PATIENCE_S)
    assert (done["state"], done["result"]["text"]) == ("completed", "left it\n")
    assert gone(stage.grandchild)
    assert stage.next_answer() == "alone"


def test_a_gateway_that_is_stopped_in_order_leaves_no_process(stage: Stage) -> None:
    stage.begin()
    program, grandchild = stage.program, stage.grandchild
    assert stage.gate.stop() == 0
    assert gone(program) and gone(grandchild)
    assert list(stage.trees.iterdir()) == []
    assert not (stage.gate.root / "run" / "agent-process.json").exists()
