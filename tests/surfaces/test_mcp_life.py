"""Agents that start and stop others over MCP, as far as the operator allows that."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domains.agents.records import id_of
from holdfast.kernel.errors import NotFound
from holdfast.runtime.host_process import host_of
from holdfast.surfaces.mcp.tools import LIFE_TOOLS, TOOLS
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended
from tests.surfaces.mcp_agent import Agent, ToolError, agents_on

pytestmark = pytest.mark.prove

PROGRAM = Path(__file__).parents[1] / "agents" / "protocol_program.py"
NAME_ID = id_of("HOLDFAST-helper")


class Lab:
    """A store with a tmux, in which agents get what holdfast.toml allows."""

    def __init__(self, bench: AgentBench, folder: Path) -> None:
        self.bench = bench
        self.folder = folder

    def allow(self, *lines: str) -> None:
        (self.folder / "holdfast.toml").write_text("\n".join(["[mcp]", *lines]))

    def agents(self) -> set[str]:
        return {agent.agent_name for agent in self.bench.hf.agents.list_agents()}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with agent_bench(tmp_path) as bench:
        yield Lab(bench, tmp_path)


@pytest.fixture
def boss(lab: Lab) -> Iterator[Agent]:
    """An agent that may start shells."""
    lab.allow('may_start = ["shell"]')
    with agents_on(str(lab.bench.environment["HOLDFAST_STORE"]), lab.folder) as agents:
        yield agents("boss", environment=lab.bench.tmux.environment)


def refusal(boss: Agent, tool: str, /, **arguments: object) -> ToolError:
    with pytest.raises(ToolError) as caught:
        boss.call(tool, **arguments)
    return caught.value


def test_an_agent_starts_another_and_stops_it(lab: Lab, boss: Agent) -> None:
    assert [tool.name for tool in boss.tools()] == [*TOOLS, *LIFE_TOOLS]
    done = boss.call("start_agent", name="helper", tool="shell", folder=str(lab.folder))
    assert done["handle"] == f"agent:{NAME_ID}"
    agent = lab.bench.hf.agents.get(NAME_ID)
    assert agent.holder is not None
    # As the caller's own user, and where it was told to work.
    assert os.stat(f"/proc/{agent.holder.pid}").st_uid == os.geteuid()
    assert Path(f"/proc/{agent.holder.pid}/cwd").resolve() == lab.folder
    found = boss.call("find_agents", name=done["handle"])["agents"]
    assert [one["agent_name"] for one in found] == ["HOLDFAST-helper"]
    ended = boss.call("stop_agent", agent=done["handle"])
    assert (ended["was_running"], ended["tmux_session"]) == (True, "ended")
    assert lab.agents() == set() and lab.bench.tmux.sessions() == set()
    assert boss.call("stop_agent", agent="helper")["was_running"] is False


def test_without_the_operators_word_nothing_is_started(lab: Lab) -> None:
    store = str(lab.bench.environment["HOLDFAST_STORE"])
    with agents_on(store, lab.folder) as agents:
        boss = agents("boss", environment=lab.bench.tmux.environment)
        assert [tool.name for tool in boss.tools()] == list(TOOLS)
        error = refusal(boss, "start_agent", name="x", tool="shell", folder="/tmp")
        assert error.code == "not_found"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"tool": "claude"}, "refused", "allowed are shell"),
        ({"tool": "../shell"}, "refused", "mcp.may_start"),
        ({"folder": "here"}, "invalid_value", "no folder"),
        ({"folder": "/nosuch"}, "invalid_value", "no folder"),
        ({"name": "a b"}, "invalid_name", "name"),
    ],
)
def test_what_cannot_be_started(
    lab: Lab, boss: Agent, arguments: dict[str, str], code: str, said: str
) -> None:
    whole = {"name": "helper", "tool": "shell", "folder": str(lab.folder), **arguments}
    error = refusal(boss, "start_agent", **whole)
    assert error.code == code and said in error.message
    assert lab.agents() == set() and lab.bench.tmux.sessions() == set()


def test_only_its_own_agents_unless_the_operator_allows_any(lab: Lab, boss: Agent) -> None:
    lab.bench.start_agent("gpu")
    error = refusal(boss, "stop_agent", agent="gpu")
    assert error.code == "refused" and "not started by you" in error.message
    assert lab.agents() == {"HOLDFAST-gpu"}
    assert refusal(boss, "stop_agent", agent="nobody").code == "not_found"
    lab.allow('may_start = ["shell"]', 'may_stop = "any"')
    with agents_on(str(lab.bench.environment["HOLDFAST_STORE"]), lab.folder) as agents:
        other = agents("other", environment=lab.bench.tmux.environment)
        assert other.call("stop_agent", agent="gpu")["was_running"] is True
    assert lab.agents() == set()


def test_a_start_that_nobody_waits_for_any_more_is_undone(lab: Lab, boss: Agent) -> None:
    call = boss.begin("start_agent", name="helper", tool="shell", folder=str(lab.folder))
    until(lambda: lab.bench.tmux.sessions() != set())
    call.cancel()

    def gone() -> bool:
        try:
            lab.bench.hf.agents.get(NAME_ID)
        except NotFound:
            return not lab.bench.tmux.sessions()
        return False

    until(gone)


def test_an_unattended_agent_takes_prompts_when_it_is_started(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lab.folder / "helper"
    profiles = lab.folder / "config" / "holdfast" / "profiles"
    profiles.mkdir(parents=True)
    folder.mkdir()
    words = [sys.executable, str(PROGRAM), "acp", str(folder)]
    (profiles / "scripted.toml").write_text(f"[launch]\nprotocol = {json.dumps(words)}\n")
    lab.allow('may_start = ["scripted", "shell"]')
    places = {
        "XDG_CONFIG_HOME": str(lab.folder / "config"),
        "XDG_STATE_HOME": str(lab.folder / "state"),
        "HOLDFAST_STORE": str(lab.bench.environment["HOLDFAST_STORE"]),
    }
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    started = {"name": "helper", "folder": str(folder), "unattended": True}
    with agents_on(places["HOLDFAST_STORE"], lab.folder) as agents:
        boss = agents("boss", environment={**lab.bench.tmux.environment, **places})
        error = refusal(boss, "start_agent", tool="shell", **started)
        assert error.code == "invalid_value" and "speaks a protocol" in error.message
        try:
            done = boss.call("start_agent", tool="scripted", **started)
            assert done["tmux_session"] is None
            [found] = boss.call("find_agents", name=done["handle"])["agents"]
            assert (found["backend"], found["state"]) == ("acp", "ready")
            assert boss.call("stop_agent", agent=done["handle"])["was_running"] is True
        finally:
            if (host := host_of(lab.bench.hf)) is not None:
                os.kill(host.process.pid, signal.SIGKILL)
                ended(host.process.pid)
    assert lab.agents() == set()
