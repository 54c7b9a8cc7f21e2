"""Locks: sets, modes, ownership, blocks and waits, as a caller sees them, on every store."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import (
    DeadlockDetected,
    InvalidValue,
    LeaseLost,
    LockTimeout,
    Lost,
)
from holdfast.kernel.limits import BACKFILL_MAX, LOCK_NAMES_MAX, LOCK_SET_BYTES_MAX
from holdfast.primitives.locks import Locks, Mode, policy
from holdfast.primitives.locks.records import LOCK_WAITS
from holdfast.primitives.locks.wait import Ahead
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.stores import STORES
from tests.harness.timeouts import PATIENCE_S
from tests.harness.waiter import Waiter
from tests.unit.lock_world import Watches, World, world_of


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def locks(world: World) -> Locks:
    return world.locks


# --- sets ---


def test_a_set_is_taken_whole_or_not_at_all(world: World, locks: Locks) -> None:
    locks.acquire("b", by="other")
    assert locks.try_acquire(["a", "b", "c"], by="job") is None
    assert world.holders("a") == world.holders("c") == []
    waiting = world.line_up(["a", "b", "c"], by="job")
    # Nothing is held while it waits: a free part of the set can still be acquired.
    world.use("a", by="third")
    assert locks.free("b", by="other") == ("b",)
    grant = waiting.result()
    assert grant.names == grant.taken == ("a", "b", "c")
    assert [world.holders(name) for name in "abc"] == [["job"]] * 3
    assert locks.release(grant)
    assert world.rows() == []


def test_names_are_taken_once_each_in_the_order_given(world: World, locks: Locks) -> None:
    grant = locks.acquire(["b", "a", "b", "b"], by="job")
    assert grant.names == ("b", "a")
    assert locks.release(grant)
    assert world.rows() == []


def test_duplicate_names_of_a_waiting_set_count_once(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="other")
    waiting = world.line_up(["a", "b", "a"], by="job")
    assert world.queue("a") == world.queue("b") == ["job"]
    locks.release(held)
    assert waiting.result().names == ("a", "b")


def test_a_single_name_is_a_set_of_one(locks: Locks) -> None:
    assert locks.acquire("/dev/ttyUSB0", by="job").names == ("/dev/ttyUSB0",)


def test_an_empty_set_is_granted_at_once_and_there_is_nothing_to_release(
    world: World, locks: Locks
) -> None:
    locks.acquire("a", by="other")
    with locks.acquire([], by="job", timeout_s=0) as grant:
        assert grant.names == grant.taken == ()
        grant.check()
        locks.renew(grant)
    assert not locks.release(grant)
    assert not grant.lost.is_set()
    assert locks.try_acquire(iter(()), by="job") is not None
    assert locks.wait([], by="job", timeout_s=0)
    assert locks.free([], by="job") == ()
    assert world.rows() == ["locks/a"]


def test_one_request_may_have_as_many_names_as_its_bound_and_doubles_count_once(
    world: World, locks: Locks
) -> None:
    names = [f"n{number:03}" for number in range(LOCK_NAMES_MAX)]
    grant = locks.acquire([*names, *names], by="job")
    assert grant.names == tuple(names)
    assert locks.try_acquire(names[-1], by="other") is None
    assert locks.release(grant)
    assert world.rows() == []


def test_the_largest_set_of_the_longest_names_can_be_waited_for(world: World, locks: Locks) -> None:
    """What can be acquired while it is free can be waited for while it is held."""
    length = LOCK_SET_BYTES_MAX // LOCK_NAMES_MAX
    names = [f"{number:03}".ljust(length, "x") for number in range(LOCK_NAMES_MAX)]
    with raises(InvalidValue, field="names"):
        locks.acquire([*names[1:], "é".ljust(length, "x")], by="job")
    world.use(names, by="job")
    held = locks.acquire(names[7], by="other")
    waiting = world.line_up(names, by="job")
    assert world.queue(names[0]) == ["job"]
    locks.release(held)
    assert locks.release(waiting.result())
    assert world.rows() == []


def test_a_released_set_passes_each_name_on_in_the_same_step(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "b"], by="job")
    one, two = world.line_up("a", by="one"), world.line_up("b", by="two")
    locks.release(held)
    # Decided in the release itself, before either has woken.
    assert world.holders("a") == ["one"]
    assert world.holders("b") == ["two"]
    assert one.result().token != two.result().token


def test_namespaces_of_one_store_do_not_meet(tmp_path: Path) -> None:
    clock = ManualClock()
    worlds = [
        World(
            SqliteStore(tmp_path / "store.sqlite", boot_id="boot-1", namespace=name, clock=clock),
            clock,
        )
        for name in "xy"
    ]
    held = [world.locks.acquire("router-1", by="job", timeout_s=0) for world in worlds]
    waiting = [world.line_up("router-1", by="next") for world in worlds]
    worlds[0].locks.release(held[0])
    waiting[0].result()
    assert worlds[1].holders("router-1") == ["job"]
    worlds[1].locks.release(held[1])
    waiting[1].result()
    for world in worlds:
        world.close()


def test_threads_of_one_process_exclude_each_other(world: World, locks: Locks) -> None:
    inside: list[int] = []
    at_once: list[int] = []
    began = threading.Barrier(6)

    def take_turns(number: int) -> None:
        began.wait(PATIENCE_S)
        for _ in range(10):
            with locks.hold(
                ["a", "b"] if number % 2 else ["b", "a"], by=f"job{number}", timeout_s=PATIENCE_S
            ):
                inside.append(number)
                at_once.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take_turns, range(6)))
    assert at_once == [1] * 60
    assert world.rows() == []


# --- modes ---


def test_many_share_and_one_holds_exclusively(world: World, locks: Locks) -> None:
    shared = [
        locks.acquire("a", by=f"s{number}", mode="shared", timeout_s=0) for number in range(3)
    ]
    assert len({grant.token for grant in shared}) == 3
    assert locks.try_acquire("a", by="alone") is None
    waiting = world.line_up("a", by="alone")
    for grant in shared[:2]:
        assert locks.release(grant)
        assert world.queue("a") == ["alone"]
    assert locks.release(shared[2])
    grant = waiting.result()
    assert grant.mode is Mode.EXCLUSIVE
    assert locks.try_acquire("a", by="s9", mode=Mode.SHARED) is None


def test_an_exclusive_release_lets_all_sharers_in_line_go_at_once(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="alone")
    sharers = [world.line_up("a", by=f"s{number}", mode="shared") for number in range(3)]
    last = world.line_up("a", by="last")
    locks.release(held)
    assert world.holders("a") == ["s0", "s1", "s2"]
    assert world.queue("a") == ["last"]
    for waiting in sharers:
        locks.release(waiting.result())
    last.result()


# --- one job ---


def test_what_a_job_holds_comes_back_to_it_and_releasing_that_frees_nothing(
    world: World, locks: Locks
) -> None:
    outer = locks.acquire(["a", "b"], by="job")
    # The same job is the same holder, in another process too.
    for inner in (
        locks.acquire("a", by="job", timeout_s=0),
        world.process(2).acquire(["b", "a"], by="job", timeout_s=0),
    ):
        assert inner.reentered
        assert inner.token == outer.token
        assert inner.taken == ()
        inner.check()
        assert not inner.release()
        assert not inner.release()
        assert not inner.lost.is_set()
    assert not outer.reentered
    assert locks.try_acquire("a", by="other") is None
    assert locks.release(outer)
    assert world.rows() == []


def test_what_comes_back_to_a_job_says_the_time_that_it_was_taken_for(locks: Locks) -> None:
    locks.acquire("a", by="job", ttl_s=300, process=None)
    assert locks.acquire("a", by="job", ttl_s=600, process=None, timeout_s=0).ttl_s == 300
    locks.acquire("b", by="job")
    assert locks.acquire("b", by="job", ttl_s=600, timeout_s=0).ttl_s is None


def test_sharing_what_one_has_alone_is_reentering(locks: Locks) -> None:
    outer = locks.acquire("a", by="job")
    inner = locks.acquire("a", by="job", mode="shared", timeout_s=0)
    assert inner.reentered
    assert inner.token == outer.token
    assert not locks.release(inner)
    assert locks.try_acquire("a", by="other", mode="shared") is None


def test_a_set_that_overlaps_what_the_job_holds_waits_only_for_the_rest(
    world: World, locks: Locks
) -> None:
    first = locks.acquire("a", by="job")
    other = locks.acquire("b", by="other")
    waiting = world.line_up(["a", "b"], by="job")
    locks.release(other)
    second = waiting.result()
    assert second.names == ("a", "b")
    assert second.taken == ("b",)
    assert second.tokens == {"a": first.token, "b": second.token}
    assert second.token > first.token
    assert not second.reentered
    assert locks.release(second)
    # It freed only what it took itself.
    assert world.holders("a") == ["job"]
    assert world.holders("b") == []
    assert locks.release(first)
    assert world.rows() == []


def test_the_first_grant_of_an_overlap_frees_its_part_alone(world: World, locks: Locks) -> None:
    first = locks.acquire("a", by="job")
    second = locks.acquire(["a", "b"], by="job", timeout_s=0)
    assert locks.release(first)
    assert world.holders("a") == []
    assert world.holders("b") == ["job"]
    # The part from the other grant is no longer in force, and it reports that.
    with pytest.raises(LeaseLost):
        second.check()
    assert locks.release(second)
    assert world.rows() == []


def test_the_only_sharer_is_upgraded_at_once_and_goes_back_with_the_inner_release(
    world: World, locks: Locks
) -> None:
    shared = locks.acquire("a", by="job", mode="shared")
    alone = locks.acquire("a", by="job", timeout_s=0)
    assert not alone.reentered
    assert locks.try_acquire("a", by="other", mode="shared") is None
    waiting = world.line_up("a", by="other", mode="shared")
    assert locks.release(alone)
    # Downgraded: it still shares, and others may too.
    waiting.result()
    assert world.holders("a") == ["job", "other"]
    shared.check()
    assert locks.try_acquire("a", by="third") is None
    assert locks.release(shared)


def test_an_upgrade_waits_for_the_other_sharers_alone(world: World, locks: Locks) -> None:
    locks.acquire("a", by="job", mode="shared")
    others = [locks.acquire("a", by=f"s{number}", mode="shared") for number in range(2)]
    # One that waits for the job's own share must not keep it from its upgrade.
    behind = world.line_up("a", by="behind")
    upgrade = world.line_up("a", by="job")
    assert locks.release(others[0])
    assert upgrade.waits
    assert locks.release(others[1])
    upgrade.result()
    assert world.queue("a") == ["behind"]
    assert sorted(locks.free("a", by="job")) == ["a"]
    behind.result()


def test_two_upgraders_are_a_deadlock_and_the_second_is_refused(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one", mode="shared")
    two = locks.acquire("a", by="two", mode="shared")
    upgrade = world.line_up("a", by="one")
    with pytest.raises(DeadlockDetected) as caught:
        locks.acquire("a", by="two")
    assert "two waits for a, held by one" in caught.value.message
    assert "one waits for a, held by two" in caught.value.message
    # It keeps its share until it releases, and then the first continues.
    two.check()
    assert upgrade.waits
    assert locks.release(two)
    upgrade.result().check()


def test_a_thread_that_waits_for_what_its_job_came_to_hold_gets_that_grant(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="other")
    first = world.line_up("a", by="job")
    second = world.line_up("a", by="job", locks=world.process(2))
    locks.release(held)
    outer, inner = first.result(), second.result()
    assert inner.reentered
    assert inner.token == outer.token
    assert not locks.release(inner)
    assert locks.release(outer)
    assert world.rows() == []


def test_what_the_job_held_may_be_taken_away_just_as_the_rest_is_granted(
    world: World, locks: Locks
) -> None:
    """Either it holds the whole set, or it gets an error and holds nothing; no other error comes
    out.
    """
    locks.acquire("a", by="job")
    other = locks.acquire("b", by="other")

    def meanwhile(_: Sequence[Ahead]) -> None:
        if not other.gone:
            locks.release(other)
            locks.kick("a", why="the operator came between the grant and its waiter")

    try:
        grant = locks.acquire(["a", "b"], by="job", on_wait=meanwhile, timeout_s=PATIENCE_S)
    except Lost:
        assert world.holders("b") == []
    else:
        grant.check()
        assert world.holders("a") == world.holders("b") == ["job"]


# --- letting go ---


def test_a_second_release_is_false_and_frees_no_one_elses_grant(world: World, locks: Locks) -> None:
    grant = locks.acquire("a", by="job")
    assert locks.release(grant)
    assert not locks.release(grant)
    again = locks.acquire("a", by="other", timeout_s=0)
    assert not locks.release(grant)
    assert not grant.release()
    again.check()
    # Nor of the same job: the next grant is another one.
    assert locks.release(again)
    anew = locks.acquire("a", by="job", timeout_s=0)
    assert not locks.release(grant)
    anew.check()


def test_a_release_after_the_loss_is_false_and_changes_nothing(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b"], by="job")
    locks.kick("a", why="to see")
    other = locks.acquire("a", by="other", timeout_s=0)
    assert not locks.release(grant)
    assert not locks.release(grant)
    other.check()
    assert world.rows() == ["locks/a"]


def test_free_releases_a_part_and_keeps_the_rest(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b", "c"], by="job")
    waiting = world.line_up("b", by="next")
    assert locks.free(["b", "x"], by="job") == ("b",)
    waiting.result()
    assert [world.holders(name) for name in "abc"] == [["job"], ["next"], ["job"]]
    locks.check_token("a", grant.token)
    assert locks.release(grant)
    assert world.rows() == ["locks/b"]


def test_free_takes_from_all_grants_of_the_job_and_from_no_other_job(
    world: World, locks: Locks
) -> None:
    locks.acquire(["a", "b"], by="job")
    locks.acquire("c", by="job")
    locks.acquire("d", by="job", mode="shared")
    theirs = [locks.acquire("d", by="other", mode="shared"), locks.acquire("e", by="other")]
    assert locks.free(["a", "b", "c", "d", "e"], by="job") == ("a", "b", "c", "d")
    assert locks.free(["a", "d", "e"], by="job") == ()
    for grant in theirs:
        grant.check()
    assert world.rows() == ["locks/d", "locks/e"]


def test_freeing_an_upgraded_name_frees_both_grants_of_it(world: World, locks: Locks) -> None:
    locks.acquire("a", by="job", mode="shared")
    locks.acquire("a", by="job")
    assert locks.free("a", by="job") == ("a",)
    assert world.rows() == []


def test_another_jobs_release_changes_nothing(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b"], by="job")
    assert locks.free(["a", "b"], by="other") == ()
    grant.check()
    assert world.holders("a") == ["job"]


# --- blocks ---


def test_a_block_releases_at_its_end_however_it_ends(world: World, locks: Locks) -> None:
    with locks.hold(["a", "b"], by="job") as grant:
        assert locks.try_acquire("a", by="other") is None
        grant.check()
    assert world.rows() == []
    with pytest.raises(KeyError), locks.hold("a", by="job"):
        raise KeyError("its own")
    assert world.rows() == []


def test_a_block_whose_grant_was_lost_says_so_at_its_end(world: World, locks: Locks) -> None:
    def work() -> None:
        with locks.hold("a", by="job"):
            locks.kick("a", why="to see")
            locks.acquire("a", by="other", timeout_s=0)

    with raises(LeaseLost, names=["a"], by="job"):
        work()
    assert world.holders("a") == ["other"]


def test_the_loss_never_hides_the_blocks_own_exception(locks: Locks) -> None:
    def work() -> None:
        with locks.hold("a", by="job"):
            locks.kick("a", why="to see")
            raise KeyError("its own")

    with pytest.raises(KeyError):
        work()


def test_a_block_inside_a_block_of_the_same_job_ends_quietly(world: World, locks: Locks) -> None:
    with locks.hold("a", by="job") as outer:
        with locks.hold("a", by="job") as inner:
            assert inner.token == outer.token
        outer.check()
        assert world.holders("a") == ["job"]
    assert world.rows() == []


def test_a_grant_released_inside_its_block_is_no_loss(locks: Locks) -> None:
    with locks.hold("a", by="job") as grant:
        assert grant.release()
    assert not grant.lost.is_set()


# --- looking ---


def test_a_wait_for_a_free_name_ends_at_once_and_takes_nothing(world: World, locks: Locks) -> None:
    assert locks.wait(["a", "b"], by="job", timeout_s=0)
    assert locks.wait("a", by="job")
    assert world.rows() == []


def test_a_wait_ends_with_the_release_and_takes_nothing(world: World, locks: Locks) -> None:
    held = [locks.acquire("a", by="one"), locks.acquire("b", by="two")]
    looking = world.look(["a", "b"], by="job")
    locks.release(held[0])
    assert looking.waits
    locks.release(held[1])
    assert looking.result()
    assert world.rows() == []


def test_a_wait_that_times_out_returns_false_and_leaves_nothing(world: World, locks: Locks) -> None:
    locks.acquire("a", by="other")
    assert not locks.wait("a", by="job", timeout_s=0)
    assert not locks.wait("a", by="job", timeout_s=0.01)
    assert world.rows() == ["locks/a"]


def test_a_wait_ignores_what_its_own_job_holds(locks: Locks) -> None:
    locks.acquire("a", by="job")
    assert locks.wait("a", by="job", timeout_s=0)
    assert not locks.wait("a", by="other", timeout_s=0)


def test_a_shared_look_passes_sharers(locks: Locks) -> None:
    locks.acquire("a", by="other", mode="shared")
    assert locks.wait("a", by="job", mode="shared", timeout_s=0)
    assert not locks.wait("a", by="job", timeout_s=0)


def test_a_wait_that_takes_nothing_blocks_nobody(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="other")
    kept = locks.acquire("b", by="other")
    looking = world.look(["a", "b"], by="job")
    locks.release(held)
    # It was first in line for `a`, and takes nothing: nobody needs to wait for it, however often.
    for number in range(9):
        world.use("a", by=f"j{number}")
    locks.release(kept)
    assert looking.result()


def test_a_wait_ahead_of_the_next_waiter_sees_the_moment_between_holders(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="other")
    looking, waiting = world.look("a", by="job"), world.line_up("a", by="next")
    locks.release(held)
    assert looking.result()
    waiting.result()


def test_a_wait_that_closes_a_cycle_is_a_deadlock(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    waiting = world.line_up("b", by="one")
    with raises(
        DeadlockDetected, cycle="two waits for a, held by one; one waits for b, held by two"
    ):
        locks.wait("a", by="two")
    locks.free("b", by="two")
    waiting.result()


def test_a_cycle_closed_by_a_wait_without_a_grant_is_a_deadlock(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    looking = world.look("b", by="one")
    with raises(
        DeadlockDetected, cycle="two waits for a, held by one; one waits for b, held by two"
    ):
        locks.acquire("a", by="two")
    locks.free("b", by="two")
    assert looking.result()


# --- time limits ---


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_a_wait_that_ends_without_a_grant_names_the_holder_and_leaves_nothing(
    world: World, locks: Locks, timeout_s: float
) -> None:
    locks.acquire("b", by="holder", ttl_s=600)
    since = locks.status("b").holds[0].since
    before = world.rows()
    with pytest.raises(LockTimeout) as caught:
        locks.acquire(["a", "b"], by="job", timeout_s=timeout_s)
    fields = caught.value.fields
    (holder,) = fields["holders"]
    assert (holder["resource"], holder["by"], holder["mode"]) == ("b", "holder", "exclusive")
    assert (holder["since"], holder["process"]["pid"]) == (to_plain(since), 1)
    assert holder["until"] == to_plain(since + timedelta(seconds=600))
    assert (fields["resource"], fields["names"], fields["by"]) == ("b", ["a", "b"], "job")
    assert (fields["position"], fields["ahead"], fields["timeout_s"]) == (1, [], timeout_s)
    assert fields["outcome"] == "none"
    assert all(
        word in caught.value.message
        for word in (
            "job",
            "a, b",
            "b is held by holder",
            "process 1",
            "`holdfast locks explain b`",
        )
    )
    assert world.rows() == before
    assert locks.try_acquire("a", by="other") is not None


def test_a_wait_that_ends_without_a_grant_says_its_place_in_line(
    world: World, locks: Locks, watches: Watches
) -> None:
    """With others between it and the holder, both are named: the one just ahead has nothing to
    release.
    """
    locks.acquire("a", by="holder")
    first = world.line_up("a", by="first", locks=world.process(7))
    second = world.line_up(["b", "a"], by="second")
    reported: list[str] = []

    def run_out(ahead: Sequence[Ahead]) -> None:
        reported.extend(one.by for one in ahead)
        watches.run_out()

    with pytest.raises(LockTimeout) as caught:
        locks.acquire("a", by="job", on_wait=run_out)
    # Whom it watched is the nearest alone.
    assert reported == ["second"]
    fields = caught.value.fields
    assert [one["by"] for one in fields["holders"]] == ["holder"]
    assert (fields["position"], [one["by"] for one in fields["ahead"]]) == (3, ["first", "second"])
    assert fields["ahead"][1]["names"] == ["b", "a"]
    assert "2 waiters ahead" in caught.value.message
    assert world.logged("lock.timed_out")[0].data["held_by"] == ["holder"]
    seen = locks.obstruction("a", by="first")
    assert ([one.by for one in seen.holders], seen.position) == (["holder"], 1)
    assert locks.obstruction("a", by="new").position == 3
    assert (
        locks.obstruction([], by="new").position == locks.obstruction("c", by="new").position == 1
    )
    locks.free("a", by="holder")
    first.result().release()
    second.result().release()


def test_many_holders_and_a_long_line_are_cut(
    world: World, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "LOCK_AHEAD_NAMED_MAX", 2)
    monkeypatch.setattr(policy, "LOCK_AHEAD_COUNTED_MAX", 2)
    held = [locks.acquire("a", by=f"h{number}", mode="shared") for number in range(5)]
    lines = []
    for number in range(3):
        with pytest.raises(LockTimeout) as caught:
            locks.acquire("a", by="job", timeout_s=0)
        lines.append(
            (
                len(caught.value.fields["holders"]),
                len(caught.value.fields["ahead"]),
                caught.value.fields["position"],
            )
        )
        world.leave_in_line("a", by=f"w{number}", pid=number + 10)
    with pytest.raises(LockTimeout) as caught:
        locks.acquire("a", by="job", timeout_s=0)
    assert lines == [(2, 0, 1), (2, 1, 2), (2, 2, 3)]
    assert caught.value.fields["position"] is None
    assert "and by 3 more" in caught.value.message
    for grant in held:
        locks.release(grant)


def test_a_wait_that_times_out_names_the_holders(locks: Locks) -> None:
    assert locks.wait_free("a", by="job", timeout_s=0) is None
    locks.acquire("a", by="holder")
    for timeout_s in (0, 0.01):
        why = locks.wait_free(["b", "a"], by="job", timeout_s=timeout_s)
        assert why is not None
        assert [(one.resource, one.by) for one in why.holders] == [("a", "holder")]


@pytest.mark.parametrize("timeout_s", [0, -1, 0.01])
def test_try_acquire_returns_none_on_timeout(world: World, locks: Locks, timeout_s: float) -> None:
    locks.acquire("a", by="holder")
    assert locks.try_acquire("a", by="job", timeout_s=timeout_s) is None
    with pytest.raises(LockTimeout):
        locks.acquire("a", by="job", timeout_s=timeout_s)
    assert world.rows() == ["locks/a"]
    assert locks.try_acquire("b", by="job", timeout_s=timeout_s) is not None


@pytest.mark.parametrize("timeout_s", [None, float("inf")])
def test_without_a_time_limit_it_waits_for_as_long_as_it_takes(
    world: World, locks: Locks, timeout_s: float | None
) -> None:
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job", timeout_s=timeout_s)
    locks.release(held)
    waiting.result()


def test_a_try_with_a_time_limit_waits_for_so_long(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = Waiter(
        lambda waits: locks.try_acquire("a", by="job", timeout_s=PATIENCE_S, on_wait=waits)
    )
    locks.release(held)
    assert waiting.result() is not None


def test_a_place_that_is_given_up_lets_those_behind_it_go(
    world: World, locks: Locks, watches: Watches
) -> None:
    locks.acquire("a", by="holder", mode="shared")
    impatient = world.line_up("a", by="impatient")
    for number in range(BACKFILL_MAX):
        locks.acquire("a", by=f"s{number}", mode="shared", timeout_s=0)
    kept = world.line_up("a", by="sharer", mode="shared")
    watches.run_out(impatient.ident)
    world.nudge()
    with pytest.raises(LockTimeout):
        impatient.result()
    assert kept.result().mode is Mode.SHARED
    assert world.queue("a") == []


def test_the_on_wait_callback_may_end_the_wait(world: World, locks: Locks) -> None:
    """An exception out of `on_wait` ends the request, and leaves nothing of it."""
    held = locks.acquire("a", by="holder")

    def no(_: Sequence[Ahead]) -> None:
        raise KeyError("not waiting for that one")

    with pytest.raises(KeyError):
        locks.acquire("a", by="job", on_wait=no)
    with pytest.raises(KeyError):
        locks.wait("a", by="job", on_wait=no)
    assert world.queue("a") == []
    assert locks.release(held)
    assert world.rows() == []


def test_a_request_granted_while_it_is_withdrawn_is_not_kept(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")

    def no(_: Sequence[Ahead]) -> None:
        locks.release(held)
        assert world.holders("a") == ["job"]
        raise KeyError("too late")

    with pytest.raises(KeyError):
        locks.acquire("a", by="job", on_wait=no)
    assert world.rows() == []


def test_a_waiter_is_notified_when_another_request_moves_ahead(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job")
    urgent = world.line_up("a", by="urgent", priority=1)
    waiting.until_reported(2)
    locks.release(held)
    locks.release(urgent.result())
    waiting.result()
    assert [[one.by for one in ahead] for ahead in waiting.ahead] == [["holder"], ["urgent"]]


def test_a_lock_goes_on_when_a_damaged_waiter_was_removed_from_the_store(
    world: World, locks: Locks
) -> None:
    """`holdfast store remove` takes a damaged waiter out, and its lock still says that it is waited
    for. Releasing it raised IndexError, so the lock stayed held.
    """
    held = locks.acquire("a", by="holder")
    world.leave_in_line("a", by="damaged", pid=2)
    [row] = world.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
    world.store.transact(lambda tx: tx.delete(LOCK_WAITS, row.key), scope=[LOCK_WAITS])
    waiting = world.line_up("a", by="next")
    assert held.release()
    world.leave_in_line("a", by="damaged", pid=3)
    [row] = world.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
    world.store.transact(lambda tx: tx.delete(LOCK_WAITS, row.key), scope=[LOCK_WAITS])
    assert waiting.result().release()
    assert locks.acquire("a", by="last", timeout_s=0).release()
