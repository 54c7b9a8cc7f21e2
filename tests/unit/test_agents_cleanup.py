"""What agents leave behind and what of it may be removed; no live record is removed with it."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.agents import Agents
from holdfast.domains.agents.cleanup import CleanupReport, verdict
from holdfast.domains.agents.cleanup import Condition as W
from holdfast.domains.agents.records import AGENTS, id_of
from holdfast.kernel.errors import InvalidValue, LeaseLost, StoreUnavailable
from holdfast.kernel.space import Space
from holdfast.kernel.store import Debris, Leftover
from holdfast.stores.files.store import FilesStore
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S
from tests.unit.agent_world import LEASE_S, STORES, World, world_of

GRACE_S = 300.0


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


def reasons(items: Any) -> dict[str, str]:
    return {item.agent_id: item.why.value for item in items}


class Folders:
    """Real folders `live_agents/KEY/record.json`, and the files store's word on them, but for those
    that are stuck.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "live_agents"
        self.root.mkdir(parents=True)
        self.stuck: set[str] = set()
        self.store = FilesStore(root, boot_id="boot-1", folders={"agents": "."})

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        return self.store.leftovers(space)

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        if key in self.stuck:
            raise StoreUnavailable(f"{key} cannot be removed", outcome="none")
        return self.store.remove_leftover(space, key, older_than_s=older_than_s)

    def add(self, key: str, *, age_s: float = 3600, record: bool = False) -> Path:
        folder = self.root / key
        folder.mkdir()
        if record:
            (folder / "record.json").write_text("{}")
        then = time.time() - age_s
        os.utime(folder, (then, then))
        return folder


def fill(world: World) -> None:
    """An agent in every condition a record can be in."""
    world.publish("expired", lease_s=10)
    world.clock.advance(10 + GRACE_S)
    world.publish("in-grace", lease_s=10)
    world.clock.advance(11)
    for name in ("fresh", "malformed", "invalid", "too-new"):
        world.publish(name, agent_id=name)
    world.publish("gone", agent_id="gone", holder=world.process(7))
    world.publish("half-gone", agent_id="half-gone", session_name="s-2", holder=world.process(8))
    world.machine.end(7)
    world.machine.end(8)
    world.tmux.sessions = {"s-2"}
    world.damage("malformed", b"{")
    world.damage("invalid", b'{"schema_version": 2}')
    world.damage("too-new", b'{"schema_version": 99}')


EXPIRED, IN_GRACE = id_of("HOLDFAST-expired"), id_of("HOLDFAST-in-grace")
PLANNED = {EXPIRED: "expired", "malformed": "damaged", "invalid": "damaged", "gone": "gone"}
PRESERVED = {"fresh": "fresh", IN_GRACE: "in_grace", "too-new": "too_new", "half-gone": "fresh"}


def test_a_dry_run_says_what_would_go_and_changes_nothing(world: World) -> None:
    fill(world)
    before = len(world.logged())
    for _ in range(2):
        report = world.agents.cleanup(dry_run=True)
        assert (report.dry_run, report.removed, report.failed) == (True, (), ())
        assert reasons(report.planned) == PLANNED
        assert reasons(report.preserved) == PRESERVED
    assert len(world.logged()) == before


def test_everything_stale_goes_and_the_rest_stays(world: World) -> None:
    fill(world)
    report = world.agents.cleanup()
    assert reasons(report.removed) == reasons(report.planned) == PLANNED
    assert reasons(report.preserved) == PRESERVED
    assert report.failed == ()
    cleaned = {
        entry.subject: entry.data["why"]
        for entry in world.logged()
        if entry.kind == "agent.cleaned"
    }
    assert cleaned == PLANNED
    damaged: list[Any] = []
    left = {agent.agent_id for agent in world.agents.list_agents(damaged=damaged)}
    assert left | {str(one.fields["key"]) for one in damaged} == set(PRESERVED)
    assert reasons(world.agents.cleanup().planned) == {}


def test_without_the_tmux_check_the_lease_alone_decides(world: World) -> None:
    fill(world)
    report = world.agents.cleanup(tmux_check=False)
    assert reasons(report.removed) == {key: why for key, why in PLANNED.items() if why != "gone"}
    assert reasons(report.preserved)["gone"] == "fresh"
    assert world.tmux.asked == 0


def test_the_grace_may_be_none_and_must_be_a_number(world: World) -> None:
    fill(world)
    for grace_s in (1e13, 1e300):
        # Longer than the calendar, and a number all the same.
        assert reasons(world.agents.cleanup(grace_s=grace_s).preserved)[IN_GRACE] == "in_grace"
    assert reasons(world.agents.cleanup(grace_s=0).removed)[IN_GRACE] == "expired"
    for grace_s in (-1, float("nan"), float("inf")):
        with raises(InvalidValue, field="grace_s"):
            world.agents.cleanup(grace_s=grace_s)


def test_the_instant_at_which_a_grace_ends(world: World) -> None:
    world.publish(lease_s=10)
    world.clock.advance(10 + GRACE_S)
    assert world.agents.cleanup().planned == ()
    world.clock.advance(0.000_001)
    assert len(world.agents.cleanup().removed) == 1


def test_an_agent_removed_by_cleanup_stands_down(world: World) -> None:
    agent = world.publish(lease_s=10)
    world.clock.advance(11 + GRACE_S)
    world.agents.cleanup()
    with pytest.raises(LeaseLost, match="nobody has it"):
        world.agents.refresh(agent.agent_id, agent.generation_id)


@pytest.mark.parametrize("how", ["refresh", "publish", "remove"])
def test_what_changes_between_the_look_and_the_removal_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    agent = world.publish(lease_s=10)
    world.clock.advance(11 + GRACE_S)
    read = world.store.read

    def overtaken(body: Callable[[Any], Any], **more: Any) -> Any:
        seen = read(body, **more)
        if AGENTS not in more["scope"]:
            # How the store's clock runs is looked at first.
            return seen
        monkeypatch.setattr(world.store, "read", read)
        if how == "refresh":
            world.agents.refresh(agent.agent_id, agent.generation_id)
        elif how == "publish":
            world.publish()
        else:
            world.agents.remove(agent.agent_id, agent.generation_id)
        return seen

    monkeypatch.setattr(world.store, "read", overtaken)
    report = world.agents.cleanup()
    assert (len(report.planned), report.removed) == (1, ())
    assert reasons(report.preserved) == {agent.agent_id: "changed"}
    assert (world.agents.resolve_live_agent_record("gpu") is not None) == (how != "remove")


def test_a_dead_record_that_was_resumed_since_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.publish(holder=world.process(7))
    world.machine.end(7)
    look = world.tmux.liveness
    looks = iter(range(9))

    def resumed(session_name: str) -> Any:
        seen = look(session_name)
        if next(looks) == 1:
            # After the second look, just before the transaction.
            world.publish(generation_id=agent.generation_id, holder=world.process(8))
        return seen

    monkeypatch.setattr(world.tmux, "liveness", resumed)
    report = world.agents.cleanup()
    assert reasons(report.planned) == {agent.agent_id: "gone"}
    assert report.removed == ()
    assert world.agents.resolve_live_agent_record("gpu") is not None


# --- folders ---


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    made = Folders(tmp_path / "folders")
    assert isinstance(made, Debris) and isinstance(made.store, Debris)
    with closing(made.store):
        yield made


@pytest.fixture
def agents(world: World, folders: Folders) -> Agents:
    return world.registry(debris=folders)


def test_folders_without_a_record(agents: Agents, folders: Folders, tmp_path: Path) -> None:
    folders.add("empty")
    folders.add("just-made", age_s=GRACE_S - 10)
    folders.add("full", record=True)
    closed = folders.add("closed")
    closed.chmod(0)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("keep")
    (folders.root / "link").symlink_to(victim)
    folders.add("stuck")
    folders.stuck.add("stuck")
    planned = {"empty": "no_record", "link": "link", "stuck": "no_record"}
    preserved = {"closed": "unreadable", "just-made": "in_grace"}
    dry = agents.cleanup(dry_run=True)
    assert (reasons(dry.planned), reasons(dry.preserved)) == (planned, preserved)
    report = agents.cleanup()
    assert reasons(report.removed) == {"empty": "no_record", "link": "link"}
    assert (reasons(report.failed), reasons(report.preserved)) == (
        {"stuck": "no_record"},
        preserved,
    )
    assert "cannot be removed" in report.failed[0].detail
    assert (victim / "precious").read_text() == "keep"
    assert {path.name for path in folders.root.iterdir()} == {
        "just-made",
        "full",
        "closed",
        "stuck",
    }


def test_a_failure_does_not_stop_the_rest(world: World, agents: Agents, folders: Folders) -> None:
    for key in ("a", "b", "c"):
        folders.add(key)
    folders.stuck.add("a")
    world.publish(lease_s=10)
    world.clock.advance(11 + GRACE_S)
    report = agents.cleanup()
    assert len(report.removed) == 3 and len(report.failed) == 1


@pytest.mark.parametrize(
    ("leftover", "why"),
    [
        (Leftover("k", "no_record", 299.9), W.IN_GRACE),
        (Leftover("k", "no_record", 300.0), W.NO_RECORD),
        (Leftover("k", "no_record", -5.0), W.IN_GRACE),
        (Leftover("k", "link", 1e9), W.LINK),
        (Leftover("k", "unreadable", 1e9), W.UNREADABLE),
    ],
)
def test_the_rule_for_folders(world: World, leftover: Leftover, why: W) -> None:
    assert verdict(leftover, world.clock.now(), GRACE_S, None) is why


# --- while others publish ---


@pytest.mark.parametrize(
    "kind", ["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)]
)
def test_no_live_record_is_lost_while_publishers_publish(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Publishers let leases run out and take them over again and again; a cleaner without any grace
    never gets a fresh one.
    """
    with world_of(kind, tmp_path, request) as world:
        lost: list[str] = []
        done = threading.Event()

        def publisher(name: str) -> None:
            for turn in range(15):
                try:
                    # Stale as soon as the clock moves, so that the cleaner is always after it.
                    world.publish(name, lease_s=0.000_001 if turn % 2 else LEASE_S, take_over=True)
                    world.clock.advance(0.001)
                    live = world.publish(name, take_over=True)
                    if world.agents.resolve_live_agent_record(name) != live:
                        lost.append(name)
                except Exception as error:
                    lost.append(f"{name}: {error!r}")

        reports: list[CleanupReport] = []

        def cleaner() -> None:
            while not done.is_set():
                reports.append(world.agents.cleanup(grace_s=0, tmux_check=False))

        cleaning = threading.Thread(target=cleaner)
        publishing = [threading.Thread(target=publisher, args=(f"p{n}",)) for n in range(3)]
        for thread in (cleaning, *publishing):
            thread.start()
        for thread in publishing:
            thread.join(PATIENCE_S)
        done.set()
        cleaning.join(PATIENCE_S)
        assert lost == []
        assert reports and not any(report.failed for report in reports)
        assert len(world.agents.list_agents(fresh=True)) == 3


def test_an_agent_as_another_program_left_it_is_judged_by_its_lease(world: World) -> None:
    agent = world.publish(lease_s=10)
    world.put(replace(agent, token=0, agent_id="adopted", agent_name="HOUMAO-gpu"))
    world.clock.advance(11 + GRACE_S)
    assert reasons(world.agents.cleanup().removed) == {
        agent.agent_id: "expired",
        "adopted": "expired",
    }
