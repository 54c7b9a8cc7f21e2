"""What a gateway does for its agent's record, step by step, on a clock that is stepped."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.agents import Agent, GatewayAddress
from holdfast.domains.gateway.adapter import AdapterSpec, CommandSpec, TmuxSpec
from holdfast.kernel.errors import Held
from holdfast.runtime.connection import Holdfast, connect
from holdfast.runtime.gateway_announcement import Announcement
from holdfast.testing.clock import ManualClock

DAY_S = 24 * 3600.0
CAT = CommandSpec(command=("cat",))


class World:
    """A gateway's announcement, an agent that is published, and which instance of it is seen."""

    def __init__(self, hf: Holdfast, clock: ManualClock, root: Path) -> None:
        self.hf = hf
        self.clock = clock
        self.seen: str | None = "one"
        self.owners: list[str] = []
        self.folder = GatewayFolder(root)
        self.folder.prepare()
        self.agent = self.publish()
        self.announcement = self.begin_anew()

    def publish(self, **more: object) -> Agent:
        facts = {
            "backend": "command",
            "tool": "cat",
            "manifest_path": "/m",
            "lease_s": 60.0,
            **more,
        }
        return self.hf.agents.publish("gpu", **facts)  # type: ignore[arg-type]

    def begin_anew(self, spec: AdapterSpec = CAT, *, by_manifest: bool = False) -> Announcement:
        place = GatewayAddress(
            host="127.0.0.1", port=9, state_path=str(self.folder.state_path), protocol_version="v1"
        )
        made = Announcement(
            "gpu",
            self.hf.settings,
            place,
            folder=self.folder,
            agent_id=self.agent.agent_id,
            spec=spec,
            by_manifest=by_manifest,
            seen=lambda: self.seen,
            belong=self.owners.append,
        )
        self.announcement = made
        return made

    def step(self, seconds: float = 0) -> bool:
        """Let time pass, or go back, and take a step; is the agent fresh then?"""
        self.clock.advance(seconds)
        self.announcement.step(self.hf)
        return self.hf.agents.resolve("gpu").record is not None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/store.sqlite", clock=clock) as hf:
        yield World(hf, clock, tmp_path / "gpu")


def test_the_queue_records_its_agent_once_that_is_known(world: World) -> None:
    world.step()
    assert world.owners == ["name gpu"]
    world.publish(agent_id="x1")
    world.agent = world.hf.agents.get("x1")
    world.begin_anew()
    world.step()
    assert world.owners == ["name gpu"], "that one's gateway is kept elsewhere"


def test_a_clock_step_ends_no_agent(world: World) -> None:
    assert world.step()
    assert all(world.step(50) for _ in range(10))
    assert world.step(2 * DAY_S), "a machine that slept"
    before = world.hf.agents.get(world.agent.agent_id).lease_expires_at
    assert world.step(-DAY_S)
    assert world.hf.agents.get(world.agent.agent_id).lease_expires_at == before, (
        "no lease ends earlier for it"
    )
    assert world.hf.agents.get(world.agent.agent_id).token == world.agent.token


def test_an_agent_whose_manifest_is_yet_to_be_written_is_no_fault(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.begin_anew(by_manifest=True)
    world.step()
    assert caplog.messages == []
    world.step()
    assert ["/m of HOLDFAST-gpu is gone" in message for message in caplog.messages] == [True]


def test_an_agent_that_is_not_seen_is_not_vouched_for(world: World) -> None:
    assert world.step()
    world.seen = None
    assert not world.step(61)
    world.seen = "one"
    assert world.step(), "it was away for a while"


def test_another_instance_is_vouched_for_only_when_it_is_published(world: World) -> None:
    assert world.step()
    world.seen = "two"
    assert not world.step(61)
    world.begin_anew()
    assert not world.step(), "a restart does not forget whom it saw"
    second = world.publish()
    assert world.step() and world.step(50) and world.step(50)
    assert world.hf.agents.get(second.agent_id).gateway is not None


def test_a_lease_is_renewed_by_its_own_length(world: World) -> None:
    world.step(30)
    agent = world.hf.agents.get(world.agent.agent_id)
    assert agent.lease_expires_at - world.hf.store.now() == timedelta(seconds=60)
    assert world.announcement.step(world.hf) == 20


def test_what_is_withdrawn_is_its_own(world: World) -> None:
    world.step()
    world.announcement.withdraw()
    assert world.hf.agents.get(world.agent.agent_id).gateway is None
    world.step()
    other = GatewayAddress(
        host="127.0.0.1", port=10, state_path="/elsewhere/gpu/state.json", protocol_version="v1"
    )
    world.hf.agents.attach_gateway(world.agent.agent_id, world.agent.generation_id, other)
    world.announcement.withdraw()
    assert world.hf.agents.get(world.agent.agent_id).gateway == other


def test_another_tmux_session_than_the_recorded_one_is_served_and_not_recorded(
    world: World,
) -> None:
    world.publish(backend="local_interactive", session_name="here", take_over=True)
    world.begin_anew(TmuxSpec(session="beside"))
    world.step()
    assert world.hf.agents.get(world.agent.agent_id).gateway is None
    world.begin_anew(TmuxSpec(session="here"))
    world.step()
    assert world.hf.agents.get(world.agent.agent_id).gateway is not None
    world.publish(backend="local_interactive", session_name="elsewhere", take_over=True)
    with pytest.raises(Held, match="in tmux session elsewhere by now"):
        world.step()


def test_a_manifest_that_is_changed_under_the_same_generation_ends_no_gateway(
    world: World, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.json"
    written = {
        "agent_id": world.agent.agent_id,
        "agent_name": "HOLDFAST-gpu",
        "adapter": {"kind": "command", "argv": ["cat"]},
    }
    manifest.write_text(json.dumps(written))
    world.publish(manifest_path=str(manifest), take_over=True)
    world.begin_anew(by_manifest=True)
    world.step()
    place = world.hf.agents.get(world.agent.agent_id).gateway
    assert place is not None
    manifest.write_text(
        json.dumps(written | {"adapter": {"kind": "command", "argv": ["cat"], "timeout_s": 9}})
    )
    world.step()
    assert world.hf.agents.get(world.agent.agent_id).gateway == place
    world.publish(manifest_path=str(manifest), take_over=True)
    with pytest.raises(Held, match="reached otherwise by now"):
        world.step()
