"""An agent's lease is renewed in the background, and a lost lease is reported."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domains.agents.renewal import AgentRenewal
from tests.harness.timeouts import PATIENCE_S
from tests.unit.agent_world import STORES, World, world_of

BRISK_S = 0.03
"""A lease so short that the background renews it all the time."""


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


def until_refreshed(world: World, times: int) -> None:
    """Until the journal has so many refreshes, however long that takes."""
    for batch in world.journal.follow(timeout_s=PATIENCE_S):
        times -= sum(entry.kind == "agent.refreshed" for entry in batch.entries)
        if times <= 0:
            return
    raise AssertionError("nothing was refreshed")


def test_what_is_kept_stays_fresh_for_many_leases(world: World) -> None:
    agent = world.publish(lease_s=BRISK_S)
    keeping = AgentRenewal(world.agents, agent, lease_s=BRISK_S)
    try:
        for _ in range(5):
            world.clock.advance(BRISK_S * 0.9)
            until_refreshed(world, 1 + _)
            assert world.agents.resolve_live_agent_record("gpu") is not None
        assert not keeping.lost.is_set()
    finally:
        keeping.close()


def test_a_take_over_is_reported_at_once_and_once(world: World) -> None:
    reported = threading.Semaphore(0)
    agent = world.publish()
    keeping = AgentRenewal(world.agents, agent, on_lost=reported.release)
    other = world.publish(session_name="s-2", take_over=True)
    # The lease is of a day: only the notice of the take-over can have woken it.
    assert reported.acquire(timeout=PATIENCE_S)
    assert keeping.lost.is_set()
    keeping.close()
    assert not reported.acquire(blocking=False)
    assert world.agents.get(agent.agent_id) == other


def test_a_resume_by_another_process_is_a_loss_too(world: World) -> None:
    agent = world.publish()
    keeping = AgentRenewal(world.agents, agent)
    world.publish(generation_id=agent.generation_id)
    assert keeping.lost.wait(PATIENCE_S)
    keeping.close()


def test_a_store_that_does_not_answer_is_no_loss(world: World) -> None:
    agent = world.publish(lease_s=BRISK_S)
    world.store.down = True
    keeping = AgentRenewal(world.agents, agent, lease_s=BRISK_S)
    try:
        world.clock.advance(BRISK_S)
        world.store.until_refused()
        assert not keeping.lost.is_set()
        world.store.down = False
        until_refreshed(world, 1)
        assert not keeping.lost.is_set()
    finally:
        keeping.close()


def test_closing_ends_it_and_leaves_the_record(world: World) -> None:
    agent = world.publish()
    before = set(threading.enumerate())
    keeping = AgentRenewal(world.agents, agent)
    keeping.close()
    assert not any(
        thread.name == "holdfast-keeper" for thread in set(threading.enumerate()) - before
    )
    assert world.agents.get(agent.agent_id) == agent
    assert not keeping.lost.is_set()
