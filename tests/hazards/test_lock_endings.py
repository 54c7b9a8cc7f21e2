"""How processes end, fork and are interrupted while they hold or wait, and what happens to the
store.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.kernel.errors import LeaseLost, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Tx
from holdfast.primitives.locks.records import LOCK_WAITS
from tests.harness.errors import raises
from tests.harness.processes import Used, used_by, used_since
from tests.harness.stopped_processes import wait_until_stopped
from tests.harness.timeouts import PATIENCE_S
from tests.harness.waiter import Waiter
from tests.hazards.lock_processes import STORES, Actor, Crowd, Process, crowd_on


@pytest.fixture(params=STORES)
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(request.param, tmp_path, request) as made:
        yield made


# --- forks ---


def _fork(actor: Actor, work: str, key: str) -> dict[str, Any]:
    """In a process that holds a grant: fork, let the child do the work, and return what it
    found.
    """
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write_fd, json.dumps(_WORKS[work](actor, key)).encode())
            status = 0
        except BaseException as error:
            os.write(write_fd, json.dumps({"failed": repr(error)}).encode())
        finally:
            os._exit(status)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as reported:
        found: dict[str, Any] = json.loads(reported.read())
    os.waitpid(child, 0)
    return found


def _releases(actor: Actor, key: str) -> dict[str, Any]:
    """A child that releases what it seems to hold."""
    return {"released": actor._grants[key].release()}


def _leaves(actor: Actor, key: str) -> dict[str, Any]:
    """A child that leaves the block in which it was forked off."""
    try:
        with actor._grants[key]:
            pass
    except LeaseLost:
        # It never held it, so either way is true.
        pass
    return {}


def _holds_its_own(actor: Actor, key: str) -> dict[str, Any]:
    locks = actor.hf.locks
    own = locks.acquire(["b", "c"], by="child")
    contended = locks.try_acquire("a", by="child")
    found = {
        "id": own.id,
        "parents id": actor._grants[key].id,
        "pid": [hold.process and hold.process.pid for hold in locks.status("b").holds],
        "mine": os.getpid(),
        "contended": contended is not None,
    }
    return found | {"released": locks.release(own)}


def _closes(actor: Actor, key: str) -> dict[str, Any]:
    actor.hf.close()
    return {}


_WORKS = {"releases": _releases, "leaves": _leaves, "holds": _holds_its_own, "closes": _closes}


@pytest.fixture(autouse=True)
def _actors_can_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of these tests can do more than the others'."""
    monkeypatch.setattr(Actor, "fork", _fork, raising=False)
    monkeypatch.setattr(Actor, "fork_and_stay", _fork_and_stay, raising=False)


@pytest.mark.parametrize("work", ["releases", "leaves", "closes"])
def test_a_forked_child_does_not_release_what_its_parent_holds(crowd: Crowd, work: str) -> None:
    parent, other = crowd.processes(2)
    held = parent.acquire("a", by="parent")
    found = parent.fork(work, held.key)
    assert found in ({}, {"released": False})
    parent.check(held.key)
    assert not other.try_acquire("a", by="other")
    assert not parent.is_lost(held.key)
    assert parent.release(held.key)
    assert crowd.rows() == []


def test_a_forked_child_holds_for_itself(crowd: Crowd) -> None:
    (parent,) = crowd.processes(1)
    held = parent.acquire("a", by="parent")
    found = parent.fork("holds", held.key)
    assert found["pid"] == [found["mine"]]
    assert found["contended"] is False
    assert found["released"] is True
    # Its ids are its own, though both count on from the same number.
    assert found["id"].partition("-")[0] != found["parents id"].partition("-")[0]
    assert parent.release(held.key)
    assert crowd.rows() == []


def _fork_and_stay(actor: Actor) -> int:
    """Fork a child that only stays; it inherits every descriptor."""
    child = os.fork()
    if child == 0:
        try:
            signal.pause()
        finally:
            os._exit(0)
    return child


def test_a_lock_passes_on_when_its_holder_dies_though_a_forked_child_lives(crowd: Crowd) -> None:
    parent, waiter = crowd.processes(2)
    parent.acquire("a", by="parent")
    child = parent.fork_and_stay()
    try:
        waiter.line_up("a", by="waiter")
        parent.kill()
        waiter.result()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


# --- ends ---


_PROGRAM = """
import sys, holdfast
hf = holdfast.connect(sys.argv[1])
grant = hf.locks.acquire(["a", "b"], by="program")
print("has", flush=True)
sys.stdin.readline()
{end}
"""


@pytest.mark.prove
@pytest.mark.parametrize(
    "end",
    ["sys.exit(3)", "raise KeyError('its own')", "hf.close()", "pass", "import os; os.abort()"],
)
def test_a_program_that_ends_without_a_release_frees_its_locks(crowd: Crowd, end: str) -> None:
    script = _PROGRAM.format(end=end)
    waiter = crowd.process()
    with subprocess.Popen(
        [sys.executable, "-c", script, crowd.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "has\n"
        waiter.line_up("b", by="waiter")
        program.stdin.write("\n")
        program.stdin.flush()
        granted = waiter.result()
        program.wait(PATIENCE_S)
    waiter.release(granted.key)
    waiter.use(["a", "b"], by="after")
    assert crowd.rows() == []


def test_closing_lets_go_of_nothing_before_the_process_ends(crowd: Crowd) -> None:
    closed, waiter = crowd.processes(2)
    closed.acquire("a", by="closed")
    closed.close()
    assert not waiter.try_acquire("a", by="waiter")
    waiter.line_up("a", by="waiter")
    closed.kill()
    waiter.result()


# --- interrupted ---


def test_ctrl_c_while_waiting_leaves_nothing_in_line(crowd: Crowd) -> None:
    holder, interrupted, behind = crowd.processes(3)
    held = holder.acquire("a", by="holder")
    interrupted.line_up(["a", "b"], by="interrupted")
    behind.line_up("a", by="behind")
    interrupted.signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted.result()
    assert crowd.queue("a") == ["behind"]
    assert crowd.queue("b") == []
    # It lives on, and can wait again.
    assert holder.release(held.key)
    granted = behind.result()
    interrupted.line_up("a", by="interrupted")
    assert behind.release(granted.key)
    granted = interrupted.result()
    assert interrupted.release(granted.key)
    assert crowd.rows() == []


def test_ctrl_c_while_looking_leaves_nothing_in_line(crowd: Crowd) -> None:
    holder, interrupted = crowd.processes(2)
    held = holder.acquire("a", by="holder")
    interrupted.look("a", by="interrupted")
    interrupted.signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted.result()
    assert crowd.queue("a") == []
    assert holder.release(held.key)
    assert crowd.rows() == []


def test_an_exception_thrown_into_a_waiting_thread_leaves_nothing_in_line(crowd: Crowd) -> None:
    class Thrown(Exception):
        pass

    locks = crowd.hf.locks
    held = locks.acquire("a", by="holder")
    waiting = Waiter(
        lambda waits: locks.acquire("a", by="waiter", timeout_s=PATIENCE_S, on_wait=waits)
    )
    assert (
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(waiting.ident), ctypes.py_object(Thrown)
        )
        == 1
    )
    # It comes with the next step that the thread takes, so let it take one.
    rows = crowd.hf.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])

    def wake_all(tx: Tx) -> None:
        for row in rows:
            tx.notify(row.record.address)

    crowd.hf.store.transact(wake_all, scope=[LOCK_WAITS])
    with pytest.raises(Thrown):
        waiting.result()
    assert crowd.queue("a") == []
    assert locks.release(held)
    assert crowd.rows() == []


# --- the store ---


@pytest.mark.prove
def test_a_waiter_whose_store_is_closed_gets_an_error(crowd: Crowd) -> None:
    """It would wait for ever: nobody can wake it any more."""
    hf = holdfast.connect(crowd.url)
    holder = crowd.process()
    holder.acquire("a", by="holder")
    waiting = Waiter(
        lambda waits: hf.locks.acquire("a", by="waiter", timeout_s=None, on_wait=waits)
    )
    hf.close()
    with raises(StoreUnavailable, closed=True):
        waiting.result()


@pytest.mark.prove
@pytest.mark.parametrize("lease_s", [30.0, 0.6], ids=["", "with leases that run out meanwhile"])
def test_waiters_outlive_a_restart_of_their_database(tmp_path: Path, lease_s: float) -> None:
    """Those that wait and those that hold: nobody loses anything by it, and the next in line is
    woken.
    """
    from tests.stores.postgres_server import running

    (tmp_path / "holdfast.toml").write_text(f"[locks]\nlease_s = {lease_s}\n")
    with running() as server:
        crowd = Crowd(server.url)
        try:
            holdfast.connect(server.url).close()
            holder, first, second = (crowd.process(folder=tmp_path) for _ in range(3))
            held = holder.acquire("a", by="holder")
            first.line_up("a", by="first", timeout_s=None)
            second.line_up("a", by="second", timeout_s=None)
            server.stop()
            _nothing_is_said([first, second], 1.5)
            server.start()
            holder.check(held.key)
            assert holder.release(held.key)
            granted = first.result()
            assert first.release(granted.key)
            granted = second.result()
            assert second.release(granted.key)
        finally:
            crowd.close()


def _used_in(processes: Sequence[Process], seconds: float) -> list[Used]:
    """Let so much time pass, in which none of the processes may say anything; return what each has
    used.
    """
    before = [used_by(process.pid) for process in processes]
    _nothing_is_said(processes, seconds)
    return [
        used_since(began, process.pid) for process, began in zip(processes, before, strict=True)
    ]


def _nothing_is_said(processes: Sequence[Process], for_s: float) -> None:
    """Let so much time pass, in which none of the processes may say anything."""
    pipes = {process.pipe: process for process in processes}
    for pipe in pipes.keys() & set(wait(list(pipes), for_s)):
        raise AssertionError(f"it said {pipe.recv()}")


@pytest.mark.prove
def test_a_time_limit_holds_though_the_store_does_not_answer(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A writer that is stopped inside the gate blocks everybody; a request with a limit of one
    second fails after that.
    """
    with crowd_on("sqlite", tmp_path, request) as crowd:
        stuck, other = crowd.processes(2)
        stuck.stop_at("sqlite.write")
        stuck.begin("use", "x", by="stuck")
        wait_until_stopped(stuck.pid)
        began_s = time.monotonic()
        with pytest.raises(LockTimeout):
            other.acquire("a", by="other", timeout_s=1)
        took_s = time.monotonic() - began_s
        stuck.go_on()
        stuck.result()
        print(f"told after {took_s:.1f} s")
        # Not after the time that is usual.
        assert took_s < TRANSACT_TIMEOUT_S


# --- waiting ---


@pytest.mark.prove
def test_waiting_uses_no_cpu(crowd: Crowd) -> None:
    holder, *waiters = crowd.processes(21)
    held = holder.acquire("a", by="holder")
    for number, process in enumerate(waiters):
        process.line_up("a", by=f"waiter{number}")
    assert all(used.is_rest(5) for used in _used_in(waiters, 5))
    process, granted = holder, held
    for next_one in waiters:
        assert process.release(granted.key)
        process, granted = next_one, next_one.result()


@pytest.mark.prove
def test_waiting_uses_no_cpu_after_another_took_over_from_the_dead(crowd: Crowd) -> None:
    """Several watch one process; all but the first to come find it gone already."""
    dying, holder, quick, *waiters = crowd.processes(5)
    dying.acquire(["a", "b", "c"], by="dying")
    holder.acquire("x", by="holder")
    quick.line_up("c", by="quick")
    for name, process in zip("ab", waiters, strict=True):
        process.line_up([name, "x"], by=f"waiter-{name}")
    dying.kill()
    quick.result()
    for process in waiters:
        process.heard("waits")
    # Each reports its wait once, which takes a database several looks at its connection.
    assert all(used.is_rest(5) for used in _used_in(waiters, 5))
