"""Work and swaps whose holders are process trees, as seen from the same machine and from another.
On every store.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.workflows import SwapMarker, Workflows
from holdfast.domains.workflows.records import OrphanLoad, UnseenLoads
from holdfast.domains.workflows.wire import ONLY, SWAP_MARKER
from holdfast.kernel.errors import EAgain, Held, LockTimeout
from holdfast.kernel.holder import Survivor
from tests.harness.machine import Machine, Trees, TreeTable
from tests.harness.timeouts import PATIENCE_S
from tests.unit.swap_world import Swapping, die, lose_lock, stored
from tests.unit.workflows_world import STORES, World, seen_by, world_on

TREE = "0-2-1001-00112233445566ff"


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def process(world: World, trees: Trees, pid: int, machine: Machine | None = None) -> Workflows:
    """The workflows as a new process of a machine with trees sees them."""
    place = machine or world.machine
    place.begin(pid)
    seat: Any = TreeTable(place, pid, trees)
    signals = world.folder / "signals"
    return seen_by(
        seat,
        world.real_store,
        world.store,
        world.journal,
        lock=world.lock,
        signals=signals,
        label=f"p{pid}",
    )


def begun(world: World, swapper: Workflows, pid: int) -> SwapMarker:
    """A swap whose process is killed while its command loads; its marker."""
    swap = swapper.swap("llama", tree=TREE).__enter__()
    row = world.store.get(SWAP_MARKER, ONLY)
    assert row is not None and row.record.holder.tree == TREE
    die(world, pid, swap)
    return row.record  # type: ignore[no-any-return]


# --- work ---


def test_the_time_of_work_counts_only_where_its_tree_cannot_be_seen(world: World) -> None:
    trees = Trees(TREE)
    here = process(world, trees, 2)
    elsewhere = process(world, Trees(), 3, Machine("host-2"))
    owner = replace(here._context.processes.current(), tree=TREE)
    here.register("tune", "qwen", owner=owner, ttl_s=1)
    world.machine.end(2)
    world.clock.advance(10)
    assert [one.name for one in process(world, trees, 4).list_workflows()] == ["tune"]
    assert [one.name for one in elsewhere.sweep()] == ["tune"]


def test_work_ends_with_its_tree(world: World) -> None:
    trees = Trees(TREE)
    here = process(world, trees, 2)
    here.register("tune", "qwen", owner=replace(here._context.processes.current(), tree=TREE))
    world.machine.end(2)
    waits = Swapping(process(world, trees, 3), "llama")
    trees.end(TREE)
    assert waits.ended().loaded


# --- swaps ---


def test_a_swap_whose_process_is_dead_is_over_when_its_tree_is(world: World) -> None:
    trees = Trees(TREE)
    left = begun(world, process(world, trees, 2), 2)
    looker = process(world, trees, 3)
    assert looker.reconcile_swap_marker() == (left, None)
    assert looker.orphan_load(left) == OrphanLoad(left, [Survivor(7, "load.sh")], None)
    with pytest.raises(EAgain, match="was killed, and its load still runs"):
        looker.register("x", "qwen")
    with pytest.raises(Held, match="1 process of its load lives: 7 load") as refused:
        looker.swap("qwen", policy="refuse").__enter__()
    assert refused.value.fields["survivors"] == [7]
    with pytest.raises(LockTimeout, match="7 load"):
        looker.swap("qwen", timeout_s=0).__enter__()
    assert trees.asked == []
    waits = Swapping(process(world, trees, 4), "qwen")
    assert waits.reported == [[OrphanLoad(left, [Survivor(7, "load.sh")], None)]]
    assert trees.was_asked.wait(PATIENCE_S) and trees.asked == [TREE]
    trees.end(TREE)
    assert waits.ended().loaded
    assert stored(world) == ("qwen", None) and world.events().count("orphan_marker_cleared") == 1


def test_a_swap_that_waits_learns_that_the_process_of_the_other_is_dead(
    world: World, no_second_look: None
) -> None:
    trees = Trees(TREE)
    swap = process(world, trees, 2).swap("llama", tree=TREE).__enter__()
    waits = Swapping(process(world, trees, 3), "qwen")
    assert isinstance(waits.reported[0][0], SwapMarker)
    die(world, 2, swap)
    assert trees.was_asked.wait(PATIENCE_S)
    trees.end(TREE)
    assert waits.ended().loaded and isinstance(waits.reported[1][0], OrphanLoad)


def test_a_swap_that_lives_without_the_lock_goes_on_until_its_tree_has_ended(world: World) -> None:
    """As when its session with the database has ended: it ends its load, and then itself."""
    trees = Trees(TREE)
    swap = process(world, trees, 2).swap("llama", tree=TREE).__enter__()
    lose_lock(swap)
    looker = process(world, trees, 3)
    live, cleared = looker.reconcile_swap_marker()
    assert live is not None and cleared is None and looker.orphan_load(live) is None
    with pytest.raises(LockTimeout):
        looker.swap("qwen", timeout_s=0).__enter__()
    assert trees.asked == []
    swap.fail("it was lost")
    assert looker.reconcile_swap_marker() == (None, None)


def test_a_load_out_of_sight_is_believed_for_a_time_after_its_lock_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("host-2")
    swap = process(world, Trees(TREE), 2, machine).swap("llama", tree=TREE).__enter__()
    here, trees = process(world, Trees(), 3), Trees()
    assert here.swap_status().marker is not None
    lose_lock(swap)
    now_s = [100.0]
    monkeypatch.setattr("holdfast.domains.workflows.records.time.monotonic", lambda: now_s[0])
    for _ in range(2):
        live, cleared = here.reconcile_swap_marker()
        assert live is not None and cleared is None
    assert live is not None
    assert here.orphan_load(live) == OrphanLoad(live, (), 20.0)
    with pytest.raises(Held, match="may run for 20 s more"):
        here.swap("qwen", policy="refuse").__enter__()
    now_s[0] += 19
    assert here.reconcile_swap_marker() == (live, None)
    # Each process has to have seen it for that long itself.
    other = process(world, trees, 4)
    now_s[0] += 2
    assert other.reconcile_swap_marker() == (live, None)
    assert here.reconcile_swap_marker() == (None, live)
    assert stored(world) == (None, "llama") and trees.asked == []
    machine.close()


def test_a_swap_waits_out_a_load_that_it_cannot_see(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.domains.workflows.records.SWAP_LOAD_UNSEEN_S", 0.2)
    machine = Machine("host-2")
    swap = process(world, Trees(TREE), 2, machine).swap("llama", tree=TREE).__enter__()
    lose_lock(swap)
    waits = Swapping(process(world, Trees(), 3), "qwen")
    assert isinstance(waits.reported[0][0], OrphanLoad) and waits.reported[0][0].left_s is not None
    assert waits.ended().loaded
    machine.close()


def test_a_load_that_is_observed_again_counts_again() -> None:
    unseen = UnseenLoads()
    assert unseen.left_s(3) is None
    assert 19 < unseen.note(3) <= 20
    unseen.forget()
    assert unseen.left_s(3) is None
    unseen.note(3)
    unseen.note(4)
    assert unseen.left_s(3) is None
