"""The tmux adapter on a real tmux: what arrives, what is refused, and in which program it arrives."""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters import tmux as tmux_program
from holdfast.adapters import tmux_agent, tmux_list, tmux_pane
from holdfast.adapters.tmux import TmuxAnswer
from holdfast.adapters.tmux_agent import TmuxAgent
from holdfast.adapters.tmux_pane import MARK, Screen
from holdfast.domains.gateway import AgentState
from holdfast.domains.gateway.adapter import TmuxSpec, spec_of
from holdfast.kernel.errors import Fenced, Held, InvalidValue, UpstreamUnavailable
from holdfast.processes.procfs import Procfs
from tests.harness.errors import raises
from tests.harness.timeouts import until
from tests.harness.tmux_server import LISTENER, TmuxServer, delivered, tmux_server

pytestmark = pytest.mark.prove

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
def agent(tmux: TmuxServer) -> TmuxAgent:
    return make(tmux)


def make(tmux: TmuxServer, agent: str = "helper", **how: object) -> TmuxAgent:
    # Quiet alone is no sign of an end where the machine is busy: the listener may not have got its
    # turn.
    how = {"quiet_ms": 150, "ready_regex": r"^ready> ?$", **how}
    spec = TmuxSpec(session="claude", socket_path=str(tmux.socket), **how)  # type: ignore[arg-type]
    return TmuxAgent(spec, agent=agent, folder=tmux.folder, processes=Procfs())


@contextmanager
def hurried(agent: TmuxAgent, limit_s: float = 0.5) -> Iterator[None]:
    """In the block, a tmux that does not answer is waited for no longer than that. What must come
    about is not asked so: a busy machine may take longer.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent._server, "_limit_s", limit_s)
        yield


def last_look(agent: TmuxAgent) -> Screen:
    """What the agent sees of its pane before a delivery. Tests change the pane between this and
    `paste_late`, where a delivery leaves no time to.
    """
    screen = agent._look()
    assert screen is not None
    return screen


def paste_late(agent: TmuxAgent, text: str, screen: Screen) -> None:
    agent._paste(text, screen, agent._agent(screen))


def instance(agent: TmuxAgent) -> str:
    """The instance, once it is ready for a prompt."""
    until(lambda: agent.inspect().state is AgentState.READY)
    return there(agent)


def there(agent: TmuxAgent) -> str:
    """The instance, ready or not."""
    found = agent.inspect().instance_id
    assert found is not None
    return found


def say(agent: TmuxAgent, prompt: str) -> str:
    answer = agent.answer(agent.deliver(prompt, instance(agent)), threading.Event())
    assert answer.code is None, answer
    return answer.text


def test_hostile_prompts_arrive_byte_for_byte_and_run_nothing(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    for prompt in HOSTILE:
        assert f"heard {len(prompt.encode())} bytes" in say(agent, prompt)
    assert tmux.typed() == delivered(*(prompt.encode() for prompt in HOSTILE))
    assert not list(tmux.folder.glob("**/pwned"))
    assert not list(tmux.folder.glob("holdfast-*"))
    assert tmux("list-buffers") == ""


def test_a_prompt_of_100_kB_arrives_byte_for_byte(tmux: TmuxServer, agent: TmuxAgent) -> None:
    prompt = "".join(f"{number}: $(no) 'x' ä\n" for number in range(6000))[:100_000] + "end"
    assert len(prompt.encode()) >= 100_000
    say(agent, prompt)
    assert tmux.typed() == delivered(prompt.encode())


def test_the_answer_is_the_new_text_and_marked_as_the_screen(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    say(agent, "first")
    answer = agent.answer(agent.deliver("second one", instance(agent)), threading.Event())
    assert answer.source == "screen"
    assert "heard 10 bytes" in answer.text
    assert "heard 5 bytes" not in answer.text


def test_an_answer_that_has_scrolled_away_is_whole(tmux: TmuxServer, agent: TmuxAgent) -> None:
    for number in range(40):
        tmux("send-keys", "-t", "=claude:", "-l", f"line {number}")
        tmux("send-keys", "-t", "=claude:", "Enter")
    until(lambda: len(tmux.heard()) == 40)
    # It logs its input before it shows it.
    until(lambda: tmux.screen("claude").rstrip().endswith("\nready>"))
    assert "heard 4 bytes" in say(agent, "last")


def test_without_bracketed_paste_only_a_short_line_is_delivered() -> None:
    with tmux_server() as tmux:
        tmux.listen("claude", "plain")
        agent = make(tmux)
        assert "heard 5 bytes" in say(agent, "short")
        for prompt in ("two\nlines", "x" * 4001):
            with raises(InvalidValue, outcome="none"):
                agent.deliver(prompt, instance(agent))
        assert tmux.heard() == [b"short"]


def test_a_replaced_session_of_the_same_name_gets_nothing(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
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


def test_tmux_itself_refuses_when_the_pane_changes_after_the_last_look(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    screen = last_look(agent)
    tmux("respawn-pane", "-k", "-t", screen.pane_id, "sleep", "1000")
    with raises(Fenced, outcome="none"):
        paste_late(agent, "late", screen)
    tmux("new-session", "-d", "-s", "other")
    tmux("kill-session", "-t", "=claude")
    with raises(Fenced, outcome="none"):
        paste_late(agent, "late", screen)
    assert tmux("list-buffers") == ""


def test_a_restarted_server_is_another_instance_though_its_ids_are_the_same(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    old, before = instance(agent), last_look(agent)
    tmux("kill-server")
    until(lambda: agent.inspect().instance_id is None)
    tmux.listen()
    after = last_look(agent)
    assert (before.pane_id, before.session_id) == (after.pane_id, after.session_id)
    assert instance(agent) != old
    with pytest.raises(Fenced):
        paste_late(agent, "late", before)
    assert tmux.heard() == []


def test_nothing_is_pasted_behind_a_paste_that_was_not_sent(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    one = instance(agent)
    tmux("set-option", "-p", "-t", "=claude:", "@holdfast_unsent", f"x/{one.rpartition(':')[2]}")
    assert agent.inspect().state is AgentState.WORKING
    with pytest.raises(Fenced):
        agent.deliver("hello", one)
    tmux("set-option", "-p", "-u", "-t", "=claude:", "@holdfast_unsent")
    assert "heard 5 bytes" in say(agent, "hello")
    assert tmux.heard() == [b"hello"]


def test_a_prompt_is_one_paste_and_one_enter(tmux: TmuxServer, agent: TmuxAgent) -> None:
    say(agent, "prompt 1")
    assert tmux.typed() == b"\x1b[200~prompt 1\x1b[201~\r"
    say(agent, "prompt 2")
    assert tmux.typed() == delivered(b"prompt 1", b"prompt 2")


def test_without_bracketed_paste_too_there_is_one_enter() -> None:
    with tmux_server() as tmux:
        tmux.listen("claude", "plain")
        say(make(tmux), "short")
        assert tmux.typed() == b"short\r"


def test_the_process_that_comes_into_the_pane_between_paste_and_enter_gets_neither(
    tmux: TmuxServer, agent: TmuxAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = agent._await_enter

    def replace_first(prompt: str, screen: Screen, paste: str) -> None:
        tmux(
            "respawn-pane",
            "-k",
            "-t",
            screen.pane_id,
            sys.executable,
            str(LISTENER),
            str(tmux.folder / "next"),
        )
        wait(prompt, screen, paste)

    monkeypatch.setattr(agent, "_await_enter", replace_first)
    with raises(UpstreamUnavailable, outcome="unknown"):
        agent.deliver("hello", instance(agent))
    assert tmux.typed() == b"\x1b[200~hello\x1b[201~"
    assert (tmux.folder / "next.raw").read_bytes() == b""
    monkeypatch.undo()
    # The next process has nothing unsent in its box.
    until(lambda: agent.inspect().state is AgentState.READY)


def test_scrolling_between_paste_and_enter_does_not_swallow_the_enter(
    tmux: TmuxServer, agent: TmuxAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = agent._await_enter

    def scroll_first(prompt: str, screen: Screen, paste: str) -> None:
        tmux("copy-mode", "-t", screen.pane_id)
        wait(prompt, screen, paste)

    monkeypatch.setattr(agent, "_await_enter", scroll_first)
    agent.deliver("hello", instance(agent))
    agent.interrupt(there(agent))
    assert tmux.typed() == delivered(b"hello") + b"\x03"
    # Nor is the reader thrown out of what they read.
    assert tmux("display-message", "-p", "-t", "=claude:", "#{pane_in_mode}") == "1\n"
    assert tmux("list-buffers") == ""


def test_a_pane_that_takes_no_input_is_not_ready_and_what_is_refused_is_not_lost(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    one = instance(agent)
    screen = last_look(agent)
    tmux("select-pane", "-d", "-t", "=claude:")
    assert f"`tmux -S {tmux.socket} select-pane -e -t %0`" in agent.inspect().detail
    with raises(Fenced, outcome="none"):
        agent.deliver("hello", one)
    # Nor when it is switched off after the last look.
    with raises(Fenced, outcome="none"):
        paste_late(agent, "hello", screen)
    with raises(Fenced, outcome="none"):
        agent.interrupt(one)
    tmux("select-pane", "-e", "-t", "=claude:")
    agent.deliver("hello", instance(agent))
    assert tmux.typed() == delivered(b"hello")


def test_the_panes_beside_the_agent_get_no_key_though_all_are_synchronized(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    one = instance(agent)
    beside = tmux.folder / "beside"
    tmux("split-window", "-d", "-t", "=claude:", sys.executable, str(LISTENER), str(beside))
    until(lambda: "ready>" in tmux("capture-pane", "-p", "-t", "=claude:.1"))
    tmux("set-window-option", "-t", "=claude:", "synchronize-panes", "on")
    agent.deliver("hello", one)
    agent.interrupt(one)
    assert tmux.typed() == delivered(b"hello") + b"\x03"
    assert Path(f"{beside}.raw").read_bytes() == b""


def test_a_timer_that_was_lost_with_its_client_is_made_good_by_the_gateway(
    tmux: TmuxServer, agent: TmuxAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmux_pane, "enter_later", lambda *_: "wait-for -S lost")
    with hurried(agent):
        # The first try is that which waits for the timer.
        agent.deliver("hello", instance(agent))
    assert tmux.typed() == delivered(b"hello")


def test_a_tmux_without_such_timers_is_named_and_gets_nothing(
    tmux: TmuxServer, agent: TmuxAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ("3.1c", "2.9a", "3.2", "3.3a", "10.0", "next-3.6", "openbsd-7.5")
    assert [word for word in versions if tmux_agent._too_old(word)] == ["3.1c", "2.9a"]
    monkeypatch.setattr(tmux_agent, "_too_old", lambda _: True)
    seen = agent.inspect()
    assert seen.instance_id is None
    assert "use 3.2 or later" in seen.detail


def test_without_a_pattern_the_end_is_unknown_and_the_next_prompt_waits(tmux: TmuxServer) -> None:
    agent = make(tmux, ready_regex=None, settle_s=0.5)
    delivery = agent.deliver("work", instance(agent))
    answer = agent.answer(delivery, threading.Event())
    assert (answer.known, answer.code, answer.text) == (False, None, "")
    # It works, and shows that it does.
    until(lambda: "working" in tmux.screen("claude"))
    with raises(Fenced, outcome="none"):
        agent.deliver("early", there(agent))
    agent.interrupt(there(agent))
    agent.deliver("later", instance(agent))
    assert tmux.typed() == b"\x1b[200~work\x1b[201~\r\x03" + delivered(b"later")


def test_nothing_is_typed_when_it_is_no_longer_ready(tmux: TmuxServer, agent: TmuxAgent) -> None:
    one = instance(agent)
    tmux("send-keys", "-t", "=claude:", "-l", "a draft")
    until(lambda: "a draft" in tmux.screen("claude"))
    with pytest.raises(Fenced, match="ready_regex"):
        agent.deliver("glued", one)
    assert tmux.typed() == b"a draft"


def test_what_a_killed_gateway_left_in_tmux_is_cleared_away(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    left = tmux.folder / "holdfast-0123456789abcdef"
    left.write_text("")
    tmux("set-buffer", "-b", left.name, "a secret")
    tmux("set-buffer", "-b", "mine", "kept")
    agent.inspect()
    assert tmux("list-buffers", "-F", "#{buffer_name}").split() == ["mine"]
    assert not left.exists()


def test_a_full_disk_is_a_delivery_that_did_not_happen(
    tmux: TmuxServer, agent: TmuxAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = instance(agent)
    with monkeypatch.context() as patched:
        patched.setattr(agent._buffers, "_folder", tmux.folder / "nosuch")
        with pytest.raises(UpstreamUnavailable) as caught:
            agent.deliver("hello", one)
    assert caught.value.fields["outcome"] == "none"
    say(agent, "hello")
    assert tmux.heard() == [b"hello"]
    assert tmux("list-buffers") == ""


def test_a_dead_pane_and_a_similar_name_are_not_the_agent(tmux: TmuxServer) -> None:
    spec = TmuxSpec(session="clau", socket_path=str(tmux.socket))
    assert (
        TmuxAgent(spec, agent="helper", folder=tmux.folder, processes=Procfs())
        .inspect()
        .instance_id
        is None
    )
    agent = make(tmux)
    tmux("set-option", "-t", "=claude:", "remain-on-exit", "on")
    tmux("send-keys", "-t", "=claude:", "C-d")
    until(lambda: agent.inspect().instance_id is None)


def test_what_people_open_beside_the_agent_is_not_the_agent(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    before = instance(agent)
    tmux("new-window", "-t", "=claude:", "cat")
    tmux("split-window", "-t", "=claude:", "cat")
    assert instance(agent) == before
    assert "heard 5 bytes" in say(agent, "hello")


def test_a_pane_in_copy_mode_gets_the_prompt_all_the_same(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    tmux("copy-mode", "-t", "=claude:")
    assert "heard 5 bytes" in say(agent, "hello")
    assert tmux.heard() == [b"hello"]


def test_an_interrupt_stops_a_busy_program_at_once(tmux: TmuxServer, agent: TmuxAgent) -> None:
    delivery = agent.deliver("work hard", instance(agent))
    until(lambda: "working" in tmux("capture-pane", "-p", "-t", "=claude:"))
    assert agent.inspect().state is AgentState.WORKING
    assert agent.interrupt(there(agent))
    until(lambda: b"!" in tmux.heard())
    assert "stopped" in agent.answer(delivery, threading.Event()).text


def test_rest_is_when_the_last_line_matches(tmux: TmuxServer) -> None:
    never = make(tmux, ready_regex=r"^never\$ $")
    until(lambda: never.inspect().state is AgentState.WORKING)
    always = make(tmux, ready_regex=r"ready> ?$")
    until(lambda: always.inspect().state is AgentState.READY)
    assert never.inspect().state is AgentState.WORKING


def test_an_agent_that_goes_while_it_is_waited_for(tmux: TmuxServer, agent: TmuxAgent) -> None:
    delivery = agent.deliver("work", instance(agent))
    tmux("new-session", "-d", "-s", "other")
    tmux("kill-session", "-t", "=claude")
    answer = agent.answer(delivery, threading.Event())
    assert (answer.code, "went away" in answer.detail) == ("upstream_unavailable", True)


def test_waiting_ends_by_its_time_limit_and_by_stop(tmux: TmuxServer) -> None:
    agent = make(tmux, answer_timeout_s=0.3)
    delivery = agent.deliver("work", instance(agent))
    assert agent.answer(delivery, threading.Event()).code == "timeout"
    stop = threading.Event()
    stop.set()
    assert agent.answer(delivery, stop).code == "stopped"


@pytest.mark.parametrize(
    "how",
    [{"session": "a:b"}, {"session": ""}, {"session": "$0"}, {"session": "a", "ready_regex": "("}],
)
def test_wrong_settings_are_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    def make_agent() -> None:
        spec = spec_of({"kind": "tmux", **how})
        assert isinstance(spec, TmuxSpec)
        TmuxAgent(spec, agent="helper", folder=tmp_path, processes=Procfs())

    with pytest.raises(InvalidValue):
        make_agent()


def test_two_gateways_do_not_type_into_one_session(tmux: TmuxServer, agent: TmuxAgent) -> None:
    one = instance(agent)
    other = make(tmux, agent="builder")
    # It has seen the screen for long enough to type, if it might.
    other._note(last_look(agent))
    until(
        lambda: (
            other._judge(last_look(other), other._agent(last_look(other))).state is AgentState.READY
        )
    )
    with raises(Held, agent="helper", pid=os.getpid(), session="claude"):
        other.inspect()
    for act in (lambda: other.deliver("mine", one), lambda: other.interrupt(one)):
        with raises(Fenced, outcome="none"):
            act()
    say(agent, "first")
    agent.close()
    say(other, "second")
    with raises(Held, agent="builder"):
        agent.inspect()
    assert tmux.heard() == [b"first", b"second"]
    other.close()
    assert MARK not in tmux("show-options", "-t", "=claude:") + tmux(
        "show-options", "-p", "-t", "=claude:"
    )


def test_two_sessions_that_show_one_pane_are_one_agent(tmux: TmuxServer, agent: TmuxAgent) -> None:
    tmux("new-session", "-d", "-s", "beside", "-t", "=claude")
    instance(agent)
    spec = TmuxSpec(session="beside", socket_path=str(tmux.socket))
    with pytest.raises(Held):
        TmuxAgent(spec, agent="builder", folder=tmux.folder, processes=Procfs()).inspect()


def test_the_next_gateway_gets_the_pane_and_the_previous_one_stops_typing(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    one = instance(agent)
    after = make(tmux)
    after._mark = agent._mark._replace(
        pid=os.getppid(), start_ticks=Procfs().of(os.getppid()).start_ticks
    )
    assert instance(after) == one
    with raises(Fenced, outcome="none"):
        agent.deliver("late", one)
    with pytest.raises(Held):
        agent.inspect()
    agent.close()
    say(after, "next")
    assert tmux.heard() == [b"next"]


@pytest.mark.parametrize("pid", ["4194305", "%(pid)s"])
def test_the_mark_of_a_dead_gateway_blocks_nobody(
    tmux: TmuxServer, agent: TmuxAgent, pid: str
) -> None:
    place = Procfs().here()
    left = f"builder/00000000/{pid % {'pid': os.getpid()}}/1/{place.pid_ns}"
    tmux("set-option", "-p", "-t", "=claude:", MARK, left)
    say(agent, "hello")
    assert tmux("show-options", "-p", "-v", "-t", "=claude:", MARK).strip() == str(agent._mark)
    tmux("set-option", "-p", "-t", "=claude:", MARK, "nobody's")
    say(agent, "again")


def test_a_gateway_of_unknown_liveness_is_kept_and_the_way_to_clear_it_named(
    tmux: TmuxServer, agent: TmuxAgent
) -> None:
    tmux("set-option", "-p", "-t", "=claude:", MARK, "builder/00000000/7/1/1")
    with pytest.raises(
        Held,
        match=(
            f"if that one is gone, `tmux -S {tmux.socket} set-option -pu -t %0 @holdfast_gateway`"
        ),
    ):
        agent.inspect()


def test_a_stopped_server_is_not_one_without_the_session(tmux: TmuxServer) -> None:
    agent = make(tmux)
    before = instance(agent)
    tmux.stop()
    with hurried(agent):
        with raises(UpstreamUnavailable, outcome="unknown"):
            agent.inspect()
        for act in (lambda: agent.deliver("early", before), lambda: agent.interrupt(before)):
            with raises(Fenced, outcome="none"):
                act()
    tmux.go_on()
    assert instance(agent) == before
    say(agent, "once")
    assert tmux.heard() == [b"once"]


def test_an_answer_is_waited_for_while_the_server_is_stopped(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(tmux)
    delivery = agent.deliver("hello", instance(agent))
    tmux.stop()
    looks, look = [0], agent._look

    def let_go_on() -> Screen | None:
        looks[0] += 1
        if looks[0] < 3:
            with hurried(agent, 0.3):
                return look()
        tmux.go_on()
        return look()

    monkeypatch.setattr(agent, "_look", let_go_on)
    assert "heard 5 bytes" in agent.answer(delivery, threading.Event()).text
    assert looks[0] > 2, "it had not given up"


def test_a_server_that_is_stopped_before_the_buffer_is_loaded_gets_nothing(
    tmux: TmuxServer,
) -> None:
    agent = make(tmux)
    screen = last_look(agent)
    tmux.stop()
    with hurried(agent), raises(Fenced, outcome="none"):
        paste_late(agent, "late", screen)
    tmux.go_on()
    say(agent, "next")
    assert tmux.heard() == [b"next"]
    assert tmux("list-buffers") == ""


def test_an_abandoned_prompt_is_not_pasted_when_the_server_continues(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(tmux)
    before, load = instance(agent), agent._buffers.load

    def stop_after(prompt: str) -> str:
        name = load(prompt)
        tmux.stop()
        return name

    monkeypatch.setattr(agent._buffers, "load", stop_after)
    with pytest.raises(UpstreamUnavailable, match="nobody knows") as unknown:
        agent.deliver("given up", before)
    assert unknown.value.fields["outcome"] == "unknown"
    tmux.go_on()
    monkeypatch.undo()
    say(agent, "next")
    assert tmux.heard() == [b"next"]
    assert "given up" not in tmux.screen("claude")
    assert tmux("list-buffers") == ""


def test_an_interrupt_that_was_given_up_does_not_stop_a_later_prompt(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(tmux)
    before, same = instance(agent), agent._same

    def stop_after(instance_id: str) -> object:
        found = same(instance_id)
        tmux.stop()
        return found

    monkeypatch.setattr(agent, "_same", stop_after)
    with pytest.raises(UpstreamUnavailable, match="nobody knows"):
        agent.interrupt(before)
    tmux.go_on()
    monkeypatch.undo()
    say(agent, "next")
    assert tmux.heard() == [b"next"]


def test_idle_agents_share_one_look_at_their_tmux_server(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look took two tmux programs: fifty idle agents kept a third of a processor busy."""
    asked: list[str] = []

    def ask(words: Sequence[str], **how: float) -> TmuxAnswer:
        asked.append(" ".join(words))
        return tmux_program.ask(words, **how)

    monkeypatch.setattr(tmux_pane, "ask", ask)
    monkeypatch.setattr(tmux_list, "ask", ask)
    agents = []
    for name in ("one", "two"):
        tmux.listen(name)
        spec = TmuxSpec(session=name, socket_path=str(tmux.socket), ready_regex=r"^ready> ?$")
        agents.append(TmuxAgent(spec, agent=name, folder=tmux.folder / name, processes=Procfs()))
        (tmux.folder / name).mkdir()

    def looks() -> list[str]:
        asked.clear()
        for agent in agents:
            assert agent.inspect().instance_id is not None
        return list(asked)

    # tmux tells in whole seconds when a window was written to.
    until(lambda: len(looks()) == 1 and "list-panes -a" in asked[0])
    until(lambda: agents[0].inspect().state is AgentState.READY)
    # What is written is seen at the next look all the same.
    tmux("send-keys", "-t", "=one:", "-l", "draft")
    until(lambda: agents[0].inspect().state is AgentState.WORKING)
    tmux("kill-session", "-t", "=one")
    assert agents[0].inspect().instance_id is None
