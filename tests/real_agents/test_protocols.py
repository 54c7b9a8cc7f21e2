"""The real tools behind their protocols: what docs/tools.md says of each."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.gateway import AgentState
from holdfast.domains.gateway.adapter import spec_of
from holdfast.domains.gateway.records import GatewayStatus
from holdfast.domains.gateway.request import Submission, draft_of
from holdfast.domains.gateway.state import Question
from holdfast.kernel.settings import Settings
from holdfast.primitives.queue import QueueRequest, RequestState
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from tests.harness.model_endpoint import ModelEndpoint
from tests.harness.processes import state_of
from tests.harness.real_tools import need_tool, prepare_home, tool_environment
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import AGENT, GatewayProcess

pytestmark = pytest.mark.tools


class Way(NamedTuple):
    """A tool behind a protocol, and where it differs from the others.

    `denied_code` is that of a prompt whose permission was refused, and with `answers_denial` the
    agent says something then. With `repeats_killed` the model gets a prompt that was killed once
    more, before the next one. With `slow_to_resume`, a conversation is lost that is resumed in the
    clock minute in which it was begun: the tool writes it into a file named after that minute.
    """

    program: str
    arguments: tuple[str, ...] = ()
    adapter: str = "acp"
    denied_code: str | None = None
    answers_denial: bool = True
    repeats_killed: bool = False
    slow_to_resume: bool = False


WAYS = {
    "claude": Way("claude-agent-acp"),
    "codex-acp": Way("codex-acp", denied_code="interrupted", answers_denial=False),
    "opencode": Way("opencode", ("acp",), answers_denial=False),
    "gemini": Way("gemini", ("--acp",), repeats_killed=True, slow_to_resume=True),
    "codex": Way("codex", ("app-server",), adapter="codex_app_server"),
}


class Stage:
    """A tool in a home of its own, and the gateway that runs it in this process."""

    def __init__(self, folder: Path, way: Way, model: ModelEndpoint) -> None:
        self.model, self.folder = model, folder
        self.project, home = folder / "project", folder / "home"
        prepare_home(home, self.project, model)
        rules = home / ".codex/rules/default.rules"
        rules.parent.mkdir(parents=True)
        rules.write_text('prefix_rule(pattern=["touch"], decision="prompt")\n')
        # Its sandbox needs what a container or a small machine may not have.
        config = home / ".codex/config.toml"
        config.write_text(f'sandbox_mode = "danger-full-access"\n{config.read_text()}')
        self.environment = tool_environment(home, model)
        self.words = (need_tool(way.program), *way.arguments)
        self.way = way
        self.parts: GatewayParts | None = None
        settings = Settings(
            store=f"sqlite:{folder}/store.sqlite", gateway_root=f"{folder}/gateways"
        )
        self.settings = settings

    def start(self) -> None:
        spec = spec_of(
            {
                "kind": self.way.adapter,
                "command": self.words,
                "working_directory": str(self.project),
            }
        )
        # It may take until the next minute to begin.
        self.began_minute = int((time.time() + 20) / 60)
        self.parts = open_gateway(AGENT, spec, self.settings, on_lost=lambda: None)
        self.parts.worker.start()

    def close(self) -> None:
        if self.parts is not None:
            self.parts.worker.stop(grace_s=0)
            self.parts.close()
            self.parts = None

    def prompt(self, text: str) -> str:
        assert self.parts is not None
        gateway = self.parts.gateway
        until(lambda: gateway.status().request_admission == "open", saw=gateway.status)
        draft = draft_of("submit_prompt", {"prompt": text}, gateway.adapter.check)
        [request] = gateway.accept([Submission(draft)])
        assert isinstance(request, QueueRequest), request
        return request.request_id

    def interrupt(self) -> None:
        assert self.parts is not None
        gateway = self.parts.gateway
        gateway.accept([Submission(draft_of("interrupt", {}, gateway.adapter.check))])

    def ended(self, request_id: str) -> QueueRequest:
        assert self.parts is not None
        request = self.parts.gateway.queue.wait(request_id, PATIENCE_S)
        assert request.state in (RequestState.COMPLETED, RequestState.FAILED), self.status()
        return request

    def ask(self, text: str) -> QueueRequest:
        return self.ended(self.prompt(text))

    def status(self) -> GatewayStatus:
        assert self.parts is not None
        return self.parts.gateway.status()

    def let_resume(self) -> None:
        """Return when the tool can resume the conversation that it has begun."""
        if self.way.slow_to_resume:
            until(lambda: int(time.time() / 60) > self.began_minute)

    def question(self) -> Question:
        until(lambda: self.status().questions, saw=self.status)
        [question] = self.status().questions
        return question

    def agent_tree(self) -> list[int]:
        """The agent's processes, the program first."""
        note = GatewayFolder(gateway_root(self.settings, AGENT)).agent_process
        program = int(note.read_text().partition('"pid": ')[2].partition(",")[0])
        found, left = [], [program]
        while left:
            found.append(left.pop())
            left += _children(found[-1])
        return found


def _children(pid: int) -> list[int]:
    """The children that any thread of a process has started."""
    found: list[int] = []
    with suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def text_of(request: QueueRequest) -> str:
    assert request.result is not None
    return str(request.result["text"]).strip()


def gone(pid: int) -> bool:
    return state_of(pid) in (None, "Z", "X")


@pytest.fixture(params=list(WAYS))
def stage(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    with ModelEndpoint() as model:
        made = Stage(tmp_path, WAYS[request.param], model)
        for name in set(os.environ) - set(made.environment):
            if not name.startswith("PYTEST"):
                monkeypatch.delenv(name)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        made.start()
        yield made
        made.close()


def test_prompts_are_answered_whole_and_in_order(stage: Stage) -> None:
    prompts = ["p-1 [[long 300]]", "p-2 ä\n\tü '$(x)'", "p-3"]
    first, second, third = map(stage.ended, list(map(stage.prompt, prompts)))
    lines = ["answered p-1", *(f"line {number}" for number in range(300))]
    assert text_of(first).splitlines() == lines
    assert (first.state, str(first.receipt)) == (RequestState.COMPLETED, "answered")
    assert [text_of(second), text_of(third)] == ["answered p-2", "answered p-3"]
    assert prompts[1] in stage.model.wait_for("p-2").prompt


@pytest.mark.parametrize("reply", ["allow", "deny"])
def test_a_permission_is_answered_by_an_operator(stage: Stage, reply: str) -> None:
    request_id = stage.prompt("p-1 [[tool touch made.txt]]")
    question = stage.question()
    assert stage.status().agent_state is AgentState.ASKING
    assert "touch made.txt" in question.subject
    assert not (stage.project / "made.txt").exists()
    assert stage.parts is not None
    stage.parts.gateway.reply(question.question_id, reply)
    done = stage.ended(request_id)
    assert (stage.project / "made.txt").exists() == (reply == "allow")
    assert done.error_code == (None if reply == "allow" else stage.way.denied_code)
    if reply == "allow" or stage.way.answers_denial:
        assert text_of(done).endswith("answered p-1")
    assert text_of(stage.ask("p-2")).endswith("answered p-2")


def test_an_interrupt_stops_the_prompt_and_nothing_else(stage: Stage) -> None:
    request_id = stage.prompt("p-1 [[hold here]]")
    stage.model.wait_for("p-1")
    until(lambda: stage.status().agent_state is AgentState.WORKING)
    stage.interrupt()
    assert stage.ended(request_id).error_code == "interrupted"
    assert text_of(stage.ask("p-2")).endswith("answered p-2")


def test_a_killed_agent_goes_on_with_the_conversation(stage: Stage) -> None:
    assert text_of(stage.ask("p-1")) == "answered p-1"
    before = stage.status()
    request_id = stage.prompt("p-2 [[hold here]]")
    stage.model.wait_for("p-2")
    tree = stage.agent_tree()
    stage.let_resume()
    os.kill(tree[0], signal.SIGKILL)
    done = stage.ended(request_id)
    assert (done.error_code, str(done.receipt)) == ("agent_gone", "delivered")
    assert all(map(gone, tree))
    stage.model.release("here")
    # A prompt that is repeated asks for this beginning again.
    text = text_of(stage.ask("p-3")).removeprefix("begun\n\n")
    assert text == ("answered p-2 p-3" if stage.way.repeats_killed else "answered p-3")
    after = stage.status()
    assert after.session_id == before.session_id
    assert after.managed_agent_instance_id == before.managed_agent_instance_id
    assert after.managed_agent_instance_epoch == 1
    assert sum("p-2" in one and "p-3" not in one for one in stage.model.prompts()) == 1


def test_the_next_gateway_goes_on_with_the_conversation(stage: Stage) -> None:
    assert text_of(stage.ask("p-1")) == "answered p-1"
    first = stage.status()
    # gemini loses a conversation that is resumed twice.
    for number in (2,) if stage.way.slow_to_resume else (2, 3):
        stage.let_resume()
        stage.close()
        stage.start()
        assert text_of(stage.ask(f"p-{number}")) == f"answered p-{number}"
        assert stage.status().session_id == first.session_id


def test_a_killed_gateway_takes_the_agent_along(stage: Stage) -> None:
    stage.close()
    process = GatewayProcess(
        stage.folder,
        *("--adapter", stage.way.adapter, "--working-directory", str(stage.project), "--"),
        *stage.words,
    )
    process.environment |= stage.environment
    process.start()
    request_id = process.client.prompt("p-1 [[hold here]]")["request_id"]
    stage.model.wait_for("p-1")
    tree = stage.agent_tree()
    stage.let_resume()
    process.kill()
    until(lambda: all(map(gone, tree)))
    stage.model.release("here")
    stage.start()
    assert stage.ended(request_id).error_code == "interrupted_by_restart"
    assert text_of(stage.ask("p-2")).endswith("p-2")
    assert sum("p-1" in one and "p-2" not in one for one in stage.model.prompts()) == 1


def test_a_failing_model_fails_the_prompt(stage: Stage) -> None:
    done = stage.ask("p-1 [[fail 400]]")
    assert (done.state, done.error_code) == (RequestState.FAILED, "agent_failed")
    stage.model.release("fail")
    # claude has the failed prompt in its conversation.
    assert text_of(stage.ask("p-2")) in ("answered p-2", "answered p-1 p-2")
