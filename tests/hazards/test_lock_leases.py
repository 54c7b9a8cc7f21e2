"""Leases in practice: a stopped holder, a machine that vanishes, a clock that is set."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.kernel.errors import Fenced, LeaseLost, LockTimeout
from holdfast.kernel.limits import LOCK_LEASE_S
from tests.harness.processes import used_by, used_since
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.lock_processes import STORES, Crowd, crowd_on

TTL_S = 0.5
LEASE_S = 1.0
LIMIT_S = 2.0
KEPT_S = 6.0
"""A lease that is renewed in time on a busy machine too, where a process may get no turn for
seconds.
"""


@pytest.fixture(params=STORES)
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder with settings that make leases short."""
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "holdfast.toml").write_text(f"[locks]\nlease_s = {LEASE_S}\n")
    return folder


@pytest.fixture
def steady(house: Path) -> Path:
    """The same with leases that are not to run out while their processes live."""
    (house / "holdfast.toml").write_text(f"[locks]\nlease_s = {KEPT_S}\n")
    return house


# --- a holder that stands still ---


def test_a_holder_stopped_past_its_time_to_live_has_lost_it(crowd: Crowd) -> None:
    stopped, waiter = crowd.processes(2)
    old = stopped.acquire(["a", "b"], by="stopped", ttl_s=TTL_S)
    stopped.stop()
    new = waiter.acquire("a", by="waiter", timeout_s=PATIENCE_S)
    assert new.token > old.token
    stopped.go_on()
    # It learns so without asking, and the old grant is refused for everything.
    assert stopped.lost(old.key)
    with pytest.raises(Fenced):
        stopped.check_token("a", old.token)
    with pytest.raises(LeaseLost):
        stopped.check(old.key)
    with pytest.raises(LeaseLost):
        stopped.renew(old.key)
    assert stopped.release(old.key) is False
    waiter.check(new.key)
    assert crowd.holders("a") == ["waiter"]
    assert crowd.holders("b") == []


def test_a_holder_stopped_for_less_than_its_time_to_live_keeps_it(crowd: Crowd) -> None:
    stopped, waiter = crowd.processes(2)
    held = stopped.acquire("a", by="stopped", ttl_s=PATIENCE_S)
    stopped.stop()
    assert not waiter.try_acquire("a", by="waiter")
    stopped.go_on()
    stopped.renew(held.key)
    assert stopped.release(held.key)


@pytest.mark.prove
def test_a_stopped_holder_without_a_time_to_live_is_not_reaped(crowd: Crowd, house: Path) -> None:
    """It is alive, as everybody on this machine can see, and a live holder is never reaped for
    being slow.
    """
    stopped, waiter = (crowd.process(folder=house) for _ in range(2))
    held = stopped.acquire("a", by="stopped")
    stopped.stop_after_renewal()
    with pytest.raises(LockTimeout, match="stopped"):
        waiter.acquire("a", by="waiter", timeout_s=2.5 * LEASE_S)
    assert crowd.holders("a") == ["stopped"]
    waiter.line_up("a", by="waiter")
    stopped.go_on()
    stopped.check(held.key)
    assert stopped.release(held.key)
    waiter.result()


def test_a_time_to_live_ends_a_grant_whose_process_lives_on(crowd: Crowd) -> None:
    forgetful, waiter = crowd.processes(2)
    held = forgetful.acquire("a", by="forgetful", ttl_s=TTL_S)
    granted = waiter.acquire("a", by="waiter", timeout_s=PATIENCE_S)
    assert forgetful.lost(held.key)
    waiter.check(granted.key)


# --- another machine ---


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on("postgres", tmp_path, request) as made:
        yield made


@pytest.mark.prove
def test_what_a_vanished_machine_held_passes_on_after_the_lease_and_not_before(
    machines: Crowd, steady: Path
) -> None:
    far, near, third = (
        machines.process(host=host, folder=steady) for host in ("far", "near", "near")
    )
    third.connect()
    far.acquire("a", by="far")
    near.line_up("a", by="near")
    far.stop_after_renewal()
    far.kill()
    assert far.was_killed()
    # Its death is not to be seen from here.
    assert not third.try_acquire("a", by="third")
    (old,) = machines.hf.locks.status("a").holds
    near.result()
    # Both by the database's clock, and the usual lease is much longer than that of this house.
    (new,) = machines.hf.locks.status("a").holds
    assert (old.by, new.by) == ("far", "near") and 0 < (
        new.since - old.expires_at
    ).total_seconds() < LOCK_LEASE_S / 2


@pytest.mark.prove
def test_a_machine_that_lives_keeps_what_it_holds_for_many_leases(
    machines: Crowd, steady: Path
) -> None:
    far, near = (
        machines.process(host="far", folder=steady),
        machines.process(host="near", folder=steady),
    )
    held = far.acquire(["a", "b"], by="far")
    near.connect()
    before = used_by(near.pid)
    with pytest.raises(LockTimeout, match="far"):
        near.acquire("a", by="near", timeout_s=2.5 * KEPT_S)
    used = used_since(before, near.pid)
    far.check(held.key)
    assert not far.is_lost(held.key)
    # A look when the lease it knows of is over, not one after the other.
    assert used.is_rest(2.5 * KEPT_S)
    near.line_up("a", by="near")
    assert far.release(held.key)
    near.result()


@pytest.mark.prove
def test_a_waiter_on_another_machine_keeps_its_place_for_many_leases(
    machines: Crowd, steady: Path
) -> None:
    holder, far, near = (
        machines.process(host=host, folder=steady) for host in ("near", "far", "near")
    )
    held = holder.acquire("a", by="holder")
    far.line_up("a", by="far")
    with pytest.raises(LockTimeout) as caught:
        near.acquire("a", by="near", timeout_s=2.5 * KEPT_S)
    assert [one["by"] for one in caught.value.fields["ahead"]] == ["far"]
    assert machines.queue("a") == ["far"]
    assert holder.release(held.key)
    far.result()


@pytest.mark.prove
def test_a_waiter_of_a_vanished_machine_leaves_the_line_after_its_lease(
    machines: Crowd, steady: Path
) -> None:
    holder, far, near = (
        machines.process(host=host, folder=steady) for host in ("near", "far", "near")
    )
    held = holder.acquire("a", by="holder")
    far.line_up("a", by="far")
    near.line_up("a", by="near")
    far.kill()
    near.heard("waits")
    assert machines.queue("a") == ["near"]
    assert holder.release(held.key)
    near.result()


@pytest.mark.prove
def test_a_stopped_machine_loses_its_locks_and_learns_so_when_it_goes_on(
    machines: Crowd, house: Path
) -> None:
    far, near = (
        machines.process(host="far", folder=house),
        machines.process(host="near", folder=house),
    )
    old = far.acquire("a", by="far")
    far.stop_after_renewal()
    new = near.acquire("a", by="near", timeout_s=PATIENCE_S)
    far.go_on()
    assert far.lost(old.key)
    with pytest.raises(Fenced):
        far.check_token("a", old.token)
    with pytest.raises(LeaseLost):
        far.renew(old.key)
    assert far.release(old.key) is False
    near.check(new.key)


@pytest.mark.prove
def test_a_machine_of_the_same_name_in_another_boot_is_not_taken_for_dead(machines: Crowd) -> None:
    """Cloned machines share their ids: on a database that is no proof."""
    processes = machines.hf.processes
    here = processes.current()
    clone = holdfast.kernel.holder.Holder(
        **{**here.place._asdict(), "boot_id": "another"}, pid=here.pid, start_ticks=here.start_ticks
    )
    machines.hf.locks.acquire("a", by="clone", process=clone)
    other = machines.process()
    assert not other.try_acquire("a", by="other")


# --- the clock ---


class Stepped:
    """The machine's clock, as somebody else sets it: a file says by how much it is off, for every
    process that reads it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("0")

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(self._path.read_text()))

    def step(self, to_s: float) -> None:
        """Set it to so many seconds off."""
        beside = self._path.with_suffix(".new")
        beside.write_text(str(to_s))
        os.replace(beside, self._path)


def test_a_clock_stepped_back_and_forth_changes_no_order_and_shortens_no_lease(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Stepped(tmp_path / "clock")
    # Forked children have it too.
    monkeypatch.setattr("holdfast.kernel.clock.SystemClock.now", lambda _: clock.now())
    with crowd_on("sqlite", tmp_path, request) as crowd:
        holder, timed, *waiters = crowd.processes(7)
        held = holder.acquire("a", by="holder")
        lease = timed.acquire("b", by="timed", ttl_s=3600)
        for number, (process, step_s) in enumerate(
            zip(waiters, [0, -86400, 60, 7200, -60], strict=True)
        ):
            clock.step(step_s)
            process.line_up("a", by=f"j{number}")
        assert crowd.queue("a") == [f"j{number}" for number in range(5)]
        # Back: the lease is longer by the step, if anything, and a renewal does not make it
        # shorter.
        clock.step(-1800)
        timed.renew(lease.key)
        clock.step(3500)
        timed.check(lease.key)
        assert not crowd.hf.locks.try_acquire("b", by="other")
        # Those that have no time to live do not mind at all.
        clock.step(365 * 86400)
        holder.check(held.key)
        order = []
        process, granted = holder, held
        for number, next_one in enumerate(waiters):
            assert process.release(granted.key)
            process, granted = next_one, next_one.result()
            order.append(crowd.holders("a"))
            assert order[-1] == [f"j{number}"]
            clock.step((-1) ** number * 5000)
        assert process.release(granted.key)


def test_waiting_does_not_depend_on_the_wall_clock(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit is as long as it says, though the clock is stepped by a day meanwhile."""
    clock = Stepped(tmp_path / "clock")
    monkeypatch.setattr("holdfast.kernel.clock.SystemClock.now", lambda _: clock.now())
    with crowd_on("sqlite", tmp_path, request) as crowd:
        holder, waiter = crowd.processes(2)
        holder.acquire("a", by="holder")
        began_s = time.monotonic()
        waiter.line_up("a", by="waiter", timeout_s=LIMIT_S)
        clock.step(86400)
        with pytest.raises(LockTimeout):
            waiter.result()
        assert LIMIT_S <= time.monotonic() - began_s < PATIENCE_S
        waiter.line_up("a", by="waiter", timeout_s=LIMIT_S)
        clock.step(-86400)
        with pytest.raises(LockTimeout):
            waiter.result()
        assert time.monotonic() - began_s < PATIENCE_S


@pytest.fixture
def database_clock(machines: Crowd, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the database's clock forward, for every process that starts from now on."""
    with psycopg.connect(machines.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.set_forward (by interval)")
        connection.execute("INSERT INTO public.set_forward VALUES ('0')")
    sql = (
        "(extract(epoch FROM clock_timestamp() + (SELECT by FROM public.set_forward)) * "
        "1000000)::bigint"
    )
    monkeypatch.setattr("holdfast.stores.postgres.latches.NOW", sql)

    def set_forward(seconds: float) -> None:
        with psycopg.connect(machines.url, autocommit=True) as connection:
            connection.execute(
                "UPDATE public.set_forward SET by = make_interval(secs => %s)", [seconds]
            )

    return set_forward


@pytest.mark.prove
def test_a_database_clock_set_forward_takes_no_lock_from_a_live_holder(
    machines: Crowd, database_clock: Callable[[float], None]
) -> None:
    """By 40 s, more than the lease: the next in line took the lock of a holder that was alive and
    connected.
    """
    far, near = machines.process(host="far"), machines.process(host="near")
    held, timed = far.acquire("a", by="far"), far.acquire("b", by="far", ttl_s=3600)
    assert not near.try_acquire("a", by="near")
    database_clock(LOCK_LEASE_S + 10)
    # One that waits, and one that comes only now.
    with pytest.raises(LockTimeout):
        near.acquire("a", by="near", timeout_s=LIMIT_S)
    late = machines.process(host="third")
    assert not late.try_acquire("a", by="late")
    far.check(held.key)
    # A requested TTL is as long as before.
    database_clock(3700)
    assert not late.try_acquire("b", by="late")
    assert not machines.process(host="fourth").try_acquire("b", by="fourth")
    assert machines.holders("a") == machines.holders("b") == ["far"]
    far.check(timed.key)
    assert far.release(held.key)
    assert far.release(timed.key)


@pytest.mark.prove
def test_a_vanished_machine_loses_its_lock_though_the_database_clock_was_set_forward(
    machines: Crowd, house: Path, database_clock: Callable[[float], None]
) -> None:
    far, near = (
        machines.process(host="far", folder=house),
        machines.process(host="near", folder=house),
    )
    far.acquire("a", by="far")
    assert not near.try_acquire("a", by="near")
    far.kill()
    database_clock(3600)
    near.acquire("a", by="near", timeout_s=PATIENCE_S)
