"""The life of an agent on the command line: its end is kept, it is stopped, started again, attached
to and joined. Real commands in a real tmux.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import id_of
from holdfast.kernel.errors import NotFound
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended

pytestmark = pytest.mark.prove


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


def listed(bench: AgentBench, *words: str) -> list[dict[str, Any]]:
    ran = bench("agents", "list", *words, "--json")
    assert ran.status == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def without_record(bench: AgentBench, agent: Agent) -> None:
    """Wait until an agent's record is removed."""

    def gone() -> bool:
        try:
            bench.hf.agents.get(agent.agent_id)
        except NotFound:
            return True
        return False

    until(gone)


def holder_pid(agent: Agent) -> int:
    assert agent.holder is not None
    return agent.holder.pid


# --- what is kept of an agent that has ended ---


def test_exit_status_and_last_screen_are_kept(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "seq 100; read line; exit 5"))
    until(lambda: "100" in bench("agents", "logs", "gpu").out)
    live = bench("agents", "logs", "gpu", "-n", "2")
    assert (live.out, live.err) == ("99\n100\n", "")
    bench.tmux("send-keys", "-t", "=HOLDFAST-gpu:", "Enter")
    without_record(bench, agent)
    assert listed(bench) == []
    [entry] = listed(bench, "--all")
    assert (entry["agent_name"], entry["exited"]["exit_status"]) == ("HOLDFAST-gpu", 5)
    assert entry["exited"]["ended_at"] == entry["lease_expires_at"]
    shown = json.loads(bench("agents", "get", "gpu", "--json").out)
    assert shown["exited"] == entry["exited"]
    assert (shown["liveness"]["lease"], shown["liveness"]["process"]) == ("dead", "dead")
    logs = bench("agents", "logs", "gpu")
    assert logs.status == 0 and "exited 5" in logs.err
    assert logs.out.split()[:3] == ["1", "2", "3"]


def test_a_killed_agent_is_known_to_be_killed(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "echo I am here; exec sleep 600"))
    os.kill(holder_pid(agent), signal.SIGKILL)
    without_record(bench, agent)
    [entry] = listed(bench, "--all")
    assert entry["exited"]["exit_status"] == 137
    assert bench("agents", "logs", "gpu").out == "I am here\n"


def test_nobody_saw_the_end_when_the_runner_is_killed_too(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu")
    bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))
    shown = json.loads(bench("agents", "get", "gpu", "--json").out)
    assert shown["exited"] == {"exit_status": None, "ended_at": None}
    assert "unknown how" in bench("agents", "logs", "gpu").err


def test_what_is_kept_is_for_its_user_alone_and_the_next_run_replaces_it(bench: AgentBench) -> None:
    for status in ("3", "4"):
        ran = bench("agents", "run", "gpu", "--", "sh", "-c", f"exit {status}")
        assert ran.status == int(status)
    [entry] = listed(bench, "--all")
    assert entry["exited"]["exit_status"] == 4
    [note] = (bench.folder / "state").rglob("agent-runs/*/*/*.json")
    assert note.stat().st_mode & 0o777 == 0o600
    note.write_bytes(b"{")
    assert listed(bench, "--all") == []
    assert bench("agents", "get", "gpu").status == 1


def test_another_store_knows_nothing_of_it(bench: AgentBench) -> None:
    assert bench("agents", "run", "gpu", "--", "true").status == 0
    other = bench("--store", f"sqlite:{bench.folder}/other.sqlite", "agents", "list", "--all")
    assert other.out == ""


def test_cleanup_removes_what_is_kept_after_a_week(bench: AgentBench) -> None:
    for name in ("old", "new"):
        bench("agents", "run", name, "--", "true")
    [note] = (bench.folder / "state").rglob(f"agent-runs/*/*/{id_of('HOLDFAST-old')}.json")
    document = json.loads(note.read_bytes())
    document["agent"]["published_at"] = "2020-01-01T00:00:00Z"
    document["end"]["ended_at"] = "2020-01-02T00:00:00Z"
    note.write_text(json.dumps(document))
    planned = json.loads(bench("agents", "cleanup", "--dry-run", "--json").out)["planned"]
    assert [one["why"] for one in planned] == ["old_run"]
    assert note.exists()
    removed = json.loads(bench("agents", "cleanup", "--json").out)["removed"]
    assert [one["detail"] for one in removed] == ["HOLDFAST-old"]
    assert [one["agent_name"] for one in listed(bench, "--all")] == ["HOLDFAST-new"]


def test_logs_of_an_agent_that_never_was(bench: AgentBench) -> None:
    ran = bench("agents", "logs", "nobody")
    assert ran.status == 1 and "there is no agent nobody" in ran.err


def test_an_agent_outside_of_tmux_has_no_pane_to_show(bench: AgentBench) -> None:
    process, pid = bench.hold("gpu")
    ran = bench("agents", "logs", "gpu")
    assert ran.status == 4 and "not in tmux" in ran.err
    os.kill(pid, signal.SIGKILL)
    ended(process.pid)
    assert "exited 137" in bench("agents", "logs", "gpu").err
