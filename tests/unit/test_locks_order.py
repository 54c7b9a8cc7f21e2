"""Who goes next: arrival, priority and ageing, backfill and its bound, false cycles that are passed
and real ones that are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import DeadlockDetected
from holdfast.kernel.limits import BACKFILL_MAX, LOCK_PRIORITY_AGE_S
from holdfast.primitives.locks import Grant, Locks
from tests.harness.errors import raises
from tests.harness.stores import STORES
from tests.harness.waiter import Waiter
from tests.unit.lock_world import World, world_of


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world whose clock moves only on request."""
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def locks(world: World) -> Locks:
    return world.locks


def served(world: World, held: Grant, waiting: dict[str, Waiter[Grant]]) -> list[str]:
    """Release, and let each next holder do the same, until all had their turn; return the
    order.
    """
    name = held.names[0]
    order = []
    world.locks.release(held)
    while waiting:
        (next_one,) = world.holders(name)
        order.append(next_one)
        world.locks.release(waiting.pop(next_one).result())
    return order


def wear_out(world: World, name: str, **more: Any) -> None:
    """Pass the waiters for a name as often as that is allowed."""
    for number in range(BACKFILL_MAX):
        world.use(name, by=f"passing{number}", **more)
    assert world.locks.try_acquire(name, by="one too many", **more) is None


# --- arrival and priority ---


def test_the_first_to_come_is_the_first_to_be_served(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    names = [f"j{number}" for number in range(6)]
    waiting = {by: world.line_up("a", by=by) for by in names}
    assert world.queue("a") == names
    assert served(world, held, waiting) == names
    assert world.rows() == []


def test_a_higher_priority_goes_first_and_equal_ones_by_arrival(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = {
        by: world.line_up("a", by=by, priority=priority)
        for by, priority in [
            ("low", -1),
            ("first", 0),
            ("second", 0),
            ("high", 2),
            ("high too", 2),
            ("third", 0),
        ]
    }
    expected = ["high", "high too", "first", "second", "third", "low"]
    assert world.queue("a") == expected
    assert [request.priority for request in locks.status("a").queue] == [2, 2, 0, 0, 0, -1]
    assert served(world, held, waiting) == expected


@pytest.mark.parametrize(
    ("waited_s", "first"),
    [
        (LOCK_PRIORITY_AGE_S - 0.000_001, "urgent"),
        (LOCK_PRIORITY_AGE_S, "patient"),
        (LOCK_PRIORITY_AGE_S + 1, "patient"),
    ],
)
def test_a_step_of_priority_is_worth_a_fixed_time_of_waiting(
    timed: World, waited_s: float, first: str
) -> None:
    held = timed.locks.acquire("a", by="holder")
    patient = timed.line_up("a", by="patient")
    timed.clock.advance(waited_s)
    urgent = timed.line_up("a", by="urgent", priority=1)
    order = served(timed, held, {"patient": patient, "urgent": urgent})
    assert order[0] == first


def test_nothing_starves_under_a_stream_of_urgent_requests(timed: World) -> None:
    """Each takes its turn when its turn comes; new urgent ones come all the time."""
    held = timed.locks.acquire("a", by="holder")
    patient = timed.line_up("a", by="patient")
    turns = 0
    while timed.queue("a") and turns < 20:
        urgent = timed.line_up("a", by=f"urgent{turns}", priority=3)
        timed.locks.release(held)
        if timed.holders("a") == ["patient"]:
            break
        held = urgent.result()
        timed.clock.advance(4)
        turns += 1
    # Three steps are worth 30 seconds: those that came within so many after it, and no later one.
    assert turns == 8
    timed.locks.release(patient.result())
    urgent.result()


def test_a_clock_stepped_back_lets_nobody_overtake(timed: World) -> None:
    held = timed.locks.acquire("a", by="holder")
    names = []
    waiting = {}
    for number, step_s in enumerate([0, -3600, 1, 7200, -5, -86400]):
        timed.clock.advance(step_s)
        names.append(f"j{number}")
        waiting[names[-1]] = timed.line_up("a", by=names[-1])
    assert timed.queue("a") == names
    assert served(timed, held, waiting) == names


def test_a_clock_stepped_back_lets_nobody_overtake_where_priorities_differ(timed: World) -> None:
    """The last in line need not be the last that came."""
    held = timed.locks.acquire("a", by="holder")
    waiting = {"low": timed.line_up("a", by="low", priority=-100)}
    timed.clock.advance(60)
    waiting["first"] = timed.line_up("a", by="first")
    timed.clock.advance(-3600)
    waiting["second"] = timed.line_up("a", by="second")
    assert served(timed, held, waiting) == ["first", "second", "low"]


def test_a_clock_stepped_back_lets_nobody_overtake_on_another_name(timed: World) -> None:
    held = timed.locks.acquire(["a", "b"], by="holder")
    both = timed.line_up(["a", "b"], by="both")
    timed.clock.advance(-3600)
    other = timed.line_up("b", by="other")
    assert timed.queue("b") == ["both", "other"]
    timed.locks.release(held)
    timed.locks.release(both.result())
    other.result()


# --- backfill ---


def test_a_request_without_a_conflict_ahead_passes_without_a_bound(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="holder")
    waiting = world.line_up(["a", "b"], by="head")
    for number in range(3 * BACKFILL_MAX):
        world.use("c", by=f"j{number}")
    wear_out(world, "b")
    locks.release(held)
    waiting.result()


def test_a_blocked_set_is_passed_on_its_free_part_a_bounded_number_of_times(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="holder")
    head = world.line_up(["a", "b", "c"], by="head")
    # However they come, on whichever of its names: they are counted together.
    for number in range(BACKFILL_MAX):
        world.use("bc"[number % 2], by=f"j{number}")
    assert locks.try_acquire("b", by="late") is None
    assert locks.try_acquire("c", by="late") is None
    late = world.line_up("b", by="late")
    locks.release(held)
    assert world.holders("b") == ["head"]
    locks.release(head.result())
    late.result()


def test_a_waiting_exclusive_request_is_passed_by_sharers_a_bounded_number_of_times(
    world: World, locks: Locks
) -> None:
    sharers = [locks.acquire("a", by="first", mode="shared")]
    alone = world.line_up("a", by="alone")
    while (
        len(sharers) < 20
        and (grant := locks.try_acquire("a", by=f"s{len(sharers)}", mode="shared")) is not None
    ):
        sharers.append(grant)
    assert len(sharers) == 1 + BACKFILL_MAX
    late = world.line_up("a", by="late", mode="shared")
    for grant in sharers:
        assert alone.waits
        locks.release(grant)
    assert world.holders("a") == ["alone"]
    locks.release(alone.result())
    late.result()


def test_each_waiting_request_is_counted_for_itself(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "x"], by="holder")
    one = world.line_up(["a", "b"], by="one")
    for number in range(BACKFILL_MAX - 1):
        world.use("b", by=f"j{number}")
    two = world.line_up(["x", "b"], by="two")
    # The first has one left and the second all; passing both uses up the first.
    world.use("b", by="last")
    assert locks.try_acquire("b", by="late") is None
    # Once the first has gone, the second still lets some pass.
    locks.free("a", by="holder")
    locks.release(one.result())
    for number in range(BACKFILL_MAX - 1):
        world.use("b", by=f"k{number}")
    assert locks.try_acquire("b", by="late") is None
    locks.release(held)
    two.result()


def test_backfill_happens_at_a_release_too(world: World, locks: Locks) -> None:
    """Those in line behind a blocked head go when what they wait for is free."""
    locks.acquire("a", by="holder")
    b = locks.acquire("b", by="holder")
    head = world.line_up(["a", "b"], by="head")
    behind = world.line_up("b", by="behind")
    locks.release(b)
    locks.release(behind.result())
    assert head.waits
    locks.free("a", by="holder")
    head.result()


def test_a_release_grants_every_waiter_that_can_go(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "b", "c"], by="holder")
    waiting = [
        world.line_up(["a", "b"], by="ab"),
        world.line_up(["b", "c"], by="bc"),
        world.line_up("c", by="c"),
        world.line_up("c", by="c2"),
    ]
    locks.release(held)
    # `bc` cannot, for `b` is taken; it is passed on `c` by one, behind whom the last waits.
    assert [world.holders(name) for name in "abc"] == [["ab"], ["ab"], ["c"]]
    locks.release(waiting[0].result())
    locks.release(waiting[2].result())
    assert [world.holders(name) for name in "abc"] == [[], ["bc"], ["bc"]]
    locks.release(waiting[1].result())
    waiting[3].result()


# --- cycles that nobody meant ---


def test_a_job_passes_those_that_wait_for_it(world: World, locks: Locks) -> None:
    """It holds `a` and asks for `b`, while an earlier request for both waits: to queue behind that
    would close a cycle.
    """
    first = locks.acquire("a", by="job")
    both = world.line_up(["a", "b"], by="both")
    wear_out(world, "b")
    second = locks.acquire("b", by="job", timeout_s=0)
    assert both.waits
    locks.release(second)
    locks.release(first)
    both.result()


def test_a_job_passes_those_that_wait_for_it_through_others(world: World, locks: Locks) -> None:
    first = locks.acquire("a", by="job")
    locks.acquire("c", by="middle")
    middle = world.line_up("a", by="middle")
    both = world.line_up(["b", "c"], by="both")
    wear_out(world, "b")
    second = locks.acquire("b", by="job", timeout_s=0)
    locks.release(second)
    locks.release(first)
    middle.result()
    locks.free(["a", "c"], by="middle")
    both.result()


def test_a_job_passes_those_that_wait_for_it_through_a_place_in_a_queue(
    world: World, locks: Locks
) -> None:
    """`tail` waits behind `both`, which waits for the job; neither holds anything."""
    locks.acquire("a", by="job")
    both = world.line_up(["a", "b"], by="both")
    wear_out(world, "b")
    tail = world.line_up(["b", "c"], by="tail")
    wear_out(world, "c")
    granted = locks.acquire("c", by="job", timeout_s=0)
    locks.release(granted)
    locks.free("a", by="job")
    locks.release(both.result())
    tail.result()


def test_a_wait_that_closes_such_a_cycle_lets_the_other_go_at_once(
    world: World, locks: Locks
) -> None:
    """The job is in line already when those ahead of it come to wait for it."""
    locks.acquire("a", by="job")
    locks.acquire("c", by="middle")
    both = world.line_up(["b", "c"], by="both")
    wear_out(world, "b")
    job = world.line_up("b", by="job")
    middle = world.line_up("a", by="middle")
    job.result()
    assert both.waits
    locks.free(["a", "b"], by="job")
    middle.result()
    locks.free(["a", "c"], by="middle")
    both.result()
    assert world.queue("b") == []


def test_no_order_of_names_makes_two_sets_deadlock(world: World, locks: Locks) -> None:
    one = locks.acquire(["a", "b"], by="one")
    two = world.line_up(["b", "a"], by="two")
    three = world.line_up(["a", "b"], by="three")
    locks.release(one)
    locks.release(two.result())
    three.result()


# --- real cycles ---


def test_crossed_locks_are_a_deadlock_that_the_younger_gets_at_once(
    world: World, locks: Locks
) -> None:
    locks.acquire("a", by="one")
    two = locks.acquire("b", by="two")
    older = world.line_up("b", by="one")
    with pytest.raises(DeadlockDetected) as caught:
        locks.acquire(["a", "z"], by="two", timeout_s=None)
    assert caught.value.message.startswith(
        "two would wait for ever: two waits for a, held by one; one waits for b, held by two."
    )
    assert caught.value.fields == {
        "by": "two",
        "names": ["a", "z"],
        "cycle": "two waits for a, held by one; one waits for b, held by two",
    }
    # It keeps what it held, waits for nothing, and the other continues as soon as it releases.
    two.check()
    assert world.queue("a") == world.queue("z") == []
    locks.release(two)
    older.result()


def test_a_cycle_of_three_names_all_three(world: World, locks: Locks) -> None:
    for by, name in (("one", "a"), ("two", "b"), ("three", "c")):
        locks.acquire(name, by=by)
    waiting = [world.line_up("b", by="one"), world.line_up("c", by="two")]
    with pytest.raises(DeadlockDetected) as caught:
        locks.acquire("a", by="three")
    assert caught.value.fields["cycle"] == (
        "three waits for a, held by one; one waits for b, held by two; two waits for c, held by "
        "three"
    )
    locks.free("c", by="three")
    locks.release(waiting[1].result())
    locks.free("b", by="two")
    waiting[0].result()


def test_a_cycle_through_one_of_many_sharers_is_found(world: World, locks: Locks) -> None:
    for number in range(3):
        locks.acquire("a", by=f"s{number}", mode="shared")
    locks.acquire("b", by="job")
    sharer = world.line_up("b", by="s1")
    with raises(DeadlockDetected, cycle="job waits for a, held by s1; s1 waits for b, held by job"):
        locks.acquire("a", by="job")
    locks.free("b", by="job")
    sharer.result()


def test_a_wait_for_a_chain_that_ends_is_no_deadlock(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    locks.acquire("c", by="three")
    chain = [
        world.line_up("c", by="two"),
        world.line_up("b", by="one"),
        world.line_up("a", by="four"),
    ]
    locks.free("c", by="three")
    chain[0].result()
    locks.free(["b", "c"], by="two")
    chain[1].result()
    locks.free(["a", "b"], by="one")
    chain[2].result()


def test_a_grant_to_one_thread_can_close_a_cycle_and_the_youngest_is_refused(
    world: World, locks: Locks
) -> None:
    """A job of two threads waits for `b`, and comes to hold what the holder of `b` waits for."""
    held = locks.acquire("c", by="holder")
    locks.acquire("b", by="other")
    other = world.line_up("c", by="other")
    one_thread = world.line_up("b", by="job")
    another = world.line_up("c", by="job", priority=5)
    locks.release(held)
    another.result()
    with pytest.raises(DeadlockDetected) as caught:
        one_thread.result()
    assert caught.value.fields["by"] == "job"
    assert "job waits for b, held by other" in caught.value.message
    assert "other waits for c, held by job" in caught.value.message
    locks.free("c", by="job")
    other.result()
    assert world.queue("b") == []
    locks.free(["b", "c"], by="other")
    assert world.rows() == []


def test_a_cycle_through_the_dead_is_no_deadlock(world: World, locks: Locks) -> None:
    """Crossed locks, of which one process was killed while it waited: the other gets what the dead
    one held.
    """
    locks.acquire("a", by="job")
    world.process(2).acquire("b", by="dead")
    world.leave_in_line("a", by="dead", pid=3)
    world.machine.end(2)
    world.machine.end(3)
    locks.acquire("b", by="job").check()
    assert world.queue("a") == []


def test_a_cycle_through_a_lease_that_is_over_is_no_deadlock(timed: World) -> None:
    timed.locks.acquire("a", by="job")
    timed.locks.acquire("b", by="other", ttl_s=5)
    other = timed.line_up("a", by="other")
    timed.clock.advance(6)
    timed.locks.acquire("b", by="job").check()
    timed.locks.free("a", by="job")
    other.result()
