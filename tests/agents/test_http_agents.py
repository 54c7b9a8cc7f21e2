"""The rest and managed adapters against real HTTP servers: their endpoints, their errors, and never
a second delivery.
"""

import threading
from collections.abc import Iterator

import pytest

from holdfast.adapters import upstream
from holdfast.adapters.managed import ACTIVE, PASSIVE, ManagedAgent
from holdfast.adapters.rest import RestAgent
from holdfast.adapters.upstream import on_loopback
from holdfast.domains.gateway import AgentState, Answer, Observation
from holdfast.kernel.agent_adapter import ManagedAdapter, RestAdapter
from holdfast.kernel.errors import InvalidValue, UpstreamUnavailable
from tests.agents.agent_servers import World, serving
from tests.harness.timeouts import PATIENCE_S

HOSTILE = 'it\'s "x" & y=z ? # + %20 $(touch pwned)\n\tä 🙂'


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # On loopback no proxy is meant, whatever the environment says.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setattr(upstream, "ASK_EVERY_S", 0.01)
    with serving(World()) as made:
        yield made


@pytest.fixture
def terminal(world: World) -> Iterator[RestAgent]:
    agent = RestAgent(RestAdapter(base_url=world.url, terminal_id="t1", timeout_s=PATIENCE_S))
    yield agent
    agent.close()


@pytest.fixture
def managed(world: World) -> Iterator[ManagedAgent]:
    agent = ManagedAgent(
        ManagedAdapter(managed_api_base_url=world.url, managed_agent_ref="a1", timeout_s=PATIENCE_S)
    )
    yield agent
    agent.close()


def say(agent: RestAgent | ManagedAgent, prompt: str = "hello") -> Answer:
    seen = agent.inspect()
    assert seen.instance_id is not None, seen
    agent.check(prompt)
    return agent.answer(agent.deliver(prompt, seen.instance_id), threading.Event())


def test_a_prompt_reaches_a_terminal_as_it_is_and_its_last_output_is_the_answer(
    world: World, terminal: RestAgent
) -> None:
    world.statuses = ["idle", "idle", "processing", "processing", "completed"]
    world.output = "done"
    answer = say(terminal, HOSTILE)
    assert world.messages == [HOSTILE]
    assert (answer.text, answer.source, answer.code, answer.facts) == (
        "done",
        "output",
        None,
        {"status": "idle"} | answer.facts,
    )


def test_a_terminal_that_was_too_quick_to_be_seen_at_work_is_answered_too(
    world: World, terminal: RestAgent
) -> None:
    world.output = "quick"
    assert say(terminal).text == "quick"


def test_the_prefix_of_the_other_server(world: World) -> None:
    agent = RestAgent(
        RestAdapter(base_url=world.url + "/", terminal_id="t1", preset="houmao_server")
    )
    assert agent.backend == "houmao_server_rest"
    assert "/cao/terminals/t1" in str(agent.inspect().instance_id)
    agent.close()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("idle", AgentState.READY),
        ("completed", AgentState.READY),
        ("processing", AgentState.WORKING),
        ("waiting_user_answer", AgentState.ASKING),
        ("error", AgentState.EXITED),
        ("new_word", AgentState.UNKNOWN),
    ],
)
def test_what_a_terminals_status_means(
    world: World, terminal: RestAgent, status: str, state: AgentState
) -> None:
    world.status = status
    assert terminal.inspect().state is state


def test_another_terminal_is_another_instance_and_a_missing_one_is_unavailable(
    world: World, terminal: RestAgent
) -> None:
    before = terminal.inspect().instance_id
    assert world.terminal is not None
    world.terminal["session_name"] = "s2"
    assert terminal.inspect().instance_id not in (before, None)
    world.terminal = None
    seen = terminal.inspect()
    # In the words of its server.
    assert seen.instance_id is None and "Terminal not found" in seen.detail


@pytest.mark.parametrize(
    "nonsense",
    [None, [], "x", 7, {}, {"detail": "starting"}, {"id": ""}, {"tracked_agent_id": None}],
)
def test_an_answer_without_an_agent_is_no_other_instance(
    world: World,
    terminal: RestAgent,
    managed: ManagedAgent,
    monkeypatch: pytest.MonkeyPatch,
    nonsense: object,
) -> None:
    before = terminal.inspect().instance_id, managed.inspect().instance_id
    with monkeypatch.context() as patched:
        patched.setattr(world, "answer", lambda *_: (200, nonsense))
        for agent in (terminal, managed):
            seen = agent.inspect()
            assert seen.instance_id is None and world.url in seen.detail
    assert (terminal.inspect().instance_id, managed.inspect().instance_id) == before


def test_interrupts_are_a_key_and_not_an_exit(world: World, terminal: RestAgent) -> None:
    assert terminal.interrupt("any") is True
    assert world.keys == ["C-c"]


def test_a_terminal_that_fails_or_goes_while_it_is_waited_for(
    world: World, terminal: RestAgent
) -> None:
    world.statuses = ["idle", "processing", "error"]
    assert say(terminal).code == "agent_failed"
    delivery = terminal.deliver("x", "any")
    world.terminal = None
    assert terminal.answer(delivery, threading.Event()).code == "upstream_unavailable"


def test_a_server_that_is_down_for_a_moment_is_waited_for(
    world: World, terminal: RestAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = terminal.deliver("x", "any")
    world.broken["/t1"] = 503
    monkeypatch.setattr(upstream, "AWAY_MAX_S", 0.1)
    answer = terminal.answer(delivery, threading.Event())
    assert (answer.code, "503" in answer.detail) == ("upstream_unavailable", True)
    monkeypatch.setattr(upstream, "AWAY_MAX_S", PATIENCE_S)
    repair = threading.Timer(0.2, world.broken.clear)
    repair.start()
    assert terminal.answer(delivery, threading.Event()).code is None
    repair.join()


def test_waiting_ends_by_stop_and_by_its_limit(world: World) -> None:
    agent = RestAgent(RestAdapter(base_url=world.url, terminal_id="t1", answer_timeout_s=0.1))
    world.status = "processing"
    assert agent.answer(agent.deliver("x", "any"), threading.Event()).code == "timeout"
    stop = threading.Event()
    stop.set()
    assert agent.answer(agent.deliver("x", "any"), stop).code == "stopped"
    agent.close()


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [(400, "none"), (422, "none"), (500, "unknown"), ("hang", "unknown"), ("html", "unknown")],
)
def test_a_delivery_that_may_have_happened_says_so_and_is_not_repeated(
    world: World, terminal: RestAgent, managed: ManagedAgent, trouble: int | str, outcome: str
) -> None:
    world.broken = {"/input": trouble, "/requests": trouble}
    world.acts_before_breaking = True
    for agent in (terminal, managed):
        with pytest.raises(UpstreamUnavailable) as caught:
            agent.deliver("once", "any")
        assert caught.value.fields["outcome"] == outcome
    assert (world.messages, len(world.bodies)) == (["once"], 1)


def test_a_server_that_is_not_there() -> None:
    agent = RestAgent(RestAdapter(base_url="http://127.0.0.1:1", terminal_id="t1", timeout_s=2))
    seen = agent.inspect()
    assert seen.instance_id is None and "127.0.0.1:1" in seen.detail
    with pytest.raises(UpstreamUnavailable) as caught:
        agent.deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"
    agent.close()


def test_a_prompt_that_does_not_fit_into_a_url_is_refused(terminal: RestAgent) -> None:
    terminal.check("x" * 40_000)
    with pytest.raises(InvalidValue) as caught:
        terminal.check("ä" * 20_000)
    assert caught.value.fields == {"field": "prompt", "bytes": 120_000}


def test_a_managed_prompt_is_answered_by_its_turn(world: World, managed: ManagedAgent) -> None:
    world.turns = {
        "turn-1": [
            {"status": "active"},
            {"status": "active"},
            {"status": "completed", "output": "42"},
        ]
    }
    answer = say(managed, HOSTILE)
    assert world.bodies == [{"request_kind": "submit_prompt", "prompt": HOSTILE}]
    assert (answer.text, answer.code, answer.facts) == (
        "42",
        None,
        {"turn_id": "turn-1", "status": "completed"},
    )


def test_a_failed_managed_turn_is_reported(world: World, managed: ManagedAgent) -> None:
    world.turns = {"turn-1": [{"status": "failed", "error": "no credit"}]}
    answer = say(managed)
    assert (answer.code, "no credit" in answer.detail) == ("agent_failed", True)


def test_without_a_turn_a_prompt_is_only_delivered(world: World, managed: ManagedAgent) -> None:
    world.turn_id = None
    answer = say(managed)
    assert (answer.known, answer.code) == (False, None)


def test_a_managed_interrupt_may_find_nothing_to_stop(world: World, managed: ManagedAgent) -> None:
    assert managed.interrupt("any") is True
    world.disposition = "no_op"
    assert managed.interrupt("any") is False
    assert world.bodies == [{"request_kind": "interrupt"}] * 2
    with pytest.raises(UpstreamUnavailable) as caught:
        managed.deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"


def test_a_managed_agents_instance_and_surface(world: World, managed: ManagedAgent) -> None:
    first = managed.inspect()
    assert first.state is AgentState.READY
    world.state["turn"] = {"phase": "active"}
    assert managed.inspect() == Observation(first.instance_id, AgentState.WORKING)
    world.state["identity"]["runtime_session_id"] = "r2"
    assert managed.inspect().instance_id not in (first.instance_id, None)
    world.state["availability"] = "unavailable"
    assert managed.inspect().instance_id is None
    world.broken["/state"] = 500
    seen = managed.inspect()
    assert seen.instance_id is None and "500" in seen.detail


@pytest.fixture
def passive(world: World) -> World:
    """The server is the passive one."""
    world.service = PASSIVE
    world.state["identity"]["transport"] = "headless"
    return world


def test_a_headless_agent_of_the_passive_server_has_turns(
    passive: World, managed: ManagedAgent
) -> None:
    passive.turns = {"turn-1": [{"status": "active"}, {"status": "completed"}]}
    passive.events = [
        {"kind": "reasoning", "message": "hm"},
        {"kind": "assistant", "message": "4"},
        {"kind": "assistant", "message": "2"},
    ]
    answer = say(managed, HOSTILE)
    assert passive.bodies == [{"turns": {"prompt": HOSTILE}}]
    assert (answer.text, answer.code, answer.known) == ("4\n2", None, True)
    passive.turns = {"turn-1": [{"status": "interrupted"}]}
    assert say(managed).code == "agent_failed"


def test_a_terminal_agent_of_the_passive_server_gets_its_prompt_by_its_gateway(
    passive: World, managed: ManagedAgent
) -> None:
    passive.state["identity"]["transport"] = "tui"
    assert say(managed, HOSTILE) == Answer(known=False)
    assert passive.bodies == [{"requests": {"prompt": HOSTILE}}]
    # Its id follows from its name, so its generation tells its instances apart.
    first = managed.inspect().instance_id
    passive.generation_id = "g2"
    assert managed.inspect().instance_id not in (first, None)


def test_an_agent_of_the_passive_server_is_interrupted_only_at_work(
    passive: World, managed: ManagedAgent
) -> None:
    assert (managed.interrupt("any"), passive.interrupts) == (False, 0)
    passive.state["turn"] = {"phase": "active"}
    assert (managed.interrupt("any"), passive.interrupts) == (True, 1)
    passive.disposition = "Interrupt attempted with error: boom"
    with pytest.raises(UpstreamUnavailable, match="boom"):
        managed.interrupt("any")


def test_a_server_that_is_neither_is_named_and_gets_nothing(
    world: World, managed: ManagedAgent
) -> None:
    world.service = "houmao-other-server"
    assert "houmao-other-server" in managed.inspect().detail
    with pytest.raises(UpstreamUnavailable) as caught:
        managed.deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"
    assert all(one in caught.value.message for one in (ACTIVE, PASSIVE))
    # Another server has taken its place.
    world.service = ACTIVE
    assert managed.inspect().instance_id is not None
    assert world.bodies == []


def test_paths_are_settings(world: World) -> None:
    spec = RestAdapter(
        base_url=world.url,
        terminal_id="t1",
        paths={"terminal": "/cao/terminals/{id}", "key": "/terminals/{id}/key"},
    )
    agent = RestAgent(spec)
    assert "/cao/terminals/t1" in str(agent.inspect().instance_id)
    agent.close()
    with pytest.raises(InvalidValue) as caught:
        RestAgent(RestAdapter(base_url=world.url, terminal_id="t1", paths={"exit": "/x"}))
    assert caught.value.fields["field"] == "paths"


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue):
        RestAgent(RestAdapter(base_url=url, terminal_id="t"))


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("example.org", False),
    ],
)
def test_what_is_this_machine(host: str, here: bool) -> None:
    assert on_loopback(host) is here


def test_an_account_in_the_url_is_used_and_never_shown(world: World) -> None:
    host = world.url.removeprefix("http://")
    agent = RestAgent(
        RestAdapter(base_url=f"http://me:s3cret@{host}", terminal_id="t1", timeout_s=PATIENCE_S)
    )
    away = RestAgent(
        RestAdapter(base_url="http://me:s3cret@127.0.0.1:1", terminal_id="t1", timeout_s=5)
    )
    try:
        seen, unseen = agent.inspect(), away.inspect()
        assert seen.instance_id is not None and "s3cret" not in seen.instance_id
        assert unseen.instance_id is None and "s3cret" not in unseen.detail
        assert "127.0.0.1:1/terminals/t1" in unseen.detail
    finally:
        agent.close()
        away.close()
    with pytest.raises(InvalidValue) as refused:
        RestAgent(RestAdapter(base_url="ftp://me:s3cret@there", terminal_id="t1"))
    assert "s3cret" not in str(refused.value)
