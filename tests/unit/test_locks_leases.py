"""How a grant ends without a release: its TTL ends, its process dies, an operator takes it away,
the machine reboots.
"""

import os
import select
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    LeaseLost,
    LockTimeout,
    NotFound,
    StoreUnavailable,
)
from holdfast.kernel.limits import (
    CLOCK_WRITE_EVERY_S,
    LOCK_LEASE_S,
    LOCK_REAPED_MAX,
    WAIT_RECHECK_S,
)
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Listener, Store, Tx, Woken
from holdfast.primitives import deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Grant, Locks, acquisition, policy, wait
from holdfast.primitives.locks.grant import LASTING_GRANTS, Suspended
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.transaction import LockTransaction
from holdfast.primitives.locks.wait import Ahead
from holdfast.primitives.renewal import ExpiryTimer, Keeper
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.harness.stores import STORES, FailingStore
from tests.harness.timeouts import PATIENCE_S, until
from tests.unit.lock_world import Watches, World, context_of, world_of

INSTANT_S = 0.000_001
"""The clock's finest step."""


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture(params=["memory", "sqlite"])
def timed(
    request: pytest.FixtureRequest, tmp_path: Path, own_clock_stands_still: None
) -> Iterator[World]:
    """A world whose clock moves only on request."""
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture(params=STORES)
def unhurried(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world with leases so long that nobody is woken by one."""
    with world_of(request.param, tmp_path, request, LockSettings(lease_s=24 * 3600)) as made:
        yield made


# --- a time to live ---


def test_a_grant_passes_on_at_the_instant_after_its_time_and_not_before(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(5)
    assert timed.locks.try_acquire("a", by="other") is None
    grant.check()
    timed.clock.advance(INSTANT_S)
    with pytest.raises(LeaseLost):
        grant.check()
    assert timed.locks.acquire("a", by="other", timeout_s=0).token > grant.token
    assert not timed.locks.release(grant)
    assert timed.holders("a") == ["other"]


def test_an_expired_holder_that_releases_at_that_moment_blocks_nobody(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a wait was refused for a grant that was not in force: it found
    nothing left to reap.
    """
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(6)
    look = wait.AheadWatch.suspects

    def look_and_leave(watch: wait.AheadWatch) -> Any:
        found = look(watch)
        grant.release()
        return found

    monkeypatch.setattr(wait.AheadWatch, "suspects", look_and_leave)
    assert timed.locks.try_acquire("a", by="other") is not None


def test_a_waiter_gets_the_lock_when_the_ttl_ends(timed: World) -> None:
    timed.locks.acquire("a", by="job", ttl_s=5)
    wait = [timed.line_up("a", by=by) for by in ("next", "last")]
    timed.clock.advance(5)
    timed.nudge()
    assert timed.holders("a") == ["job"]
    timed.clock.advance(INSTANT_S)
    timed.nudge()
    timed.locks.release(wait[0].result())
    wait[1].result()


def test_a_waiter_wakes_by_itself_when_the_time_is_over(world: World) -> None:
    world.locks.acquire("a", by="job", ttl_s=0.05)
    # The stores whose clock stands still get the new time; the waiter gets no wake-up.
    wait = world.line_up("a", by="next")
    world.clock.advance(1)
    wait.result()
    assert [entry.kind for entry in world.logged("lock.lease_expired")] == ["lock.lease_expired"]


def test_the_time_begins_with_the_grant_and_not_with_the_wait(timed: World) -> None:
    held = timed.locks.acquire("a", by="holder")
    wait = timed.line_up("a", by="job", ttl_s=5)
    timed.clock.advance(100)
    timed.locks.release(held)
    grant = wait.result()
    timed.clock.advance(5)
    grant.check()
    assert timed.locks.try_acquire("a", by="other") is None


def test_renewing_restarts_the_lease(timed: World) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job", ttl_s=5)
    timed.clock.advance(5)
    timed.locks.renew(grant)
    timed.clock.advance(5)
    grant.check()
    timed.locks.renew(grant, ttl_s=60)
    timed.clock.advance(60)
    grant.check()
    # The new length stays.
    timed.locks.renew(grant)
    timed.clock.advance(60)
    for name in "ab":
        assert timed.locks.try_acquire(name, by="other") is None
    timed.clock.advance(INSTANT_S)
    timed.locks.acquire(["a", "b"], by="other", timeout_s=0)


def test_the_background_gives_no_time_to_what_was_taken_for_so_long(timed: World) -> None:
    lasting, short = (
        timed.locks.acquire("a", by="job"),
        timed.locks.acquire("b", by="job", ttl_s=LOCK_LEASE_S),
    )

    def ends() -> list[float]:
        return [timed.locks.status(name).holds[0].expires_at.timestamp() for name in "ab"]

    before = ends()
    timed.clock.advance(LOCK_LEASE_S * 0.9)
    assert context_of(timed.locks).renew_grants([lasting, short]) == []
    after = ends()
    assert after[0] > before[0]
    assert after[1] == before[1]


# --- what is left of a grant ---


def outlives(timed: World, name: str) -> bool:
    """Is a name still held, as seen from another machine, when its holder's process has given signs
    of life for a while?
    """
    for _ in range(4):
        timed.clock.advance(LOCK_LEASE_S / 2)
        context_of(timed.locks).keeper._renew_due(everything=True)
    return timed.process(7, Machine("host-2")).try_acquire(name, by="other") is None


def test_the_rest_of_a_partly_released_grant_is_kept_and_not_lost(timed: World) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job")
    assert timed.locks.free("a", by="job") == ("a",)
    assert (grant.names, grant.taken, dict(grant.tokens)) == (("b",), ("b",), {"b": grant.token})
    assert outlives(timed, "b")
    grant.check()
    assert not grant.lost.is_set()
    assert timed.locks.free("b", by="job") == ("b",)
    assert (
        grant.gone == "released"
        and not context_of(timed.locks).keeper.kept()
        and timed.rows() == []
    )


def test_the_rest_of_a_grant_is_kept_when_another_process_releases_a_part(
    timed: World,
) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job")
    assert timed.process(2).free("a", by="job") == ("a",)
    assert outlives(timed, "b")
    assert grant.lost.is_set()
    with pytest.raises(LeaseLost):
        grant.check()
    assert outlives(timed, "b")
    assert grant.release() and timed.rows() == []


def test_an_overlapping_grant_keeps_its_own_names_when_the_outer_grant_ends(
    timed: World,
) -> None:
    outer = timed.locks.acquire("a", by="job")
    inner = timed.locks.acquire(["a", "b"], by="job")
    assert outer.release()
    assert outlives(timed, "b")
    assert inner.lost.is_set()
    assert inner.release() and timed.rows() == []


def test_a_part_released_during_a_background_check_is_not_lost(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job")
    read = context_of(timed.locks).store.read

    def let_go_and_read(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        timed.locks.free("a", by="job")
        return read(*args, **more)

    monkeypatch.setattr(context_of(timed.locks).store, "read", let_go_and_read)
    context_of(timed.locks).keeper._renew_due(everything=True)
    assert not grant.gone and context_of(timed.locks).keeper.kept() == [grant]


def test_a_grant_whose_release_fails_is_still_kept(timed: World) -> None:
    store = FailingStore(timed.store)
    locks = Locks(store, timed.journal, timed.machine.begin(3))
    grant = locks.acquire(["a", "b"], by="job")
    store.down = True
    with pytest.raises(StoreUnavailable):
        locks.free("a", by="job")
    store.down = False
    assert grant.names == ("a", "b") and context_of(locks).keeper.kept() == [grant]
    locks.close()


def test_the_token_of_a_grant_is_that_of_a_name_it_still_has(timed: World) -> None:
    first = timed.locks.acquire("a", by="job")
    both = timed.locks.acquire(["a", "b"], by="job")
    timed.locks.free("b", by="job")
    assert (both.names, both.token) == (("a",), first.token)
    timed.locks.check_token("a", both.token)


def test_a_grant_reported_lost_is_not_renewed(timed: World) -> None:
    """This process's clock runs a little ahead of the store's: it began to count before the store
    did.
    """
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    context_of(timed.locks).keeper._expire(grant)
    assert grant.lost.is_set()
    with pytest.raises(LeaseLost):
        timed.locks.renew(grant)
    timed.clock.advance(6)
    timed.locks.acquire("a", by="other", timeout_s=0)


def test_a_grant_released_while_another_thread_renews_it_is_not_lost(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal keeps the grant again, after its release."""
    locks = timed.locks
    grant = locks.acquire("a", by="job", ttl_s=60)
    lost, renew_hold = grant.lost, locks._renew_hold

    def renew_and_release(*given: Any) -> Any:
        renewed = renew_hold(*given)
        assert grant.release()
        return renewed

    monkeypatch.setattr(locks, "_renew_hold", renew_and_release)
    locks.renew(grant)
    context_of(locks).keeper._renew_due(everything=True)
    assert context_of(locks).keeper.kept() == []
    assert not lost.is_set() and grant.gone == "released"


def test_the_copy_that_outlives_a_reboot_is_of_the_grant_as_it_is(timed: World) -> None:
    """One thread renewed it as the other released a part: the renewal's copy had free names, or
    there was none at all.
    """
    grant = timed.locks.acquire(["a", "b"], by="job", ttl_s=60, process=None)
    timed.clock.advance(10)
    renewed = context_of(timed.locks).transact(
        lambda transaction: transaction.renew_or_reap(grant.id, grant.taken, 60)
    )[0]
    assert renewed is not None
    timed.locks.free("a", by="job")
    context_of(timed.locks).lasting.put(renewed)

    def copies() -> list[tuple[str, ...]]:
        return timed.store.read(
            lambda tx: [row.record.hold.names for row in tx.range(LASTING_GRANTS)],
            scope=[LASTING_GRANTS],
        )

    assert copies() == [("b",)]
    timed.locks.free("b", by="job")
    context_of(timed.locks).lasting.put(renewed)
    assert copies() == []


def test_renewing_never_shortens(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=100)
    timed.locks.renew(grant, ttl_s=1)
    timed.clock.advance(100)
    grant.check()


def test_the_holders_own_clock_ends_a_grant_when_the_store_does(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a grant for lost that a renewal by a shorter time had left as it was, and for held
    one that was over in the store since its taker had been stopped before it woke to take it.
    """

    def left_s(grant: Grant) -> float:
        return grant.ends_s - time.monotonic()

    grant = timed.locks.acquire("a", by="job", ttl_s=100)
    assert 90 < left_s(grant) <= 100
    timed.locks.renew(grant, ttl_s=1)
    assert 90 < left_s(grant) <= 100
    wait = timed.line_up("a", by="late", ttl_s=100)
    # Between its grant and the moment in which it knows.
    monkeypatch.setattr(
        context_of(timed.locks), "note_contention", lambda *_, **__: timed.clock.advance(70)
    )
    timed.locks.release(grant)
    assert left_s(wait.result()) <= 30
    lasting = timed.locks.acquire("b", by="job")
    assert left_s(lasting) == float("inf")


def test_a_hold_is_reported_lost_as_its_last_check_ends() -> None:
    """The look had not seen it, and it saw that somebody was still looking."""
    one, reported, looks = (
        types.SimpleNamespace(ends_s=time.monotonic() + 0.6),
        threading.Event(),
        count(),
    )
    held: list[Any] = [types.SimpleNamespace(ends_s=0.0)]

    def look() -> list[Any]:
        seen = list(held)
        if next(looks) == 1:
            held[:] = [one]
            watching = threading.Thread(target=timer.watch, args=(one,))
            watching.start()
            # It need not wait for this look, and may.
            watching.join(0.3)
            return []
        return seen

    timer = ExpiryTimer(look, lambda over: reported.set() if over is one else None)
    timer.watch(held[0])
    assert reported.wait(PATIENCE_S)
    timer.close()


def test_an_end_is_reported_although_memory_ran_out() -> None:
    one, reported, looks = (
        types.SimpleNamespace(ends_s=time.monotonic()),
        threading.Event(),
        count(),
    )

    def look() -> list[Any]:
        if next(looks) == 0:
            raise MemoryError
        return [one]

    timer = ExpiryTimer(look, lambda over: reported.set())
    timer.watch(one)
    assert reported.wait(PATIENCE_S)
    timer.close()


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_was_left_is_withdrawn_though_memory_ran_out_meanwhile(error: type[Exception]) -> None:
    left = [error, None]

    def tick() -> None:
        if left and (problem := left.pop(0)) is not None:
            raise problem

    with closing(MemoryStore()) as store:
        keeper: Keeper[Grant] = Keeper(
            store,
            topic=lambda: "kept",
            renew=lambda due: [],
            renew_every_s=60.0,
            tick=tick,
            unfinished=lambda: bool(left),
        )
        keeper.wake()
        until(lambda: not left)
        keeper.close()


def test_a_renewed_grant_can_be_released_and_waited_for(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.locks.renew(grant)
    wait = timed.line_up("a", by="next")
    timed.locks.renew(grant)
    assert timed.locks.release(grant)
    timed.locks.release(wait.result())
    assert timed.rows() == []


def test_renewing_after_the_ttl_is_a_loss_though_nobody_else_waits(timed: World) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job", ttl_s=5)
    lost = grant.lost
    timed.clock.advance(5 + INSTANT_S)
    with pytest.raises(LeaseLost) as caught:
        timed.locks.renew(grant)
    assert caught.value.fields == {"names": ["a", "b"], "by": "job", "token": grant.token}
    assert lost.is_set()
    assert timed.rows() == []
    attempts: list[Callable[[], object]] = [lambda: timed.locks.renew(grant), grant.check]
    for attempt in attempts:
        with pytest.raises(LeaseLost):
            attempt()
    assert not timed.locks.release(grant)


def test_a_late_renewal_hands_over_to_the_waiter(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    wait = timed.line_up("a", by="next")
    timed.clock.advance(6)
    with pytest.raises(LeaseLost):
        timed.locks.renew(grant)
    wait.result()


def test_a_job_that_asks_again_after_its_time_gets_a_grant_of_its_own(timed: World) -> None:
    """What it held is not in force any more, so there is nothing to come back to."""
    old = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(6)
    new = timed.locks.acquire("a", by="job", ttl_s=5, timeout_s=0)
    assert not new.reentered
    assert new.token > old.token
    new.check()
    assert timed.locks.try_acquire("a", by="other") is None
    assert not timed.locks.release(old)
    assert timed.locks.release(new)
    assert timed.rows() == []


def test_an_overlap_with_an_expired_grant_acquires_again(timed: World) -> None:
    timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(6)
    grant = timed.locks.acquire(["a", "b"], by="job", timeout_s=0)
    assert grant.taken == ("a", "b")
    grant.check()
    assert timed.locks.try_acquire("a", by="other") is None


def test_a_part_whose_time_ran_out_while_the_rest_was_waited_for_is_not_taken_for_held(
    timed: World,
) -> None:
    """Either the whole set is in force when it is granted, or the job gets an error and holds nothing of
    it.
    """
    timed.locks.acquire("a", by="job", ttl_s=5)
    other = timed.locks.acquire("b", by="other")
    wait = timed.line_up(["a", "b"], by="job")
    timed.clock.advance(6)
    timed.locks.release(other)
    try:
        grant = wait.result()
    except LeaseLost:
        assert timed.holders("b") == []
    else:
        grant.check()
        assert timed.locks.try_acquire("a", by="third") is None


def test_a_grant_renewed_with_a_time_has_that_time(timed: World) -> None:
    """A grant that lasted with its process gets a TTL, or continues to last with its process."""
    grant = timed.locks.acquire("a", by="job")
    timed.locks.renew(grant, ttl_s=5)
    (hold,) = timed.locks.status("a").holds
    timed.clock.advance(6)
    assert hold.has_ttl == (timed.locks.try_acquire("a", by="other") is not None)
    # Where it has no time to live, it must be kept alive in the background as before.
    assert hold.has_ttl or grant.ttl_s is None


def test_a_step_of_the_clock_back_shortens_no_lease(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(-3600)
    timed.locks.renew(grant)
    timed.clock.advance(3600 + 5)
    grant.check()
    assert timed.locks.try_acquire("a", by="other") is None


def test_a_step_of_the_clock_forward_takes_nothing_from_the_living(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job")
    timed.clock.advance(365 * 24 * 3600)
    assert timed.locks.try_acquire("a", by="other") is None
    grant.check()
    timed.locks.renew(grant)
    assert timed.locks.release(grant)


# --- death ---


def test_a_dead_holder_is_succeeded_without_waiting(world: World) -> None:
    grant = world.process(2).acquire(["a", "b"], by="job")
    world.machine.end(2)
    # Not even a time limit of nothing is in the way.
    next_one = world.locks.acquire("a", by="other", timeout_s=0)
    assert next_one.token > grant.token
    assert world.holders("b") == []
    (entry,) = world.logged("lock.holder_died")[:1]
    assert entry.subject == "a"
    assert entry.data["by"] == "job"
    assert entry.data["names"] == ["a", "b"]


def test_a_whole_line_of_the_dead_is_passed_without_waiting(world: World) -> None:
    world.process(2).acquire("a", by="job")
    for pid in (3, 4, 5):
        world.leave_in_line("a", by=f"waiter{pid}", pid=pid)
    for pid in (2, 3, 4, 5):
        world.machine.end(pid)
    grant = world.locks.acquire("a", by="other", timeout_s=0)
    assert world.locks.release(grant)
    assert world.rows() == []


def test_a_waiter_is_woken_by_the_death(unhurried: World) -> None:
    unhurried.process(2).acquire("a", by="job")
    wait = unhurried.line_up("a", by="next")
    unhurried.machine.end(2)
    wait.result()


def test_a_dead_waiter_leaves_the_line(unhurried: World) -> None:
    held = unhurried.locks.acquire("a", by="holder")
    unhurried.leave_in_line("a", by="dead", pid=2)
    behind = unhurried.line_up("a", by="behind")
    assert [one.by for one in behind.ahead[-1]] == ["dead"]
    unhurried.machine.end(2)
    behind.until_reported(2)
    assert [one.by for one in behind.ahead[-1]] == ["holder"]
    assert unhurried.queue("a") == ["behind"]
    unhurried.locks.release(held)
    behind.result()
    assert {entry.data["by"] for entry in unhurried.logged("lock.waiter_died")} == {"dead"}


def _leave_many_in_line(world: World, many: int, pid: int) -> None:
    """Requests of one process, each of another job."""
    world.leave_in_line("a", by="dead-0", pid=pid)

    def body(tx: Tx) -> None:
        (row,) = tx.range(LOCK_WAITS)
        for number in range(1, many):
            # Each before the one before.
            one = replace(
                row.record,
                id=f"{row.record.id}{number}",
                by=f"dead-{number}",
                arrival=row.record.arrival - number,
            )
            tx.put(LOCK_WAITS, one.key, one)

    world.store.transact(body, scope=[LOCK_WAITS])


def test_the_dead_waiters_of_one_process_leave_the_line_many_at_a_time(unhurried: World) -> None:
    """Each took a transaction, and the next in line ten seconds for ten thousand."""
    many = LOCK_REAPED_MAX * 2
    held = unhurried.locks.acquire("a", by="holder")
    _leave_many_in_line(unhurried, many, pid=2)
    unhurried.leave_in_line("a", by="another", pid=3)
    behind = unhurried.line_up("a", by="behind", locks=unhurried.process(4))
    unhurried.machine.end(2)
    unhurried.machine.end(3)
    unhurried.locks.release(held)
    behind.result()
    assert len(behind.ahead) <= 6
    died = [entry.data["by"] for entry in unhurried.logged("lock.waiter_died")]
    # One of them had come to hold it by then.
    assert len(died) in (many, many + 1) and len(set(died)) == len(died)


def test_a_living_process_between_dead_ones_keeps_its_place(unhurried: World) -> None:
    unhurried.locks.acquire("a", by="holder")
    _leave_many_in_line(unhurried, 3, pid=2)
    unhurried.leave_in_line("a", by="alive", pid=3)
    unhurried.leave_in_line("a", by="dead", pid=4)
    behind = unhurried.line_up("a", by="behind")
    unhurried.machine.end(2)
    unhurried.machine.end(4)
    behind.until_reported(2)
    assert unhurried.queue("a") == ["dead-2", "dead-1", "dead-0", "alive", "behind"]


def test_a_sharer_that_passed_a_waiter_and_died_is_noticed_at_once(unhurried: World) -> None:
    """The waiter is not first in line: a set of sharers is, which does not mind the one that came
    between.
    """
    locks = unhurried.locks
    locks.acquire("a", by="sharer", mode="shared")
    locks.acquire("b", by="holder")
    blocked = unhurried.line_up(["a", "b"], by="blocked", mode="shared")
    alone = unhurried.line_up("a", by="alone")
    unhurried.process(5).acquire("a", by="passing", mode="shared", timeout_s=0)
    locks.free("a", by="sharer")
    unhurried.machine.end(5)
    locks.release(alone.result())
    locks.free("b", by="holder")
    blocked.result()


@pytest.fixture
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LOCK_SHARERS_MAX", 2)


@pytest.mark.usefixtures("room_for_two")
def test_dead_sharers_make_room_in_a_full_set_at_once(unhurried: World) -> None:
    """Nobody was taken for ahead of one who wanted to share it too: it waited for the dead until
    its time was over.
    """
    theirs = unhurried.process(2)
    for by in ("one", "two"):
        theirs.acquire("a", by=by, mode="shared")
    waiter = unhurried.line_up("a", by="three", mode="shared")
    assert sorted(one.by for one in waiter.ahead[0]) == ["one", "two"]
    unhurried.machine.end(2)
    waiter.result()
    # Without waiting too.
    unhurried.locks.acquire("a", by="four", mode="shared", timeout_s=0)
    assert sorted(unhurried.holders("a")) == ["four", "three"]


@pytest.mark.usefixtures("room_for_two")
def test_one_sharer_that_can_leave_among_the_most_possible_prevents_a_deadlock(
    world: World,
) -> None:
    world.locks.acquire("a", by="stuck", mode="shared")
    leaving = world.locks.acquire("a", by="leaving", mode="shared")
    mine = world.locks.acquire("b", by="me")
    stuck = world.line_up("b", by="stuck")
    waiter = world.line_up("a", by="me", mode="shared")
    leaving.release()
    waiter.result()
    mine.release()
    stuck.result()


def test_a_holder_that_passed_a_waiter_and_died_is_noticed_at_once(unhurried: World) -> None:
    locks = unhurried.locks
    locks.acquire("a", by="holder")
    both = unhurried.line_up(["a", "b"], by="both")
    unhurried.process(5).acquire("b", by="passing", timeout_s=0)
    locks.free("a", by="holder")
    unhurried.machine.end(5)
    both.result()


def test_another_process_with_the_same_pid_is_not_the_holder(world: World) -> None:
    world.process(2).acquire("a", by="job")
    world.machine.end(2)
    world.process(2)
    world.locks.acquire("a", by="other", timeout_s=0)


def test_a_holder_that_cannot_be_seen_is_believed_for_its_lease(timed: World) -> None:
    far = timed.process(2, Machine("host-2"))
    grant = far.acquire("a", by="job")
    # From here on it renews only on request.
    far.close()
    timed.clock.advance(LOCK_LEASE_S)
    assert timed.locks.try_acquire("a", by="other") is None
    far.renew(grant)
    timed.clock.advance(LOCK_LEASE_S)
    assert timed.locks.try_acquire("a", by="other") is None
    timed.clock.advance(INSTANT_S)
    timed.locks.acquire("a", by="other", timeout_s=0)
    with pytest.raises(LeaseLost):
        far.renew(grant)


def test_a_waiter_that_cannot_be_seen_is_believed_for_its_lease(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It watches the holder from the beginning, before the clock moves.
    monkeypatch.setattr(acquisition, "_UNWATCHED_S", 0)
    held = timed.locks.acquire("a", by="holder")
    far = timed.line_up("a", by="far", locks=timed.process(2, Machine("host-2")))
    addresses = timed.addresses()
    timed.clock.advance(LOCK_LEASE_S + INSTANT_S)
    near = timed.line_up("a", by="near")
    near.until_reported(2)
    assert timed.queue("a") == ["near"]
    # It was still there; it learns that it is out of the queue when it checks.
    timed.nudge(addresses)
    with pytest.raises(LeaseLost):
        far.result()
    timed.locks.release(held)
    near.result()
    assert {entry.data["by"] for entry in timed.logged("lock.waiter_expired")} == {"far"}


def test_a_waiter_that_reads_its_answer_during_a_cleanup_keeps_its_place(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked again under the same key, which was then removed: its other names were waited for by
    nobody, for ever.
    """
    held = timed.locks.acquire(["a", "b"], by="holder")
    timed.leave_in_line(["a", "b"], by="job", pid=7, machine=Machine("host-2"))
    ahead = timed.line_up(["a", "b"], by="job", priority=1)
    held.release()
    ahead.result().release()
    timed.locks.acquire("a", by="other")
    reported = timed.store.read(lambda tx: tx.find(LOCK_WAITS, "told"), scope=[LOCK_WAITS])[
        0
    ].record
    timed.clock.advance(LOCK_LEASE_S + INSTANT_S)
    transact = timed.store.transact

    def asked_again(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()

        def ask(transaction: LockTransaction) -> None:
            transaction.table.delete_outcome(reported)
            transaction.grant_or_queue(replace(reported, outcome=None))

        context_of(timed.locks).transact(ask)
        return transact(*args, **more)

    monkeypatch.setattr(timed.store, "transact", asked_again)
    assert timed.locks.clear_unread() == 0
    assert timed.queue("a") == timed.queue("b") == ["job"]
    timed.clock.advance(LOCK_LEASE_S + INSTANT_S)
    timed.locks.acquire("b", by="other", timeout_s=0)


def test_a_job_whose_process_died_gets_a_grant_of_its_own_in_the_next(world: World) -> None:
    """The next process of the job must not build on a grant that anybody may take away from the
    dead one.
    """
    old = world.process(2).acquire("a", by="job")
    world.machine.end(2)
    new = world.process(3).acquire("a", by="job", timeout_s=0)
    assert not new.reentered
    assert new.token > old.token
    assert world.locks.try_acquire("a", by="other") is None
    assert new.release()
    assert world.rows() == []


def test_an_overlap_with_a_dead_holders_grant_acquires_again(world: World) -> None:
    world.process(2).acquire("a", by="job")
    world.machine.end(2)
    grant = world.process(3).acquire(["a", "b"], by="job", timeout_s=0)
    assert grant.taken == ("a", "b")
    assert world.locks.try_acquire("a", by="other") is None
    grant.check()


def test_a_part_whose_process_died_while_the_rest_was_waited_for_is_not_taken_for_held(
    world: World,
) -> None:
    """One process of the job holds `a`, another asks for both, and the first dies meanwhile."""
    world.process(2).acquire("a", by="job")
    other = world.locks.acquire("b", by="other")
    wait = world.line_up(["a", "b"], by="job", locks=world.process(3))
    world.machine.end(2)
    world.locks.release(other)
    try:
        wait.result()
    except LeaseLost:
        assert world.holders("b") == []
    else:
        assert world.locks.try_acquire("a", by="third") is None


def test_a_grant_for_another_process_lives_and_dies_with_that_one(world: World) -> None:
    seat = world.machine.begin(9)
    asking = world.process(2)
    grant = asking.acquire("a", by="job", process=seat.current())
    world.machine.end(2)
    assert world.locks.try_acquire("a", by="other") is None
    grant.check()
    world.machine.end(9)
    world.locks.acquire("a", by="other", timeout_s=0)


def test_a_request_for_a_dead_process_is_not_renewed_by_its_requester(timed: World) -> None:
    """From another machine its death cannot be seen: the lock was held there for as long as the one
    that asked lived.
    """
    host_2 = Machine("host-2")
    asking, seat = timed.process(7, host_2), host_2.begin(8)
    grant = asking.acquire("a", by="job", process=seat.current())
    # The keeper's own first check: if it started late, it would have seen the process alive, and
    # renewed after its death.
    until(lambda: grant.id in context_of(asking).keeper._renewed_s)
    timed.clock.advance(LOCK_LEASE_S / 2)
    context_of(asking).keeper._renew_due(everything=True)
    timed.clock.advance(LOCK_LEASE_S / 2 + INSTANT_S)
    assert timed.locks.try_acquire("a", by="other") is None
    host_2.end(8)
    for _ in range(3):
        timed.clock.advance(LOCK_LEASE_S / 2)
        context_of(asking).keeper._renew_due(everything=True)
    timed.locks.acquire("a", by="other", timeout_s=0)
    assert not asking.release(grant)
    host_2.close()


def test_a_grant_without_a_process_ends_by_its_ttl_alone(timed: World) -> None:
    asking = timed.process(2)
    grant = asking.acquire("a", by="job", ttl_s=60, process=None)
    timed.machine.end(2)
    timed.clock.advance(60)
    assert timed.locks.try_acquire("a", by="other") is None
    timed.locks.check_token("a", grant.token)
    timed.clock.advance(INSTANT_S)
    timed.locks.acquire("a", by="other", timeout_s=0)


def test_a_waiter_that_died_when_it_was_granted_is_succeeded(world: World) -> None:
    held = world.locks.acquire("a", by="holder")
    dying = world.process(2)
    next_ones = []

    def meanwhile(_: Sequence[Ahead]) -> None:
        if not held.gone:
            next_ones.append(world.line_up("a", by="next"))
            world.locks.release(held)
            assert world.holders("a") == ["dying"]
            world.machine.end(2)
            next_ones[0].result().check()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dying.acquire("a", by="dying", on_wait=meanwhile)
    assert world.holders("a") == ["next"]


# --- waiting without looking all the time ---


class Asleep:
    """A store on which a sleep passes at once: the clock moves by as much instead. Counts what a
    waiter does meanwhile, and sees to it that nobody in line is without a sign of life for so long
    that others need not believe in it.
    """

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens during each sleep."""
        self.slept_s = 0.0
        self.sleeps = 0
        self.transactions = 0
        self.down = False
        self.error: HoldfastError = StoreUnavailable("it does not answer", outcome="none")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, *arguments: Any, **more: Any) -> Any:
        self._answer()
        self.transactions += 1
        return self._store.transact(*arguments, **more)

    def read(self, *arguments: Any, **more: Any) -> Any:
        self._answer()
        return self._store.read(*arguments, **more)

    def get(self, *arguments: Any, **more: Any) -> Any:
        self._answer()
        return self._store.get(*arguments, **more)

    def _answer(self) -> None:
        if self.down:
            raise self.error

    def listen(self, topics: Sequence[str] = ()) -> "_Ears":
        return _Ears(self, self._store.listen(topics))

    def sleep(self, ears: Listener, timeout_s: float | None, also: Sequence[int]) -> Woken:
        self.sleeps += 1
        assert self.sleeps < 10_000, f"it woke {self.sleeps} times in {self.slept_s} s"
        was_down = self.down
        self.meanwhile()
        woken = ears.wait(0, also=also)
        if not woken.notified and not woken.ready:
            slept_s = (
                WAIT_RECHECK_S
                if timeout_s is None
                else min(max(timeout_s, INSTANT_S), WAIT_RECHECK_S)
            )
            self.slept_s += slept_s
            self._clock.advance(slept_s)
            # While it slept, it could not know that the store is back.
            if not self.down and not was_down:
                requests = [
                    row.record
                    for row in self._store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
                ]
                # Of a set, only the first row is kept up to date.
                first = [request for request in requests if request.name == request.names[0]]
                late = [
                    request.by for request in first if not request.lease.fresh(self._clock.now())
                ]
                assert not late, f"no sign of life after {self.slept_s} s: {late}"
        return woken


class _Ears:
    def __init__(self, asleep: Asleep, inner: Listener) -> None:
        self._asleep = asleep
        self._inner = inner
        self.address = inner.address

    def __enter__(self) -> "_Ears":
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def wait(self, timeout_s: float | None, *, also: Sequence[int] = ()) -> Woken:
        return self._asleep.sleep(self._inner, timeout_s, also)


@pytest.fixture
def asleep(timed: World, monkeypatch: pytest.MonkeyPatch) -> Asleep:
    made = Asleep(timed.store, timed.clock)
    # A time limit uses the process's own clock; here that is the sum of its sleeps.
    monkeypatch.setattr(deadline, "time", types.SimpleNamespace(monotonic=lambda: made.slept_s))
    return made


def sleeper(timed: World, asleep: Asleep) -> Locks:
    """The locks of a process that sleeps on that store."""
    # Its listener is one that sleeps, and lacks the rest of `Listener`.
    return Locks(cast(Store, asleep), timed.journal, timed.machine.begin(50))


WAIT_S = 300.0
LOOKS_MAX = WAIT_S / WAIT_RECHECK_S + 5 * WAIT_S / LOCK_LEASE_S
"""A look every WAIT_RECHECK_S, and a few for each lease, of its own and of the requests ahead."""


def test_a_waiter_for_a_live_holder_wakes_rarely(timed: World, asleep: Asleep) -> None:
    timed.locks.acquire("a", by="holder")
    with pytest.raises(LockTimeout):
        sleeper(timed, asleep).acquire("a", by="job", timeout_s=WAIT_S)
    assert asleep.sleeps <= LOOKS_MAX
    # To ask, to give up, and a sign of life in between; and how the store's clock runs, which is
    # written now and then.
    assert asleep.transactions <= 5 + 3 * WAIT_S / LOCK_LEASE_S + 1 + WAIT_S / CLOCK_WRITE_EVERY_S


def test_a_waiter_for_another_machine_does_not_poll(timed: World, asleep: Asleep) -> None:
    """The holder cannot be seen and renews its lease in time, many times over: each time is one
    look, not many.
    """
    far = timed.process(2, Machine("host-2"))
    grant = far.acquire("a", by="far")
    asleep.meanwhile = lambda: far.renew(grant)
    reported: list[Sequence[Ahead]] = []
    with pytest.raises(LockTimeout):
        sleeper(timed, asleep).acquire("a", by="job", timeout_s=WAIT_S, on_wait=reported.append)
    grant.check()
    # Who is ahead has not changed, so there was nothing more to tell.
    assert len(reported) == 1
    assert asleep.sleeps <= LOOKS_MAX
    assert asleep.transactions <= 5 + 6 * WAIT_S / LOCK_LEASE_S


def test_a_waiter_renews_its_place_however_much_happens_ahead_of_it(
    timed: World, asleep: Asleep
) -> None:
    """Another comes to be just ahead of it again and again, each time before its next sign would be
    due.
    """
    locks = timed.locks
    locks.acquire("a", by="urgent0")
    pids = count(100)
    acted_s = 0.0

    def next_one() -> None:
        nonlocal acted_s
        if asleep.slept_s > acted_s:
            acted_s = asleep.slept_s
            pid = next(pids)
            timed.leave_in_line("a", by=f"urgent{pid}", pid=pid, priority=500)
            (hold,) = locks.status("a").holds
            locks.free("a", by=hold.by)

    asleep.meanwhile = next_one
    with pytest.raises(LockTimeout):
        sleeper(timed, asleep).acquire("a", by="patient", timeout_s=4 * LOCK_LEASE_S, priority=-500)


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("it does not answer", outcome="none"),
        LockTimeout("no turn within the time limit", outcome="none"),
    ],
    ids=["gone", "busy"],
)
def test_a_waiter_outlives_a_store_that_does_not_answer_for_a_while(
    timed: World, asleep: Asleep, error: HoldfastError
) -> None:
    """Also when its next sign of life is due meanwhile, and when a request ahead of it dies. It
    has its own time limit.
    """
    asleep.error = error
    timed.process(2).acquire("a", by="holder")
    timed.locks.acquire("b", by="other")

    def out_of_order() -> None:
        asleep.down = LOCK_LEASE_S < asleep.slept_s < 2 * LOCK_LEASE_S
        if asleep.down and timed.machine.process_stat(2):
            timed.machine.end(2)

    asleep.meanwhile = out_of_order
    with pytest.raises(LockTimeout, match="other"):
        sleeper(timed, asleep).acquire(["a", "b"], by="job", timeout_s=WAIT_S)
    assert timed.holders("a") == []


def test_a_reaper_that_comes_second_does_not_poll(timed: World, asleep: Asleep) -> None:
    """Another was quicker to take over from the dead, and this one still waits for something
    else.
    """
    timed.process(2).acquire(["a", "b"], by="dead")
    timed.locks.acquire("c", by="holder")

    def meanwhile(ahead: Sequence[Ahead]) -> None:
        if "dead" in {one.by for one in ahead}:
            timed.machine.end(2)
            timed.locks.acquire("b", by="quicker", timeout_s=0)

    with pytest.raises(LockTimeout, match="holder"):
        sleeper(timed, asleep).acquire(["a", "c"], by="job", timeout_s=WAIT_S, on_wait=meanwhile)
    assert asleep.sleeps <= LOOKS_MAX


def test_a_waiter_that_sees_another_reap_does_not_poll(timed: World, asleep: Asleep) -> None:
    """The same while it sleeps with a descriptor on the dead, which stays readable."""
    timed.process(2).acquire(["a", "b"], by="dead")
    timed.locks.acquire("c", by="holder")

    def die_once() -> None:
        asleep.meanwhile = lambda: None
        timed.machine.end(2)
        timed.locks.acquire("b", by="quicker", timeout_s=0)

    asleep.meanwhile = die_once
    with pytest.raises(LockTimeout, match="holder"):
        sleeper(timed, asleep).acquire(["a", "c"], by="job", timeout_s=WAIT_S)
    assert asleep.sleeps <= LOOKS_MAX


def test_a_wait_that_another_process_answered_ends_at_once(timed: World, asleep: Asleep) -> None:
    """The next waiter takes over from the dead holder, and tells the other wait that the name was
    free; that wait sees the death as well.
    """
    timed.process(2).acquire("a", by="dead")

    def die_once() -> None:
        asleep.meanwhile = lambda: None
        timed.machine.end(2)
        timed.locks.acquire("a", by="quicker", timeout_s=0)

    asleep.meanwhile = die_once
    # Whether it saw the moment between is not promised where the one that takes over never stood in
    # line.
    answer = sleeper(timed, asleep).wait("a", by="job", timeout_s=WAIT_S)
    assert asleep.sleeps <= LOOKS_MAX
    assert answer or timed.holders("a") == ["quicker"]


# --- tokens ---


def test_a_token_is_in_force_as_long_as_its_grant(world: World) -> None:
    locks = world.locks
    one, two = (locks.acquire("a", by=by, mode="shared") for by in ("one", "two"))
    for grant in (one, two):
        locks.check_token("a", grant.token)
    with pytest.raises(Fenced):
        locks.check_token("b", one.token)
    locks.release(one)
    locks.check_token("a", two.token)
    with pytest.raises(Fenced) as caught:
        locks.check_token("a", one.token)
    assert caught.value.fields == {"resource": "a", "token": one.token, "current": [two.token]}
    assert (
        f"token {one.token} is not in force on a: it is held with token {two.token}"
        in caught.value.message
    )
    locks.release(two)
    with raises(Fenced, resource="a", current=[]):
        locks.check_token("a", two.token)


def test_a_token_whose_time_is_over_is_refused_for_that_reason(timed: World) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(6)
    with pytest.raises(Fenced, match="on a: its time to live has ended") as caught:
        timed.locks.check_token("a", grant.token)
    assert caught.value.fields["current"] == [grant.token]


def test_tokens_of_one_resource_only_grow(world: World) -> None:
    locks = world.locks
    tokens = []
    for number in range(3):
        quick = locks.acquire("a", by="quick")
        wait = world.line_up("a", by="slow")
        locks.release(quick)
        slow = wait.result()
        tokens += [quick.token, slow.token]
        locks.release(slow)
        world.process(10 + number).acquire("a", by="dead")
        world.machine.end(10 + number)
        after = locks.acquire("a", by="after", timeout_s=0)
        tokens.append(after.token)
        locks.release(after)
    assert tokens == sorted(set(tokens))


def test_a_token_in_force_stays_what_it_is_while_others_come_and_go(
    world: World, watches: Watches
) -> None:
    grant = world.locks.acquire("a", by="job")
    world.locks.try_acquire("a", by="one")
    with pytest.raises(LockTimeout):
        world.locks.acquire("a", by="two", on_wait=lambda _: watches.run_out())
    world.locks.renew(grant)
    world.locks.check_token("a", grant.token)
    assert [hold.token for hold in world.locks.status("a").holds] == [grant.token]
    assert world.locks.release(grant)


def test_a_grant_can_be_released_and_renewed_by_its_token(timed: World) -> None:
    locks = timed.locks
    token = locks.acquire(["a", "b"], by="job", ttl_s=5, process=None).token
    hold = timed.process(2).renew_token(token, 60)
    assert hold.names == ("a", "b")
    assert hold.lease.expires_at == timed.clock.now() + timedelta(seconds=60)
    wait = timed.line_up("b", by="next")
    assert timed.process(3).release_token(token)
    wait.result()
    assert not locks.release_token(token)
    with pytest.raises(LeaseLost) as caught:
        locks.renew_token(token)
    assert caught.value.fields == {"token": token}
    assert timed.holders("a") == []


def test_a_time_given_by_the_token_ends_the_grant_of_a_live_process(timed: World) -> None:
    """Its process does not know that time, and must not renew it in the background."""
    grant = timed.locks.acquire("a", by="job")
    timed.process(2).renew_token(grant.token, 60)
    timed.clock.advance(50)
    assert context_of(timed.locks).renew_grants([grant]) == []
    timed.clock.advance(11)
    timed.locks.acquire("a", by="next", timeout_s=0)
    assert not grant.release() and grant.lost.is_set()


def test_renewing_by_a_token_whose_time_is_over_is_a_loss(timed: World) -> None:
    token = timed.locks.acquire("a", by="job", ttl_s=5, process=None).token
    timed.clock.advance(6)
    with pytest.raises(LeaseLost):
        timed.locks.renew_token(token)
    assert timed.rows() == []


# --- suspended, and resumed by the next program of the process ---


@pytest.fixture
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A store whose listeners may outlive the program."""
    with world_of("sqlite", tmp_path, request) as made:
        yield made


def suspend(locks: Locks, grant: Grant) -> Suspended:
    suspended = locks.suspend(grant)
    assert suspended is not None
    for fd in suspended.fds[1:]:
        os.close(fd)
    return suspended


def test_a_suspended_grant_is_resumed(lasting: World) -> None:
    grant = lasting.locks.acquire(["a", "b"], by="job", mode="shared")
    suspended = suspend(lasting.locks, grant)
    locks = lasting.process(2)
    resumed = locks.resume(suspended.grant)
    assert (resumed.saved(), resumed.taken) == (grant.saved(), grant.taken)
    resumed.check()
    # It continues with the numbers of its requests: no two have one id.
    assert locks.acquire("c", by="job").id not in (grant.id, resumed.id)
    assert resumed.release()
    assert lasting.holders("a") == []


def test_the_loss_of_a_suspended_grant_is_heard(lasting: World) -> None:
    holder = lasting.process(2)
    grant = holder.acquire("a", by="job")
    lost = grant.lost
    suspended = suspend(holder, grant)
    lasting.locks.kick("a", why="to see")
    assert select.select(suspended.fds[:1], [], [], PATIENCE_S)[0]
    # Its suspender gets no notice any more.
    assert not lost.is_set()
    assert lasting.process(3).resume(suspended.grant).lost.wait(PATIENCE_S)


def test_the_loss_of_a_resumed_grant_is_heard(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Nothing is renewed meanwhile: only a notice can tell.
    with world_of("sqlite", tmp_path, request, LockSettings(lease_s=3600)) as made:
        suspended = suspend(made.locks, made.locks.acquire("a", by="job"))
        locks = made.process(2)
        resumed = locks.resume(suspended.grant)
        # The first look is behind it when its own grant, taken later, was looked at.
        later = locks.acquire("b", by="job")
        made.process(3).kick("b", why="to see")
        assert later.lost.wait(PATIENCE_S)
        assert not resumed.lost.is_set()
        made.process(4).kick("a", why="to see")
        assert resumed.lost.wait(PATIENCE_S)


def test_a_lost_grant_is_not_suspended(lasting: World) -> None:
    grant = lasting.locks.acquire("a", by="job")
    lasting.process(2).kick("a", why="to see")
    with pytest.raises(LeaseLost):
        lasting.locks.suspend(grant)
    assert grant.lost.is_set()


def test_a_grant_that_must_be_kept_is_not_suspended(
    lasting: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    locks = lasting.locks
    limited = locks.acquire("a", by="job", ttl_s=60)
    outer = locks.acquire("b", by="job")
    partly = locks.acquire(["b", "c"], by="job")
    assert [locks.suspend(grant) for grant in (limited, partly)] == [None, None]
    with world_of("memory", tmp_path, request) as made:
        held = made.locks.acquire("a", by="job")
        assert made.locks.suspend(held) is None
        # It is kept as before.
        made.process(2).kick("a", why="to see")
        assert held.lost.wait(PATIENCE_S)
    for grant in (partly, outer, limited):
        grant.release()


# --- kicked ---


def test_a_kick_is_journalled_with_actor_and_reason_and_the_holder_is_notified(
    world: World,
) -> None:
    locks = world.locks
    grant = world.process(2).acquire(["a", "b"], by="job")
    lost = grant.lost
    wait = world.line_up("b", by="next")
    assert [(hold.by, hold.names) for hold in locks.kick("a", why="it hangs")] == [
        ("job", ("a", "b"))
    ]
    wait.result()
    entries = world.logged("lock.kicked")
    assert [(entry.subject, entry.actor) for entry in entries] == [("a", "tester"), ("b", "tester")]
    assert entries[0].data == {
        "by": "job",
        "token": grant.token,
        "why": "it hangs",
        "names": ["a", "b"],
    }
    assert lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLost, match=r"holdfast log --subject a"):
        grant.check()
    with pytest.raises(LeaseLost):
        locks.renew(grant)
    with pytest.raises(Fenced):
        locks.check_token("a", grant.token)
    assert not grant.release()
    assert world.holders("b") == ["next"]


def test_one_of_several_sharers_can_be_kicked(world: World) -> None:
    locks = world.locks
    grants = [locks.acquire("a", by=f"s{number}", mode="shared") for number in range(3)]
    assert [hold.by for hold in locks.kick("a", why="enough", by="s1")] == ["s1"]
    assert world.holders("a") == ["s0", "s2"]
    grants[0].check()
    with pytest.raises(LeaseLost):
        grants[1].check()
    assert len(locks.kick("a", why="all of you")) == 2
    assert world.rows() == []


def test_kicking_what_nobody_holds_says_so(world: World) -> None:
    with raises(NotFound, resource="a"):
        world.locks.kick("a", why="to see")
    world.locks.acquire("a", by="job")
    with raises(NotFound, resource="a"):
        world.locks.kick("a", why="to see", by="other")
    assert world.holders("a") == ["job"]
    assert world.logged() == []


def test_the_event_of_a_loss_can_be_asked_for_afterwards(world: World) -> None:
    grant = world.locks.acquire("a", by="job")
    world.locks.kick("a", why="to see")
    with pytest.raises(LeaseLost):
        grant.check()
    assert grant.lost.is_set()


def test_a_release_sets_no_event_of_a_loss(world: World) -> None:
    grant = world.locks.acquire("a", by="job")
    lost = grant.lost
    assert grant.release()
    assert not lost.is_set()


def test_a_waiter_learns_of_a_grant_that_was_revoked_before_it_woke(world: World) -> None:
    locks = world.locks
    held = locks.acquire("a", by="holder")

    def meanwhile(_: Sequence[Ahead]) -> None:
        locks.release(held)
        locks.kick("a", why="to see")

    with raises(LeaseLost, names=["a"], by="job"):
        locks.acquire("a", by="job", on_wait=meanwhile)
    assert world.rows() == []


# --- a reboot ---


class Boots:
    """One SQLite store, over several boots of its machine."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._path = folder / "store.sqlite"
        self._boots = 0
        self.world = self._boot()

    def _boot(self) -> World:
        self._boots += 1
        store = SqliteStore(self._path, boot_id=f"boot-{self._boots}", clock=self.clock)
        return World(store, self.clock)

    def reboot(self) -> World:
        """End all processes and start again."""
        self.world.close()
        self.world = self._boot()
        return self.world

    def kept(self) -> int:
        """How many durable copies there are."""
        return self.world.store.read(lambda tx: tx.count(LASTING_GRANTS), scope=[LASTING_GRANTS])

    def close(self) -> None:
        self.world.close()


@pytest.fixture
def boots(tmp_path: Path) -> Iterator[Boots]:
    with closing(Boots(tmp_path)) as made:
        yield made


def test_grants_of_no_process_outlive_a_reboot_and_keep_their_tokens(boots: Boots) -> None:
    before = boots.world.locks.acquire(["a", "b"], by="person", ttl_s=3600, process=None)
    boots.world.locks.acquire("c", by="program", ttl_s=3600)
    boots.world.locks.acquire("d", by="program")
    boots.clock.advance(60)
    after = boots.reboot()
    assert [after.holders(name) for name in "abcd"] == [["person"], ["person"], [], []]
    after.locks.check_token("a", before.token)
    assert after.locks.try_acquire("b", by="other") is None
    # The time continues as before.
    boots.clock.advance(3540)
    after.locks.check_token("b", before.token)
    boots.clock.advance(INSTANT_S)
    assert after.locks.acquire(["a", "b"], by="other", timeout_s=0).token > before.token


def test_grants_whose_time_was_over_do_not_come_back(boots: Boots) -> None:
    boots.world.locks.acquire("a", by="person", ttl_s=10, process=None)
    boots.clock.advance(11)
    world = boots.reboot()
    assert world.rows() == []
    world.locks.acquire("a", by="other", timeout_s=0)
    assert boots.kept() == 0


@pytest.mark.parametrize("how", ["release", "token", "free", "kick"])
def test_released_grants_do_not_come_back(boots: Boots, how: str) -> None:
    locks = boots.world.locks
    grant = locks.acquire("a", by="person", ttl_s=3600, process=None)
    ended: dict[str, Callable[[], object]] = {
        "release": lambda: locks.release(grant),
        "token": lambda: locks.release_token(grant.token),
        "free": lambda: locks.free("a", by="person"),
        "kick": lambda: locks.kick("a", why="to see"),
    }
    assert ended[how]()
    assert boots.kept() == 0
    assert boots.reboot().holders("a") == []


def test_a_released_part_does_not_come_back(boots: Boots) -> None:
    grant = boots.world.locks.acquire(["a", "b"], by="person", ttl_s=3600, process=None)
    assert boots.world.locks.free("a", by="person") == ("a",)
    world = boots.reboot()
    assert world.holders("a") == []
    assert world.holders("b") == ["person"]
    world.locks.check_token("b", grant.token)


def test_a_renewed_time_outlives_a_reboot_too(boots: Boots) -> None:
    grant = boots.world.locks.acquire("a", by="person", ttl_s=10, process=None)
    boots.world.locks.renew(grant, 100)
    boots.clock.advance(50)
    world = boots.reboot()
    world.locks.check_token("a", grant.token)
    world.locks.renew_token(grant.token, 200)
    boots.clock.advance(150)
    boots.reboot().locks.check_token("a", grant.token)


def test_a_grant_that_was_waited_for_outlives_a_reboot_too(boots: Boots) -> None:
    held = boots.world.locks.acquire("a", by="holder")
    wait = boots.world.line_up("a", by="person", ttl_s=3600, process=None)
    boots.world.locks.release(held)
    grant = wait.result()
    boots.reboot().locks.check_token("a", grant.token)


def test_a_grant_that_came_back_can_be_released_awaited_and_inspected(boots: Boots) -> None:
    grant = boots.world.locks.acquire(["a", "b"], by="person", ttl_s=3600, process=None)
    world = boots.reboot()
    wait = world.line_up("a", by="next")
    assert world.locks.status("a").holds[0].token == grant.token
    assert world.locks.release_token(grant.token)
    wait.result()
    assert world.holders("b") == []
    assert boots.reboot().rows() == []


def test_what_is_over_leaves_no_durable_copy(boots: Boots) -> None:
    """A machine may run for years between two boots."""
    for number in range(3):
        boots.world.locks.acquire("a", by=f"person{number}", ttl_s=10, process=None, timeout_s=0)
        boots.clock.advance(11)
    assert boots.kept() <= 1


def test_a_second_process_of_the_same_boot_brings_nothing_back(boots: Boots) -> None:
    grant = boots.world.locks.acquire("a", by="person", ttl_s=3600, process=None)
    world = boots.reboot()
    assert world.locks.release_token(grant.token)
    assert world.process(2).status("a").holds == ()


class Distant(MemoryStore):
    """A store that another machine could share, and that can be cut off."""

    embedded = False
    cut = False

    def __init__(self) -> None:
        super().__init__()
        self.changed_s: list[float] = []
        """When each change was made."""

    def transact(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse()
        self.changed_s.append(time.monotonic())
        return super().transact(*args, **kwargs)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse()
        return super().read(*args, **kwargs)

    def _refuse(self) -> None:
        if self.cut:
            raise StoreUnavailable("cut off", outcome="none")


def test_a_holder_cut_off_from_the_store_learns_when_its_lease_ends() -> None:
    """The store cannot tell it, and on another machine the next holder may work by then."""
    store, ttl_s = Distant(), 0.3
    locks = Locks(store, Journal(store, actor="t"), Machine().begin(1), LockSettings(lease_s=0.3))
    begun_s = time.monotonic()
    grant = locks.acquire("a", by="job", ttl_s=ttl_s)
    lasting = locks.acquire("b", by="job")
    store.cut = True
    assert grant.lost.wait(PATIENCE_S)
    # The lease begins inside the transaction, just before `acquire` returns.
    assert time.monotonic() - begun_s >= ttl_s
    store.cut = False
    with pytest.raises(LeaseLost):
        grant.check()
    assert locks.release(grant) is False
    # Nobody took what its process holds, however long it could not say that it lives.
    lasting.check()
    assert locks.release(lasting) is True
    locks.close()


def test_a_holder_that_renews_gets_no_notice() -> None:
    store, lease_s = Distant(), 0.3
    locks = Locks(
        store, Journal(store, actor="t"), Machine().begin(1), LockSettings(lease_s=lease_s)
    )

    def is_kept() -> bool:
        begun_s = time.monotonic()
        grant = locks.acquire("a", by="job")
        lost = grant.lost.wait(1.0)
        times_s = [begun_s, *(at for at in store.changed_s if at > begun_s), time.monotonic()]
        stalled = max(after - before for before, after in pairwise(times_s)) > lease_s / 2
        assert not lost or stalled, "it renewed in time and was notified all the same"
        locks.release(grant)
        return not lost

    until(is_kept)
    locks.close()


def test_a_grant_after_a_wait_is_as_it_was_requested(world: World) -> None:
    held = world.locks.acquire("a", by="holder")
    other = world.machine.begin(9).current()
    waiting = world.line_up("a", by="job", ttl_s=50, process=other)
    world.locks.release(held)
    waiting.result()
    row = world.store.get(LOCKS, "a")
    assert row is not None
    (hold,) = row.record.holds
    assert (hold.by, hold.ttl_s, hold.on_behalf, hold.process) == ("job", 50, True, other)
    assert hold.lease.explicit
