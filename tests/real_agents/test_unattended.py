"""Claude Code as an unattended agent, behind the Agent Client Protocol, as a user starts it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.runtime.configuration import gateway_root
from tests.harness.model_endpoint import ModelEndpoint
from tests.harness.real_tools import need_tool, prepare_home, tool_environment
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended
from tests.surfaces.locking import line

pytestmark = pytest.mark.tools


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentBench]:
    need_tool("claude-agent-acp")
    with agent_bench(tmp_path) as made:
        # The gateway is looked for here, and must be the one that the commands of the bench find.
        for name in ("XDG_STATE_HOME", "HOLDFAST_STORE"):
            monkeypatch.setenv(name, made.environment[name])
        # It does not have the key, which is in the environment of `agents start` alone.
        host = made.start("gateway", "serve", "--all")
        try:
            assert line(host)
            yield made
            made("agents", "stop", "boss")
        finally:
            host.kill()
            host.communicate()


def processes_of(bench: AgentBench) -> list[int]:
    """The processes of the agent, by the mark of their tree."""
    note = GatewayFolder(gateway_root(bench.hf.settings, "boss")).agent_process
    tree = str(json.loads(note.read_text())["tree"])
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tree.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_claude_is_started_asks_goes_on_and_is_stopped(bench: AgentBench, tmp_path: Path) -> None:
    project = tmp_path / "project"

    def ask(text: str) -> str:
        ran = bench("agents", "send", "boss", text, "--wait", "--timeout", "100")
        assert ran.status == 0, ran.err
        return ran.out

    def questions() -> list[dict[str, Any]]:
        return bench.hf.gateway("boss").questions()

    with ModelEndpoint() as model:
        prepare_home(tmp_path, project, model)
        bench.environment |= tool_environment(tmp_path, model)
        started = bench("agents", "start", "boss", "--unattended", "--tool", "claude", cwd=project)
        assert started.status == 0, started.err
        assert "answered p-1" in ask("p-1")
        asked = bench("agents", "send", "boss", "p-2 [[tool touch made.txt]]").out.strip()
        until(lambda: len(questions()) == 1)
        assert not (project / "made.txt").exists()
        assert (
            bench("gateway", "answer", "boss", questions()[0]["question_id"], "allow").status == 0
        )
        assert bench.hf.gateway("boss").request(asked, wait_s=100)["state"] == "completed"
        assert (project / "made.txt").exists()
        restarted = bench("agents", "restart", "boss", "--json")
        assert json.loads(restarted.out)["conversation"] is not None, restarted.err
        assert "answered p-3" in ask("p-3")
        # Each was sent once; the tool makes requests of its own beside them.
        ours = [one for one in model.prompts() if one.startswith("p-")]
        assert list(dict.fromkeys(one.split()[0] for one in ours)) == ["p-1", "p-2", "p-3"]
        pids = processes_of(bench)
        assert pids
        stopped = bench("agents", "stop", "boss")
        assert stopped.status == 0, stopped.err
        for pid in pids:
            ended(pid)
        assert bench("agents", "get", "boss").out.count("exited") > 0


@pytest.mark.parametrize("tool", ["codex", "opencode"])
def test_the_command_of_a_profile_is_started(bench: AgentBench, tmp_path: Path, tool: str) -> None:
    need_tool(tool)
    project = tmp_path / "project"
    with ModelEndpoint() as model:
        prepare_home(tmp_path, project, model)
        bench.environment |= tool_environment(tmp_path, model)
        started = bench("agents", "start", "boss", "--unattended", "--tool", tool, cwd=project)
        assert started.status == 0, started.err
        for number in (1, 2):
            ran = bench("agents", "send", "boss", f"p-{number}", "--wait", "--timeout", "100")
            assert f"answered p-{number}" in ran.out, ran.err
            restarted = bench("agents", "restart", "boss", "--json")
            assert json.loads(restarted.out)["conversation"] is not None, restarted.err
        pids = processes_of(bench)
        assert bench("agents", "stop", "boss").status == 0
        for pid in pids:
            ended(pid)
