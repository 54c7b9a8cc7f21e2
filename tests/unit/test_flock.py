"""flock on a file: one holder, gone with its process, kept by no child."""

import os
import shutil
import signal
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.system import flock
from holdfast.system.access import shared_by
from holdfast.system.flock import FlockGuard, FlockLock
from tests.harness.timeouts import PATIENCE_S, until


def test_one_process_holds_it_at_a_time(tmp_path: Path) -> None:
    lock = FlockLock(tmp_path / "l")
    assert not lock.is_held() and not (tmp_path / "l").exists()
    first, second = lock.contender(), lock.contender()
    assert first.try_take() and first.try_take() and first.has_it()
    assert not second.try_take() and not second.has_it()
    assert lock.is_held()
    first.close()
    first.close()
    assert not lock.is_held() and not first.has_it()
    assert second.try_take()
    second.close()
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


def test_a_fork_does_not_keep_it_nor_take_it_away(tmp_path: Path) -> None:
    lock = FlockLock(tmp_path / "l")
    mine = lock.contender()
    assert mine.try_take()
    readable, telling = os.pipe()
    child = os.fork()
    if not child:
        os.write(telling, b"1" if not mine.has_it() and lock.is_held() else b"0")
        signal.pause()
    assert os.read(readable, 1) == b"1"
    assert mine.has_it()
    mine.close()
    # The child lives, and has no copy of the descriptor.
    assert not lock.is_held()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(readable)
    os.close(telling)


def test_a_program_that_was_started_meanwhile_does_not_inherit_it(tmp_path: Path) -> None:
    with closing(FlockLock(tmp_path / "l").contender()) as mine:
        assert mine.try_take()
        assert not os.get_inheritable(mine._fd)


def test_a_killed_process_does_not_hold_it(tmp_path: Path) -> None:
    lock = FlockLock(tmp_path / "l")
    readable, telling = os.pipe()
    child = os.fork()
    if not child:
        contender = lock.contender()
        contender.try_take()
        os.write(telling, b".")
        signal.pause()
    assert os.read(readable, 1) == b"." and lock.is_held()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not lock.is_held()
    os.close(readable)
    os.close(telling)


def test_a_lock_file_that_was_replaced_is_not_the_lock(tmp_path: Path) -> None:
    lock = FlockLock(tmp_path / "l")
    early = lock.contender()
    (tmp_path / "l").unlink()
    late = lock.contender()
    assert late.try_take()
    assert not early.try_take()
    (tmp_path / "l").unlink()
    assert not late.has_it()
    early.close()
    late.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("x")
    (tmp_path / "l").symlink_to(tmp_path / "target")
    with pytest.raises(StoreUnavailable, match="is not used"):
        FlockLock(tmp_path / "l").contender()
    with pytest.raises(StoreUnavailable):
        FlockLock(tmp_path / "no" / "l").contender()


def test_a_guard_waits_asleep_and_gives_up_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "g"
    with closing(FlockLock(path).contender()) as other:
        assert other.try_take()
        with pytest.raises(LockTimeout, match="another program has had g"):
            with FlockGuard(path, timeout_s=0.01):
                raise AssertionError("it must not begin")
        entered = threading.Event()

        def enter() -> None:
            with FlockGuard(path):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.is_set()
    thread.join(PATIENCE_S)
    assert entered.is_set()
    # Neither the one that gave up nor the one that left still has it.
    with FlockGuard(path, timeout_s=PATIENCE_S):
        assert FlockLock(path).is_held()
    assert not FlockLock(path).is_held()


def test_a_guard_that_waited_for_a_file_that_was_replaced_waits_for_the_new_one(
    tmp_path: Path,
) -> None:
    """It took the lock of the removed file, beside the holder of the new one."""
    path = tmp_path / "g"
    entered = threading.Event()

    def enter() -> None:
        with FlockGuard(path, timeout_s=PATIENCE_S):
            entered.set()

    old = FlockLock(path).contender()
    assert old.try_take()
    thread = threading.Thread(target=enter)
    thread.start()
    until(lambda: is_waited_for(path))
    path.unlink()
    with closing(FlockLock(path).contender()) as new:
        assert new.try_take()
        old.close()
        until(lambda: entered.is_set() or is_waited_for(path))
        assert not entered.is_set()
    thread.join(PATIENCE_S)
    assert entered.is_set()


def is_waited_for(path: Path) -> bool:
    """Does /proc/locks show one that waits for the flock?"""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{path.stat().st_ino} " in line for line in lines)


def test_a_guard_that_was_interrupted_does_not_get_it_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that blocked for it took it later, for as long as the program lived: everybody
    else was kept out.
    """
    path = tmp_path / "g"

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    shim = SimpleNamespace(Event=Interrupted, Lock=threading.Lock, Thread=threading.Thread)
    monkeypatch.setattr(flock, "threading", shim)
    with closing(FlockLock(path).contender()) as other:
        assert other.try_take()
        with pytest.raises(KeyboardInterrupt):
            FlockGuard(path).__enter__()
    monkeypatch.undo()
    for thread in threading.enumerate():
        if thread.name == "holdfast-flock":
            thread.join(PATIENCE_S)
    assert not FlockLock(path).is_held()
    assert not flock._open_ones


def test_a_guard_that_cannot_be_taken_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int, __: int) -> None:
        raise OSError(5, "Input/output error")

    guard = FlockGuard(tmp_path / "g")
    monkeypatch.setattr(flock, "flock", broken)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        guard.__enter__()
    assert not flock._open_ones


def test_a_file_that_cannot_be_reopened_is_closed_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    contender = FlockLock(folder / "l").contender()
    shutil.rmtree(folder)
    with pytest.raises(StoreUnavailable):
        contender.try_take()
    # Its number is another file's by now.
    mine = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    contender.close()
    assert [os.write(fd, b"x") for fd in mine] == [1, 1]
    for fd in mine:
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files to others")
def test_a_member_of_the_group_asks_for_the_lock_that_another_member_made(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, 100)
    tmp_path.chmod(0o2775)
    lock = FlockLock(tmp_path / "l", shared_by(100))
    lock.contender().close()
    os.chown(tmp_path / "l", 65534, 100)
    assert not lock.is_held()
    with closing(lock.contender()) as mine:
        assert mine.try_take() and lock.is_held()
