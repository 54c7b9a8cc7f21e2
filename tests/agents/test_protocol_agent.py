"""Agents behind a protocol, with a program that misbehaves as a test says."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.adapters.acp import Acp
from holdfast.adapters.agent_protocol import AgentProtocol
from holdfast.adapters.app_server import AppServer
from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.protocol_agent import ProtocolAgent
from holdfast.domains.gateway import AgentState, Answer, Observation
from holdfast.domains.gateway.adapter import AcpSpec, AppServerSpec
from holdfast.kernel.errors import Fenced, NotFound
from holdfast.kernel.limits import ANSWER_CHARS_MAX
from holdfast.processes.procfs import Procfs
from holdfast.system.access import PRIVATE
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until

PROGRAM = str(Path(__file__).with_name("protocol_program.py"))


class Desk:
    """An agent and its folder; the agent can be replaced, as by the next gateway."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.gateway = GatewayFolder(folder / "gateway")
        self.gateway.prepare()
        self.agents: list[ProtocolAgent] = []

    def start(self, *how: str, cancel_within_s: float = 20.0, **settings: object) -> ProtocolAgent:
        processes = Procfs()
        processes.find_trees(lambda: self.gateway.trees, lambda: PRIVATE)
        words = (sys.executable, PROGRAM, self.kind, str(self.folder), *how)
        common = {"command": words, "working_directory": str(self.folder)}
        within_s = float(settings.pop("start_within_s", PATIENCE_S))  # type: ignore[arg-type]
        protocol: AgentProtocol
        spec: AcpSpec | AppServerSpec
        if self.kind == "acp":
            protocol = Acp(settings.pop("mode", None))  # type: ignore[arg-type]
            spec = AcpSpec(**common, **settings)  # type: ignore[arg-type]
        else:
            protocol, spec = AppServer(), AppServerSpec(**common, **settings)  # type: ignore[arg-type]
        agent = ProtocolAgent(
            protocol,
            spec,
            folder=self.gateway,
            processes=processes,
            start_within_s=within_s,
            cancel_within_s=cancel_within_s,
        )
        self.agents.append(agent)
        return agent

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def pid(self) -> int:
        return int(self.lines("starts")[-1])


@pytest.fixture(params=["acp", "app"])
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(tmp_path, request.param)
    yield made
    for agent in made.agents:
        agent.close()


only_acp = pytest.mark.parametrize("desk", ["acp"], indirect=True)


def awaited(
    agent: ProtocolAgent, wanted: Callable[[Observation], bool] | AgentState
) -> Observation:
    seen: list[Observation] = []

    def found() -> bool:
        seen.append(agent.inspect())
        return seen[-1].state is wanted if isinstance(wanted, AgentState) else wanted(seen[-1])

    until(found, saw=lambda: seen[-1])
    return seen[-1]


def ready(agent: ProtocolAgent) -> Observation:
    return awaited(agent, AgentState.READY)


def ask(agent: ProtocolAgent, prompt: str) -> Answer:
    instance_id = ready(agent).instance_id
    assert instance_id is not None
    return agent.answer(agent.deliver(prompt, instance_id), threading.Event())


class Asking:
    """A prompt that is answered in a thread."""

    def __init__(self, agent: ProtocolAgent, prompt: str) -> None:
        self._answers: list[Answer] = []
        instance_id = ready(agent).instance_id
        assert instance_id is not None
        delivery = agent.deliver(prompt, instance_id)
        self._thread = threading.Thread(
            target=lambda: self._answers.append(agent.answer(delivery, threading.Event()))
        )
        self._thread.start()

    @property
    def answer(self) -> Answer:
        self._thread.join(PATIENCE_S)
        [answer] = self._answers
        return answer


def test_prompts_are_answered_one_by_one(desk: Desk) -> None:
    agent = desk.start()
    assert agent.inspect().state is AgentState.STARTING
    for number in range(3):
        answer = ask(agent, f"say number {number}")
        assert (answer.text, answer.code) == (f"number {number}", None)
        assert answer.facts["session_id"] == "s-1"
    assert desk.lines("prompts") == [f"say number {number}" for number in range(3)]
    assert ask(agent, "two").text == "first\n\nsecond"


def test_a_long_prompt_arrives_whole(desk: Desk) -> None:
    prompt = "say " + "ä\n" * (100 << 10)
    answer = ask(desk.start(), prompt)
    assert desk.lines("sizes") == [str(len(prompt))]
    assert answer.text == prompt[4:][-len(answer.text) :]


def test_a_second_prompt_waits_until_the_first_has_ended(desk: Desk) -> None:
    agent = desk.start()
    first = Asking(agent, "hold")
    seen = awaited(agent, AgentState.WORKING)
    assert seen.instance_id is not None
    with pytest.raises(Fenced):
        agent.deliver("say second", seen.instance_id)
    assert agent.interrupt(seen.instance_id)
    assert (first.answer.code, first.answer.text) == ("interrupted", "begun")
    assert not agent.interrupt(seen.instance_id)
    assert ask(agent, "say second").text == "second"
    assert desk.lines("prompts") == ["hold", "say second"]


def test_the_running_tool_call_is_the_activity(desk: Desk) -> None:
    agent = desk.start()
    one = Asking(agent, "call")
    seen = awaited(agent, lambda seen: seen.activity == "make all")
    assert (seen.state, seen.session_id) == (AgentState.WORKING, "s-1")
    agent.interrupt(str(seen.instance_id))
    assert one.answer.code == "interrupted"
    assert ready(agent).activity == ""


@pytest.mark.parametrize(
    ("reply", "acp", "app"),
    [
        ("allow", "o-2", "accept"),
        ("deny", "o-3", "decline"),
        ("allow_always", "o-1", "acceptForSession"),
    ],
)
def test_a_permission_is_answered_by_an_operator(
    desk: Desk, reply: str, acp: str, app: str
) -> None:
    agent = desk.start()
    one = Asking(agent, "ask")
    seen = awaited(agent, AgentState.ASKING)
    [question] = seen.questions
    assert (question.kind, question.subject) == ("permission", "rm -rf build")
    assert {choice.name for choice in question.choices} == {"allow", "deny", "allow_always"}
    with pytest.raises(NotFound):
        agent.reply("another", reply, str(seen.instance_id))
    agent.reply(question.question_id, reply, str(seen.instance_id))
    assert one.answer.text == f"got {acp if desk.kind == 'acp' else app}"
    with pytest.raises(NotFound):
        agent.reply(question.question_id, reply, str(seen.instance_id))


def test_an_unanswered_question_is_answered_with_no(desk: Desk) -> None:
    agent = desk.start(question_timeout_s=0.2)
    assert ask(agent, "ask").text in ("got o-3", "got decline")
    assert ready(agent).questions == ()


def test_an_interrupt_withdraws_the_question(desk: Desk) -> None:
    agent = desk.start()
    one = Asking(agent, "ask")
    seen = awaited(agent, AgentState.ASKING)
    agent.interrupt(str(seen.instance_id))
    assert one.answer.text in ("got cancelled", "got cancel")
    assert ready(agent).questions == ()


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("refusal", "agent_refused"),
        ("max_tokens", "agent_limit"),
        ("max_turn_requests", "agent_limit"),
        ("cancelled", "interrupted"),
        ("something new", "agent_failed"),
    ],
)
@only_acp
def test_a_turn_that_stops_otherwise_has_a_code(desk: Desk, reason: str, code: str) -> None:
    answer = ask(desk.start(), f"stop {reason}")
    assert (answer.code, answer.text, answer.facts["stop_reason"]) == (code, "part", reason)


def test_a_failed_turn_says_why(desk: Desk) -> None:
    agent = desk.start()
    answer = ask(agent, "fail")
    assert (answer.code, answer.detail) == ("agent_failed", "the model is overloaded")
    assert ask(agent, "say on").text == "on"


def test_an_agent_that_dies_fails_its_prompt_and_goes_on_with_the_conversation(desk: Desk) -> None:
    agent = desk.start()
    before = ready(agent)
    answer = ask(agent, "die")
    assert answer.code == "agent_gone"
    assert "exit status 3: out of memory" in answer.detail
    after = ready(agent)
    assert (after.instance_id, after.session_id) == (before.instance_id, before.session_id)
    assert ask(agent, "say again").text == "again"
    assert desk.lines("prompts") == ["die", "say again"]
    assert desk.lines("sessions") == ["s-1"]


def test_kill_9_in_the_middle_of_a_prompt_is_an_unknown_outcome(desk: Desk) -> None:
    agent = desk.start()
    one = Asking(agent, "child")
    awaited(agent, lambda _: bool(desk.lines("children")))
    program, grandchild = map(int, desk.lines("children")[0].split())
    os.kill(program, signal.SIGKILL)
    assert one.answer.code == "agent_gone"
    assert "SIGKILL" in one.answer.detail
    assert state_of(grandchild) in (None, "Z", "X")
    assert ask(agent, "say again").text == "again"
    assert desk.lines("prompts") == ["child", "say again"]


def test_the_next_gateway_goes_on_with_the_conversation(desk: Desk) -> None:
    first = desk.start()
    assert ask(first, "say one").text == "one"
    before = first.inspect()
    first.close()
    assert state_of(desk.pid) is None
    second = desk.start()
    after = second.inspect()
    assert after.instance_id == before.instance_id
    assert ask(second, "say two").text == "two"
    assert desk.lines("sessions") == ["s-1"]


def test_a_conversation_without_a_prompt_is_begun_again_and_counts_as_the_same(desk: Desk) -> None:
    first = desk.start()
    before = ready(first)
    first.close()
    second = desk.start("forgets")
    assert ready(second).instance_id == before.instance_id
    assert desk.lines("sessions") == ["s-1", "s-2"]


def test_another_conversation_is_another_instance(desk: Desk) -> None:
    first = desk.start()
    ask(first, "say one")
    before = first.inspect()
    first.close()
    second = desk.start("forgets")
    after = ready(second)
    assert after.instance_id not in (None, before.instance_id)
    assert after.session_id == "s-2"
    with pytest.raises(Fenced):
        second.deliver("say lost", str(before.instance_id))


def test_a_conversation_that_was_named_is_never_replaced(desk: Desk) -> None:
    agent = desk.start(session_id="s-7")
    seen = awaited(agent, lambda seen: seen.instance_id is None)
    assert (seen.state, seen.reason) == (AgentState.EXITED, "not_started")
    assert "s-7 cannot be resumed: no such conversation" in seen.detail
    assert desk.lines("sessions") == []


@only_acp
def test_a_replay_is_no_answer(desk: Desk) -> None:
    first = desk.start()
    ask(first, "say one")
    first.close()
    assert ask(desk.start(), "say two").text == "two"
    desk.agents[-1].close()
    assert ask(desk.start("late"), "say three").text == "three"


def test_the_reason_of_an_agent_that_does_not_start(desk: Desk) -> None:
    seen = awaited(desk.start("dies"), AgentState.EXITED)
    assert (seen.instance_id, seen.reason) == (None, "not_started")
    assert "exit status 1: no such model" in seen.detail
    seen = awaited(desk.start("mute", start_within_s=0.3), AgentState.EXITED)
    assert "did not answer `initialize` within 0.3 s" in seen.detail
    seen = awaited(desk.start("login"), AgentState.EXITED)
    assert "needs a login" in seen.detail
    missing = desk.start()
    missing._spec = AcpSpec(command=("nosuch-program",))
    assert "no program nosuch-program" in awaited(missing, AgentState.EXITED).detail


@only_acp
def test_the_version_and_the_mode_are_checked(desk: Desk) -> None:
    assert "version 2" in awaited(desk.start("old"), AgentState.EXITED).detail
    seen = awaited(desk.start(mode="yolo"), AgentState.EXITED)
    assert "no mode yolo: use one of ask, plan" in seen.detail
    ready(desk.start(mode="plan"))
    assert desk.lines("modes") == ["plan"]


def test_one_that_did_not_start_is_tried_again(desk: Desk) -> None:
    agent = desk.start("login")
    awaited(agent, AgentState.EXITED)
    agent._spec = type(agent._spec)(
        command=agent._spec.command[:-1], working_directory=str(desk.folder)
    )
    assert ask(agent, "say there").text == "there"


def test_output_that_is_no_message_harms_nothing(desk: Desk) -> None:
    agent = desk.start()
    assert ask(agent, "noise").text == "still here"
    assert ask(agent, "say on").text == "on"


@only_acp
def test_a_huge_notification_is_passed_over(desk: Desk) -> None:
    agent = desk.start()
    assert ask(agent, "huge").text == "still here"


@only_acp
def test_a_huge_answer_ends_the_agent_and_not_the_wait(desk: Desk) -> None:
    agent = desk.start()
    answer = ask(agent, "vast")
    assert answer.code == "agent_gone"
    assert "message of more than" in answer.detail
    assert ask(agent, "say on").text == "on"


def test_of_a_flood_the_end_is_kept_in_little_memory(desk: Desk) -> None:
    agent = desk.start()
    ready(agent)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = ask(agent, "flood 20000")
    assert answer.text.split("\n\n")[-1].startswith("00019999 ")
    assert ANSWER_CHARS_MAX < len(answer.text) < 2 * ANSWER_CHARS_MAX
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


def test_an_agent_that_ignores_a_cancel_is_ended(desk: Desk) -> None:
    agent = desk.start("deaf", cancel_within_s=0.2)
    one = Asking(agent, "hold")
    seen = awaited(agent, AgentState.WORKING)
    agent.interrupt(str(seen.instance_id))
    assert one.answer.code == "agent_gone"
    assert "did not stop within 0.2 s" in one.answer.detail
    assert ready(agent).instance_id == seen.instance_id


def test_a_prompt_that_a_stopped_agent_does_not_read_never_reaches_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.adapters.json_rpc.PROTOCOL_RECEIPT_S", 0.3)
    agent = desk.start()
    instance_id = str(ready(agent).instance_id)
    os.kill(desk.pid, signal.SIGSTOP)
    # The signal returns before it stops anything.
    until(lambda: state_of(desk.pid) == "T")
    with pytest.raises(Fenced) as caught:
        agent.deliver("say lost", instance_id)
    assert caught.value.fields["outcome"] == "none"
    assert ask(agent, "say on").text == "on"
    assert desk.lines("prompts") == ["say on"]


def test_an_answer_that_takes_too_long_is_cancelled(desk: Desk) -> None:
    agent = desk.start(answer_timeout_s=0.3)
    assert ask(agent, "hold").code == "timeout"
    assert desk.lines("cancels")
    assert ask(agent, "say on").text == "on"


def test_a_stopping_gateway_waits_for_no_answer(desk: Desk) -> None:
    agent = desk.start()
    instance_id = str(ready(agent).instance_id)
    delivery = agent.deliver("hold", instance_id)
    stop = threading.Event()
    stop.set()
    answer = agent.answer(delivery, stop)
    assert (answer.code, answer.known) == ("stopped", False)
    agent.close()
    assert state_of(desk.pid) is None


def test_every_change_is_told_at_once(desk: Desk) -> None:
    agent = desk.start()
    told: list[AgentState] = []
    agent.listen(lambda: told.append(agent.inspect().state))
    one = Asking(agent, "ask")
    seen = awaited(agent, AgentState.ASKING)
    agent.reply(seen.questions[0].question_id, "allow", str(seen.instance_id))
    assert one.answer.code is None
    until(lambda: told[-1] is AgentState.READY)
    # Behind the answer it works, and may be ready again before anybody has looked.
    wanted = iter([AgentState.READY, AgentState.ASKING, AgentState.READY])
    want = next(wanted)
    for state in told:
        if state is want:
            want = next(wanted, AgentState.EXITED)
    assert want is AgentState.EXITED, told
