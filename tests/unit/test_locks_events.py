"""What the locks report: journal, statistics, status, explanation and graph; and the input that
they refuse.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import (
    DeadlockDetected,
    InvalidName,
    InvalidValue,
    LeaseLost,
    LockTimeout,
    StoreUnavailable,
)
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.kernel.limits import (
    LABEL_CHARS_MAX,
    LOCK_JOURNAL_WAITS_S,
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
)
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Entry
from holdfast.primitives.locks import Locks, Mode
from holdfast.primitives.locks import statistics as statistics_
from holdfast.primitives.locks.inspect import Alive
from holdfast.primitives.locks.statistics import LOCK_STATISTICS, OTHERS, LockCounters
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.harness.stores import STORES, FailingStore
from tests.harness.timeouts import PATIENCE_S
from tests.harness.waiter import Waiter
from tests.unit.lock_world import Watches, World, context_of, world_of


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture(params=STORES)
def talkative(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request, LockSettings(journal="all")) as made:
        yield made


@pytest.fixture(params=STORES)
def every_wait(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Where each wait is journalled, however short."""
    with world_of(request.param, tmp_path, request, LockSettings(journal_waits_s=0)) as made:
        yield made


@pytest.fixture
def timed(own_clock_stands_still: None) -> Iterator[World]:
    clock = ManualClock()
    made = World(MemoryStore(clock=clock), clock)
    yield made
    made.close()


@pytest.fixture
def locks(world: World) -> Locks:
    return world.locks


def brief(entries: list[Entry]) -> list[tuple[str, str, str]]:
    return [(entry.kind, entry.subject, entry.data["by"]) for entry in entries]


# --- the journal ---


def test_an_uncontended_change_is_not_logged(world: World, locks: Locks) -> None:
    outer = locks.acquire(["a", "b"], by="job", ttl_s=60)
    locks.renew(outer)
    inner = locks.acquire("a", by="job")
    assert locks.try_acquire("a", by="other") is None
    locks.release(inner)
    locks.release(outer)
    world.use("c", by="job", mode="shared")
    assert locks.wait("c", by="job")
    # Also where it was contended before, and no longer is.
    held = locks.acquire("d", by="holder")
    waiting = world.line_up("d", by="job")
    locks.release(held)
    locks.release(waiting.result())
    world.use("d", by="job")
    world.use("d", by="job")
    assert world.logged() == []


def test_a_wait_and_its_grant_are_logged(every_wait: World) -> None:
    world, locks = every_wait, every_wait.locks
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job")
    locks.release(held)
    grant = waiting.result()
    waited, granted = world.logged()
    assert brief([waited, granted]) == [("lock.waiting", "a", "job"), ("lock.granted", "a", "job")]
    assert waited.data == {"by": "job", "mode": "exclusive", "held_by": ["holder"]}
    assert granted.data.keys() == {"by", "mode", "waited_s"}
    assert granted.data["waited_s"] >= 0
    assert waited.actor == granted.actor == "tester"
    # The entry's number is the token, so that the journal leads from a token to its grant.
    assert granted.revision == grant.token


def test_a_short_wait_is_counted_and_not_logged(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "b"], by="holder")
    waiting = world.line_up("a", by="job")
    set_waiting = world.line_up(["b", "c"], by="other")
    locks.release(held)
    tokens = {waiting.result().token, set_waiting.result().token}
    assert world.logged() == []
    # Two grants of one transaction that are not in the journal have a token each.
    assert len(tokens) == 2
    assert [locks.statistics()[name].waits for name in "abc"] == [1, 1, 1]


def test_sharers_that_are_granted_together_have_a_token_each(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = [world.line_up("a", by=f"sharer{at}", mode="shared") for at in range(4)]
    locks.release(held)
    tokens = [one.result().token for one in waiting]
    assert world.logged() == []
    assert tokens == sorted(set(tokens)) and tokens[0] > held.token
    for token in tokens:
        locks.check_token("a", token)


def test_a_long_wait_is_logged_once_by_its_waiter(timed: World, watches: Watches) -> None:
    """When it has lasted long enough, and not when it begins."""
    locks = timed.locks
    held = locks.acquire("a", by="holder")
    waiting = timed.line_up("a", by="job", locks=timed.process(2))
    assert timed.logged() == []
    timed.clock.advance(LOCK_JOURNAL_WAITS_S + 0.5)
    watches.advance(LOCK_JOURNAL_WAITS_S + 0.5, waiting.ident)
    timed.nudge()
    timed.until_logged("lock.waiting")
    for _ in range(3):
        watches.advance(LOCK_JOURNAL_WAITS_S + 0.5, waiting.ident)
        timed.nudge()
    locks.release(held)
    grant = waiting.result()
    waited, granted = timed.logged()
    assert (waited.kind, waited.subject) == ("lock.waiting", "a")
    assert waited.data == {
        "by": "job",
        "mode": "exclusive",
        "held_by": ["holder"],
        "waited_s": LOCK_JOURNAL_WAITS_S + 0.5,
    }
    assert (granted.kind, granted.revision) == ("lock.granted", grant.token)
    assert granted.data["waited_s"] == LOCK_JOURNAL_WAITS_S + 0.5


def test_a_waiter_that_dies_before_it_reports_is_logged_as_dead(timed: World) -> None:
    timed.locks.acquire("a", by="holder")
    timed.leave_in_line("a", by="waiter", pid=3)
    behind = timed.line_up("a", by="behind", timeout_s=None)
    timed.clock.advance(LOCK_JOURNAL_WAITS_S)
    timed.machine.end(3)
    behind.until_reported(2)
    assert brief(timed.logged()) == [("lock.waiter_died", "a", "waiter")]
    assert timed.logged()[0].data["waited_s"] == LOCK_JOURNAL_WAITS_S
    timed.locks.free("a", by="holder")
    behind.result()


def test_a_wait_that_ends_badly_is_logged_however_short(world: World, locks: Locks) -> None:
    locks.acquire("a", by="holder")

    def leave(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locks.acquire("a", by="interrupted", on_wait=leave)
    assert brief(world.logged()) == [("lock.withdrawn", "a", "interrupted")]


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf])
def test_how_long_a_wait_must_last_to_be_logged_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(InvalidValue) as error:
        LockSettings(journal_waits_s=seconds)
    assert error.value.fields["field"] == "journal_waits_s"


def test_a_set_is_logged_once_for_each_name(every_wait: World) -> None:
    world, locks = every_wait, every_wait.locks
    held = locks.acquire("b", by="holder")
    waiting = world.line_up(["a", "b"], by="job")
    locks.release(held)
    waiting.result()
    assert [(entry.kind, entry.subject) for entry in world.logged()] == [
        ("lock.waiting", "a"),
        ("lock.waiting", "b"),
        ("lock.granted", "a"),
        ("lock.granted", "b"),
    ]
    assert all(entry.data["names"] == ["a", "b"] for entry in world.logged())


def test_a_grant_beside_others_is_logged_and_one_alone_is_not(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one", mode="shared")
    assert world.logged() == []
    locks.acquire("a", by="two", mode="shared")
    assert brief(world.logged()) == [("lock.granted", "a", "two")]


def test_the_end_of_a_wait_is_logged(every_wait: World, watches: Watches) -> None:
    locks = every_wait.locks
    locks.acquire("a", by="holder")

    def leave(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locks.acquire("a", by="interrupted", on_wait=leave)
    with pytest.raises(LockTimeout):
        locks.acquire("a", by="impatient", on_wait=lambda _: watches.run_out())
    assert brief(every_wait.logged()) == [
        ("lock.waiting", "a", "interrupted"),
        ("lock.withdrawn", "a", "interrupted"),
        ("lock.waiting", "a", "impatient"),
        ("lock.timed_out", "a", "impatient"),
    ]
    timed_out = every_wait.logged("lock.timed_out")[0]
    assert timed_out.data["held_by"] == ["holder"]
    assert timed_out.data["waited_s"] >= 0


def test_deaths_of_holders_and_waiters_are_logged(world: World, locks: Locks) -> None:
    holder = world.process(2).acquire("a", by="holder")
    world.leave_in_line("a", by="waiter", pid=3)
    behind = world.line_up("a", by="behind")
    world.machine.end(3)
    behind.until_reported(2)
    world.machine.end(2)
    behind.result()
    died = world.logged("lock.waiter_died", "lock.holder_died")
    assert brief(died) == [("lock.waiter_died", "a", "waiter"), ("lock.holder_died", "a", "holder")]
    assert died[0].data["process"] == "host-1/3"
    assert died[1].data["process"] == "host-1/2"
    assert died[1].data["token"] == holder.token


def test_an_expired_lease_is_reported(timed: World) -> None:
    grant = timed.locks.acquire(["a", "b"], by="job", ttl_s=5, process=None)
    timed.clock.advance(6)
    timed.locks.acquire("a", by="next", timeout_s=0)
    logged = timed.logged("lock.lease_expired")
    assert [(entry.subject, entry.data["token"], entry.data["process"]) for entry in logged] == [
        ("a", grant.token, "none"),
        ("b", grant.token, "none"),
    ]


def test_a_deadlock_names_its_cycle(every_wait: World) -> None:
    world, locks = every_wait, every_wait.locks
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    waiting = world.line_up("b", by="one")
    with pytest.raises(DeadlockDetected):
        locks.acquire("a", by="two")
    (entry,) = world.logged("lock.deadlock")
    assert entry.subject == "a"
    assert entry.data == {
        "by": "two",
        "cycle": "two waits for a, held by one; one waits for b, held by two",
    }
    # The one that was refused never stood in line.
    assert [e.data["by"] for e in world.logged("lock.waiting")] == ["one"]
    locks.free("b", by="two")
    waiting.result()


def test_every_change_is_logged_where_the_settings_say_so(talkative: World) -> None:
    """A grant and a release for each name, re-entered ones left out, and each with the token of its
    grant.
    """
    locks = talkative.locks
    with locks.hold(["a", "b"], by="job") as grant:
        assert not locks.release(locks.acquire("a", by="job"))
    assert [(entry.kind, entry.subject) for entry in talkative.logged()] == [
        ("lock.granted", "a"),
        ("lock.granted", "b"),
        ("lock.released", "a"),
        ("lock.released", "b"),
    ]
    assert [entry.data["token"] for entry in talkative.logged("lock.released")] == [grant.token] * 2
    assert talkative.logged("lock.granted")[0].revision == grant.token


def test_a_partial_release_is_logged_with_the_rest(talkative: World) -> None:
    grant = talkative.locks.acquire(["a", "b"], by="job")
    talkative.locks.free("a", by="job")
    talkative.locks.release(grant)
    assert brief(talkative.logged("lock.released")) == [
        ("lock.released", "a", "job"),
        ("lock.released", "b", "job"),
    ]


def test_the_journal_agrees_with_the_table(talkative: World) -> None:
    """Played back, it ends with the holders that there are."""
    locks = talkative.locks
    held = locks.acquire(["a", "b"], by="one")
    waiting = talkative.line_up(["b", "c"], by="two")
    locks.release(held)
    waiting.result()
    locks.acquire("a", by="three", mode="shared")
    locks.acquire("a", by="four", mode="shared")
    locks.kick("a", why="to see", by="three")
    talkative.process(5).acquire("d", by="dead")
    talkative.machine.end(5)
    locks.acquire("d", by="next", timeout_s=0)
    holders: dict[str, set[str]] = {}
    for entry in talkative.logged():
        who = holders.setdefault(entry.subject, set())
        if entry.kind == "lock.granted":
            who.add(entry.data["by"])
        elif entry.kind in (
            "lock.released",
            "lock.kicked",
            "lock.holder_died",
            "lock.lease_expired",
        ):
            who.remove(entry.data["by"])
    assert holders == {name: set(talkative.holders(name)) for name in "abcd"}


# --- statistics ---


def test_grants_waits_and_their_times_are_counted(world: World, locks: Locks) -> None:
    for _ in range(3):
        world.use("a", by="job")
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job")
    locks.release(held)
    locks.release(waiting.result())
    found = locks.statistics()["a"]
    assert found.grants == 5
    assert found.waits == 1
    assert sum(found.hold_counts) == 5
    assert sum(found.wait_counts) == 1
    assert found.wait_s > 0
    assert found.hold_s > 0
    assert len(found.hold_counts) == len(found.wait_counts) == len(BUCKETS_S) + 1
    assert (found.timeouts, found.deaths, found.expiries, found.deadlocks, found.kicks) == (
        0,
        0,
        0,
        0,
        0,
    )


def test_a_grant_in_force_is_counted_already_and_its_release_does_not_count_it_again(
    world: World, locks: Locks
) -> None:
    grant = locks.acquire(["a", "b"], by="job")
    inner = locks.acquire("a", by="job")
    assert {name: found.grants for name, found in locks.statistics().items()} == {"a": 1, "b": 1}
    locks.release(inner)
    locks.release(grant)
    assert {name: found.grants for name, found in locks.statistics().items()} == {"a": 1, "b": 1}
    assert sum(locks.statistics()["a"].hold_counts) == 1


def test_what_went_wrong_is_counted(world: World, locks: Locks, watches: Watches) -> None:
    locks.acquire("a", by="one")
    with pytest.raises(LockTimeout):
        locks.acquire("a", by="two", timeout_s=0)
    locks.acquire("d", by="one")
    with pytest.raises(LockTimeout):
        Waiter(
            lambda waits: locks.acquire("d", by="two", on_wait=lambda _: watches.run_out())
        ).result()
    locks.acquire("b", by="two")
    waiting = world.line_up("b", by="one")
    with pytest.raises(DeadlockDetected):
        locks.acquire("a", by="two")
    locks.kick("b", why="to see")
    waiting.result()
    world.process(2).acquire("c", by="dead")
    world.machine.end(2)
    locks.acquire("c", by="next", timeout_s=0)
    found = locks.statistics()
    assert (found["a"].deadlocks, found["a"].timeouts, sum(found["a"].wait_counts)) == (1, 1, 0)
    # A wait that ended without a grant is in the histogram, and is no grant that was waited for.
    assert (found["d"].timeouts, sum(found["d"].wait_counts), found["d"].waits) == (1, 1, 0)
    assert found["b"].kicks == 1
    assert found["c"].deaths == 1


def test_counts_that_another_thread_is_adding_are_reported_too(timed: World) -> None:
    """The background adds what was counted now and then, and a reader at that moment must not
    miss it.
    """
    adding, go_on = threading.Event(), threading.Event()

    class Slow:
        def transact(self, *arguments: Any, **more: Any) -> Any:
            adding.set()
            assert go_on.wait(PATIENCE_S)
            return timed.store.transact(*arguments, **more)

    counting = LockCounters(Slow())  # type: ignore[arg-type]
    counting.count(["a"], "grants")
    background = threading.Thread(target=counting.flush)
    background.start()
    assert adding.wait(PATIENCE_S)
    seen: list[int] = []

    def ask() -> None:
        counting.flush()
        seen.append(timed.store.read(lambda tx: tx.count(LOCK_STATISTICS), scope=[LOCK_STATISTICS]))

    asking = threading.Thread(target=ask)
    asking.start()
    # One that does not wait is through long before.
    asking.join(0.2)
    go_on.set()
    background.join(PATIENCE_S)
    asking.join(PATIENCE_S)
    assert seen == [1]


def test_leases_that_ran_out_are_counted(timed: World) -> None:
    timed.locks.acquire("a", by="job", ttl_s=5)
    timed.clock.advance(6)
    timed.locks.acquire("a", by="next", timeout_s=0)
    found = timed.locks.statistics()["a"]
    assert (found.expiries, found.deaths) == (1, 0)


def test_the_counts_of_all_processes_are_added_up(world: World) -> None:
    for pid in (2, 3):
        locks = world.process(pid)
        for _ in range(2):
            locks.release(locks.acquire("a", by=f"job{pid}"))
        locks.close()
    assert world.locks.statistics()["a"].grants == 4


def test_resources_beyond_the_bound_are_summed_up_together(
    timed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_, "LOCK_STATISTICS_MAX", 2)
    for name in ("a", "b", "c", "d"):
        timed.use(name, by="job")
    found = timed.locks.statistics()
    assert set(found) == {"a", "b", OTHERS}
    assert sum(one.grants for one in found.values()) == 4
    timed.use("a", by="job")
    timed.use("e", by="job")
    assert sum(one.grants for one in timed.locks.statistics().values()) == 6


def test_counts_that_cannot_be_added_now_are_kept_for_the_next_time(timed: World) -> None:
    store = FailingStore(timed.store)
    counting = statistics_.LockCounters(store)
    counting.count(["a"], "kicks")
    store.down = True
    # More is counted while the first attempt is under way.
    store.meanwhile = lambda: counting.count(["a"], "kicks")
    with pytest.raises(StoreUnavailable):
        counting.flush()
    store.down = False
    counting.flush()
    assert timed.locks.statistics()["a"].kicks == 2


# --- status, explanation, graph ---


def test_the_status_shows_holders_and_the_line(world: World, locks: Locks) -> None:
    holder = world.process(2)
    grant = holder.acquire(["a", "b"], by="holder", ttl_s=60)
    waiting = [
        world.line_up("a", by="second", mode="shared", locks=world.process(3)),
        world.line_up(["a", "c"], by="first", priority=1),
    ]
    looking = world.look("a", by="looks")
    status = locks.status("a")
    assert status.name == "a"
    (hold,) = status.holds
    assert (hold.by, hold.mode, hold.token, hold.names) == (
        "holder",
        Mode.EXCLUSIVE,
        grant.token,
        ("a", "b"),
    )
    assert (hold.has_ttl, hold.alive, hold.reclaimable) == (True, Alive.ALIVE, False)
    assert (hold.expires_at - hold.since).total_seconds() == 60
    assert hold.process is not None
    assert (hold.process.pid, hold.process.label) == (2, "p2")
    assert [
        (one.position, one.by, one.mode, one.priority, one.names, one.looks) for one in status.queue
    ] == [
        (1, "first", Mode.EXCLUSIVE, 1, ("a", "c"), False),
        (2, "second", Mode.SHARED, 0, ("a",), False),
        (3, "looks", Mode.EXCLUSIVE, 0, ("a",), True),
    ]
    assert [one.process.pid for one in status.queue if one.process] == [1, 3, 1]
    assert {one.alive for one in status.queue} == {Alive.ALIVE}
    assert all(one.since <= status.now for one in status.queue)
    locks.free(["a", "b"], by="holder")
    locks.release(waiting[1].result())
    waiting[0].result()
    locks.free("a", by="second")
    assert looking.result()


def test_what_is_free_has_an_empty_status(world: World, locks: Locks) -> None:
    assert (locks.status("a").holds, locks.status("a").queue) == ((), ())
    assert locks.list_held() == []
    assert world.rows() == []


def test_everything_that_is_held_or_waited_for_is_listed(world: World, locks: Locks) -> None:
    held = locks.acquire(["b", "a"], by="holder")
    waiting = world.line_up(["b", "c"], by="job")
    assert [
        (status.name, len(status.holds), len(status.queue)) for status in locks.list_held()
    ] == [
        ("a", 1, 0),
        ("b", 1, 1),
        ("c", 0, 1),
    ]
    locks.release(held)
    waiting.result()


def test_a_list_is_of_one_moment(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    locks.acquire(["a", "b"], by="holder")
    context = context_of(locks)
    read = context.read

    def read_and_free(body: Any) -> Any:
        found = read(body)
        locks.free(["a", "b"], by="holder")
        return found

    monkeypatch.setattr(context, "read", read_and_free)
    assert [status.name for status in locks.list_held()] == ["a", "b"]


def test_live_dead_unknown_and_processless_holders_are_distinguished(
    timed: World,
) -> None:
    timed.locks.acquire("a", by="alive")
    timed.process(2).acquire("b", by="dead")
    far = timed.process(3, Machine("host-2"))
    far.acquire("c", by="far")
    # It sends no more heartbeats.
    far.close()
    timed.locks.acquire("d", by="person", ttl_s=10, process=None)
    timed.locks.acquire("e", by="brief", ttl_s=10)
    timed.machine.end(2)

    def seen() -> list[tuple[Alive, bool]]:
        return [
            (hold.alive, hold.reclaimable)
            for name in "abcde"
            for hold in timed.locks.status(name).holds
        ]

    assert seen() == [
        (Alive.ALIVE, False),
        (Alive.DEAD, True),
        (Alive.UNKNOWN, False),
        (Alive.NO_PROCESS, False),
        (Alive.ALIVE, False),
    ]
    timed.clock.advance(100)
    assert [reclaimable for _, reclaimable in seen()] == [False, True, True, True, True]


def test_the_explanation_follows_the_chain_to_its_end(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    world.process(2).acquire("b", by="two")
    world.process(3).acquire("c", by="three")
    chain = [world.line_up("c", by="two"), world.line_up("b", by="one")]
    last = world.line_up("a", by="asks")
    found = locks.explain("a")
    assert [hold.by for hold in found.status.holds] == ["one"]
    assert [request.by for request in found.status.queue] == ["asks"]
    assert [
        (step.by, step.waits_for, [hold.by for hold in step.holds]) for step in found.blockages
    ] == [
        ("one", "b", ["two"]),
        ("two", "c", ["three"]),
    ]
    assert any("all of this waits for three in the end (process " in line for line in found.advice)
    assert any("holdfast locks kick a" in line for line in found.advice)
    locks.free("c", by="three")
    chain[0].result()
    locks.free(["b", "c"], by="two")
    chain[1].result()
    locks.free(["a", "b"], by="one")
    last.result()


def test_the_explanation_names_the_process_of_each_job_with_one_look_up(timed: World) -> None:
    asked: list[str] = []

    def behind(by: str) -> tuple[str, ...]:
        asked.append(by)
        return ("worker bench",) if by == "one" else ()

    locks = Locks(timed.store, timed.journal, timed.machine.begin(2), behind=behind)
    for by in ("one", "two"):
        locks.acquire("a", by=by, mode="shared")
    assert (locks.explain("a").behind, asked) == ({"one": ("worker bench",)}, ["one", "two"])
    assert timed.locks.explain("a").behind == {}
    locks.close()


def test_the_advice_fits_the_holder(timed: World) -> None:
    locks = timed.locks
    assert locks.explain("a").advice == ("a is free: nothing to do",)
    grant = locks.acquire("a", by="person", ttl_s=10, process=None)
    assert any(
        f"holdfast locks release {grant.token}" in line for line in locks.explain("a").advice
    )
    timed.process(2).acquire("b", by="alive")
    assert any("look at what process 2 is doing" in line for line in locks.explain("b").advice)
    timed.machine.stopped.add(2)
    assert (
        locks.explain("b").advice[0]
        == "process 2 of alive is stopped (Ctrl-Z, SIGSTOP): kill -CONT 2 continues it"
    )
    assert not any("stopped" in line for line in locks.explain("a").advice)
    timed.process(3, Machine("host-2")).acquire("c", by="far")
    assert any("cannot be seen from here" in line for line in locks.explain("c").advice)
    timed.process(4).acquire("d", by="dead")
    timed.machine.end(4)
    assert any("dead's grant is over" in line for line in locks.explain("d").advice)
    assert not any("kick" in line for line in locks.explain("d").advice)
    assert any(
        "on the machine whose `holdfast doctor` shows host host-2. " in line
        for line in locks.explain("c").advice
    )
    assert any("While it lives it renews its lease; " in line for line in locks.explain("c").advice)
    timed.process(5, Machine("host-2")).acquire("h", by="timed", ttl_s=10)
    assert any(
        "its time to live ends it unless it is renewed; " in line
        for line in locks.explain("h").advice
    )
    beside = Machine("host-1")
    beside.place = beside.place._replace(pid_ns=2)
    timed.process(3, beside).acquire("g", by="beside")
    assert any(
        "it is process 3 in another container on this machine. " in line
        for line in locks.explain("g").advice
    )
    for by in ("one", "two"):
        locks.acquire("f", by=by, mode="shared")
    assert any("holdfast locks kick f --by JOB" in line for line in locks.explain("f").advice)


def test_what_is_free_and_waited_for_is_explained_by_what_its_line_waits_for(
    world: World, locks: Locks
) -> None:
    grant = world.process(2).acquire("a", by="holder")
    world.leave_in_line(["a", "e"], by="dead", pid=3)
    world.machine.end(3)
    assert locks.explain("e").advice == (
        "e is free, and its waiters are dead: the next request gets it, nothing to do",
    )
    assert locks.explain("e").blockages == ()
    waiting = world.line_up(["a", "e"], by="job")
    found = locks.explain("e")
    assert [
        (step.by, step.waits_for, [hold.by for hold in step.holds]) for step in found.blockages
    ] == [("job", "a", ["holder"])]
    assert found.advice == (
        "e is free, and job, first in the queue, also waits for a: holdfast locks explain a",
        "all of this waits for holder in the end (process 2): look there first",
    )
    assert grant.release()
    waiting.result()


def test_a_lost_grant_says_whether_it_expired_or_was_revoked(world: World, locks: Locks) -> None:
    brief = locks.acquire("a", by="brief", ttl_s=1e-6)
    assert brief.lost.wait(PATIENCE_S)
    with raises(LeaseLost, names=["a"], by="brief"):
        brief.check()
    kicked = locks.acquire("b", by="kicked", ttl_s=600)
    locks.kick("b", why="to see")
    with raises(LeaseLost, names=["b"], by="kicked"):
        kicked.check()


def test_an_upgrade_waits_for_the_other_sharers_and_not_for_itself(
    world: World, locks: Locks
) -> None:
    for by in ("one", "two"):
        locks.acquire("a", by=by, mode="shared")
    waiting = world.line_up("a", by="one")
    found = locks.explain("a")
    assert [
        (step.by, step.waits_for, [hold.by for hold in step.holds]) for step in found.blockages
    ] == [("one", "a", ["two"])]
    locks.free("a", by="two")
    waiting.result()


def test_what_is_over_goes_to_the_first_in_line_and_not_to_the_next_that_asks(timed: World) -> None:
    locks = timed.locks
    timed.process(2).acquire("a", by="killed")
    timed.leave_in_line("a", by="first", pid=3)
    timed.machine.end(2)
    assert locks.explain("a").advice == (
        "killed's grant is over: first, first in the queue, gets it, nothing to do",
    )
    timed.machine.stopped.add(3)
    assert locks.explain("a").advice == (
        "process 3 of first is stopped (Ctrl-Z, SIGSTOP): kill -CONT 3 continues it",
        "killed's grant is over: first, first in the queue, gets it",
    )
    assert locks.try_acquire("a", by="asks", timeout_s=0) is None


def test_the_graph_has_every_hold_and_every_wait(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "b"], by="holder")
    sharer = world.process(2).acquire("c", by="sharer", mode="shared")
    waiting = [
        world.line_up(["b", "c"], by="first"),
        world.line_up("b", by="second", mode="shared"),
    ]
    graph = locks.graph()
    assert [(edge.job, edge.resource, edge.mode.value, edge.position) for edge in graph.edges] == [
        ("holder", "a", "exclusive", None),
        ("holder", "b", "exclusive", None),
        ("first", "b", "exclusive", 1),
        ("second", "b", "shared", 2),
        ("sharer", "c", "shared", None),
        ("first", "c", "exclusive", 1),
    ]
    assert {edge.alive for edge in graph.edges} == {Alive.ALIVE}
    assert graph.deadlocks == ()
    locks.release(held)
    sharer.release()
    for waiter in waiting[::-1]:
        locks.release(waiter.result())
    assert locks.graph().edges == ()


def test_looking_changes_nothing(world: World, locks: Locks) -> None:
    locks.acquire("a", by="job")
    world.process(2).acquire("b", by="dead")
    world.machine.end(2)
    before, logged = world.rows(), world.logged()
    locks.status("b")
    locks.explain("b")
    locks.graph()
    locks.list_held()
    assert world.rows() == before
    assert world.logged() == logged
    assert world.holders("b") == ["dead"]


# --- what is refused ---

BAD_LABELS = [
    "",
    "x" * (LABEL_CHARS_MAX + 1),
    "a\nb",
    "a\0b",
    "\x7f",
    "a\u2028b",
    "\ud800",
    None,
    7,
    b"a",
]


class Untouched:
    """A store that must not be asked anything."""

    embedded = True
    kind = "memory"
    namespace = "default"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the store was touched: {name}")


@pytest.fixture
def careful(timed: World) -> Locks:
    """Locks on a store that must not be touched: what is wrong shows before that."""
    return Locks(Untouched(), timed.journal, timed.machine.begin(77))


def test_a_name_that_cannot_be_one_is_refused_before_the_store_is_touched(careful: Locks) -> None:
    calls: list[Callable[[], object]] = [
        lambda: careful.acquire(["a", ""], by="job"),
        lambda: careful.acquire("a", by=""),
        lambda: careful.try_acquire([""], by="job"),
        lambda: careful.hold([""], by="job"),
        lambda: careful.wait([""], by="job"),
        lambda: careful.wait("a", by=""),
        lambda: careful.free([""], by="job"),
        lambda: careful.free("a", by=""),
        lambda: careful.kick("", why="to see"),
        lambda: careful.kick("a", why=""),
        lambda: careful.status(""),
        lambda: careful.explain(""),
        lambda: careful.check_token("", 1),
    ]
    for call in calls:
        with pytest.raises(InvalidName):
            call()


@pytest.mark.parametrize("bad", BAD_LABELS, ids=lambda bad: ascii(bad)[:12])
def test_a_name_that_cannot_be_one_is_refused(timed: World, bad: Any) -> None:
    locks = timed.locks
    calls: list[Callable[[], object]] = [
        lambda: locks.acquire(["a", bad], by="job"),
        lambda: locks.acquire("a", by=bad),
        lambda: locks.wait([bad], by="job"),
        lambda: locks.wait("a", by=bad),
        lambda: locks.free([bad], by="job"),
        lambda: locks.free("a", by=bad),
        lambda: locks.kick(bad, why="to see"),
        lambda: locks.kick("a", why=bad),
        lambda: locks.status(bad),
        lambda: locks.explain(bad),
        lambda: locks.check_token(bad, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidName):
            call()
    assert timed.rows() == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"ttl_s": math.inf}, "ttl_s"),
        ({"ttl_s": math.nan}, "ttl_s"),
        ({"ttl_s": 1e12}, "ttl_s"),
        ({"process": None}, "ttl_s"),
        ({"timeout_s": math.nan}, "timeout_s"),
        ({"mode": "both"}, "mode"),
        ({"mode": None}, "mode"),
        ({"priority": LOCK_PRIORITY_MAX + 1}, "priority"),
        ({"priority": -LOCK_PRIORITY_MAX - 1}, "priority"),
    ],
    ids=str,
)
def test_a_value_that_is_not_possible_is_refused_and_named(
    timed: World, wrong: dict[str, Any], field: str
) -> None:
    for held in (False, True):
        if held:
            timed.locks.acquire("a", by="holder")
        for ask in (timed.locks.acquire, timed.locks.try_acquire):
            with pytest.raises(InvalidValue) as caught:
                ask("a", by="job", **wrong)
            assert field in (caught.value.fields.get("field"), *caught.value.fields)
    assert timed.rows() == ["locks/a"]
    assert timed.queue("a") == []


@pytest.mark.parametrize("wrong", [{"timeout_s": math.nan}, {"mode": "both"}], ids=str)
def test_a_wait_that_takes_nothing_is_refused_likewise(timed: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        timed.locks.wait("a", by="job", **wrong)


@pytest.mark.parametrize("ttl_s", [0, -1, math.inf, math.nan, 1e12])
def test_a_renewal_refuses_a_time_that_is_not_possible(timed: World, ttl_s: float) -> None:
    grant = timed.locks.acquire("a", by="job", ttl_s=5)
    with pytest.raises(InvalidValue):
        timed.locks.renew(grant, ttl_s)
    with pytest.raises(InvalidValue):
        timed.locks.renew_token(grant.token, ttl_s)
    grant.check()
    assert grant.ttl_s == 5


def test_more_names_than_one_request_may_have_are_refused(timed: World) -> None:
    names = [f"n{number}" for number in range(LOCK_NAMES_MAX + 1)]
    for call in (timed.locks.acquire, timed.locks.try_acquire, timed.locks.wait, timed.locks.free):
        with raises(InvalidValue, field="names", names_max=256):
            call(names, by="job")
    assert timed.rows() == []


@pytest.mark.parametrize("priority", [LOCK_PRIORITY_MAX, -LOCK_PRIORITY_MAX])
def test_the_bounds_of_a_priority_are_possible(timed: World, priority: int) -> None:
    held = timed.locks.acquire("a", by="holder")
    waiting = timed.line_up("a", by="job", priority=priority)
    timed.locks.release(held)
    waiting.result()


@pytest.mark.parametrize(
    "wrong",
    [{"lease_s": 0}, {"lease_s": math.inf}, {"priority_age_s": -1}, {"priority_age_s": math.nan}],
)
def test_settings_that_are_not_possible_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        LockSettings(**wrong)


# --- closing ---


def test_closing_works_without_the_store_and_twice(timed: World) -> None:
    """A program must be able to end when its database has gone."""
    store = FailingStore(timed.store)
    locks = Locks(store, timed.journal, timed.machine.begin(60))
    grant = locks.acquire("a", by="job")
    store.down = True
    locks.close()
    locks.close()
    assert not grant.lost.is_set()
    assert timed.holders("a") == ["job"]


def test_closing_releases_nothing(world: World) -> None:
    locks = world.process(2)
    grant = locks.acquire("a", by="job")
    locks.close()
    assert world.locks.try_acquire("a", by="other") is None
    world.locks.check_token("a", grant.token)


def test_a_request_that_is_stopped_is_withdrawn_and_did_not_time_out(
    world: World, locks: Locks
) -> None:
    stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    held = locks.acquire("a", by="holder")
    waiter = Waiter(
        lambda waits: locks.try_acquire(
            "a", by="stopped", timeout_s=None, on_wait=waits, stop_fd=stop_fd
        )
    )
    behind = world.line_up("a", by="behind")
    os.eventfd_write(stop_fd, 1)
    assert waiter.result() is None
    os.close(stop_fd)
    assert [one.by for one in locks.status("a").queue] == ["behind"]
    logged = world.logged()
    assert ("lock.withdrawn", "a", "stopped") in brief(logged)
    assert "lock.timed_out" not in [entry.kind for entry in logged]
    assert locks.statistics()["a"].timeouts == 0
    locks.release(held)
    behind.result().release()


def test_a_request_that_is_stopped_while_the_store_is_away_is_withdrawn_when_it_is_back() -> None:
    clock = ManualClock()
    store = FailingStore(MemoryStore(clock=clock))
    world = World(store, clock, LockSettings(lease_s=0.3))
    stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    world.locks.acquire("a", by="holder")
    waiter = Waiter(
        lambda waits: world.locks.try_acquire(
            "a", by="w", timeout_s=None, on_wait=waits, stop_fd=stop_fd
        )
    )
    store.down = True
    os.eventfd_write(stop_fd, 1)
    with pytest.raises(StoreUnavailable):
        waiter.result()
    store.down = False
    context_of(world.locks)._tick()
    assert world.locks.status("a").queue == ()
    os.close(stop_fd)
    world.close()


def test_what_is_to_be_withdrawn_is_not_forgotten_however_long_the_store_is_away() -> None:
    """The background ended after a minute without a grant, and with it all tries: the request
    stayed in line, was granted in its turn, and held for a process that knew nothing of it.
    """
    clock = ManualClock()
    store = FailingStore(MemoryStore(clock=clock))
    world = World(store, clock, LockSettings(lease_s=0.3))
    long_ago_s = -1e9
    world.process(2).acquire("a", by="holder")

    def leave(_: object) -> None:
        store.down = True
        raise KeyboardInterrupt

    for call in (world.locks.acquire, world.locks.wait):
        with pytest.raises(KeyboardInterrupt):
            call("a", by="w", on_wait=leave)
        keeper = context_of(world.locks).keeper
        assert keeper._thread is not None, "nobody would try again"
        assert not keeper._done(long_ago_s)
        store.down = False
        context_of(world.locks)._tick()
        assert world.locks.status("a").queue == ()
        assert keeper._done(long_ago_s)
    world.close()


def test_a_grant_that_is_abandoned_while_the_store_is_away_goes_when_it_is_back() -> None:
    clock = ManualClock()
    store = FailingStore(MemoryStore(clock=clock))
    world = World(store, clock)
    grant = world.locks.acquire("a", by="job")
    store.down = True
    world.locks.abandon(grant)
    store.down = False
    assert world.holders("a") == ["job"]
    context_of(world.locks)._tick()
    assert world.holders("a") == []
    world.locks.abandon(world.locks.acquire("b", by="job"))
    assert world.holders("b") == []
    assert not grant.release()
    world.close()


def test_what_an_earlier_request_left_is_not_taken_for_the_jobs_own() -> None:
    """It would be withdrawn later, under the one that has entered it."""
    clock = ManualClock()
    store = FailingStore(MemoryStore(clock=clock))
    world = World(store, clock, LockSettings(lease_s=0.3))
    stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    held = world.locks.acquire("a", by="holder")
    waiter = Waiter(
        lambda waits: world.locks.try_acquire(
            "a", by="w", timeout_s=None, on_wait=waits, stop_fd=stop_fd
        )
    )
    store.down = True
    os.eventfd_write(stop_fd, 1)
    with pytest.raises(StoreUnavailable):
        waiter.result()
    # While it does not answer, nothing can be asked for either.
    with pytest.raises(StoreUnavailable):
        world.locks.acquire("a", by="w")
    store.down = False
    # Meanwhile it was granted, and is released.
    world.process(2).release_token(held.token)
    grant = world.locks.acquire("a", by="w")
    assert not grant.reentered
    context_of(world.locks)._tick()
    world.locks.check(grant)
    assert grant.release()
    os.close(stop_fd)
    world.close()
