"""Locks among real processes that are killed: the next waiter continues, and nothing stays held or
queued.
"""

import random
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import pytest

import holdfast
from holdfast.kernel.errors import LockTimeout
from tests.harness import stopped_processes
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.lock_processes import STORES, Crowd, Process, crowd_on
from tests.hazards.postgres_sessions import outlived


@pytest.fixture(params=STORES)
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(request.param, tmp_path, request) as made:
        yield made


# --- the processes themselves ---


def test_an_error_and_an_exit_status_of_a_process_are_reported(crowd: Crowd) -> None:
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    with pytest.raises(LockTimeout, match="one"):
        two.acquire("a", by="two", timeout_s=0)
    two.begin("nap")
    two.heard("naps")
    two.kill()
    assert two.was_killed()
    assert two.end() == -signal.SIGKILL


def test_two_that_hold_one_resource_would_be_noticed(tmp_path: Path, crowd: Crowd) -> None:
    """The witness of the other tests can fail."""
    one, two = crowd.processes(2)
    one.witness(tmp_path, ["a"])
    with pytest.raises(BlockingIOError):
        two.witness(tmp_path, ["a"])


# --- holders that are killed ---


@pytest.mark.prove
@pytest.mark.usefixtures("no_second_look")
def test_the_next_waiter_is_woken_by_its_holders_death(crowd: Crowd) -> None:
    """How soon is the benchmark's to say."""
    waiter, *holders = crowd.processes(8)
    for holder in holders:
        holder.acquire("a", by="holder")
        waiter.line_up("a", by="waiter")
        holder.kill()
        granted = waiter.result()
        assert waiter.release(granted.key)
    assert crowd.rows() == []


def test_a_killed_holders_whole_set_is_free(crowd: Crowd) -> None:
    holder, one, two = crowd.processes(3)
    holder.acquire(["a", "b", "c"], by="holder")
    one.line_up("a", by="one")
    two.line_up(["b", "c"], by="two")
    holder.kill()
    assert one.result().names == ("a",)
    assert two.result().names == ("b", "c")


def test_a_killed_sharer_is_one_less(crowd: Crowd) -> None:
    first, second, waiter = crowd.processes(3)
    first.acquire("a", by="first", mode="shared")
    granted = second.acquire("a", by="second", mode="shared")
    waiter.line_up("a", by="waiter")
    first.kill()
    # The waiter checks when the first dies, and must not take the second for it.
    waiter.heard("waits")
    assert crowd.holders("a") == ["second"]
    assert second.release(granted.key)
    waiter.result()


@pytest.mark.parametrize("deep", [1, 3])
def test_a_holder_and_the_first_in_line_killed_at_once(crowd: Crowd, deep: int) -> None:
    *dying, live = crowd.processes(deep + 2)
    dying[0].acquire("a", by="holder")
    for number, process in enumerate(dying[1:]):
        process.line_up("a", by=f"waiter{number}")
    live.line_up("a", by="live")
    for process in dying:
        process.kill()
    granted = live.result()
    assert crowd.holders("a") == ["live"]
    assert live.release(granted.key)
    assert crowd.rows() == []


def test_a_waiter_killed_in_the_middle_of_the_line(crowd: Crowd) -> None:
    holder, first, middle, last = crowd.processes(4)
    granted = holder.acquire("a", by="holder")
    for by, process in (("first", first), ("middle", middle), ("last", last)):
        process.line_up("a", by=by)
    middle.kill()
    # The one behind sees to it that it is gone, and then has another just ahead.
    last.heard("waits")
    assert crowd.queue("a") == ["first", "last"]
    assert holder.release(granted.key)
    granted = first.result()
    assert first.release(granted.key)
    last.result()


def test_a_waiter_killed_just_as_it_is_granted(crowd: Crowd) -> None:
    """It stands still, so that the grant certainly comes before it can wake."""
    holder, first, last = crowd.processes(3)
    granted = holder.acquire("a", by="holder")
    first.line_up("a", by="first")
    last.line_up("a", by="last")
    first.stop()
    assert holder.release(granted.key)
    assert crowd.holders("a") == ["first"]
    first.kill()
    last.result()


def test_a_stopped_waiter_is_granted_and_goes_on_where_it_was(crowd: Crowd) -> None:
    holder, first, last = crowd.processes(3)
    granted = holder.acquire("a", by="holder")
    first.line_up("a", by="first")
    last.line_up("a", by="last")
    first.stop()
    holder.release(granted.key)
    first.go_on()
    granted = first.result()
    assert crowd.queue("a") == ["last"]
    first.release(granted.key)
    last.result()


def test_stopping_one_that_never_leaves_its_transaction_is_given_up(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = crowd.process()
    monkeypatch.setattr(stopped_processes, "STOPS_MAX", 3)
    monkeypatch.setattr(stopped_processes, "is_inside", lambda *_: True)
    with pytest.raises(AssertionError, match="each of 3 times"):
        one.stop()
    one.die()
    with pytest.raises(AssertionError, match="ended and cannot stop"):
        stopped_processes.wait_until_stopped(one.pid)


def test_a_killed_looker_and_a_killed_upgrader_leave_nothing(crowd: Crowd) -> None:
    holder, looker, upgrader = crowd.processes(3)
    granted = holder.acquire("a", by="holder", mode="shared")
    upgrader.acquire("a", by="upgrader", mode="shared")
    looker.look("a", by="looker")
    upgrader.line_up("a", by="upgrader")
    looker.die()
    upgrader.die()
    assert holder.release(granted.key)
    fresh = crowd.process()
    granted = fresh.acquire("a", by="fresh")
    assert fresh.release(granted.key)
    assert crowd.rows() == []


def test_a_holder_killed_while_it_waits_for_more(crowd: Crowd) -> None:
    """Its grants and its place in line go, on both names."""
    dying, other, waiter = crowd.processes(3)
    dying.acquire("a", by="dying")
    granted = other.acquire("b", by="other")
    dying.line_up(["a", "b"], by="dying")
    waiter.line_up("a", by="waiter")
    dying.kill()
    waiter.result()
    assert other.release(granted.key)
    fresh = crowd.process()
    granted = fresh.acquire("b", by="fresh")
    assert fresh.release(granted.key)
    assert crowd.rows() == ["locks/a"]


def test_crossed_locks_of_which_one_side_was_killed(crowd: Crowd) -> None:
    """A live waiter gets no deadlock with the dead."""
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    two.acquire("b", by="two")
    two.line_up("a", by="two")
    two.die()
    assert one.acquire("b", by="one").names == ("b",)


def test_a_job_restarted_after_a_kill_holds_for_itself(crowd: Crowd) -> None:
    """The same job in a new process must not build on the grant of the dead one, which anybody may
    take over.
    """
    first, again, other = crowd.processes(3)
    old = first.acquire("a", by="job")
    first.die()
    new = again.acquire("a", by="job")
    assert new.taken == ("a",)
    assert new.token > old.token
    assert not other.try_acquire("a", by="other")
    again.check(new.key)
    assert again.release(new.key)


def test_another_process_with_the_pid_of_the_holder_is_not_the_holder(crowd: Crowd) -> None:
    """Pids come round again; the start time does not."""
    (live,) = crowd.processes(1)
    process = crowd.hf.processes.of(live.pid)
    reused = holdfast.kernel.holder.Holder(
        **process.place._asdict(),
        pid=process.pid,
        start_ticks=process.start_ticks - 1,
        label="the earlier one",
    )
    held = crowd.hf.locks.acquire("a", by="job", process=reused)
    waiter = crowd.process()
    assert waiter.acquire("a", by="waiter", timeout_s=0).token > held.token
    # The living one that has the pid now is another matter.
    crowd.hf.locks.acquire("b", by="job", process=process)
    assert not waiter.try_acquire("b", by="waiter")
    live.kill()
    waiter.acquire("b", by="waiter")


# --- many ---


@pytest.mark.prove
def test_killed_at_random_moments_under_load(crowd: Crowd, tmp_path: Path) -> None:
    """Never two holders at once, and at the end everything is free again."""
    names = [f"r{number}" for number in range(3)]
    chosen = random.Random(7)
    running: list[Process] = []
    for number in range(30):
        while len(running) < 4:
            process = crowd.process()
            process.begin("take_turns", tmp_path, names, None, seed=100 * number + len(running))
            running.append(process)
        # Let some turns pass, a different number each time, and kill the one that holds it then.
        for _ in range(chosen.randint(1, 12)):
            _a_turn(running)
        victim = running.pop(chosen.randrange(len(running)))
        victim.kill()
        assert victim.end() == -signal.SIGKILL, "it ended by itself"
    for process in running:
        process.kill()
        assert process.end() == -signal.SIGKILL, "it ended by itself"
    outlived(crowd.hf, crowd.url)
    (last,) = crowd.processes(1)
    granted = last.acquire(names, by="last")
    assert last.release(granted.key)
    assert crowd.rows() == []


def _a_turn(running: Sequence[Process]) -> None:
    ready = wait([process.pipe for process in running], PATIENCE_S)
    assert ready, "nobody gets a turn"
    for process in running:
        if process.pipe in ready:
            said, what = process.pipe.recv()
            if isinstance(what, BaseException):
                raise what
            assert said == "turn"


@pytest.mark.prove
@pytest.mark.parametrize(("kind", "number", "turns"), [("sqlite", 100, 5), ("postgres", 30, 5)])
def test_a_hundred_processes_on_one_lock_all_get_it(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, number: int, turns: int
) -> None:
    with crowd_on(kind, tmp_path, request) as crowd:
        processes = crowd.processes(number)
        began_s = time.monotonic()
        for seed, process in enumerate(processes):
            process.begin("take_turns", tmp_path, ["a"], turns, seed=seed)
        assert [process.result() for process in processes] == [turns] * number
        took_s = time.monotonic() - began_s
        print(f"{number} processes, {turns} turns each: {took_s:.2f} s")
        assert took_s < PATIENCE_S
        assert crowd.rows() == []
