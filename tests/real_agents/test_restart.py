"""Claude Code is killed and started again: its conversation goes on."""

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.model_endpoint import ModelEndpoint
from tests.harness.real_tools import need_tool, prepare_home, tool_environment
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench

pytestmark = pytest.mark.tools

BOX = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
"""The sign of its input box."""


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
        self.until_shown(BOX)

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
        self.until_shown(BOX)
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


def test_a_joined_one_is_restarted_with_hooks_by_its_conversation(claude: Claude) -> None:
    claude.say("p-1")
    run = json.loads(claude.bench("agents", "stop", "boss", "--json").out)
    assert run["was_running"]
    # A person starts it, and says something.
    environment = " ".join(f"{k}={shlex.quote(v)}" for k, v in claude.bench.environment.items())
    command = f"cd {claude.project} && env {environment} {need_tool('claude')} --model sonnet"
    claude.bench.tmux("new-session", "-d", "-x", "200", "-y", "50", "-s", "work", command)
    until(lambda: BOX in claude.bench.tmux.screen("work"))
    claude.bench.tmux("send-keys", "-t", "=work:", "-l", "p-2")
    until(lambda: "p-2" in claude.bench.tmux.screen("work"))
    claude.bench.tmux("send-keys", "-t", "=work:", "Enter")
    until(lambda: "answered p-2" in claude.bench.tmux.screen("work"))
    joined = json.loads(claude.bench("agents", "join", "work", "boss", "--json").out)
    manifest = json.loads(Path(joined["runtime"]["manifest_path"]).read_bytes())
    assert manifest["adapter"]["profile"] == "claude" and "reports" not in manifest["adapter"]
    served = claude.bench.start("gateway", "serve", "boss")
    try:
        until(lambda: claude.bench("gateway", "status", "boss").status == 0)
        sent = claude.bench("agents", "send", "boss", "p-3", "--wait", "--json")
    finally:
        served.kill()
        served.communicate()
    # Typed once, and nobody can tell more.
    assert sent.status == 0, sent.err
    assert json.loads(sent.out)["result"]["end_unknown"] is True
    claude.until_shown("answered p-3")
    assert claude.model.prompts() == ["p-1", "p-2", "p-3"]
    # Its conversation would be lost.
    ran = claude.bench("agents", "restart", "boss")
    assert ran.status == 4 and "--conversation" in ran.err
    os.kill(joined["holder"]["pid"], 0)
    [transcript] = [
        path
        for path in (claude.bench.folder / ".claude" / "projects").rglob("*.jsonl")
        if "p-2" in path.read_text()
    ]
    assert claude.restart("--conversation", transcript.stem) == transcript.stem
    claude.until_shown("answered p-2")
    manifest = json.loads(claude.bench("agents", "target", "boss", "--json").out)["manifest"]
    assert "reports" in manifest["adapter"]
