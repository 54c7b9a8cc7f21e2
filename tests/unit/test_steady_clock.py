"""A clock that is set forward, of one process or of the whole machine: no lease ends by it, and
nothing is old by it.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, connect
from holdfast.kernel.clock import MonotonicTime
from holdfast.kernel.holder import Liveness
from holdfast.kernel.lease import grant
from holdfast.kernel.limits import (
    CLOCK_COMPARE_EVERY_S,
    CLOCK_JUMP_S,
    JOBS_KEEP_S,
    LEASE_JUMP_IGNORED_S,
    RETENTION_JUMP_IGNORED_S,
)
from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS, SteadyClock
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.harness.stores import ClockedStore

DAY_S = 24 * 3600.0


class Ahead:
    """The clock of one process that is wrong, on a machine whose other processes have the right
    one.
    """

    def __init__(self, clock: ManualClock, by_s: float) -> None:
        self._clock = clock
        self._by = timedelta(seconds=by_s)

    def now(self) -> datetime:
        return self._clock.now() + self._by

    def monotonic(self) -> MonotonicTime:
        return self._clock.monotonic()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def steady(store: MemoryStore) -> SteadyClock:
    steady = SteadyClock(store)
    steady.compare()
    return steady


def test_time_that_passes_is_believed(steady: SteadyClock, clock: ManualClock) -> None:
    for seconds in (1, 100, 90 * DAY_S):
        clock.advance(seconds)
        assert steady.without_jump(clock.now()) == steady.for_retention(clock.now()) == clock.now()
        steady.compare()
    assert steady.jump() is None


@pytest.mark.parametrize("seen", [False, True], ids=["not looked yet", "looked"])
def test_a_clock_set_forward_ends_no_lease_before_its_time(
    steady: SteadyClock, clock: ManualClock, seen: bool
) -> None:
    lease = grant(clock.now(), 30)
    clock.advance(10 + CLOCK_COMPARE_EVERY_S * seen)
    clock.step(40)
    if seen:
        steady.compare()
        jump = steady.jump()
        assert jump is not None and jump.seconds == 40
    assert not steady.reclaimable(lease, Liveness.UNKNOWN, clock.now())
    assert steady.reclaimable(lease, Liveness.DEAD, clock.now())
    clock.advance(30 - 10 - CLOCK_COMPARE_EVERY_S * seen)
    assert not steady.reclaimable(lease, Liveness.UNKNOWN, clock.now())
    clock.advance(0.001)
    assert steady.reclaimable(lease, Liveness.UNKNOWN, clock.now())
    assert not steady.reclaimable(lease, Liveness.ALIVE, clock.now())


def test_a_lease_that_was_granted_since_ends_in_its_time(
    steady: SteadyClock, clock: ManualClock
) -> None:
    clock.step(40 * DAY_S)
    clock.advance(CLOCK_COMPARE_EVERY_S)
    steady.compare()
    clock.advance(1)
    lease = grant(clock.now(), 30, explicit=True)
    clock.advance(30.001)
    assert steady.reclaimable(lease, Liveness.ALIVE, clock.now())


def test_what_was_set_forward_is_believed_in_the_end(
    steady: SteadyClock, clock: ManualClock
) -> None:
    clock.step(3600)
    clock.advance(CLOCK_COMPARE_EVERY_S)
    steady.compare()
    now = clock.now()
    assert steady.without_jump(now) == steady.for_retention(now) == now - timedelta(hours=1)
    clock.advance(LEASE_JUMP_IGNORED_S)
    assert steady.without_jump(clock.now()) == clock.now()
    assert steady.for_retention(clock.now()) == clock.now() - timedelta(hours=1)
    clock.advance(RETENTION_JUMP_IGNORED_S)
    assert steady.for_retention(clock.now()) == clock.now()


def test_a_clock_set_back_again_is_as_it_was(steady: SteadyClock, clock: ManualClock) -> None:
    for step_s in (86400, -86400, -500):
        clock.step(step_s)
        clock.advance(CLOCK_COMPARE_EVERY_S)
        steady.compare()
    assert steady.for_retention(clock.now()) == clock.now()


def test_a_small_clock_step_is_ignored(steady: SteadyClock, clock: ManualClock) -> None:
    clock.step(CLOCK_JUMP_S)
    assert steady.without_jump(clock.now()) == clock.now()


def test_a_process_that_comes_later_knows_what_the_others_saw(
    store: MemoryStore, steady: SteadyClock, clock: ManualClock
) -> None:
    clock.step(40)
    late = SteadyClock(store)
    late.compare()
    assert late.without_jump(clock.now()) == clock.now() - timedelta(seconds=40)


def test_a_process_with_a_wrong_clock_knows_it_and_does_not_mislead_the_others(
    store: MemoryStore, steady: SteadyClock, clock: ManualClock
) -> None:
    wrong_clock = Ahead(clock, 40 * DAY_S)
    wrong = ClockedStore(store, wrong_clock)
    odd = SteadyClock(wrong)
    for _ in range(3):
        odd.compare()
        assert (
            odd.without_jump(wrong_clock.now())
            == odd.for_retention(wrong_clock.now())
            == clock.now()
        )
        clock.advance(CLOCK_COMPARE_EVERY_S)
        steady.compare()
        assert steady.without_jump(clock.now()) == steady.for_retention(clock.now()) == clock.now()


def test_a_store_that_was_silent_for_long_may_have_a_wrong_clock(
    store: MemoryStore, clock: ManualClock
) -> None:
    """As after a boot with a wrong clock: nobody has seen it before."""
    store.transact(lambda tx: tx.append(actor="me", kind="k", subject="s"), scope=[])
    clock.advance(40 * DAY_S)
    steady = SteadyClock(store)
    assert steady.for_retention(clock.now()) is None
    steady.compare()
    assert (
        steady.without_jump(clock.now())
        == steady.for_retention(clock.now(), age_given=True)
        == clock.now()
    )
    assert steady.for_retention(clock.now()) == clock.now() - timedelta(days=40)


def test_clocks_of_earlier_boots_are_forgotten(clock: ManualClock, store: MemoryStore) -> None:
    SteadyClock(store).compare()
    after_boot = ClockedStore(store, ManualClock(clock.now() + timedelta(days=100)))
    SteadyClock(after_boot).compare()
    assert [
        row.key for row in store.read(lambda tx: tx.range(CLOCK_SIGHTINGS), scope=[CLOCK_SIGHTINGS])
    ] == [after_boot.monotonic().clock]


# --- what is kept of it: a process 40 days ahead pruned all finished jobs and the journal ---


@pytest.fixture(params=["sqlite", "files"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'store'}"


@pytest.fixture
def hf(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    # Every change checks the bounds of everything.
    monkeypatch.setattr("holdfast.primitives.journal.JOURNAL_TRIM_EVERY", 1)
    monkeypatch.setattr("holdfast.domains.jobs.registry.JOBS_PRUNE_EVERY", 1)
    with connect(url, clock=clock) as made:
        yield made


def _finish(hf: Holdfast, number: int) -> None:
    for _ in range(number):
        hf.jobs.register_job("work", agent="a", agent_session="s")
        job = hf.jobs.pick_pending("s")
        assert job is not None
        hf.jobs.update_status(job.job_id, "completed", token=job.token)


def _kept(hf: Holdfast) -> tuple[int, int]:
    return len(hf.jobs.list_jobs()), len(hf.log.tail(1000)[0])


def test_a_process_with_a_clock_far_ahead_prunes_nothing(
    hf: Holdfast, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The least number that is kept would hide it.
    monkeypatch.setattr("holdfast.primitives.journal.JOURNAL_KEEP_LEAST", 1)
    monkeypatch.setattr("holdfast.domains.jobs.registry.JOBS_KEEP_LEAST", 1)
    _finish(hf, 3)
    jobs, entries = _kept(hf)
    with connect(url, clock=Ahead(clock, 40 * DAY_S)) as ahead:
        _finish(ahead, 2)
        assert ahead.jobs.prune(keep_s=JOBS_KEEP_S) == ahead.jobs.prune() == 0
        assert ahead.log.prune(keep_s=JOBS_KEEP_S) == ahead.log.prune() == 0
    now_jobs, now_entries = _kept(hf)
    assert now_jobs == jobs + 2
    assert now_entries > entries
    # By number it can be asked for, whatever the clock says.
    assert hf.jobs.prune(keep_finished=1) == 4


def test_the_last_ones_are_kept_however_old_they_are(hf: Holdfast, clock: ManualClock) -> None:
    _finish(hf, 3)
    jobs, entries = _kept(hf)
    for _ in range(2):
        clock.advance(JOBS_KEEP_S)
        _finish(hf, 1)
        assert hf.jobs.prune() == hf.log.prune() == 0
    assert _kept(hf)[0] == jobs + 2
    assert _kept(hf)[1] > entries
    # An age that the caller names counts.
    assert hf.jobs.prune(keep_s=JOBS_KEEP_S) == 3


# --- every claim goes by it ---


def test_no_claim_ends_by_a_clock_that_was_set_forward(hf: Holdfast, clock: ManualClock) -> None:
    hf.locks.acquire("router-1", by="one", ttl_s=60, process=None)
    hf.holds.take("host-1", by="one", ttl_s=60, process=None)
    hf.jobs.register_job("work", agent="a", agent_session="s", timeout_sec=60)
    job = hf.jobs.pick_pending("s", holder=None)
    assert job is not None
    hf.workflows.register("work", recipe="r", ttl_s=60)
    hf.agents.publish("gpu", backend="command", tool="t", manifest_path="/m", lease_s=60)

    def ended() -> dict[str, bool]:
        return {
            "lock": hf.locks.try_acquire("router-1", by="two", ttl_s=60, process=None) is not None,
            "hold": hf.holds.count("host-1") == 0,
            "job": [one.job_id for one in hf.jobs.reap()] == [job.job_id],
            "workflow": hf.workflows.sweep() != [],
            "agent": len(hf.agents.cleanup(grace_s=0).removed) == 1,
        }

    clock.advance(30)
    clock.step(3600)
    assert not any(ended().values()), ended()
    clock.advance(29)
    assert not any(ended().values()), ended()
    clock.advance(1.001)
    assert ended() == {"lock": True, "hold": True, "job": True, "workflow": True, "agent": True}
