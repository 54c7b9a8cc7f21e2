"""Hosts of gateways that are killed with -9 while they deliver to several agents in tmux."""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.agent_bench import AgentBench, Process, agent_bench
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove

NAMES = ("a", "b", "c", "d")
ROUNDS = 6
EACH = 4
SEED = 20


@pytest.fixture(params=["sqlite", "postgres"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentBench]:
    with agent_bench(tmp_path, store_url(request, tmp_path)) as made:
        # With PostgreSQL the gateways' folders are in the state folder.
        monkeypatch.setenv("XDG_STATE_HOME", made.environment["XDG_STATE_HOME"])
        for name in NAMES:
            made.start_agent(
                name,
                *("--ready-regex", "^> ?$", "--quiet-ms", "50", "--watch", "0"),
                command=("env", "PS1=> ", "bash", "--norc"),
            )
        yield made


def host(bench: AgentBench) -> Process:
    process = bench.start("gateway", "serve", "--all")
    assert line(process)
    for name in NAMES:
        until(bench.hf.gateway(name).answers)
    return process


def ended(bench: AgentBench) -> list[dict[str, object]]:
    return [
        request
        for name in NAMES
        for request in bench.hf.gateway(name).requests()
        if request["state"] in ("completed", "failed")
    ]


@pytest.mark.timeout(600)
def test_the_next_host_goes_on_and_delivers_nothing_twice(
    bench: AgentBench, tmp_path: Path
) -> None:
    chance, log = random.Random(SEED), tmp_path / "did"
    log.touch()
    accepted: dict[str, str] = {}
    for number in range(ROUNDS):
        process = host(bench)
        for name in NAMES:
            for turn in range(EACH):
                word = f"{name}-{number}-{turn}"
                request = bench.hf.gateway(name).prompt(f"echo {word} >> {log}")
                accepted[request["request_id"]] = word
        # Somewhere in the middle of what waits: how many have ended by then is chance.
        goal = len(ended(bench)) + chance.randrange(1, len(NAMES) * EACH // 2)
        until(lambda goal=goal: len(ended(bench)) >= goal)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = host(bench)
    until(lambda: len(ended(bench)) == len(accepted))
    did = Counter(log.read_text().split())
    states = {str(one["request_id"]): one for one in ended(bench)}
    assert states.keys() == accepted.keys()
    assert set(did.values()) == {1}
    for request_id, word in accepted.items():
        request = states[request_id]
        if request["state"] == "completed":
            assert did[word] == 1, request
        else:
            assert request["error_code"] == "interrupted_by_restart", request
    # In order, for each agent.
    for name in NAMES:
        own = [word for word in log.read_text().split() if word.startswith(f"{name}-")]
        assert own == [word for word in accepted.values() if word in own]
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    process.communicate()
