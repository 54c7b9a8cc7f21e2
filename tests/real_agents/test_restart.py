"""Claude Code is killed and started again: its conversation goes on."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.model_endpoint import ModelEndpoint
from tests.harness.real_tools import need_tool, prepare_home, tool_environment
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench

pytestmark = pytest.mark.tools


class Claude:
    """Claude Code as the agent `boss`, in a tmux of its own, with a model on this machine."""

    def __init__(self, bench: AgentBench, model: ModelEndpoint, project: Path) -> None:
        self.bench = bench
        self.model = model
        self.project = project

    def start(self) -> None:
        command = [need_tool("claude"), "--model", "sonnet"]
        ran = self.bench("agents", "start", "boss", "--", *command, cwd=self.project)
        assert ran.status == 0, ran.err
        self.until_shown("❯")

    def say(self, prompt: str) -> None:
        """Type a prompt as a person does, and wait for its answer."""
        self.bench.tmux("send-keys", "-t", "=HOLDFAST-boss:", "-l", prompt)
        self.until_shown(prompt)
        self.bench.tmux("send-keys", "-t", "=HOLDFAST-boss:", "Enter")
        self.until_shown(f"answered {prompt}")

    def until_shown(self, text: str) -> None:
        until(lambda: text in self.shown(), saw=self.shown)

    def shown(self) -> str:
        return self.bench("agents", "logs", "boss").out

    def restart(self, *words: str) -> str | None:
        """Start it again; return the conversation that goes on."""
        ran = self.bench("agents", "restart", "boss", *words, "--json")
        assert ran.status == 0, ran.err
        conversation: str | None = json.loads(ran.out)["conversation"]
        self.until_shown("❯")
        return conversation


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    project = tmp_path / "project"
    with ModelEndpoint() as model, agent_bench(tmp_path) as bench:
        prepare_home(tmp_path, project, model)
        bench.environment |= tool_environment(tmp_path, model)
        made = Claude(bench, model, project)
        made.start()
        yield made
        made.bench("agents", "stop", "boss", "--grace", "2")


@pytest.mark.parametrize("killed", ["agent", "tmux server", "nothing"])
def test_the_conversation_goes_on(claude: Claude, killed: str) -> None:
    claude.say("p-1")
    agent = json.loads(claude.bench("agents", "get", "boss", "--json").out)
    if killed == "agent":
        os.kill(agent["holder"]["pid"], signal.SIGKILL)
    elif killed == "tmux server":
        os.kill(int(claude.bench.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL)
    conversation = claude.restart()
    assert conversation is not None
    # The tool shows the conversation so far.
    claude.until_shown("answered p-1")
    claude.say("p-2")
    assert claude.model.prompts() == ["p-1", "p-2"]
    # The same conversation once more, which has both now.
    assert claude.restart() == conversation
    claude.until_shown("answered p-2")


def test_a_conversation_without_a_prompt_begins_anew(claude: Claude) -> None:
    assert claude.restart() is None
    claude.say("p-1")
    assert claude.restart("--fresh") is None
    assert "answered p-1" not in claude.shown()
