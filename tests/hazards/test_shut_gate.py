"""A writer that is stopped inside a transaction shuts the gate. A waiter there waits as long as its
limit, leaves nothing behind, and continues when the gate opens.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.primitives import deadline, steady_clock
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.runtime.connection import Holdfast
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import PRIVATE
from tests.harness.errors import raises
from tests.harness.stopped_processes import StoppedInside
from tests.harness.timeouts import NEVER_S, PATIENCE_S, until
from tests.stores.harnesses_postgres import be_patient

LOCK_SPACES = ("locks", "lock_waits")
LIMIT_S = 2.5
MARGIN_S = 1.5


class Gates:
    """How long this thread was ready to wait for a turn, all in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hf: Holdfast) -> None:
        self.asked_s: list[float] = []
        self.refused = threading.Event()
        self._refusals = 0
        self._thread = threading.current_thread()
        for name in ("transact", "read", "get", "put_new", "delete_if"):
            monkeypatch.setattr(hf.store, name, self._watched(getattr(hf.store, name)))

    def _watched(self, call: Callable[..., object]) -> Callable[..., object]:
        def watched(*arguments: object, timeout_s: float = 10.0, **more: object) -> object:
            try:
                return call(*arguments, timeout_s=timeout_s, **more)
            except LockTimeout:
                # Only calls that waited count: most are answered at once.
                if threading.current_thread() is self._thread:
                    self.asked_s.append(timeout_s)
                self._refusals += 1
                if self._refusals >= 3:
                    self.refused.set()
                raise

        return watched


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres":
        be_patient(monkeypatch)
        found: str = request.getfixturevalue("postgres_url")
        return found
    return (
        f"sqlite:{tmp_path}/store.sqlite"
        if request.param == "sqlite"
        else f"files:{tmp_path}/store"
    )


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        connected.locks.release(connected.locks.acquire("used", by="before"))
        connected.locks.statistics()
        yield connected


def _waits(hf: Holdfast) -> int:
    return hf.store.read(lambda tx: tx.count(LOCK_WAITS), scope=[LOCK_WAITS])


def test_a_wait_without_a_limit_goes_on_until_the_gate_opens(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`acquire(timeout_s=None)` raised LockTimeout after the 10 s of one transaction."""
    monkeypatch.setattr(deadline, "TRANSACT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(deadline, "_FIRST_S", 0.1)
    gates = Gates(monkeypatch, hf)
    with (
        caplog.at_level(logging.WARNING, "holdfast.locks"),
        StoppedInside(url, *LOCK_SPACES) as writer,
        ThreadPoolExecutor() as threads,
    ):
        waiting = threads.submit(hf.locks.acquire, "router-1", by="job-1", timeout_s=None)
        assert gates.refused.wait(60) and not waiting.done()
        writer.go_on()
        grant = waiting.result()
    assert hf.locks.release(grant)
    assert [record for record in caplog.records if record.message.startswith("still waiting: ")]


def test_a_time_limit_holds_at_the_shut_gate(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--timeout 3` took 14 s: 3 for the lock, 1 to withdraw what was never written, 10 to
    close.
    """
    gates = Gates(monkeypatch, hf)
    with StoppedInside(url, *LOCK_SPACES) as writer:
        with pytest.raises(LockTimeout) as raised:
            hf.locks.acquire("router-1", by="job-1", timeout_s=LIMIT_S)
        assert (
            raised.value.fields["names"] == ["router-1"]
            and raised.value.fields["timeout_s"] == LIMIT_S
        )
        if "postgres" not in url:
            assert raised.value.fields["holder_pid"] == writer.pid
        hf.locks.close()
        assert sum(gates.asked_s) <= LIMIT_S + MARGIN_S, gates.asked_s


def test_a_waiter_whose_time_is_over_at_the_shut_gate_leaves_the_queue_when_it_opens(
    hf: Holdfast, url: str
) -> None:
    """Its row would be granted the lock, for nobody, and by a process that lives."""
    held = hf.locks.acquire("router-1", by="holder")
    with ThreadPoolExecutor() as threads:

        def in_line() -> Future[Grant]:
            one = threads.submit(hf.locks.acquire, "router-1", by="late", timeout_s=LIMIT_S)
            until(lambda: _waits(hf) == 1 or one.done())
            return one

        while (waiting := in_line()).done():
            # On a busy machine its time may be over before anybody sees it in line.
            continue
        with StoppedInside(url, *LOCK_SPACES) as writer:
            with pytest.raises(LockTimeout):
                waiting.result()
            writer.go_on()
        until(lambda: _waits(hf) == 0)
    assert hf.locks.release(held)
    assert hf.store.get(LOCKS, "router-1") is None
    hf.locks.acquire("router-1", by="next", timeout_s=0)


def test_closing_at_the_shut_gate_waits_briefly(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is renewed by a thread, which was woken to end by a transaction."""
    hf.locks.acquire("router-1", by="job-1")
    gates = Gates(monkeypatch, hf)
    with StoppedInside(url, *LOCK_SPACES, "lock_statistics"):
        hf.close()
    assert sum(gates.asked_s) <= MARGIN_S, gates.asked_s


def test_a_pick_waits_for_its_time_limit(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = hf.jobs.register_job("prompt", agent="claude", agent_session="claude-a")
    gates = Gates(monkeypatch, hf)
    with StoppedInside(url, "jobs") as writer:
        with pytest.raises(LockTimeout):
            hf.jobs.pick_pending("claude-a", wait_s=LIMIT_S)
        assert sum(gates.asked_s) <= LIMIT_S + MARGIN_S, gates.asked_s
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(hf.jobs.pick_pending, "claude-a", wait_s=600)
            assert gates.refused.wait(60) and not waiting.done()
            writer.go_on()
            picked = waiting.result()
    assert picked is not None and picked.job_id == job.job_id


def test_a_look_at_how_the_clock_runs_does_not_wait(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look of a pick, an update or a waiter was ready to wait for 1 s, beyond the caller's own
    limit.
    """
    monkeypatch.setattr(steady_clock, "CLOCK_WRITE_EVERY_S", 0.0)
    hf.jobs.register_job("prompt", agent="claude", agent_session="claude-a")
    with holdfast.connect(url) as other:
        gates = Gates(monkeypatch, other)
        steady = steady_clock.steady_clock(other.store)

        def compared() -> bool:
            steady.compare()
            return steady.for_retention(other.store.now()) is not None

        with StoppedInside(url, "jobs"):
            # It compares the clocks nevertheless. A slow answer proves nothing, and it asks again.
            until(compared)
        assert sum(gates.asked_s) <= 0.1, gates.asked_s


def test_a_swap_waits_for_its_time_limit(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hf.workflows.swap("warm"):
        pass
    gates = Gates(monkeypatch, hf)
    with StoppedInside(url, "workflows", "swap_marker"):
        with pytest.raises(LockTimeout), hf.workflows.swap("cold", timeout_s=LIMIT_S):
            pass
        # Twice a moment more: to tell of its end, and to wake who waits for that.
        assert sum(gates.asked_s) <= LIMIT_S + 2 + MARGIN_S, gates.asked_s
    assert hf.workflows.snapshot().loaded.has("warm")


def test_a_waiter_at_a_closed_gate_fails_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate", PRIVATE)
    other = os.open(gate.path, os.O_RDWR)
    flock(other, LOCK_EX)
    done: list[int] = []
    with ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(gate.run, partial(done.append, number), 600.0) for number in range(3)
        ]
        until(lambda: gate._thread is not None and gate._thread._tasks.qsize() == 2)
        gate.close()
        # With the gate still shut, and far from their limits.
        reported = [one.exception(PATIENCE_S) for one in waiting]
    assert [isinstance(one, StoreUnavailable) and one.fields["closed"] for one in reported] == [
        True
    ] * 3
    with pytest.raises(StoreUnavailable):
        gate.run(lambda: None, 600.0)
    flock(other, LOCK_UN)
    # The thread gets its turn, does nothing with it, and releases the file.
    until(lambda: gate._fd < 0)
    flock(other, LOCK_EX | LOCK_NB)
    os.close(other)
    assert done == []


def test_a_caller_that_meets_the_gates_thread_at_the_gate_joins_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came just before the thread began to wait in the kernel, and waited for the thread itself:
    closing the gate did not reach it there.
    """
    gate = Gate(tmp_path / "gate", PRIVATE)
    done: list[int] = []
    at_gate = threading.Event()
    thread_waits = gate._thread_waits

    def note_arrival() -> bool:
        at_gate.set()
        return thread_waits()

    monkeypatch.setattr(gate, "_thread_waits", note_arrival)
    gate._inside.acquire()
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(gate.run, partial(done.append, 1), NEVER_S)
        assert at_gate.wait(PATIENCE_S)
        thread = gate._started_thread()
        first = threads.submit(
            thread.run, lambda: done.append(2), NEVER_S, lambda: LockTimeout("late")
        )
        until(lambda: thread.busy)
        until(lambda: thread._tasks.qsize() == 1)
        gate._inside.release()
        assert [early.exception(PATIENCE_S), first.exception(PATIENCE_S)] == [None, None]
    assert done == [2, 1]
    gate.close()


def test_a_task_that_comes_after_the_end_of_the_gates_thread_is_refused(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate", PRIVATE)
    thread = gate._started_thread()
    gate.close()
    with raises(StoreUnavailable, closed=True):
        thread.run(lambda: None, 600.0, lambda: LockTimeout("never"))
