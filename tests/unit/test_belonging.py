"""Which agent a gateway's queue belongs to, where one agent's id is another's name. On every kind
of place for a queue.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import id_of
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import Ambiguous, Held
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from holdfast.runtime.gateway_identity import (
    Served,
    gateway_key,
    owner_for,
    owner_of,
    resolve_served,
)

NAMED, GIVEN = id_of("HOLDFAST-gpu"), "gpu"
"""The ids of the agent `gpu`, and of the agent `worker`."""


class World:
    """A store with two agents, of which one has the name of the other as its id."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.publish("gpu")
        self.publish("worker", agent_id=GIVEN)

    def publish(self, name: str, **more: Any) -> Agent:
        return self.hf.agents.publish(
            name, backend="command", tool="cat", manifest_path="/m", **more
        )

    def asked(self, word: str) -> Served:
        return resolve_served(word, self.hf.settings, by_manifest=False)

    def open(self, served: Served) -> GatewayParts:
        spec = CommandSpec(command=("cat",))
        return open_gateway(
            served.key, spec, self.hf.settings, owner=served.owner, on_lost=lambda: None
        )

    def serve(self, word: str) -> str:
        """Have a gateway come and go; what it was kept under."""
        served = self.asked(word)
        self.open(served).close()
        return served.key

    def called(self, word: str) -> str:
        """The folder to which a client is led by a word."""
        return self.hf.gateway(word).folder.root.name


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    kind = request.param
    url = (
        request.getfixturevalue("postgres_url")
        if kind == "postgres"
        else f"{kind}:{tmp_path / 'store'}"
    )
    with closing(connected(Settings(store=url, gateway_root=str(tmp_path / "gateways")))) as hf:
        yield World(hf)


def test_an_id_that_is_another_agents_name_leads_to_a_queue_of_its_own(world: World) -> None:
    """The two had one queue: a prompt for the one was delivered to the other."""
    assert world.serve(NAMED) == "gpu"
    apart = world.serve("worker")
    assert apart.startswith("gpu-")
    for word, key in (
        ("gpu", "gpu"),
        (NAMED, "gpu"),
        ("worker", apart),
        (apart, apart),
        ("HOLDFAST-worker", apart),
    ):
        assert world.called(word) == key
    # By its id it cannot be served, which is the other's word here.
    with pytest.raises(
        Ambiguous, match="the agent with the name gpu: call the one with the id gpu worker"
    ):
        world.asked("gpu")
    assert world.asked(apart) == world.asked("worker")


def test_the_agent_served_first_owns_the_queue(world: World) -> None:
    assert world.serve("gpu") == world.serve("worker") == "gpu"
    apart = world.serve(NAMED)
    assert apart.startswith("gpu-")
    for word, key in (("gpu", "gpu"), ("worker", "gpu"), (NAMED, apart), (apart, apart)):
        assert world.called(word) == key
    assert world.asked(apart) == world.asked(NAMED)
    gone = world.hf.agents.get(GIVEN)
    world.hf.agents.remove(GIVEN, gone.generation_id)
    # What was accepted for the one that is gone is not the other's for all that.
    with pytest.raises(
        Ambiguous, match=f"the agent with the id gpu: call the one with the name gpu {NAMED}"
    ):
        world.asked("gpu")
    assert world.called("gpu") == "gpu"


def test_a_queue_without_an_owner_is_still_found(world: World) -> None:
    """A queue of an older program, or one that was started before its agent was known."""
    world.open(Served("gpu")).close()
    assert (world.called("worker"), world.called(NAMED)) == ("gpu", "gpu")
    assert world.serve("worker") == "gpu"
    assert world.called(NAMED).startswith("gpu-")


def test_two_that_come_at_once_do_not_get_one_queue(world: World) -> None:
    one, other = world.asked(NAMED), world.asked("worker")
    assert one.key == other.key
    world.open(one).close()
    with pytest.raises(
        Held, match="is that of the agent with the name gpu, and not of the one with the id gpu"
    ):
        world.open(other)
    # Nothing is left of the refused one; restarted, it has its own.
    assert owner_of("gpu", world.hf.settings, world.hf.store) == one.owner
    assert world.serve("worker").startswith("gpu-")


def test_all_forms_of_an_id_are_as_many_agents(world: World) -> None:
    records = [
        world.publish(f"agent-{n}", agent_id=f"{prefix}x1")
        for n, prefix in enumerate(("", "HOLDFAST-", "HOUMAO-"))
    ]
    keys = [world.serve(record.agent_name) for record in records]
    assert (keys[0], len(set(keys)), len({owner_for(record) for record in records})) == ("x1", 3, 3)
    assert [world.called(record.agent_name) for record in records] == keys


def test_a_key_of_its_own_is_no_longer_than_a_name_may_be(world: World) -> None:
    long = "x" * 119
    assert world.serve(world.publish(long).agent_id) == long
    given = world.publish("third", agent_id=long)
    key = world.serve("third")
    assert (len(key), key[:116]) == (128, "x" * 115 + "-")
    assert gateway_key("third", given, world.hf.settings, world.hf.store) == key
