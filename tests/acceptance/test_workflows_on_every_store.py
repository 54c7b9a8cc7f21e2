"""Workflows and swaps end to end, by real commands, on every store that processes can share."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.stores import store_url
from tests.surfaces.command import CommandLine
from tests.surfaces.locking import HOLDING, end, line, remark, trapping

pytestmark = pytest.mark.prove


@pytest.fixture(params=["sqlite", "files", "postgres"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=store_url(request, tmp_path))


def test_one_gpu_two_workflows_and_a_swapper_that_is_killed(command: CommandLine) -> None:
    assert command("swap", "to", "llama", "--", "true").status == 0
    tuning = command.start(
        "workflows",
        "run",
        "tuning",
        "--recipe",
        "llama",
        "--preemptible",
        "--",
        *trapping("SIGUSR1", 0),
    )
    assert line(tuning) == "up"
    nightly = command.start(
        "workflows", "run", "nightly", "--recipe", "llama", "--", *HOLDING, stdin=subprocess.PIPE
    )
    line(nightly)
    assert [flow["name"] for flow in json.loads(command("workflows", "list", "--json").out)] == [
        "nightly",
        "tuning",
    ]

    swap = command.start("swap", "to", "qwen", "--", *trapping("SIGTERM"))
    assert "waiting: workflow nightly (llama, " in remark(swap)
    # The one yields to the signal, the other ends by itself.
    assert line(tuning) == "got" and end(tuning)[0] == 0
    refused = command("workflows", "run", "late", "--recipe", "llama", "--", "true")
    assert refused.status == 4 and "a swap to qwen by process" in refused.err
    assert end(nightly)[0] == 0
    assert line(swap) == "up"

    swap.send_signal(signal.SIGKILL)
    assert line(swap) == "got", "what it loaded with is sent SIGTERM"
    end(swap)
    status = json.loads(command("swap", "status", "--json").out)
    assert status["current"] is None and status["unknown"]["recipe"] == "qwen"
    assert command("workflows", "run", "late", "--recipe", "llama", "--", "true").status == 4
    assert command("swap", "to", "qwen", "--", "true").status == 0
    assert command("workflows", "run", "late", "--recipe", "llama", "--", "true").status == 4
    assert command("workflows", "run", "late", "--recipe", "qwen", "--", "true").status == 0
    assert command("swap", "to", "qwen", "--", "false").status == 0
    log = [json.loads(text)["event"] for text in command("swap", "log", "--json").out.splitlines()]
    assert log == [
        "swap_started",
        "swap_completed",
        "swap_started",
        "preempt_requested",
        "preempt_yielded",
        "orphan_marker_cleared",
        "swap_started",
        "swap_completed",
        "swap_not_needed",
    ]
