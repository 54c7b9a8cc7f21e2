"""Swaps: never under running work, never broken while they live, never left behind when they die.
On every store.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.workflows import Phase, Policy, Preempt, SwapMarker, Workflow, Workflows
from holdfast.domains.workflows.swap import Swap
from holdfast.domains.workflows.wire import (
    CHANGED,
    ONLY,
    SWAP_MARKER,
    topic_of,
)
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import (
    DeadlockDetected,
    EAgain,
    Held,
    InvalidName,
    InvalidValue,
    LeaseLost,
    LockTimeout,
)
from holdfast.kernel.store import Listener
from holdfast.testing import faults
from holdfast.testing.conformance.harness import heard
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S
from tests.unit.swap_world import Swapping, die, lose_lock, stored
from tests.unit.workflows_world import STORES, World, world_on


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def load(world: World, recipe: str) -> None:
    with world.workflows.swap(recipe):
        pass


def marker(world: World) -> SwapMarker | None:
    row = world.store.get(SWAP_MARKER, ONLY)
    return None if row is None else row.record


# --- one swap ---


def test_a_swap_changes_the_current_recipe_when_its_block_ends_well(world: World) -> None:
    with world.workflows.swap("llama") as swap:
        found = marker(world)
        assert found is not None and (found.recipe, found.token, found.holder.pid) == (
            "llama",
            swap.token,
            1,
        )
        assert world.current() is None
        swap.check()
    assert marker(world) is None and world.current() == "llama"
    with world.workflows.swap("qwen"):
        pass
    current = world.workflows.swap_status().current
    assert current is not None and current.by == "p1 (process 1)"
    log = world.workflows.swap_log()
    assert [event.event for event in log] == ["swap_started", "swap_completed"] * 2
    assert [event.recipe for event in log] == ["llama", "llama", "qwen", "qwen"]
    assert {event.who for event in log} == {"p1 (process 1)"} and log[-1].data["before"] == "llama"
    assert world.workflows.swap_log(1) == log[-1:]


def test_after_a_failed_load_it_is_unknown_what_is_loaded(world: World) -> None:
    """The old recipe was still called current, though the load may have thrown it out."""
    load(world, "llama")
    with pytest.raises(RuntimeError):
        with world.workflows.swap("qwen"):
            raise RuntimeError("out of memory")
    assert stored(world) == (None, "qwen") and marker(world) is None
    status = world.workflows.swap_status()
    assert status.current is None and status.unknown is not None
    assert (status.unknown.before, status.unknown.why) == ("llama", "RuntimeError: out of memory")
    assert status.unknown.ended_at is not None and status.unknown.by == "p1 (process 1)"
    last = world.workflows.swap_log()[-1]
    assert (last.event, last.recipe, last.data["why"]) == (
        "swap_failed",
        "qwen",
        "RuntimeError: out of memory",
    )
    assert last.data["unknown"] is True
    with world.workflows.swap("mixtral") as swap:
        swap.fail("exit status 3", exit_status=3)
    assert stored(world) == (None, "mixtral")
    unknown = world.workflows.swap_status().unknown
    assert unknown is not None and (unknown.exit_status, unknown.before) == (3, "llama")
    last = world.workflows.swap_log()[-1]
    assert (last.data["why"], last.data["exit_status"]) == ("exit status 3", 3)
    assert not world.lock.is_held()
    load(world, "llama")
    assert stored(world) == ("llama", None)


def test_while_a_recipe_is_loaded_it_is_unknown_what_is_loaded(world: World) -> None:
    """It is stored before the load begins, so that a swapper which is killed need not say it."""
    load(world, "llama")
    with world.workflows.swap("qwen") as swap:
        assert stored(world) == (None, "qwen")
        unknown = world.workflows.swap_status().unknown
        assert unknown is not None and (unknown.token, unknown.ended_at) == (swap.token, None)
        found = marker(world)
        assert found is not None and found.phase is Phase.LOADING
    assert stored(world) == ("qwen", None)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["is cancelled", "times out", "is refused", "is interrupted"])
def test_a_swap_that_ends_before_its_load_changes_nothing_of_what_is_known(
    world: World, how: str, known: bool
) -> None:
    load(world, "llama")
    if not known:
        world.workflows.swap("mixtral").__enter__().fail("exit status 3", exit_status=3)
    before = world.workflows.swap_status()[0::3]
    if how == "is cancelled":
        with world.workflows.swap("qwen") as swap:
            swap.cancel("no such command")
        assert world.workflows.swap_log()[-1].data["why"] == "no such command"
    elif how == "is interrupted":
        # Between the transaction that begins the load and the block.
        with faults.at_point("swap.drained", _raise), pytest.raises(_Killed):
            world.workflows.swap("qwen").__enter__()
    else:
        world.process(2).register("train", "llama")
        policy = "refuse" if how == "is refused" else "wait"
        with pytest.raises((Held, LockTimeout)):
            world.workflows.swap("qwen", timeout_s=0, policy=policy).__enter__()
    assert world.workflows.swap_status()[0::3] == before
    assert marker(world) is None and not world.lock.is_held()


@pytest.mark.parametrize("begun", [False, True])
def test_the_recipe_that_a_dead_swapper_began_to_load_is_unknown(world: World, begun: bool) -> None:
    load(world, "llama")
    swap = world.process(2).swap("qwen")
    if begun:
        swap.__enter__()
    else:
        with faults.at_point("swap.marked", _raise), pytest.raises(_Killed):
            _without_cleaning_up(swap)
    die(world, 2, swap)
    world.workflows.reconcile_swap_marker()
    assert stored(world) == ((None, "qwen") if begun else ("llama", None))
    last = world.workflows.swap_log()[-1]
    assert (last.event, "unknown" in last.data) == ("orphan_marker_cleared", begun)
    if begun:
        unknown = world.workflows.swap_status().unknown
        assert (
            unknown is not None
            and unknown.ended_at is not None
            and "its holder is dead" in unknown.why
        )


@pytest.mark.parametrize("phase", [None, Phase.BEGUN])
def test_a_dead_swap_of_unknown_progress_may_have_loaded(world: World, phase: Phase | None) -> None:
    """As that of another program, or of an earlier version."""
    load(world, "llama")
    gone = world.machine.begin(2).current()
    world.machine.end(2)
    left = SwapMarker(recipe="qwen", holder=gone, begun_at=world.clock.now(), token=0, phase=phase)
    world.store.transact(lambda tx: tx.put(SWAP_MARKER, ONLY, left), scope=[SWAP_MARKER])
    world.workflows.reconcile_swap_marker()
    assert stored(world) == ((None, "qwen") if phase is None else ("llama", None))


# --- a recipe that is loaded already ---


def test_a_recipe_that_is_loaded_is_not_loaded_again(world: World) -> None:
    load(world, "llama")
    other = world.process(2)
    other.register("tune", "qwen", preemptible=True)
    other.register("train", "qwen")
    with world.workflows.swap("llama", timeout_s=0) as swap:
        assert not swap.needed
        # Nobody is asked to yield, and the recipe stays until the block ends.
        assert [workflow.preempt for workflow in other.list_workflows()] == [Preempt.NONE] * 2
        assert stored(world) == ("llama", None) and world.lock.is_held()
        with pytest.raises(EAgain):
            other.register("late", "qwen")
        with pytest.raises(LockTimeout):
            other.swap("qwen", timeout_s=0).__enter__()
        swap.check()
    assert marker(world) is None and not world.lock.is_held() and stored(world) == ("llama", None)
    assert world.events() == ["swap_started", "swap_completed", "swap_refused", "swap_not_needed"]


def test_a_block_that_was_not_needed_and_raises_has_loaded_nothing(world: World) -> None:
    load(world, "llama")
    with pytest.raises(RuntimeError), world.workflows.swap("llama"):
        raise RuntimeError("something else")
    assert stored(world) == ("llama", None) and marker(world) is None and not world.lock.is_held()


def test_a_swap_that_waited_for_another_to_its_own_recipe_is_not_needed(world: World) -> None:
    with world.workflows.swap("llama"):
        swapping = Swapping(world.process(2), "llama")
    assert swapping.ended().loaded and not swapping.needed
    assert world.events() == ["swap_started", "swap_completed", "swap_not_needed"]


def test_a_reload_waits_for_the_work_that_uses_the_recipe(world: World) -> None:
    load(world, "llama")
    owner = world.process(2)
    token = owner.register("train", "llama").workflow.token
    world.workflows.register("mine", "llama")
    with raises(Held, conflicts=["train"]):
        world.workflows.swap("llama", reload=True, policy="refuse").__enter__()
    assert stored(world) == ("llama", None)
    swapping = Swapping(world.workflows, "llama", reload=True)
    assert [one.name for one in swapping.reported[0] if isinstance(one, Workflow)] == ["train"]
    # Else there would be ever more of it.
    with raises(EAgain, target="llama"):
        world.process(3).register("late", "llama")
    owner.release("train", token)
    assert swapping.ended().loaded and swapping.needed
    assert world.events()[-2:] == ["swap_started", "swap_completed"]


def test_a_reload_of_what_is_not_loaded_is_a_swap(world: World) -> None:
    world.process(2).register("train", "llama")
    with world.workflows.swap("llama", reload=True, timeout_s=0) as swap:
        assert swap.needed
    assert stored(world) == ("llama", None)


@pytest.mark.parametrize("reload", [False, True])
def test_work_that_the_swapper_registers_in_its_block_is_not_swapped_away(
    world: World, reload: bool
) -> None:
    if reload:
        load(world, "llama")
    with world.workflows.swap("llama", reload=reload):
        token = world.workflows.register("mine", "llama").workflow.token
    other = Swapping(world.process(2), "qwen")
    assert stored(world) == ("llama", None)
    world.workflows.release("mine", token)
    assert other.ended().loaded


# --- deadlocks ---


def test_two_processes_that_each_swap_to_the_recipe_they_registered_do_not_wait_for_each_other(
    world: World,
) -> None:
    """Each waited for the other until its time was over."""
    first, second = world.process(2), world.process(3)
    first.register("a", "llama")
    token = second.register("b", "qwen").workflow.token
    swapping = Swapping(first, "llama")
    with pytest.raises(DeadlockDetected) as caught:
        second.swap("qwen").__enter__()
    assert caught.value.fields["target"] == "llama" and caught.value.fields["conflicts"] == ["b"]
    assert (
        caught.value.fields["holder_pid"] == 2
        and "the swap to qwen" in caught.value.fields["cycle"]
    )
    assert swapping.error is None
    second.release("b", token)
    assert swapping.ended().loaded and swapping.error is None
    assert stored(world) == ("llama", None)


def test_a_swap_that_begins_to_wait_ends_the_wait_of_one_whose_work_it_waits_for(
    world: World,
) -> None:
    """The second waits while the first has not yet said that it waits too."""
    first, second = world.process(2), world.process(3)
    first.register("a", "llama")
    second.register("b", "qwen")
    waiting: list[Swapping] = []

    def meet(_: str) -> None:
        waiting.append(Swapping(second, "qwen"))

    with faults.at_point("swap.marked", meet):
        swapping = Swapping(first, "llama")
    assert isinstance(waiting[0].ended().error, DeadlockDetected)
    second.release("b", second.get("b").token)
    assert swapping.ended().loaded


def test_a_swap_without_a_wait_times_out_while_another_runs(world: World) -> None:
    first, second = world.process(2), world.process(3)
    first.register("a", "llama")
    second.register("b", "qwen")
    swapping = Swapping(first, "llama")
    with pytest.raises(LockTimeout):
        second.swap("qwen", timeout_s=0).__enter__()
    second.release("b", second.get("b").token)
    assert swapping.ended().loaded


@pytest.mark.parametrize("any_recipe", [False, True])
def test_a_registration_does_not_wait_for_a_swap_that_waits_for_its_owners_work(
    world: World, any_recipe: bool
) -> None:
    second = world.process(3)
    token = second.register("b", "qwen").workflow.token
    swapping = Swapping(world.process(2), "llama")
    # For another recipe, and for the one that is being loaded.
    with pytest.raises(DeadlockDetected) as caught:
        second.register(
            "c", "mixtral" if any_recipe else "llama", wait_s=PATIENCE_S, loaded_only=not any_recipe
        )
    assert caught.value.fields["conflicts"] == ["b"]
    with pytest.raises(EAgain):
        second.register("c", "mixtral")
    second.release("b", token)
    assert swapping.ended().loaded


@pytest.mark.parametrize("preemptible", [False, True])
def test_a_swap_does_not_wait_for_its_own_work(world: World, preemptible: bool) -> None:
    """It waited for itself until its time was over. Preemptible work has its grace: another thread
    may yield.
    """
    work = world.workflows.register("mine", "qwen", preemptible=preemptible).workflow
    with pytest.raises(DeadlockDetected) as caught:
        world.workflows.swap("llama", grace_s=0, timeout_s=PATIENCE_S).__enter__()
    assert caught.value.fields["conflicts"] == ["mine"]
    assert marker(world) is None and world.signal_files() == []
    assert world.workflows.get("mine").token == work.token


def test_work_of_the_swapper_that_yields_in_its_grace_is_waited_for(world: World) -> None:
    with world.workflows.running("mine", "qwen", preemptible=True) as work:
        swapping = Swapping(world.workflows, "llama", grace_s=PATIENCE_S)
        assert work.preempted.wait(PATIENCE_S)
    assert swapping.ended().loaded


def test_the_work_under_which_a_process_was_started_is_its_own(world: World) -> None:
    """As of `workflows run W -- sh -c 'holdfast swap to ...'`, where the swapper is not the process
    that owns W.
    """
    owner = world.process(2)
    work = owner.register("outer", "qwen").workflow
    inner = world.process(3, within=("outer", work.token))
    with pytest.raises(DeadlockDetected):
        inner.swap("llama").__enter__()
    swapping = Swapping(world.process(4), "llama")
    with pytest.raises(DeadlockDetected):
        inner.swap("qwen").__enter__()
    owner.release("outer", work.token)
    assert swapping.ended().loaded


def test_work_that_keeps_its_recipe_loaded_needs_no_swap_to_it(world: World) -> None:
    """Though another swap waits for that very work."""
    load(world, "qwen")
    owner = world.process(2)
    token = owner.register("train", "qwen").workflow.token
    swapping = Swapping(world.process(3), "llama")
    with owner.swap("qwen") as swap:
        assert not swap.needed
        swap.check()
    assert stored(world) == ("qwen", None) and world.events()[-1] == "swap_not_needed"
    owner.release("train", token)
    assert swapping.ended().loaded


@pytest.mark.parametrize(
    ("recipe", "more", "error"),
    [
        ("", {}, InvalidName),
        ("r", {"grace_s": -1}, InvalidValue),
        ("r", {"timeout_s": float("nan")}, InvalidValue),
        ("r", {"policy": "kill"}, InvalidValue),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_stored(
    world: World, recipe: str, more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        world.workflows.swap(recipe, **more)
    assert world.entries() == []


# --- running work ---


def test_work_with_the_same_recipe_does_not_block(world: World) -> None:
    world.workflows.register("serve", "llama")
    with world.workflows.swap("llama", timeout_s=0):
        pass
    assert [workflow.name for workflow in world.workflows.list_workflows()] == ["serve"]


def test_a_swap_waits_for_work_that_is_not_preemptible(world: World) -> None:
    owner = world.process(2)
    token = owner.register("train", "qwen").workflow.token
    swapping = Swapping(world.workflows, "llama")
    reported = [
        [getattr(one, "recipe", None) for one in reported] for reported in swapping.reported
    ]
    assert reported == [["qwen"]]
    assert world.signal_files() == []
    owner.release("train", token)
    assert swapping.ended().loaded and world.current() == "llama"


@pytest.mark.parametrize("how", ["dies", "expires"])
def test_a_swap_goes_on_when_the_work_it_waits_for_is_over(world: World, how: str) -> None:
    owner = world.process(2)
    owner.register("train", "qwen", ttl_s=0.05 if how == "expires" else 60)
    if how == "expires":
        # The store's clock is the test's, so only moving it ends the time to live.
        swapping = Swapping(world.workflows, "llama")
        world.clock.advance(1)
    else:
        swapping = Swapping(world.workflows, "llama")
        world.machine.end(2)
    assert swapping.ended().loaded and swapping.error is None


def test_preemptible_work_yields_at_its_checkpoint(world: World) -> None:
    owner = world.process(2)
    workflow = owner.register("train", "qwen", preemptible=True).workflow
    swapping = Swapping(world.workflows, "llama", grace_s=PATIENCE_S)
    assert os.path.exists(str(workflow.preempt_signal_path))
    assert owner.preempt_requested("train", workflow.token)
    owner.clear_preempt_signal("train", workflow.token)
    owner.release("train", workflow.token)
    assert swapping.ended().loaded
    assert world.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_yielded",
        "swap_completed",
    ]
    assert [event.recipe for event in world.workflows.swap_log()] == ["llama"] * 4
    assert world.signal_files() == []


def test_work_that_yields_by_its_release_alone_has_yielded(world: World) -> None:
    owner = world.process(2)
    with owner.running("train", "qwen", preemptible=True) as work:
        swapping = Swapping(world.workflows, "llama", grace_s=PATIENCE_S)
        assert work.preempted.wait(PATIENCE_S)
    assert swapping.ended().loaded
    assert world.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_yielded",
        "swap_completed",
    ]


def test_work_that_was_asked_is_woken_when_the_swap_is_over_without_effect(world: World) -> None:
    """It learned of it at a later look, and yielded for nothing until then."""
    world.process(2).register("train", "llama", preemptible=True)
    stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    with world.store.listen([topic_of("train")]) as ears:
        swapping = Swapping(world.workflows, "qwen", grace_s=PATIENCE_S, stop_fd=stop_fd)
        assert heard(ears)
        os.eventfd_write(stop_fd, 1)
        assert isinstance(swapping.ended().error, LockTimeout)
        assert heard(ears)
    os.close(stop_fd)


@pytest.mark.parametrize("how", ["is released", "is swept", "need not yield"])
def test_a_signal_is_taken_back_that_comes_after_the_end_of_what_it_was_for(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swapper makes the file once it is decided, and may be late. It lay there for ever."""
    work = world.process(2).register("train", "llama", preemptible=True).workflow
    signals = world.workflows._context.signals
    give = signals.give

    def late(path: str, name: str, token: int, swap: int) -> str | None:
        monkeypatch.undo()
        if how == "is released":
            world.workflows.release(name, token)
        elif how == "is swept":
            world.machine.end(2)
            world.workflows.sweep()
        else:
            world.workflows.clear_preempt_signal(name, token)
        return give(path, name, token, swap)

    monkeypatch.setattr(signals, "give", late)
    world.workflows.request_preempt(work.name)
    assert world.signal_files() == []


def test_work_that_ignores_the_signal_is_reported_and_waited_for(world: World) -> None:
    owner = world.process(2)
    token = owner.register("train", "qwen", preemptible=True).workflow.token
    swapping = Swapping(world.workflows, "llama", grace_s=0)
    (reported,) = swapping.reported[0]
    assert isinstance(reported, Workflow) and reported.preempt is Preempt.IGNORED
    owner.release("train", token)
    assert swapping.ended().loaded
    assert world.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_ignored",
        "preempt_yielded",
        "swap_completed",
    ]


def test_work_that_ignores_the_signal_is_refused_by_policy(world: World) -> None:
    world.process(2).register("train", "qwen", preemptible=True)
    with raises(Held, conflicts=["train"]) as caught:
        with world.workflows.swap("llama", grace_s=0, policy="refuse"):
            raise AssertionError("it must not begin")
    assert caught.value.fields["conflicts"] == ["train"]
    assert world.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_ignored",
        "swap_refused",
    ]
    # The requests to yield of the swap are withdrawn.
    assert world.signal_files() == []
    assert world.workflows.get("train").preempt is Preempt.NONE
    assert marker(world) is None and not world.lock.is_held()


def test_a_refusal_asks_nobody_to_yield(world: World) -> None:
    world.process(2).register("train", "qwen")
    world.process(3).register("tune", "qwen", preemptible=True)
    with raises(Held, conflicts=["train"]):
        world.workflows.swap("llama", policy=Policy.REFUSE).__enter__()
    assert world.workflows.get("tune").preempt is Preempt.NONE
    assert world.events() == ["swap_started", "swap_refused"]


def test_a_swap_gives_up_at_its_time_limit_and_has_changed_nothing(world: World) -> None:
    world.process(2).register("train", "qwen", preemptible=True)
    with raises(LockTimeout, conflicts=["train"], outcome="none") as caught:
        world.workflows.swap("llama", timeout_s=0.01).__enter__()
    assert caught.value.fields["outcome"] == "none"
    (holder,) = caught.value.fields["holders"]
    assert (holder["by"], holder["recipe"], holder["process"]["pid"]) == ("train", "qwen", 2)
    assert holder["since"] == to_plain(world.workflows.get("train").started_at)
    assert world.current() is None and marker(world) is None
    assert world.workflows.get("train").preempt is Preempt.NONE and world.signal_files() == []
    assert world.process(4).register("x", "other").swap_needed


def test_work_that_says_it_yields_and_stays_is_reported_too(world: World) -> None:
    owner = world.process(2)
    workflow = owner.register("train", "qwen", preemptible=True).workflow
    world.workflows.request_preempt("train")
    owner.clear_preempt_signal("train", workflow.token)
    with raises(LockTimeout, conflicts=["train"], outcome="none"):
        world.workflows.swap("llama", grace_s=0, timeout_s=0).__enter__()


# --- swaps among each other, and the death of one ---


def test_swaps_take_turns(world: World) -> None:
    other = world.process(2)
    with world.workflows.swap("llama"):
        swapping = Swapping(other, "qwen")
        (reported,) = swapping.reported[0]
        assert isinstance(reported, SwapMarker) and reported.recipe == "llama"
        with raises(LockTimeout, target="llama", outcome="none") as caught:
            other.swap("third", timeout_s=0).__enter__()
        (holder,) = caught.value.fields["holders"]
        assert (holder["recipe"], holder["since"], holder["process"]["pid"]) == (
            "llama",
            to_plain(reported.begun_at),
            1,
        )
    assert swapping.ended().loaded
    assert world.current() == "qwen"
    assert world.events() == [
        "swap_started",
        "swap_refused",
        "swap_completed",
        "swap_started",
        "swap_completed",
    ]


def test_many_swaps_at_once_are_one_after_the_other(world: World) -> None:
    inside: list[str] = []
    most: list[int] = []

    def one(number: int, workflows: Workflows) -> None:
        with workflows.swap(f"r{number}", timeout_s=PATIENCE_S):
            inside.append(f"r{number}")
            most.append(len(inside))
            inside.remove(f"r{number}")

    threads = [
        threading.Thread(target=one, args=(number, world.process(10 + number)))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1] * 6
    events = world.events()
    assert [event for event in events if event != "swap_refused"] == [
        "swap_started",
        "swap_completed",
    ] * 6


def test_leftovers_of_a_dead_swapper_are_cleared_once_by_the_next_reader(world: World) -> None:
    swapper = world.process(2)
    owner = world.process(3)
    owner.register("tune", "qwen", preemptible=True)
    swapping = swapper.swap("llama", grace_s=PATIENCE_S, timeout_s=PATIENCE_S)
    with faults.at_point("swap.asked", _raise):
        with pytest.raises(_Killed):
            _without_cleaning_up(swapping)
    assert world.signal_files() != []
    die(world, 2, swapping)
    readers = [world.process(20 + number) for number in range(8)]
    barrier = threading.Barrier(len(readers))

    def read(reader: Workflows) -> None:
        barrier.wait(PATIENCE_S)
        assert reader.swap_status().marker is None

    _all(read, readers)
    assert world.events().count("orphan_marker_cleared") == 1
    last = world.workflows.swap_log()[-1]
    assert (last.recipe, last.who, last.data["why"]) == (
        "llama",
        "p2 (process 2)",
        "its holder is dead",
    )
    assert world.workflows.get("tune").preempt is Preempt.NONE and world.signal_files() == []
    assert world.process(40).register("new", "other").swap_needed


def test_a_swapper_that_lives_without_the_lock_is_cleared_too_and_cannot_complete(
    world: World,
) -> None:
    swapper = world.process(2)
    swap = swapper.swap("llama").__enter__()
    lose_lock(swap)
    with pytest.raises(LeaseLost):
        swap.check()
    # The question was itself a change, and has cleared it.
    assert world.workflows.reconcile_swap_marker() == (None, None)
    with raises(LeaseLost, recipe="llama"):
        swap.__exit__(None, None, None)
    assert world.current() is None
    assert world.workflows.swap_log()[-1].data["why"] == "its holder does not have the swap lock"


def test_a_swapper_that_was_succeeded_cannot_complete(world: World) -> None:
    first, second = world.process(2), world.process(3)
    swap = first.swap("llama").__enter__()
    lose_lock(swap)
    with second.swap("qwen"):
        pass
    with pytest.raises(LeaseLost):
        swap.__exit__(None, None, None)
    assert world.current() == "qwen"
    assert world.events() == [
        "swap_started",
        "orphan_marker_cleared",
        "swap_started",
        "swap_completed",
    ]


def test_a_lock_that_passed_to_another_is_not_the_swappers(world: World) -> None:
    swap = world.process(2).swap("llama").__enter__()
    lose_lock(swap)
    other = world.lock.contender()
    assert other.try_take()
    with pytest.raises(LeaseLost):
        swap.__exit__(None, None, None)
    assert world.current() is None
    other.close()


def test_the_lock_alone_completes_nothing_under_anothers_marker(world: World) -> None:
    swap = world.process(2).swap("llama").__enter__()
    held = marker(world)
    assert held is not None
    foreign = replace(held, token=held.token + 1, recipe="other")
    world.store.transact(lambda tx: tx.put(SWAP_MARKER, ONLY, foreign), scope=[SWAP_MARKER])
    with pytest.raises(LeaseLost):
        swap.__exit__(None, None, None)
    assert world.current() is None


def test_a_waiter_is_woken_again_when_the_lock_is_free(world: World) -> None:
    """Woken for the marker alone, it may come too early for the lock."""
    listeners: list[Listener] = []
    with faults.at_point(
        "swap.released", lambda _: listeners.append(world.store.listen([CHANGED]))
    ):
        with world.workflows.swap("llama"):
            pass
    with listeners[0] as ears:
        assert heard(ears)


def test_a_live_swapper_is_never_broken_by_readers_at_the_hand_over_between_two(
    world: World,
) -> None:
    """Readers look all the time while two swappers hand over to each other, again and again."""
    over = threading.Event()
    readers = [world.process(20 + number) for number in range(3)]
    swappers = [world.process(2), world.process(3)]
    wrong: list[BaseException] = []

    def read(reader: Workflows) -> None:
        while not over.is_set():
            reader.reconcile_swap_marker()

    def swap(swapper: Workflows) -> None:
        for _ in range(6):
            with swapper.swap("llama", timeout_s=PATIENCE_S, reload=True) as entered:
                entered.check()

    watching = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in watching:
        thread.start()
    try:
        _all(swap, swappers)
    except BaseException as error:
        wrong.append(error)
    over.set()
    for thread in watching:
        thread.join(PATIENCE_S)
    assert wrong == []
    events = world.events()
    assert events.count("swap_completed") == 12
    assert "orphan_marker_cleared" not in events


def test_a_marker_of_another_boot_or_pid_is_no_live_swap(world: World) -> None:
    swapper = world.process(2)
    swap = swapper.swap("llama").__enter__()
    die(world, 2, swap)
    # Another process with the same pid, and even with the lock.
    world.process(2)
    contender = world.lock.contender()
    assert contender.try_take()
    live, cleared = world.workflows.reconcile_swap_marker()
    assert live is None and cleared is not None and cleared.token == swap.token
    contender.close()


def test_a_swapper_on_another_machine_counts_as_long_as_it_has_the_lock(world: World) -> None:
    with world.workflows.swap("llama") as swap:
        held = marker(world)
        assert held is not None
        away = replace(held, holder=replace(held.holder, host_id="host-9"))
        world.store.transact(lambda tx: tx.put(SWAP_MARKER, ONLY, away), scope=[SWAP_MARKER])
        with pytest.raises(EAgain):
            world.process(2).register("x", "qwen")
        swap.check()
    assert world.current() == "llama"


class _Killed(BaseException):
    pass


def _raise(_: str) -> None:
    raise _Killed


def _without_cleaning_up(swap: Swap) -> None:
    """Enter a swap that is killed on the way: nothing of its own cleaning up happens."""
    swap._end = lambda *_, **__: None  # type: ignore[method-assign]
    swap.__enter__()


def _all(work: Callable[[Workflows], None], workers: Sequence[Workflows]) -> None:
    wrong: list[BaseException] = []

    def one(worker: Workflows) -> None:
        try:
            work(worker)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert wrong == []


def test_a_beginning_that_has_to_be_run_again_is_not_kept_out_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a connection is lost before its commit: the first run took the lock, beside an
    orphaned marker.
    """
    lost = world.process(2).swap("B").__enter__()
    lose_lock(lost)
    transact, runs = world.store.transact, 0

    class Undone(Exception):
        pass

    def twice(body: Callable[[Any], Any], **more: Any) -> Any:
        def undone(tx: Any) -> Any:
            body(tx)
            raise Undone

        nonlocal runs
        runs += 1
        if runs == 1:
            with pytest.raises(Undone):
                transact(undone, **more)
        return transact(body, **more)

    swap = world.process(3).swap("C", timeout_s=PATIENCE_S)
    monkeypatch.setattr(world.store, "transact", twice)
    with swap:
        assert marker(world) is not None
    assert world.current() == "C"
    assert world.events() == [
        "swap_started",
        "orphan_marker_cleared",
        "swap_started",
        "swap_completed",
    ]


def test_a_swap_that_is_interrupted_at_its_end_releases_its_lock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C pressed twice, in a program that lives on: nobody could swap as long as it did."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    swap = world.process(2).swap("B").__enter__()
    monkeypatch.setattr(world.store, "transact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swap.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    monkeypatch.undo()
    with world.process(3).swap("C", timeout_s=0):
        pass
    assert world.current() == "C"


def test_what_ignored_an_operator_is_given_time_again_by_the_next_swap(world: World) -> None:
    """It counted as unwilling for ever, though it yields to the next swap."""
    work = world.process(2)
    token = work.register("w", "A", preemptible=True).workflow.token
    work.request_preempt("w")
    with pytest.raises(LockTimeout):
        world.process(3).swap("B", grace_s=0, timeout_s=0).__enter__()
    assert work.get("w").preempt is Preempt.REQUESTED
    assert work.clear_preempt_signal("w", token).preempt is Preempt.YIELDED
    # It continued instead of leaving; a swap asks it again, and this time it leaves.
    seen = []

    def leave(_: object) -> None:
        seen.append(work.get("w").preempt)
        if work.preempt_requested("w", token):
            work.release("w", token)

    with world.process(4).swap("B", grace_s=PATIENCE_S, timeout_s=PATIENCE_S, on_wait=leave):
        pass
    assert seen[0] is Preempt.REQUESTED
    assert world.current() == "B"


def test_one_that_yields_late_has_yielded(world: World) -> None:
    """The swap that still waited for it said at once that it had not."""
    work = world.process(2)
    token = work.register("w", "A", preemptible=True).workflow.token
    seen = []

    def late(_: object) -> None:
        state = work.get("w").preempt
        seen.append(state)
        if state is Preempt.IGNORED:
            work.clear_preempt_signal("w", token)
            work.renew("w", token)
        elif state is Preempt.YIELDED:
            work.release("w", token)

    with world.process(3).swap("B", grace_s=0, timeout_s=PATIENCE_S, on_wait=late):
        pass
    assert seen[-2:] == [Preempt.IGNORED, Preempt.YIELDED]
    assert world.events().count("preempt_ignored") == 1


@pytest.mark.parametrize("behind", ["work", "a swap"])
def test_a_swap_that_is_stopped_leaves_nothing_behind(world: World, behind: str) -> None:
    stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    other = world.process(2)
    if behind == "work":
        other.register("tuning", "qwen")
        swapping = Swapping(world.workflows, "llama", stop_fd=stop_fd)
        os.eventfd_write(stop_fd, 1)
        assert isinstance(swapping.ended().error, LockTimeout)
        assert world.workflows.swap_status().marker is None
    else:
        with other.swap("qwen", timeout_s=PATIENCE_S):
            swapping = Swapping(world.workflows, "llama", stop_fd=stop_fd)
            os.eventfd_write(stop_fd, 1)
            assert isinstance(swapping.ended().error, LockTimeout)
        current = world.workflows.swap_status().current
        assert current is not None
        assert current.recipe == "qwen"
    os.close(stop_fd)
