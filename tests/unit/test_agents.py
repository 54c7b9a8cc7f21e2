"""Agents: who has an id, who may take it over, who is notified. On every store, on a clock of the
test's.
"""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.agents import Agent, Agents, GatewayAddress
from holdfast.domains.agents.records import canonical, id_of
from holdfast.kernel.errors import (
    Fenced,
    Held,
    InvalidName,
    InvalidValue,
    LeaseLost,
    NotFound,
    RecordInvalid,
)
from holdfast.kernel.holder import Liveness
from holdfast.kernel.settings import AgentSettings
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.unit.agent_world import GATEWAY, LEASE_S, STORES, World, world_of

EXCLUSIVE = AgentSettings(names="exclusive")


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def agents(world: World) -> Agents:
    return world.agents


# --- names and ids ---


@pytest.mark.parametrize("typed", ["gpu", "HOLDFAST-gpu", "HOUMAO-gpu"])
def test_the_spellings_of_a_name_are_one(world: World, typed: str) -> None:
    agent = world.publish(typed)
    assert agent.agent_name == "HOLDFAST-gpu"
    assert agent.agent_id == id_of("HOLDFAST-gpu")
    for other in ("gpu", "HOLDFAST-gpu", "HOUMAO-gpu", agent.agent_id):
        assert world.agents.resolve_live_agent_record(other) == agent


def test_the_id_is_the_md5_of_the_canonical_name() -> None:
    # As md5sum(1) says, so that ids agree with those of the system whose registry is adopted.
    assert id_of("HOUMAO-gpu") == "29754db0e608e15e9599719459716026"


@pytest.mark.parametrize(
    "name",
    [
        "HOLDFAST-",
        "HOUMAO-",
        "HOLDFAST",
        "HOUMAO",
        "HOLDFAST-HOLDFAST-",
        "HOLDFAST-HOUMAO-gpu",
        "HOUMAO-HOUMAO",
    ],
)
def test_a_prefix_alone_is_reserved(world: World, name: str) -> None:
    with pytest.raises(InvalidName, match="reserved"):
        world.publish(name)
    if name.endswith("-"):
        with pytest.raises(InvalidName) as caught:
            world.publish("gpu", agent_id=name)
        assert caught.value.fields["what"] == "agent id"
    assert world.logged() == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a.b", "a/b", "../x", "a b", "a\0b", "-x", "x" * 129, "é", "x\n"]
)
def test_what_cannot_name_an_agent_is_refused_everywhere(world: World, name: str) -> None:
    with pytest.raises(InvalidName):
        world.publish(name)
    with pytest.raises(InvalidName):
        world.publish(agent_id=name)
    for call in (world.agents.resolve, world.agents.get, world.agents.control_target):
        with pytest.raises(InvalidName):
            call(name)
    with pytest.raises(InvalidName):
        world.agents.refresh(name, "g")
    with pytest.raises(InvalidName):
        world.agents.remove(name, "g")
    assert world.logged() == []


def test_canonical_is_the_same_done_twice() -> None:
    for name in ("gpu", "HOLDFAST-gpu", "HOUMAO-a_b-c", "x" * 100):
        for prefix in ("HOLDFAST-", "HOUMAO-"):
            once = canonical(name, prefix)
            assert canonical(once, prefix) == once
            assert once.startswith(prefix)


# --- publish ---


def test_a_publish_says_all_there_is_to_know(world: World) -> None:
    holder = world.process(7)
    agent = world.publish(
        "gpu",
        session_root="/root-7",
        agent_def_dir="/defs",
        gateway=GATEWAY,
        holder=holder,
        agent_id="gpu-7",
        generation_id="generation-1",
    )
    assert world.agents.get("gpu-7") == agent
    assert (agent.agent_id, agent.agent_name, agent.generation_id) == (
        "gpu-7",
        "HOLDFAST-gpu",
        "generation-1",
    )
    assert (agent.published_at, agent.lease_expires_at) == (
        world.clock.now(),
        world.clock.now() + timedelta(seconds=LEASE_S),
    )
    assert (agent.identity.backend, agent.identity.tool) == ("claude_headless", "claude")
    assert (agent.runtime.session_root, agent.runtime.agent_def_dir) == ("/root-7", "/defs")
    assert (agent.session_name, agent.gateway, agent.holder) == ("s-1", GATEWAY, holder)
    assert agent.token > 0
    [logged] = world.logged()
    assert (logged.kind, logged.subject, logged.data["token"]) == (
        "agent.published",
        "gpu-7",
        agent.token,
    )


def test_a_generation_is_a_uuid_unless_given_and_a_process_is_recorded_only_when_named(
    world: World,
) -> None:
    agent = world.publish()
    assert uuid.UUID(agent.generation_id).version == 4
    assert agent.holder is None


def test_a_fresh_record_of_another_generation_keeps_its_id(world: World) -> None:
    first = world.publish()
    world.clock.advance(LEASE_S)
    with pytest.raises(Held) as caught:
        world.publish(session_name="s-2")
    fields = caught.value.fields
    assert (fields["agent_id"], fields["generation_id"], fields["what"]) == (
        first.agent_id,
        first.generation_id,
        "id",
    )
    assert "--take-over" in caught.value.message and "tmux session s-1" in caught.value.message
    assert world.agents.get(first.agent_id) == first
    assert world.kinds() == ["agent.published"]


def test_a_stale_record_is_taken_over(world: World) -> None:
    first = world.publish()
    world.clock.advance(LEASE_S + 0.000_001)
    second = world.publish(session_name="s-2")
    assert second.token > first.token
    assert world.agents.resolve_live_agent_record("gpu") == second
    logged = world.logged()[1]
    assert (logged.kind, logged.data["why"]) == ("agent.taken_over", "expired")
    assert (logged.data["from_generation_id"], logged.data["to_generation_id"]) == (
        first.generation_id,
        second.generation_id,
    )


def test_an_operator_may_say_that_it_is_over(world: World) -> None:
    first = world.publish()
    second = world.publish(take_over=True)
    assert world.kinds() == ["agent.published", "agent.taken_over", "agent.published"]
    assert world.logged()[1].data["why"] == "operator"
    with pytest.raises(LeaseLost):
        world.agents.refresh(first.agent_id, first.generation_id)
    assert world.agents.get(first.agent_id) == second


def test_given_ids_may_share_a_name(world: World) -> None:
    one, two = world.publish(agent_id="one"), world.publish(agent_id="two")
    assert one.agent_name == two.agent_name
    assert world.agents.get("one") == one and world.agents.get("two") == two


# --- proved to be gone ---


def test_dead_and_its_tmux_session_gone_is_taken_over_at_once(world: World) -> None:
    first = world.publish(holder=world.process(7))
    world.machine.end(7)
    second = world.publish(session_name="s-2")
    assert world.agents.get(first.agent_id) == second
    assert world.logged()[1].data["why"] == "gone"


def test_a_dead_launcher_with_a_living_tmux_session_is_not_taken_over(world: World) -> None:
    world.publish(holder=world.process(7))
    world.tmux.sessions = {"s-1"}
    world.machine.end(7)
    with pytest.raises(Held):
        world.publish(session_name="s-2")


def test_a_living_process_without_its_tmux_session_is_not_taken_over(world: World) -> None:
    world.publish(holder=world.process(7))
    with pytest.raises(Held):
        world.publish(session_name="s-2")


def test_a_tmux_that_cannot_be_asked_blocks_until_the_lease_ends(world: World) -> None:
    world.publish(holder=world.process(7))
    world.machine.end(7)
    world.tmux.sessions = None
    with pytest.raises(Held):
        world.publish(session_name="s-2")
    world.clock.advance(LEASE_S + 1)
    world.publish(session_name="s-2")


def test_no_process_named_proves_nothing(world: World) -> None:
    world.publish()
    with pytest.raises(Held):
        world.publish(session_name="s-2")


def test_a_process_of_another_machine_proves_nothing(world: World) -> None:
    elsewhere = Machine("host-2").begin(7)
    world.publish(holder=elsewhere.current())
    elsewhere.machine.end(7)
    with pytest.raises(Held):
        world.publish(session_name="s-2")
    # Nor is tmux asked: a tmux session of that name here would be another.
    assert world.tmux.asked == 0


def test_a_dead_one_that_never_had_a_tmux_session_is_taken_over(world: World) -> None:
    world.publish(holder=world.process(7), session_name=None, backend="command")
    with pytest.raises(Held):
        world.publish()
    world.machine.end(7)
    world.publish()


def test_a_reused_pid_is_dead(world: World) -> None:
    world.publish(holder=world.process(7))
    world.machine.end(7)
    world.process(7)
    world.publish(session_name="s-2")


def test_a_verdict_is_on_the_generation_that_was_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of tmux and the transaction, another takes over: the late one does not
    replace that.
    """
    world.publish(holder=world.process(7))
    world.machine.end(7)
    look = world.tmux.liveness
    winners: list[Agent] = []

    def overtaken(session_name: str) -> Liveness:
        monkeypatch.setattr(world.tmux, "liveness", look)
        winners.append(world.publish(session_name="s-2", holder=world.process(8)))
        return look(session_name)

    monkeypatch.setattr(world.tmux, "liveness", overtaken)
    with pytest.raises(Held) as caught:
        world.publish(session_name="s-3")
    assert caught.value.fields["generation_id"] == winners[0].generation_id
    assert world.agents.get(winners[0].agent_id) == winners[0]


def test_tmux_is_not_queried_without_a_conflict(world: World) -> None:
    agent = world.publish(holder=world.process(7))
    world.publish(generation_id=agent.generation_id, holder=world.process(8))
    assert world.tmux.asked == 0


# --- resume ---


def test_the_same_tmux_session_resumes_its_generation_with_a_new_token(world: World) -> None:
    first = world.publish(generation_id="g-1")
    world.clock.advance(10)
    second = world.publish(generation_id="g-1", holder=world.process(7))
    assert second.token > first.token
    assert second.generation_id == "g-1"
    assert world.kinds() == ["agent.published", "agent.published"]
    with pytest.raises(Fenced) as caught:
        world.agents.refresh(first.agent_id, "g-1", token=first.token)
    assert caught.value.fields["current"] == second.token
    with pytest.raises(Fenced):
        world.agents.remove(first.agent_id, "g-1", token=first.token)
    assert world.agents.refresh(first.agent_id, "g-1", token=second.token).token == second.token


def test_another_tmux_session_does_not_resume_a_generation(world: World) -> None:
    first = world.publish(generation_id="g-1")
    with raises(Held, generation_id="g-1", session_name="s-1"):
        world.publish(generation_id="g-1", session_name="s-2")
    assert world.agents.get(first.agent_id) == first


# --- refresh and remove ---


def test_a_refresh_extends_the_lease_and_changes_nothing_else(world: World) -> None:
    agent = world.publish()
    world.clock.advance(1000)
    after = world.agents.refresh(agent.agent_id, agent.generation_id)
    assert after == replace(agent, lease_expires_at=world.clock.now() + timedelta(seconds=LEASE_S))
    assert world.agents.get(agent.agent_id) == after
    assert world.kinds() == ["agent.published", "agent.refreshed"]


def test_a_refresh_never_shortens_a_lease(world: World) -> None:
    agent = world.publish()
    assert (
        world.agents.refresh(agent.agent_id, agent.generation_id, lease_s=5).lease_expires_at
        == agent.lease_expires_at
    )
    world.clock.advance(-500)
    assert (
        world.agents.refresh(agent.agent_id, agent.generation_id).lease_expires_at
        == agent.lease_expires_at
    )


def test_a_refresh_revives_what_nobody_has_taken(world: World) -> None:
    agent = world.publish()
    world.clock.advance(LEASE_S + 10)
    assert world.agents.resolve_live_agent_record("gpu") is None
    world.agents.refresh(agent.agent_id, agent.generation_id)
    assert world.agents.resolve_live_agent_record("gpu") is not None


def test_a_loser_stands_down_at_refresh(world: World) -> None:
    first = world.publish()
    world.clock.advance(LEASE_S + 1)
    second = world.publish()
    with pytest.raises(LeaseLost, match="Stand down") as caught:
        world.agents.refresh(first.agent_id, first.generation_id)
    assert caught.value.fields["current"] == second.generation_id
    with pytest.raises(LeaseLost):
        world.agents.remove(first.agent_id, first.generation_id)
    with pytest.raises(LeaseLost):
        world.agents.attach_gateway(first.agent_id, first.generation_id, GATEWAY)
    assert world.agents.get(first.agent_id) == second


def test_a_removed_agent_is_gone_once(world: World) -> None:
    agent = world.publish()
    world.agents.remove(agent.agent_id, agent.generation_id)
    assert world.agents.resolve_live_agent_record("gpu") is None
    with pytest.raises(NotFound):
        world.agents.remove(agent.agent_id, agent.generation_id)
    with pytest.raises(LeaseLost):
        world.agents.refresh(agent.agent_id, agent.generation_id)
    with pytest.raises(NotFound):
        world.agents.get(agent.agent_id)
    assert world.kinds() == ["agent.published", "agent.removed"]


def test_a_gateway_comes_and_goes(world: World) -> None:
    agent = world.publish()
    assert (
        world.agents.attach_gateway(agent.agent_id, agent.generation_id, GATEWAY).gateway == GATEWAY
    )
    assert world.agents.attach_gateway(agent.agent_id, agent.generation_id, None) == agent
    with raises(InvalidValue, field="port"):
        world.agents.attach_gateway(agent.agent_id, agent.generation_id, replace(GATEWAY, port=0))
    logged = [
        entry.data["gateway"] for entry in world.logged() if entry.kind == "agent.gateway_changed"
    ]
    assert logged == ["127.0.0.1:8123", None]


# --- one name, one agent ---


def test_exclusive_names_are_held_too(world: World) -> None:
    agents = world.registry(EXCLUSIVE)
    first = world.publish(agents=agents, agent_id="one")
    with pytest.raises(Held) as caught:
        world.publish("HOUMAO-gpu", agents=agents, agent_id="two")
    assert (caught.value.fields["what"], caught.value.fields["agent_id"]) == ("name", "one")
    world.clock.advance(LEASE_S + 1)
    second = world.publish(agents=agents, agent_id="two")
    assert agents.resolve_live_agent_record("gpu") == second
    with raises(LeaseLost, agent_id="one"):
        agents.refresh(first.agent_id, first.generation_id)


def test_an_exclusive_name_of_one_that_is_gone_is_taken_with_its_record(world: World) -> None:
    agents = world.registry(EXCLUSIVE)
    first = world.publish(agents=agents, agent_id="one", holder=world.process(7))
    world.machine.end(7)
    world.publish(agents=agents, agent_id="two")
    with pytest.raises(NotFound):
        agents.get("one")
    with pytest.raises(LeaseLost):
        agents.refresh("one", first.generation_id)


# --- bad input ---


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"tool": ""}, "identity.tool"),
        ({"tool": " \t"}, "identity.tool"),
        ({"tool": "a\nb"}, "identity.tool"),
        ({"tool": 5}, "identity.tool"),
        ({"session_name": "  "}, "terminal.session_name"),
        ({"session_name": "x" * 300}, "terminal.session_name"),
        ({"session_name": "a.b"}, "terminal.session_name"),
        ({"session_name": "a:0"}, "terminal.session_name"),
        ({"generation_id": ""}, "generation_id"),
        ({"backend": "cobol"}, "backend"),
        ({"backend": ""}, "backend"),
        ({"manifest_path": "manifest.json"}, "manifest_path"),
        ({"manifest_path": ""}, "runtime.manifest_path"),
        ({"manifest_path": "/x\0y"}, "runtime.manifest_path"),
        ({"session_root": "./here"}, "session_root"),
        ({"agent_def_dir": "../defs"}, "agent_def_dir"),
        ({"gateway": replace(GATEWAY, state_path="state.json")}, "gateway.state_path"),
        ({"gateway": replace(GATEWAY, port=70000)}, "gateway.port"),
        ({"gateway": replace(GATEWAY, host=" ")}, "gateway.host"),
        ({"lease_expires_at": datetime(2025, 12, 31, tzinfo=UTC)}, "lease_expires_at"),
        ({"lease_expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, "lease_expires_at"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_published_is_refused_with_its_field(
    world: World, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        world.publish(**wrong)
    assert caught.value.fields["field"] == field
    assert field.rpartition(".")[2] in caught.value.message
    assert "regex" not in caught.value.message
    assert world.logged() == [] and world.agents.list_agents() == []


def test_a_naive_lease_is_refused(world: World) -> None:
    with raises(InvalidValue, what="lease_expires_at"):
        world.publish(lease_expires_at=datetime(2027, 1, 1, tzinfo=UTC).replace(tzinfo=None))
    for lease_s in (0, -1, float("nan"), float("inf"), 1e300):
        with pytest.raises(InvalidValue):
            world.publish(lease_s=lease_s)


def test_a_lease_may_be_given_by_its_end_in_any_zone(world: World) -> None:
    until = datetime(2026, 1, 1, 5, tzinfo=UTC)
    zone = datetime.fromisoformat("2026-01-01T07:00:00+02:00")
    assert world.publish(lease_expires_at=zone).lease_expires_at == until


def test_a_damaged_record_does_not_keep_its_id(world: World) -> None:
    first = world.publish()
    world.damage(first.agent_id, b'{"schema_version": 2}')
    with pytest.raises(RecordInvalid):
        world.agents.get(first.agent_id)
    second = world.publish()
    assert world.agents.resolve_live_agent_record("gpu") == second
    assert world.logged()[1].data["why"] == "damaged"


def test_list_is_by_name_and_passes_over_damage(world: World) -> None:
    for name in ("c", "a", "b"):
        world.publish(name)
    world.clock.advance(LEASE_S + 1)
    world.publish("d")
    assert [agent.agent_name for agent in world.agents.list_agents()] == [
        f"HOLDFAST-{name}" for name in "abcd"
    ]
    assert [agent.agent_name for agent in world.agents.list_agents(fresh=True)] == ["HOLDFAST-d"]
    assert len(world.agents.list_agents(limit=2)) == 2
    with raises(InvalidValue, field="limit"):
        world.agents.list_agents(limit=-1)
    world.damage(id_of("HOLDFAST-a"), b"{}")
    with pytest.raises(RecordInvalid):
        world.agents.list_agents()
    damaged: list[Any] = []
    assert len(world.agents.list_agents(damaged=damaged)) == 3
    assert len(damaged) == 1


# --- liveness ---


def test_an_interactive_agent_says_in_which_tmux_session_it_is(world: World) -> None:
    with raises(InvalidValue, field="session_name"):
        world.publish(backend="local_interactive", session_name=None)
    assert world.agents.list_agents() == []
    # A headless one may be a program that is run for each prompt.
    assert world.publish(backend="claude_headless", session_name=None).session_name is None


def test_liveness_is_answered_in_parts(world: World) -> None:
    agent = world.publish(holder=world.process(7), gateway=GATEWAY)
    world.tmux.sessions = {"s-1"}
    alive, dead, unknown = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN

    def parts() -> tuple[Liveness | None, ...]:
        seen = world.agents.liveness(agent)
        return seen.lease, seen.process, seen.tmux_session, seen.gateway

    assert parts() == (alive, alive, alive, alive)
    world.machine.end(7)
    world.gateways.verdict = dead
    assert parts() == (alive, dead, alive, dead)
    world.tmux.sessions = None
    world.clock.advance(LEASE_S + 1)
    assert parts() == (dead, dead, unknown, dead)
    world.tmux.sessions = set()
    assert parts() == (dead, dead, dead, dead)


def test_liveness_without_a_process_is_none_and_of_another_machine_unknown(world: World) -> None:
    bare = world.publish("bare", session_name=None, backend="command")
    seen = world.agents.liveness(bare)
    assert (seen.process, seen.tmux_session, seen.gateway) == (None, None, None)
    far = world.publish("far", holder=Machine("host-2").begin(7).current(), gateway=GATEWAY)
    seen = world.agents.liveness(far)
    assert (seen.process, seen.tmux_session, seen.gateway) == (Liveness.UNKNOWN,) * 3
    reachable = replace(GATEWAY, host="192.0.2.7")
    assert world.agents.liveness(replace(far, gateway=reachable)).gateway is Liveness.ALIVE


def test_on_a_shared_store_a_record_without_a_process_may_be_of_any_machine(world: World) -> None:
    agent = world.publish(
        gateway=GatewayAddress(host="localhost", port=1, state_path="/s", protocol_version="v1")
    )
    seen = world.agents.liveness(agent)
    expected = Liveness.DEAD if world.store.embedded else Liveness.UNKNOWN
    assert seen.tmux_session is expected
    assert seen.gateway is (Liveness.ALIVE if world.store.embedded else Liveness.UNKNOWN)
