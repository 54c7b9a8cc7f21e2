"""Deadlocks among real processes: one gets the error with the cycle, and the others continue."""

from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from holdfast.kernel.errors import DeadlockDetected
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.lock_processes import STORES, Crowd, Granted, Process, crowd_on


@pytest.fixture(params=STORES)
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(request.param, tmp_path, request) as made:
        yield made


def test_crossed_locks(crowd: Crowd) -> None:
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    held = two.acquire("b", by="two")
    one.line_up("b", by="one", timeout_s=None)
    with pytest.raises(DeadlockDetected) as caught:
        two.acquire("a", by="two", timeout_s=None)
    assert (
        caught.value.fields["cycle"] == "two waits for a, held by one; one waits for b, held by two"
    )
    # It keeps what it holds, and the other continues when it releases.
    two.check(held.key)
    assert two.release(held.key)
    assert one.result().names == ("b",)


def test_crossed_locks_asked_for_at_the_same_time(crowd: Crowd) -> None:
    """The second gets the error, every time, and never both."""
    processes = crowd.processes(2)
    for number in range(10):
        names = [f"a{number}", f"b{number}"]
        held = [
            process.acquire(name, by=f"job{at}")
            for at, (process, name) in enumerate(zip(processes, names, strict=True))
        ]
        for at, process in enumerate(processes):
            process.begin("acquire", names[1 - at], by=f"job{at}", timeout_s=None)
        reported = _refused_one(processes, held)
        granted = processes[1 - reported].result()
        assert processes[1 - reported].release(granted.key)
        assert processes[1 - reported].release(held[1 - reported].key)
    assert crowd.rows() == []


def _refused_one(processes: list[Process], held: list[Granted]) -> int:
    """Which of the two got the deadlock; it releases what it holds."""
    pipes = [process.pipe for process in processes]
    while True:
        ready = wait(pipes, PATIENCE_S)
        assert ready, "no process got the error"
        for at, process in enumerate(processes):
            if process.pipe in ready and (said := process.pipe.recv())[0] == "done":
                assert isinstance(said[1], DeadlockDetected), said
                assert process.release(held[at].key)
                return at


def test_a_cycle_of_three(crowd: Crowd) -> None:
    processes = crowd.processes(3)
    held = [
        process.acquire(name, by=f"job-{name}")
        for process, name in zip(processes, "abc", strict=True)
    ]
    processes[0].line_up("b", by="job-a")
    processes[1].line_up("c", by="job-b")
    with pytest.raises(DeadlockDetected) as caught:
        processes[2].acquire("a", by="job-c")
    assert caught.value.fields["cycle"] == (
        "job-c waits for a, held by job-a; job-a waits for b, held by job-b; job-b waits for c, "
        "held by job-c"
    )
    processes[2].release(held[2].key)
    granted = processes[1].result()
    processes[1].release(granted.key)
    processes[1].release(held[1].key)
    processes[0].result()


def test_a_cycle_through_a_wait_that_takes_nothing(crowd: Crowd) -> None:
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    held = two.acquire("b", by="two")
    one.look("b", by="one")
    with raises(
        DeadlockDetected, cycle="two waits for a, held by one; one waits for b, held by two"
    ):
        two.wait("a", by="two")
    two.release(held.key)
    assert one.result() is True


def test_two_upgraders(crowd: Crowd) -> None:
    one, two = crowd.processes(2)
    one.acquire("a", by="one", mode="shared")
    held = two.acquire("a", by="two", mode="shared")
    one.line_up("a", by="one")
    with pytest.raises(DeadlockDetected):
        two.acquire("a", by="two")
    assert two.release(held.key)
    granted = one.result()
    assert not two.try_acquire("a", by="two", mode="shared")
    assert one.release(granted.key)
    assert two.try_acquire("a", by="two", mode="shared")


def test_the_refused_waiter_may_have_waited_long(crowd: Crowd) -> None:
    """A grant to another process of its job closed the cycle: it is woken, and told."""
    holder, other, job, jobs_second = crowd.processes(4)
    held = holder.acquire("c", by="holder")
    other.acquire("b", by="other")
    other.line_up("c", by="other")
    job.line_up("b", by="job")
    jobs_second.line_up("c", by="job", priority=5)
    assert holder.release(held.key)
    granted = jobs_second.result()
    with pytest.raises(DeadlockDetected, match="job waits for b, held by other"):
        job.result()
    assert jobs_second.release(granted.key)
    other.result()
