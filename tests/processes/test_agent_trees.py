"""An agent and its process tree: its id is its own while any process of the tree lives, and only
its own process gets keys.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.domains.agents import Agent
from holdfast.kernel.errors import NotFound, ProcessDead, UpstreamUnavailable
from holdfast.kernel.holder import Liveness
from holdfast.operations.page.agents import line_of, why_agent
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.processes.trees import Death
from tests.surfaces.agent_bench import AgentBench, agent_bench
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove

SURVIVED = """
import os, subprocess, sys, time
how = sys.argv[1]
child = subprocess.Popen(
    ["setsid", "sleep", "1000"],
    close_fds="closes" in how,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
print(os.getpid(), child.pid, flush=True)
if "exits" in how:
    sys.exit(3)
time.sleep(1000)
"""
"""An agent with a child in a session of its own, as an MCP server may be."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


class Survived:
    """An agent that `agents run` runs, and its child."""

    def __init__(self, bench: AgentBench, how: str = "keeps", *words: str) -> None:
        self.bench = bench
        self.process = bench.run("gpu", *words, "--", sys.executable, "-c", SURVIVED, how)
        self.pid, self.child = map(int, line(self.process).split())
        self._deaths = [Death(pid) for pid in (self.pid, self.child) if not gone(pid)]

    def __enter__(self) -> "Survived":
        return self

    def __exit__(self, *_: object) -> None:
        while self._deaths:
            self._deaths.pop().close()

    @property
    def agent(self) -> Agent:
        return self.bench.hf.agents.resolve("gpu").unwrap()


def gone(pid: int) -> bool:
    """Has a process ended, whether or not it was waited for?"""
    return state_of(pid) in (None, "Z", "X")


def second(bench: AgentBench) -> int:
    """The exit status of a second `agents run` of that name."""
    return bench("agents", "run", "gpu", "--", "touch", "second").status


@pytest.mark.parametrize("how", ["keeps", "closes"])
def test_the_id_is_not_taken_over_while_a_process_of_the_dead_agent_lives(
    bench: AgentBench, how: str
) -> None:
    with Survived(bench, how) as first:
        agent = first.agent
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: gone(first.pid))
        assert second(bench) == 4
        assert not gone(first.child) and not (bench.folder / "second").exists()
        assert bench.hf.agents.get(agent.agent_id).generation_id == agent.generation_id
        os.kill(first.child, signal.SIGKILL)
        # The wrapper removes the record when the last process is gone.
        assert first.process.wait(PATIENCE_S) == 128 + signal.SIGKILL
        with pytest.raises(NotFound):
            bench.hf.agents.get(agent.agent_id)
        assert second(bench) == 0
        assert (bench.folder / "second").exists()


@pytest.mark.parametrize("how", ["keeps", "closes"])
@pytest.mark.parametrize("guardian", [False, True])
def test_with_its_wrapper_killed_too_the_next_takes_over_when_the_last_process_ends(
    bench: AgentBench, how: str, guardian: bool
) -> None:
    with Survived(bench, how) as first:
        agent = first.agent
        killed = [first.process.pid, first.pid]
        if guardian:
            killed.insert(1, _parent(first.pid))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: gone(pid))  # type: ignore[misc]
        assert second(bench) == 4
        assert not gone(first.child) and not (bench.folder / "second").exists()
        os.kill(first.child, signal.SIGKILL)
        bench.tree_ends(agent)
        if not guardian:
            # It cared for the record in the place of the wrapper, and removes it.
            bench.until_logged("agent.removed", agent.agent_id)
        assert second(bench) == 0
        assert (bench.folder / "second").exists()
        if guardian:
            assert bench.until_logged("agent.taken_over", agent.agent_id).data["why"] == "gone"
        until(lambda: bench.own_folders() == [])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_killing_the_wrapper_leaves_the_record_while_the_command_lives(bench: AgentBench) -> None:
    with Survived(bench) as first:
        agent = first.agent
        first.process.kill()
        first.process.wait(PATIENCE_S)
        assert not gone(first.pid) and not gone(first.child)
        assert bench.hf.agents.get(agent.agent_id).token == agent.token
        assert bench.hf.agents.liveness(agent).process is Liveness.ALIVE
        assert second(bench) == 4
        assert "removed" not in bench("agents", "cleanup", "--grace", "0").out
        for pid in (first.pid, first.child):
            os.kill(pid, signal.SIGKILL)
        bench.tree_ends(agent)
        assert second(bench) == 0


def test_on_a_shared_database_the_record_of_a_killed_wrapper_is_refreshed_until_the_tree_ends(
    tmp_path: Path, postgres_url: str
) -> None:
    """Other machines see nothing of the tree, and believe the lease."""
    with (
        agent_bench(tmp_path, postgres_url) as bench,
        Survived(bench, "keeps", "--lease", "1.5") as first,
    ):
        agent = first.agent
        first.process.kill()
        first.process.wait(PATIENCE_S)
        bench.outlives(bench.hf.agents.get(agent.agent_id))
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: gone(first.pid))
        bench.outlives(bench.hf.agents.get(agent.agent_id))
        assert not gone(first.child)
        os.kill(first.child, signal.SIGKILL)
        bench.until_logged("agent.removed", agent.agent_id)


def test_a_dead_agent_is_shown_as_dead_with_the_processes_that_it_left(bench: AgentBench) -> None:
    with Survived(bench) as first:
        agent = first.agent
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: gone(first.pid))
        parts = bench.hf.agents.liveness(agent)
        assert (parts.lease, parts.process, parts.tree) == (
            Liveness.ALIVE,
            Liveness.DEAD,
            Liveness.ALIVE,
        )
        answer = json.loads(bench("agents", "get", "gpu", "--json").out)
        assert (answer["liveness"]["process"], answer["liveness"]["tree"]) == ("dead", "alive")
        assert f"{first.child} sleep" in bench("agents", "get", "gpu").out
        assert f"{first.pid} dead, 1 left" in bench("agents", "list").out
        shown = line_of(bench.hf, agent)
        assert (shown.state, shown.tone) == ("dead", "bad")
        assert why_agent(bench.hf, agent.agent_id).state == "dead"


def test_a_dead_agent_is_no_target_whatever_it_left(bench: AgentBench) -> None:
    """What it left may have the pane's terminal, and would get the keys."""
    script = (
        f"{sys.executable} -c 'import time; time.sleep(1000)' & echo $! > {bench.folder}/child; "
        "exec sleep 1000"
    )
    agent = bench.start_agent("gpu", command=("sh", "-c", script))
    assert agent.holder is not None
    until(
        lambda: (
            (bench.folder / "child").exists()
            and (bench.folder / "child").read_text().endswith("\n")
        )
    )
    child = int((bench.folder / "child").read_text())
    assert bench("agents", "target", "gpu").status == 0
    os.kill(agent.holder.pid, signal.SIGKILL)
    until(lambda: gone(agent.holder.pid) if agent.holder else True)
    assert not gone(child)
    with pytest.raises(ProcessDead):
        bench.hf.agents.control_target("gpu")
    assert bench("agents", "target", "gpu").status == 4
    # The pane waits for what is left, and the record stays.
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}
    assert bench.hf.agents.get(agent.agent_id).generation_id == agent.generation_id
    os.kill(child, signal.SIGKILL)
    bench.until_logged("agent.removed", agent.agent_id)


def test_a_gateway_types_nothing_to_a_dead_agent_whose_child_lives(bench: AgentBench) -> None:
    # The child has the pane's terminal, as a shell without job control lets it.
    script = (
        f"exec 3<&0; cat <&3 > {bench.folder}/typed & echo $! > {bench.folder}/child; exec sleep "
        "1000"
    )
    agent = bench.start_agent("gpu", command=("bash", "-c", script))
    assert agent.holder is not None
    until(
        lambda: (
            (bench.folder / "child").exists()
            and (bench.folder / "child").read_text().endswith("\n")
        )
    )
    child = int((bench.folder / "child").read_text())
    gateway = bench.start("gateway", "serve", "gpu", "--port", "0")
    try:
        assert line(gateway).startswith("gateway of ")
        client = bench.hf.gateway("gpu")
        os.kill(agent.holder.pid, signal.SIGKILL)
        until(lambda: client.status()["managed_agent_connectivity"] == "unavailable")
        assert not gone(child)
        with pytest.raises(UpstreamUnavailable):
            client.prompt("rm -rf x")
        assert "has ended" in client.status()["detail"]
        assert (bench.folder / "typed").read_text() == ""
    finally:
        gateway.terminate()
        gateway.communicate(timeout=PATIENCE_S)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_leftovers_are_waited_for_kept_or_ended(bench: AgentBench) -> None:
    with Survived(bench, "exits", "--leftovers", "end") as first:
        assert first.process.wait(PATIENCE_S) == 3
        assert gone(first.child)
        assert bench.hf.agents.list_agents() == []
    with Survived(bench, "exits", "--leftovers", "keep") as first:
        agent = first.agent
        assert first.process.wait(PATIENCE_S) == 3
        assert not gone(first.child)
        assert (
            bench.hf.agents.get(agent.agent_id).token == agent.token
            and len(bench.own_folders()) == 1
        )
        assert second(bench) == 4
        os.kill(first.child, signal.SIGKILL)
        bench.until_logged("agent.removed", agent.agent_id, generation_id=agent.generation_id)
        assert second(bench) == 0
        until(lambda: bench.own_folders() == [])
    with Survived(bench, "exits") as first:
        until(lambda: gone(first.pid))
        with pytest.raises(subprocess.TimeoutExpired):
            first.process.wait(0.2)
        os.kill(first.child, signal.SIGKILL)
        assert first.process.wait(PATIENCE_S) == 3
        assert bench.hf.agents.list_agents() == []


def test_a_replaced_agent_ends_what_its_command_left(bench: AgentBench) -> None:
    with Survived(bench, "exits") as first:
        until(lambda: gone(first.pid))
        other, _ = bench.hold("gpu", "--take-over")
        assert first.process.wait(PATIENCE_S) == 4
        assert gone(first.child)
        assert other.poll() is None


def test_start_passes_leftovers_on_and_ends_what_a_command_leaves_that_is_no_agent(
    bench: AgentBench,
) -> None:
    script = f"setsid sleep 1000 & echo $! > {bench.folder}/child; exit 5"
    ran = bench("agents", "start", "gpu", "--watch", "60", "--", "sh", "-c", script)
    child = int((bench.folder / "child").read_text())
    try:
        assert ran.status == 1 and "exit status 5" in ran.err
        until(lambda: gone(child))
        assert bench.hf.agents.list_agents() == [] and bench.tmux.sessions() == set()
        agent = bench.start_agent("gpu", "--leftovers", "end", command=("sleep", "600"))
        pane = bench.tmux.pane_pid("HOLDFAST-gpu")
        words = Path(f"/proc/{pane}/cmdline").read_bytes().split(b"\0")
        assert words[words.index(b"--leftovers") + 1] == b"end"
        bench.kill(agent, pane)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_an_agent_in_a_pane_is_no_part_of_the_tree_that_started_it(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "outside", "sleep 1000")
    entry = [
        sys.executable,
        "-m",
        "holdfast.surfaces.cli.entry",
        "agents",
        "start",
        "gpu",
        "--",
        "sleep",
        "600",
    ]
    ran = bench("locks", "run", "router-1", "--", *entry)
    assert ran.status == 0, ran.err
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert agent.holder is not None and agent.holder.tree
    around = Path(f"/proc/{agent.holder.pid}/environ").read_bytes().split(b"\0")
    assert f"HOLDFAST_CUSTODY={agent.holder.tree}".encode() in around
    bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))


@pytest.mark.parametrize("how", ["killed", "kept"])
def test_the_lease_is_renewed_without_the_wrapper(bench: AgentBench, how: str) -> None:
    """The guardian becomes the caretaker, which removes the record when the last process is
    gone.
    """
    words = ("--lease", "5", *(("--leftovers", "keep") if how == "kept" else ()))
    with Survived(bench, "exits" if how == "kept" else "keeps", *words) as first:
        agent = first.agent
        if how == "killed":
            first.process.kill()
        first.process.wait(PATIENCE_S)
        # Once its own lease is over, only a renewed one keeps the id.
        until(lambda: bench.hf.store.now() > agent.lease_expires_at)
        assert second(bench) == 4
        assert bench.hf.agents.get(agent.agent_id).generation_id == agent.generation_id
        first.__exit__()
        until(lambda: not bench.hf.agents.list_agents())
