"""Rules of the lock table by themselves: parts of jobs, the number of sharers, verdicts, what comes
back.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Fenced, InvalidValue
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import LOCK_TTL_MAX_S
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Locks, policy
from holdfast.primitives.locks.grant import TABLE_BEGUN, _enter
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    LockHold,
    Mode,
    Waiter,
    root_of,
    waiter_key,
    within,
)
from holdfast.primitives.locks.transaction import Suspect
from holdfast.primitives.locks.wait import AheadWatch, as_ahead
from holdfast.runtime.connection import Holdfast
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.timeouts import PATIENCE_S
from tests.unit.lock_world import context_of


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.connect("memory:") as connected:
        yield connected


@pytest.mark.parametrize(
    ("by", "job", "is_within"),
    [
        ("a", "a", True),
        ("a/b", "a", True),
        ("a/b/c", "a/b", True),
        ("a", "a/b", False),
        ("a/c", "a/b", False),
        ("ab", "a", False),
        ("a/bc", "a/b", False),
        ("b/a", "a", False),
    ],
)
def test_a_part_is_of_its_job_and_of_no_other(by: str, job: str, is_within: bool) -> None:
    assert within(by, job) is is_within


@pytest.mark.parametrize(
    ("by", "root"), [("a", "a"), ("a/b", "a"), ("a/b/c", "a"), ("/a", "/a"), ("/a/b", "/a")]
)
def test_a_part_of_a_part_is_of_the_first_job(by: str, root: str) -> None:
    assert root_of(by) == root


def test_a_part_has_what_its_job_holds_and_another_part_has_not(hf: Holdfast) -> None:
    hf.locks.acquire("n", by="job")
    assert hf.locks.acquire("n", by="job/one", timeout_s=0).reentered
    hf.locks.acquire("m", by="job/one")
    assert hf.locks.try_acquire("m", by="job/two") is None
    assert hf.locks.try_acquire("m", by="job") is None


def test_a_job_whose_name_begins_like_that_of_another_is_another(hf: Holdfast) -> None:
    hf.locks.acquire("n", by="job")
    assert hf.locks.try_acquire("n", by="job-2") is None


def test_a_time_to_live_has_a_bound(hf: Holdfast) -> None:
    assert hf.locks.acquire("n", by="job", ttl_s=LOCK_TTL_MAX_S).ttl_s == LOCK_TTL_MAX_S
    with pytest.raises(InvalidValue):
        hf.locks.acquire("m", by="job", ttl_s=LOCK_TTL_MAX_S + 1)


def test_the_number_of_sharers_is_bounded(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LOCK_SHARERS_MAX", 2)
    first = hf.locks.acquire("n", by="one", mode="shared")
    hf.locks.acquire("n", by="two", mode="shared")
    assert hf.locks.try_acquire("n", by="three", mode="shared") is None
    assert hf.locks.wait("n", by="two", mode="shared", timeout_s=0), "it has what it looks for"
    first.release()
    assert hf.locks.try_acquire("n", by="three", mode="shared") is not None


def test_large_sets_share_a_name_as_long_as_its_row_has_room(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the next waits; it does not get the error that its grant cannot be stored."""
    monkeypatch.setattr(policy, "LOCK_HOLDS_BYTES_MAX", 10_000)
    large = ["n", *(f"{number}".rjust(200, "x") for number in range(20))]
    first = hf.locks.acquire(large, by="one", mode="shared")
    assert hf.locks.try_acquire(large, by="two", mode="shared") is not None
    assert hf.locks.try_acquire(large, by="three", mode="shared") is None
    assert hf.locks.try_acquire("n", by="small", mode="shared") is not None
    first.release()
    assert hf.locks.try_acquire(large, by="three", mode="shared") is not None


# --- a verdict that was reached before the step that acts by it ---


def reaped(hf: Holdfast, suspect: Suspect) -> int:
    return len(context_of(hf.locks).transact(lambda transaction: transaction.reap([suspect])))


def test_a_holder_that_renewed_since_is_not_reaped(hf: Holdfast) -> None:
    grant = hf.locks.acquire("n", by="job")
    hold = context_of(hf.locks).read(lambda table: table.lock("n").holds[0])
    for liveness in (Liveness.ALIVE, Liveness.UNKNOWN):
        assert reaped(hf, Suspect(hold.id, hold.names, hold.process, liveness)) == 0
    grant.check()
    assert reaped(hf, Suspect(hold.id, hold.names, hold.process, Liveness.DEAD)) == 1


def test_the_death_of_one_process_takes_nothing_from_another(hf: Holdfast) -> None:
    """A grant may have been passed on since the one that had it was seen dead."""
    grant = hf.locks.acquire("n", by="job")
    hold = context_of(hf.locks).read(lambda table: table.lock("n").holds[0])
    assert hold.process is not None
    earlier = replace(hold.process, start_ticks=hold.process.start_ticks - 1)
    assert reaped(hf, Suspect(hold.id, hold.names, earlier, Liveness.DEAD)) == 0
    grant.check()


def test_a_waiter_that_lives_keeps_its_place(hf: Holdfast) -> None:
    grant, waits, got = hf.locks.acquire("n", by="job"), threading.Event(), threading.Event()

    def wait() -> None:
        hf.locks.release(
            hf.locks.acquire("n", by="other", timeout_s=PATIENCE_S, on_wait=lambda _: waits.set())
        )
        got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert waits.wait(PATIENCE_S)
    [row] = hf.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
    request = row.record
    assert reaped(hf, Suspect(request.id, request.names, request.process, Liveness.ALIVE)) == 0
    assert len(hf.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])) == 1
    grant.release()
    assert got.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)


def test_a_place_whose_lease_is_over_takes_none_along_whose_is_not(hf: Holdfast) -> None:
    """What proves the death of a process is true of all its places; the end of a lease is that of
    one.
    """
    grant, waits = hf.locks.acquire("n", by="job"), threading.Event()
    waiter = threading.Thread(
        target=lambda: hf.locks.try_acquire(
            "n", by="other", timeout_s=PATIENCE_S, on_wait=lambda _: waits.set()
        )
    )
    waiter.start()
    assert waits.wait(PATIENCE_S)

    def leave_two(tx: Tx) -> Waiter:
        [row] = tx.range(LOCK_WAITS)
        over = leases.grant(tx.now - timedelta(hours=1), 1)
        elsewhere = replace(row.record.process, host_id="another")
        fresh = replace(
            row.record, id="fresh", by="fresh", process=elsewhere, arrival=row.record.arrival - 2
        )
        late = replace(fresh, id="late", by="late", arrival=row.record.arrival - 1, lease=over)
        for one in (fresh, late):
            tx.put(LOCK_WAITS, one.key, one)
        return late

    late = hf.store.transact(leave_two, scope=[LOCK_WAITS])
    assert reaped(hf, Suspect(late.id, late.names, late.process, Liveness.UNKNOWN)) == 1
    assert [waiting.by for waiting in hf.locks.status("n").queue] == ["fresh", "other"]
    hf.store.transact(lambda tx: tx.delete(LOCK_WAITS, waiter_key("fresh")), scope=[LOCK_WAITS])
    grant.release()
    waiter.join(PATIENCE_S)


def test_a_renewal_without_a_time_goes_on_with_the_one_that_was_asked_for() -> None:
    clock = ManualClock()
    with holdfast.connect("memory:", clock=clock) as hf:
        token = hf.locks.acquire("n", by="job", ttl_s=5).token
        clock.advance(4)
        assert hf.locks.renew_token(token).ttl_s == 5
        clock.advance(5)
        hf.check_token("n", token)
        clock.advance(1)
        with pytest.raises(Fenced):
            hf.check_token("n", token)


# --- what a process does with what it has in hand ---


def test_a_copy_of_a_grant_in_another_process_releases_nothing(hf: Holdfast) -> None:
    """As a forked child has one, which is not its own."""
    grant = hf.locks.acquire("n", by="job")
    grant.pid += 1
    assert not hf.locks.release(grant)
    assert [hold.by for hold in hf.locks.status("n").holds] == ["job"]
    grant.pid -= 1
    assert hf.locks.release(grant)


def test_a_waiter_looks_again_when_the_lease_ahead_of_it_ends() -> None:
    with holdfast.connect("memory:", clock=ManualClock()) as hf:
        hf.locks.acquire("n", by="job", ttl_s=5)
        hf.locks.acquire("m", by="job")
        timed, lasting = context_of(hf.locks).read(
            lambda table: [table.lock(name).holds[0] for name in "nm"]
        )
        with AheadWatch([as_ahead(timed)], hf.processes, hf.store) as watch:
            assert watch.suspects() == []
            assert 5 < (watch.next_expiry_s() or 0) < 5.01
        with AheadWatch([as_ahead(lasting)], hf.processes, hf.store) as watch:
            assert watch.next_expiry_s() is None, "its descriptor reports that death"


def test_a_death_that_a_pidfd_reports_needs_no_look_at_the_process_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look may fail where the pidfd is certain, as when no descriptor is left."""
    machine = Machine()
    holder, waiter = machine.begin(1), machine.begin(2)
    store = MemoryStore()
    journal = Journal(store, actor="test")
    with closing(Locks(store, journal, holder, LockSettings())) as locks:
        locks.acquire("n", by="job")
        hold = context_of(locks).read(lambda table: table.lock("n").holds[0])
        with AheadWatch([as_ahead(hold)], waiter, store) as watch:
            assert watch.suspects() == []
            machine.end(1)
            monkeypatch.setattr(waiter, "process_stat", lambda _: pytest.fail("looked again"))
            watch.note_deaths(frozenset(watch.fds))
            assert [suspect.liveness for suspect in watch.suspects()] == [Liveness.DEAD]


def test_only_one_of_several_threads_releases_a_grant(hf: Holdfast) -> None:
    grant = hf.locks.acquire("n", by="job")
    assert [context_of(hf.locks).keeper.discard(grant) for _ in range(2)] == [True, False]


# --- grants that outlived a reboot ---


def kept(number: int, name: str, *, since_s: float = 0.0, mode: Mode = Mode.EXCLUSIVE) -> LockHold:
    """A grant of a minute without a process, from that long ago."""
    lease = leases.grant(ManualClock().now() - timedelta(seconds=since_s), 60, explicit=True)
    return LockHold(
        id=f"id-{number}",
        by=f"job-{number}",
        mode=mode,
        names=(name,),
        lease=lease,
        process=None,
        token=number,
    )


def entered(*holds: LockHold) -> tuple[list[int], list[int]]:
    """The tokens of those that come back, and of those that are over."""
    with closing(MemoryStore(clock=ManualClock())) as store:
        over = store.transact(lambda tx: _enter(tx, list(holds)), scope=[LOCKS, TABLE_BEGUN])
        rows = store.read(lambda tx: tx.range(LOCKS), scope=[LOCKS])
    return sorted(hold.token for row in rows for hold in row.record.holds), sorted(
        hold.token for hold in over
    )


def test_what_is_over_by_then_does_not_come_back() -> None:
    assert entered(kept(1, "n", since_s=61), kept(2, "m", since_s=60)) == ([2], [1])


def test_the_newer_of_two_conflicting_copies_comes_back() -> None:
    assert entered(kept(1, "n"), kept(2, "n"), kept(3, "m")) == ([2, 3], [1])
    assert entered(kept(1, "n", mode=Mode.SHARED), kept(2, "n", mode=Mode.SHARED)) == ([1, 2], [])
