"""The tmux adapter on a real tmux: what arrives, what is refused, who it arrives at."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.procfs import Procfs
from holdfast.adapters.tmux_delivery import TmuxAgent
from holdfast.domains.gateway import Surface
from holdfast.domains.gateway.spec import TmuxSpec
from holdfast.kernel.errors import Fenced, InvalidValue
from tests.adapters.tmux_server import Tmux, running, until

pytestmark = pytest.mark.slow

HOSTILE = [
    'it\'s "quoted" and \\ escaped',
    "first\nsecond\n\n\tthird",
    "$(touch pwned) `touch pwned` ; touch pwned && touch pwned | touch pwned",
    "C-c Enter Escape q :kill-server",
    "#{pid} #(touch pwned) %0 =claude ; kill-session",
    "äöü 漢字 🙂 \u202e",
    "-x --help -- -",
    " leading and trailing ",
]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    with running(tmp_path) as server:
        server.start()
        yield server


@pytest.fixture
def agent(tmux: Tmux) -> TmuxAgent:
    return make(tmux)


def make(tmux: Tmux, **how: object) -> TmuxAgent:
    spec = TmuxSpec(session="claude", socket_path=str(tmux.socket), quiet_ms=150, **how)  # type: ignore[arg-type]
    return TmuxAgent(spec, folder=tmux.folder, processes=Procfs())


def instance(agent: TmuxAgent) -> str:
    found = agent.inspect().instance_id
    assert found is not None
    return found


def say(agent: TmuxAgent, prompt: str) -> str:
    answer = agent.answer(agent.deliver(prompt, instance(agent)), threading.Event())
    assert answer.code is None, answer
    return answer.text


def test_hostile_prompts_arrive_byte_for_byte_and_run_nothing(tmux: Tmux, agent: TmuxAgent) -> None:
    for prompt in HOSTILE:
        assert f"heard {len(prompt.encode())} bytes" in say(agent, prompt)
    assert tmux.heard() == [prompt.encode() for prompt in HOSTILE]
    assert not list(tmux.folder.glob("**/pwned"))
    assert not list(tmux.folder.glob("holdfast-*"))
    assert tmux("list-buffers") == ""


def test_a_prompt_of_100_kB_arrives_byte_for_byte(tmux: Tmux, agent: TmuxAgent) -> None:
    prompt = "".join(f"{number}: $(no) 'x' ä\n" for number in range(6000))[:100_000] + "end"
    assert len(prompt.encode()) >= 100_000
    say(agent, prompt)
    assert tmux.heard() == [prompt.encode()]


def test_the_answer_is_the_new_text_and_marked_as_the_screen(tmux: Tmux, agent: TmuxAgent) -> None:
    say(agent, "first")
    answer = agent.answer(agent.deliver("second one", instance(agent)), threading.Event())
    assert answer.source == "screen"
    assert "heard 10 bytes" in answer.text
    assert "heard 5 bytes" not in answer.text


def test_an_answer_that_has_scrolled_away_is_whole(tmux: Tmux, agent: TmuxAgent) -> None:
    for number in range(40):
        tmux("send-keys", "-t", "=claude:", "-l", f"line {number}")
        tmux("send-keys", "-t", "=claude:", "Enter")
    until(lambda: len(tmux.heard()) == 40)
    assert "heard 4 bytes" in say(agent, "last")


def test_without_bracketed_paste_only_a_short_line_is_delivered(tmp_path: Path) -> None:
    with running(tmp_path) as tmux:
        tmux.start("claude", "plain")
        agent = make(tmux)
        assert "heard 5 bytes" in say(agent, "short")
        for prompt in ("two\nlines", "x" * 4001):
            with pytest.raises(InvalidValue, match="bracketed paste"):
                agent.deliver(prompt, instance(agent))
        assert tmux.heard() == [b"short"]


def test_a_replaced_session_of_the_same_name_gets_nothing(tmux: Tmux, agent: TmuxAgent) -> None:
    old = instance(agent)
    tmux.replace()
    new = instance(agent)
    assert new != old
    with pytest.raises(Fenced):
        agent.deliver("old", old)
    with pytest.raises(Fenced):
        agent.interrupt(old)
    assert tmux.heard() == []
    say(agent, "new")


def test_tmux_itself_refuses_when_the_pane_changes_after_the_last_look(tmux: Tmux, agent: TmuxAgent) -> None:
    screen = agent._look()
    assert screen is not None
    tmux("respawn-pane", "-k", "-t", screen.pane_id, "sleep", "1000")
    with pytest.raises(Fenced, match="another one"):
        agent._paste("late", screen)
    tmux("new-session", "-d", "-s", "other")
    tmux("kill-session", "-t", "=claude")
    with pytest.raises(Fenced, match="nothing was delivered"):
        agent._paste("late", screen)
    assert tmux("list-buffers") == ""


def test_a_server_begun_anew_is_another_instance_though_its_ids_are_the_same(tmux: Tmux, agent: TmuxAgent) -> None:
    old, before = instance(agent), agent._look()
    tmux("kill-server")
    until(lambda: agent.inspect().instance_id is None)
    tmux.start()
    after = agent._look()
    assert before is not None and after is not None
    assert (before.pane_id, before.session_id) == (after.pane_id, after.session_id)
    assert instance(agent) != old
    with pytest.raises(Fenced):
        agent._paste("late", before)
    assert tmux.heard() == []


def test_a_dead_pane_and_a_similar_name_are_not_the_agent(tmux: Tmux) -> None:
    spec = TmuxSpec(session="clau", socket_path=str(tmux.socket))
    assert TmuxAgent(spec, folder=tmux.folder, processes=Procfs()).inspect().instance_id is None
    agent = make(tmux)
    tmux("set-option", "-t", "=claude:", "remain-on-exit", "on")
    tmux("send-keys", "-t", "=claude:", "C-d")
    until(lambda: agent.inspect().instance_id is None)


def test_what_people_open_beside_the_agent_is_not_the_agent(tmux: Tmux, agent: TmuxAgent) -> None:
    before = instance(agent)
    tmux("new-window", "-t", "=claude:", "cat")
    tmux("split-window", "-t", "=claude:", "cat")
    assert instance(agent) == before
    assert "heard 5 bytes" in say(agent, "hello")


def test_a_pane_in_copy_mode_gets_the_prompt_all_the_same(tmux: Tmux, agent: TmuxAgent) -> None:
    tmux("copy-mode", "-t", "=claude:")
    assert "heard 5 bytes" in say(agent, "hello")
    assert tmux.heard() == [b"hello"]


def test_an_interrupt_stops_a_busy_program_at_once(tmux: Tmux, agent: TmuxAgent) -> None:
    delivery = agent.deliver("work hard", instance(agent))
    until(lambda: "working" in tmux("capture-pane", "-p", "-t", "=claude:"))
    assert agent.inspect().surface is Surface.NOT_READY
    before = time.monotonic()
    assert agent.interrupt(instance(agent))
    until(lambda: b"!" in tmux.heard())
    assert time.monotonic() - before < 5
    assert "stopped" in agent.answer(delivery, threading.Event()).text


def test_rest_is_when_the_last_line_matches(tmux: Tmux) -> None:
    never = make(tmux, ready_regex=r"^never\$ $")
    until(lambda: never.inspect().surface is Surface.NOT_READY)
    always = make(tmux, ready_regex=r"ready> ?$")
    until(lambda: always.inspect().surface is Surface.READY)
    assert never.inspect().surface is Surface.NOT_READY


def test_an_agent_that_goes_while_it_is_waited_for(tmux: Tmux, agent: TmuxAgent) -> None:
    delivery = agent.deliver("work", instance(agent))
    tmux("new-session", "-d", "-s", "other")
    tmux("kill-session", "-t", "=claude")
    answer = agent.answer(delivery, threading.Event())
    assert (answer.code, "went away" in answer.detail) == ("upstream_unavailable", True)


def test_waiting_ends_by_its_time_limit_and_when_told(tmux: Tmux) -> None:
    agent = make(tmux, answer_timeout_s=0.3)
    delivery = agent.deliver("work", instance(agent))
    assert agent.answer(delivery, threading.Event()).code == "timeout"
    stop = threading.Event()
    stop.set()
    assert agent.answer(delivery, stop).code == "stopped"


@pytest.mark.parametrize("how", [{"session": "a:b"}, {"session": ""}, {"session": "$0"}, {"session": "a", "ready_regex": "("}])
def test_wrong_settings_are_refused(tmp_path: Path, how: dict[str, str]) -> None:
    with pytest.raises(InvalidValue):
        TmuxAgent(TmuxSpec(**how), folder=tmp_path, processes=Procfs())
