"""Forks at bad moments, Ctrl-C at worse ones, and calls that must not be made."""

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path

import pytest

from holdfast.kernel.errors import InvalidValue, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import ReadTx, Tx
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import handles, maintenance
from holdfast.stores.sqlite.database import Connection
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import faults
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.harness import OTHERS, THINGS, VOLATILE, Thing, append, heard, put
from tests.harness.errors import raises
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until

_IGNORED_S = 10.0
"""After how long without an answer a signal counts as ignored."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def _open(path: Path, boot_id: str = "boot-1") -> SqliteStore:
    return SqliteStore(path, boot_id=boot_id)


def _in_child(work: object) -> int:
    """Run the work in a forked child and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- forks ---


def test_a_childs_acknowledged_write_outlives_its_parents_close(path: Path) -> None:
    """A child that inherits SQLite's table of locks, but not the locks, would write to a log that
    others have deleted.
    """
    store = _open(path)
    put(store, "parent")
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            put(store, "child 1")
            os.write(from_child, b"1")
            os.read(to_child, 1)
            put(store, "child 2")
            status = 0
        finally:
            os._exit(status)
    os.read(to_parent, 1)
    store.close()
    other = _open(path)
    put(other, "other")
    other.close()
    os.write(from_parent, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for fd in (to_child, from_parent, to_parent, from_child):
        os.close(fd)
    again = _open(path)
    found = again.read(lambda tx: [row.key for row in tx.range(THINGS)], scope=[THINGS])
    again.close()
    assert found == ["child 1", "child 2", "other", "parent"]


def test_forks_while_threads_read_and_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread may get no turn, or a disk take long, while a fork waits for it.
    monkeypatch.setattr(handles, "FORK_WAIT_S", PATIENCE_S)
    store = _open(path)
    put(store, "sum")
    stop = threading.Event()

    def busy(number: int) -> None:
        while not stop.is_set():
            if number:
                store.get(THINGS, "sum")
            else:
                put(store, "written")

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(busy, number) for number in range(3)]
        try:
            for number in range(20):
                assert _in_child(lambda n=number: put(store, f"child {n}")) == 0
        finally:
            stop.set()
        for work in working:
            work.result(PATIENCE_S)
    count = store.read(lambda tx: len(tx.range(THINGS, prefix="child")), scope=[THINGS])
    store.close()
    assert count == 20


def test_a_fork_while_a_thread_dawdles_in_a_transaction_is_refused_in_the_child(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "FORK_WAIT_S", 0.05)
    store = _open(path)
    put(store, "a")
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> None:
        inside.set()
        leave.wait(PATIENCE_S)

    def refused() -> None:
        with raises(StoreUnavailable, forked=True):
            store.get(THINGS, "a")

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.transact, dawdle, scope=[THINGS])
        assert inside.wait(PATIENCE_S)
        assert _in_child(refused) == 0
        leave.set()
        slow.result(PATIENCE_S)
    assert put(store, "b") > 0
    store.close()


def test_a_fork_waits_for_a_connection_that_another_thread_has_just_picked_up(path: Path) -> None:
    """It was opened by the thread that forks, and does not name its new user yet."""
    store = _open(path)
    put(store, "a")
    picked, go_on = threading.Event(), threading.Event()

    class Slow(deque[Connection]):
        def pop(self) -> Connection:  # type: ignore[override]
            connection = super().pop()
            if threading.current_thread() is reader:
                picked.set()
                go_on.wait(PATIENCE_S)
            return connection

    def let_go_on() -> None:
        until(lambda: handles._forking)
        go_on.set()

    store.durable._idle = Slow(store.durable._idle)
    reader = threading.Thread(target=lambda: store.get(THINGS, "a"))
    releaser = threading.Thread(target=let_go_on)
    reader.start()
    assert picked.wait(PATIENCE_S)
    releaser.start()
    assert _in_child(lambda: put(store, "child")) == 0
    for thread in (reader, releaser):
        thread.join(PATIENCE_S)
    assert store.get(THINGS, "child") is not None
    store.close()


def test_a_thread_that_finds_a_fork_under_way_does_the_child_no_harm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has announced its connection, will see the fork and take that back, and has not called
    SQLite.
    """
    store = _open(path)
    put(store, "a")
    announced, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class Slow(set[handles.Handle]):
        def add(self, handle: handles.Handle) -> None:
            super().add(handle)
            if threads and threading.current_thread() is threads[0]:
                announced.set()
                go_on.wait(PATIENCE_S)

    begin_fork = handles.begin_fork

    def begin_and_meet(close_idle: Callable[[], None]) -> None:
        begin_fork(close_idle)
        threads.append(threading.Thread(target=lambda: store.get(THINGS, "a")))
        threads[0].start()
        assert announced.wait(PATIENCE_S)

    monkeypatch.setattr(handles, "begin_fork", begin_and_meet)
    handles._open = Slow(handles._open)
    try:
        child = _in_child(lambda: put(store, "child"))
        go_on.set()
        threads[0].join(PATIENCE_S)
    finally:
        # Not the set from before: others may have been closed meanwhile.
        handles._open = set(handles._open)
    assert child == 0
    assert store.get(THINGS, "child") is not None
    store.close()


def test_a_child_forked_while_a_thread_is_inside_a_store_in_memory_goes_on_with_what_was_committed() -> (
    None
):
    store = MemoryStore()
    put(store, "a")
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> None:
        tx.put(THINGS, "b", Thing())
        inside.set()
        leave.wait(PATIENCE_S)

    def goes_on() -> None:
        assert put(store, "c") > 0
        assert store.read(lambda tx: [row.key for row in tx.range(THINGS)], scope=[THINGS]) == [
            "a",
            "c",
        ]

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.transact, dawdle, scope=[THINGS])
        assert inside.wait(PATIENCE_S)
        assert _in_child(goes_on) == 0
        leave.set()
        slow.result(PATIENCE_S)
    assert store.read(lambda tx: [row.key for row in tx.range(THINGS)], scope=[THINGS]) == [
        "a",
        "b",
    ]


@pytest.mark.usefixtures("no_second_look")
def test_a_child_that_leaves_its_parents_listener_takes_nothing_away(path: Path) -> None:
    store = _open(path)
    with store.listen(["topic"]) as ears:
        assert _in_child(lambda: ears.__exit__()) == 0
        store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
        assert heard(ears)
    store.close()


# --- Ctrl-C ---


def test_an_interrupted_sync_is_not_taken_for_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader meets Ctrl-C in its sync; those who counted on it sync again, and do not hang."""
    store = _open(path)
    put(store, "a")
    syncing, go_on = threading.Event(), threading.Event()
    synced = []
    really = os.fdatasync

    def once_interrupted(fd: int) -> None:
        if not syncing.is_set():
            syncing.set()
            assert go_on.wait(PATIENCE_S)
            raise KeyboardInterrupt
        really(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", once_interrupted)
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(put, store, "leader")
        assert syncing.wait(PATIENCE_S)
        followers = [pool.submit(put, store, f"follower {n}") for n in range(2)]
        while store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) < 4:
            pass
        go_on.set()
        with pytest.raises(KeyboardInterrupt):
            leader.result(PATIENCE_S)
        assert all(follower.result(PATIENCE_S) > 0 for follower in followers)
    assert synced
    assert put(store, "after") > 0
    store.close()


def test_ctrl_c_at_the_shut_gate_leaves_it_as_it_was(path: Path) -> None:
    """In a child, whose main thread is the one that a signal reaches."""
    _open(path).close()
    in_the_way = os.open(path.with_name("store.sqlite-gate"), os.O_RDWR)
    fcntl.flock(in_the_way, fcntl.LOCK_EX)
    ready_r, ready_w = os.pipe()

    def say_ready() -> None:
        os.write(ready_w, b".")

    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(in_the_way)
            mine = _open(path)
            with faults.at_point("sqlite.gate.before", lambda _: say_ready()):
                with contextlib.suppress(KeyboardInterrupt):
                    mine.transact(
                        lambda tx: tx.put(THINGS, "interrupted", Thing()),
                        scope=[THINGS],
                        timeout_s=PATIENCE_S,
                    )
            os.write(ready_w, b"!")
            signal.pause()
        except BaseException:
            os.write(ready_w, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(ready_w)
    assert os.read(ready_r, 1) == b"."
    # Until it sleeps in the gate; the state is that of its main thread.
    while state_of(child) != "S":
        pass
    os.kill(child, signal.SIGINT)
    while not select.select([ready_r], [], [], _IGNORED_S)[0]:
        # Python drops what is raised in a callback of the garbage collector's. The user who pressed
        # Ctrl-C presses it again.
        os.kill(child, signal.SIGINT)
    assert os.read(ready_r, 65536) == b"!"
    os.close(in_the_way)
    store = _open(path)
    # The child lives on; it must neither hold the gate nor have written.
    store.transact(lambda tx: tx.put(THINGS, "a", Thing()), scope=[THINGS], timeout_s=PATIENCE_S)
    assert store.get(THINGS, "interrupted") is None
    store.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready_r)


# --- calls that must not be made ---


def test_a_transaction_inside_another_is_refused_at_once(path: Path) -> None:
    store = _open(path)
    with pytest.raises(InvalidValue, match="inside another"):
        store.transact(lambda tx: put(store, "inner"), scope=[THINGS])
    assert put(store, "after") > 0
    assert store.get(THINGS, "inner") is None
    store.close()


def test_a_transaction_that_has_ended_can_do_nothing(path: Path) -> None:
    store = _open(path)
    kept: list[Tx] = []
    store.transact(lambda tx: kept.append(tx), scope=[THINGS])
    store.read(lambda tx: kept.append(tx), scope=[THINGS])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="ended"):
        kept[0].put(THINGS, "late", Thing())
    for tx in kept:
        with pytest.raises(InvalidValue, match="ended"):
            tx.get(THINGS, "late")
    store.close()


def test_an_address_leads_nowhere_but_to_a_listener(path: Path) -> None:
    store = _open(path)
    put(store, "a")
    before = path.read_bytes()
    for address in (
        "@../store.sqlite",
        "@/etc/hostname",
        "@",
        "@x",
        f"@{os.getpid()}-000000000000",
    ):
        store.transact(methodcaller("notify", address), scope=[VOLATILE])
    store.close()
    assert path.read_bytes()[:16] == before[:16]


def test_what_killed_listeners_leave_is_swept(path: Path) -> None:
    store = _open(path)
    folder = path.with_name("store.sqlite-wake")

    def listen_and_die() -> None:
        with _open(path).listen(["topic"]):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        assert _in_child(listen_and_die) == -signal.SIGKILL
    with store.listen(["topic"]):
        store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
        assert len([entry for entry in folder.iterdir() if entry.is_fifo()]) == 1
    store.close()


# --- others ---


def test_two_stores_in_one_folder_share_nothing(tmp_path: Path) -> None:
    one, two = _open(tmp_path / "lab.v1"), _open(tmp_path / "lab.v2")
    put(one, "lock", space=VOLATILE)
    put(one, "a")
    assert two.get(VOLATILE, "lock") is None
    assert two.get(THINGS, "a") is None
    one.close()
    two.close()


def test_a_store_behind_a_link_is_the_same_store(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(path)
    store, same = _open(path), _open(tmp_path / "link.sqlite")
    put(store, "a")
    assert same.get(THINGS, "a") is not None
    put(same, "lock", space=VOLATILE)
    assert store.get(VOLATILE, "lock") is not None
    store.close()
    same.close()


def test_the_first_use_of_the_volatile_file_keeps_to_its_time_limit(path: Path) -> None:
    store = _open(path)
    gate = path.with_name("store.sqlite.locks-boot-1.sqlite-gate")
    in_the_way = os.open(gate, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(in_the_way, fcntl.LOCK_EX)
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        store.put_new(VOLATILE, [("a", Thing())], timeout_s=0.2)
    # Not after the time that is usual.
    assert time.monotonic() - began < TRANSACT_TIMEOUT_S
    os.close(in_the_way)
    assert store.put_new(VOLATILE, [("a", Thing())]) is not None
    store.close()


def test_making_the_volatile_file_at_a_shut_gate_does_not_wait_for_itself(path: Path) -> None:
    """Its era comes from the durable file, over a connection that the gate's thread must not have
    to open.
    """
    store = _open(path)
    put(store, "a")
    in_the_way = os.open(
        path.with_name("store.sqlite.locks-boot-1.sqlite-gate"), os.O_RDWR | os.O_CREAT, 0o600
    )
    fcntl.flock(in_the_way, fcntl.LOCK_EX)
    reading, leave = threading.Event(), threading.Event()

    def dawdle(tx: ReadTx) -> None:
        reading.set()
        leave.wait(PATIENCE_S)

    with ThreadPoolExecutor(2) as pool:
        # The one connection that was idle is in use.
        slow = pool.submit(store.read, dawdle, scope=[THINGS])
        assert reading.wait(PATIENCE_S)
        granted = pool.submit(store.put_new, VOLATILE, [("lock", Thing())])
        while "holdfast-gate" not in {thread.name for thread in threading.enumerate()}:
            pass
        os.close(in_the_way)
        assert granted.result(PATIENCE_S) is not None
        leave.set()
        slow.result(PATIENCE_S)
    store.close()


def test_after_a_failed_sync_no_old_connection_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open(path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: put(store, f"k{n}"), range(16)))
    old = list(store.durable.open_ones)

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(StoreUnavailable):
            put(store, "a")
    put(store, "b")
    assert not store.durable.open_ones & set(old)
    store.close()


def test_overlapping_restores_never_give_one_token_twice(path: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    saved = tmp_path / "saved.sqlite"
    store = SqliteStore(path, boot_id="boot-1", clock=clock)
    put(store, "a")
    store.administration.backup([], saved)
    given: list[int] = []
    at_once = threading.Barrier(2)

    def restore(_: int) -> None:
        at_once.wait(PATIENCE_S)
        maintenance.restore(path, saved, boot_id="boot-1", clock=clock)
        given.append(put(store, "x"))

    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(restore, range(2)))
    given.append(put(store, "lock", space=VOLATILE))
    assert len(set(given)) == len(given)
    store.close()


def test_a_restore_of_an_older_state_brings_missing_tables_back(path: Path, tmp_path: Path) -> None:
    store = _open(path)
    append(store, "told")
    store.administration.backup([], tmp_path / "saved.sqlite")
    put(store, "other", space=OTHERS)
    maintenance.restore(path, tmp_path / "saved.sqlite", boot_id="boot-1")
    assert store.put_new(OTHERS, [("a", Thing())]) is not None
    store.close()
