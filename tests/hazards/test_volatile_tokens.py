"""Tokens of the volatile file only grow, whatever becomes of the memory they are counted in and of
those who count.
"""

import fcntl
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import InvalidValue, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Tx
from holdfast.stores.sqlite import database, transaction
from holdfast.stores.sqlite.gate import STRIDE
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import faults
from holdfast.testing.conformance.harness import VOLATILE, Thing, put
from tests.harness.descriptors import open_below
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S, until

KEYS = ["a", "b"]


def _open(path: Path) -> SqliteStore:
    return SqliteStore(path, boot_id="boot-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(_open(path)) as store:
        yield store


def _file(path: Path) -> Path:
    return path.with_name(f"{path.name}.locks-boot-1.sqlite")


def _gate(path: Path) -> Path:
    return path.with_name(f"{path.name}.locks-boot-1.sqlite-gate")


def _pair(store: SqliteStore, *keys: str) -> int:
    """Put new and delete, as a lock that is taken and released; return the token."""
    token = store.put_new(VOLATILE, [(key, Thing(owner="x")) for key in keys or KEYS])
    assert token is not None
    row = store.get(VOLATILE, (keys or KEYS)[-1])
    assert row is not None and row.revision == token
    assert store.delete_if(VOLATILE, keys or KEYS, token) == len(keys or KEYS)
    return token


def _mixed(store: SqliteStore, number: int) -> list[int]:
    """Tokens by all ways that give any, in turn."""
    given = []
    for i in range(number):
        given.append(_pair(store))
        given.append(put(store, f"k{i}", space=VOLATILE))
        given += store.transact(
            lambda tx: [tx.append(actor="t", kind="k", subject=key) for key in KEYS],
            scope=[VOLATILE],
        )
    return given


def _grow(given: list[int]) -> bool:
    return given == sorted(set(given))


# --- the usual case is the straight line ---


def test_the_pair_is_two_statements_that_commit_by_themselves(store: SqliteStore) -> None:
    _pair(store)
    statements: list[str] = []
    with store._volatile.lend() as connection:  # type: ignore[union-attr]
        connection.raw.set_trace_callback(statements.append)
    token = store.put_new(VOLATILE, [("a", Thing())])
    assert token is not None
    assert store.put_new(VOLATILE, [("b", Thing()), ("a", Thing())]) is None
    assert store.delete_if(VOLATILE, ["a"], token) == 1
    assert [statement.split()[0] for statement in statements] == ["INSERT", "INSERT", "DELETE"]


def test_one_record_under_several_keys_and_several_records_in_one_call(store: SqliteStore) -> None:
    same, other = Thing(owner="x", rank=1), Thing(owner="y", rank=2)
    items = [("a", same), ("b", same), ("c", other), ("d", same)]
    for _ in range(2):
        token = store.put_new(VOLATILE, items)
        assert token is not None
        rows = store.read(lambda tx: tx.range(VOLATILE), scope=[VOLATILE])
        assert [(row.key, row.record) for row in rows] == items
        assert {row.revision for row in rows} == {token}
        found = store.read(
            lambda tx: [row.key for row in tx.find(VOLATILE, "place", ("x",))], scope=[VOLATILE]
        )
        assert found == ["a", "b", "d"]
        assert store.delete_if(VOLATILE, list("abcd"), token) == 4


def test_a_token_that_no_store_can_keep_is_refused(store: SqliteStore) -> None:
    token = store.put_new(VOLATILE, [("a", Thing())])
    for _ in range(2):
        with pytest.raises(InvalidValue):
            store.delete_if(VOLATILE, ["a"], 1 << 63)
    row = store.get(VOLATILE, "a")
    assert row is not None and row.revision == token


# --- bounds ---


def test_tokens_grow_across_many_bounds(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STRIDE", 3)
    assert _grow(_mixed(store, 20))


def test_more_entries_in_one_transaction_than_a_bound_has_room_for(store: SqliteStore) -> None:
    def body(tx: Tx) -> list[int]:
        return [tx.append(actor="t", kind="k", subject=str(i)) for i in range(2 * STRIDE + 7)]

    given = [
        _pair(store),
        *store.transact(body, scope=[VOLATILE]),
        _pair(store),
        put(store, "x", space=VOLATILE),
    ]
    assert _grow(given)
    assert [entry.revision for entry in store.journal(limit=3 * STRIDE).entries] == given[1:-2]


def test_a_transaction_that_is_rolled_back_leaves_the_counter_sound(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STRIDE", 4)
    given = []

    def body(tx: Tx) -> None:
        tx.put(VOLATILE, "x", Thing())
        for _ in range(9):
            tx.append(actor="t", kind="k", subject="never")
        raise KeyError

    for _ in range(10):
        given.append(_pair(store))
        with pytest.raises(KeyError):
            store.transact(body, scope=[VOLATILE])
    assert _grow(given)
    assert store.journal().entries == []


# --- memory that is lost, or wrong ---


def _delete(path: Path) -> None:
    _gate(path).unlink()


def _zero(path: Path) -> None:
    with _gate(path).open("r+b") as file:
        file.write(bytes(16))


def _junk(path: Path) -> None:
    with _gate(path).open("r+b") as file:
        file.write(b"\xff" * 16)


@pytest.mark.parametrize("harm", [_delete, _zero, _junk])
def test_tokens_grow_when_the_memory_is_lost(
    path: Path, store: SqliteStore, harm: Callable[[Path], None]
) -> None:
    given = _mixed(store, 3)
    for _ in range(3):
        harm(path)
        # One maps the present file, and one still has the old file.
        with closing(_open(path)) as other:
            for _ in range(4):
                given += [*_mixed(other, 1), *_mixed(store, 1)]
    assert _grow(given)


def test_a_program_that_knows_no_shared_counter_can_go_on_from_the_file_and_back(
    path: Path, store: SqliteStore
) -> None:
    """As the version before this one: it took what follows the last revision in the file, and kept
    it there.
    """
    given = _mixed(store, 2)
    with closing(sqlite3.connect(_file(path), isolation_level=None)) as raw:
        last = (
            "SELECT max((SELECT number FROM meta WHERE name = 'revision'), (SELECT "
            "coalesce(max(revision), 0) FROM journal))"
        )
        for i in range(4):
            [mine] = raw.execute(last).fetchone()
            if i % 2:
                raw.execute("UPDATE meta SET number = ? WHERE name = 'revision'", (mine + 1,))
            else:
                raw.execute(
                    "INSERT INTO journal VALUES (?, 'default', 0, 't', 'k', 's', '{}')", (mine + 1,)
                )
            given += [mine + 1, *_mixed(store, 1)]
    assert _grow(given)


def test_a_side_file_without_the_counter_is_made_to_have_one(path: Path) -> None:
    """The version before this one left it empty."""
    with closing(_open(path)) as store:
        given = _mixed(store, 1)
    os.truncate(_gate(path), 0)
    with closing(_open(path)) as store:
        given += _mixed(store, 1)
    assert _grow(given)


# --- others in the way ---


def test_a_volatile_file_locked_by_another_program(path: Path, store: SqliteStore) -> None:
    token = _pair(store)
    with closing(sqlite3.connect(_file(path), isolation_level=None)) as theirs:
        theirs.execute("BEGIN IMMEDIATE")
        calls: list[Callable[[], object]] = [
            lambda: store.put_new(VOLATILE, [("a", Thing())], timeout_s=0.1),
            lambda: store.delete_if(VOLATILE, ["a"], token, timeout_s=0.1),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="another program") as caught:
                call()
            assert caught.value.fields["outcome"] == "none"
            # Not after the time that is usual.
            assert time.monotonic() - began < TRANSACT_TIMEOUT_S
        theirs.execute("ROLLBACK")
    assert _pair(store) > token


def test_a_turn_that_does_not_come(store: SqliteStore, path: Path) -> None:
    token = _pair(store)
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> None:
        inside.set()
        leave.wait(PATIENCE_S)

    with closing(_open(path)) as other, ThreadPoolExecutor(1) as pool:
        for slow_one in (store, other):
            inside.clear()
            leave.clear()
            slow = pool.submit(slow_one.transact, dawdle, scope=[VOLATILE])
            assert inside.wait(PATIENCE_S)
            with pytest.raises(LockTimeout):
                store.put_new(VOLATILE, [("a", Thing())], timeout_s=0.05)
            with pytest.raises(LockTimeout):
                store.delete_if(VOLATILE, ["a"], token, timeout_s=0.05)
            leave.set()
            slow.result(PATIENCE_S)
    assert store.get(VOLATILE, "a") is None
    assert _pair(store) > token


def test_tables_that_are_gone_are_made_again(path: Path, store: SqliteStore) -> None:
    token = _pair(store)
    calls: list[Callable[[], object]] = [
        lambda: store.put_new(VOLATILE, [("a", Thing())]),
        lambda: store.delete_if(VOLATILE, ["a"], token),
    ]
    for call in calls:
        with closing(sqlite3.connect(_file(path))) as raw:
            raw.execute("DROP TABLE s_conformance_volatile")
            raw.execute("DELETE FROM spaces")
            raw.commit()
        call()
    assert _pair(store, "b") > token


def test_an_error_of_the_disk_leaves_the_outcome_unknown(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = _pair(store)

    class Broken:
        def execute(self, *_: Any) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    assert store._volatile is not None
    [connection] = store._volatile.open_ones
    monkeypatch.setattr(connection, "cursor", Broken())
    with pytest.raises(StoreUnavailable, match="before you repeat it") as caught:
        store.put_new(VOLATILE, [("a", Thing())])
    assert caught.value.fields["outcome"] == "unknown"
    assert connection not in store._volatile.open_ones
    assert _pair(store) > token


# --- those who count ---


def test_a_file_that_cannot_be_made_in_time_is_no_damaged_log(
    store: SqliteStore, path: Path
) -> None:
    """LockTimeout is an OSError too: opening must not take it for one of the log's."""
    with open(_gate(path), "wb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout) as caught:
            store.put_new(VOLATILE, [("a", Thing())], timeout_s=0.05)
    assert caught.value.fields["resource"] == str(_gate(path))
    assert _pair(store) > 0


def test_a_closing_store_lets_running_transactions_finish(path: Path, store: SqliteStore) -> None:
    """Only what is alone may count: a gate that opened while a thread is inside would let two of
    them.
    """
    _pair(store)
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> int:
        inside.set()
        leave.wait(PATIENCE_S)
        return tx.revision

    with closing(_open(path)) as other, ThreadPoolExecutor(1) as pool:
        given = [_pair(other)]
        slow = pool.submit(store.transact, dawdle, scope=[VOLATILE])
        assert inside.wait(PATIENCE_S)
        store.close()
        with pytest.raises(LockTimeout):
            other.put_new(VOLATILE, [("a", Thing())], timeout_s=0.1)
        with raises(StoreUnavailable, closed=True):
            store.put_new(VOLATILE, [("a", Thing())])
        leave.set()
        given.append(slow.result(PATIENCE_S))
        given.append(_pair(other))
    assert _grow(given)


def test_a_closed_store_keeps_no_descriptor(path: Path) -> None:
    with closing(_open(path)) as store:
        _pair(store)
        open_ones = open_below(path.parent)
    assert open_ones and not open_below(path.parent)
    for _ in range(3):
        with closing(_open(path)) as store:
            _pair(store)
            assert len(open_below(path.parent)) == len(open_ones)


def test_a_forked_child_counts_on_and_so_does_its_parent(store: SqliteStore) -> None:
    given = _mixed(store, 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for _ in range(3):
                os.write(write, f"{_pair(store)}\n".encode())
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    given += [int(line) for line in os.read(read, 1000).split()]
    given += _mixed(store, 1)
    os.close(read)
    os.close(write)
    assert _grow(given) and len(given) == 11


def _contend(path: str, log: str, number: int, grants: int) -> None:
    """Take one lock again and again, and write each token down while it is held."""
    store = _open(Path(path))
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    done = 0
    while done < grants:
        token = store.put_new(VOLATILE, [("lock", Thing(owner=str(number)))])
        if token is None:
            continue
        os.write(out, f"{token}\n".encode())
        done += 1
        if done % 7 == 0:
            # A general transaction while the lock is held, with entries of its own.
            store.transact(lambda tx: tx.append(actor="t", kind="k", subject="s"), scope=[VOLATILE])
        assert store.delete_if(VOLATILE, ["lock"], token) == 1
    store.close()


def _tokens(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


@pytest.mark.prove
def test_processes_that_take_turns_get_growing_tokens(
    path: Path, store: SqliteStore, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    _pair(store)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_contend, args=(str(path), str(log), number, 1500))
        for number in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(2 * PATIENCE_S)
        assert worker.exitcode == 0
    given = _tokens(log)
    assert len(given) == 3 * 1500 and _grow(given)
    revisions = [entry.revision for entry in store.journal(limit=5000).entries]
    assert len(revisions) == 3 * (1500 // 7) and _grow(revisions)
    assert not set(revisions) & set(given)


@pytest.mark.prove
def test_tokens_grow_while_their_takers_are_killed(
    path: Path, store: SqliteStore, tmp_path: Path
) -> None:
    """At whatever instruction that is. What a killed one still holds is taken from it by its
    token.
    """
    log = tmp_path / "log"
    log.touch()
    _pair(store)
    context = multiprocessing.get_context("fork")
    for turn in range(40):
        before = log.stat().st_size
        workers = [
            context.Process(target=_contend, args=(str(path), str(log), number, 1 << 30))
            for number in range(2)
        ]
        for worker in workers:
            worker.start()
        # The kill comes after so much work. No event reports that a file grows.
        enough = before + 500 + 37 * turn
        until(lambda enough=enough: log.stat().st_size >= enough, every_s=0.001)  # type: ignore[misc]
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join(PATIENCE_S)
        given = _tokens(log)
        assert _grow(given)
        if row := store.get(VOLATILE, "lock"):
            assert row.revision >= given[-1]
            assert store.delete_if(VOLATILE, ["lock"], row.revision) == 1
        assert _pair(store) > max(given[-1], row.revision if row else 0)


@pytest.mark.parametrize("room", [True, False], ids=["below the bound", "at the bound"])
def test_the_pair_killed_at_every_point(
    path: Path, store: SqliteStore, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STRIDE", 100 if room else 0)
    monkeypatch.setattr(database, "_CHECKPOINT_EVERY", 1000)
    points = faults.recorded(lambda: _pair(store))
    points = faults.recorded(lambda: _pair(store))
    assert {"sqlite.gate.before", "sqlite.write", "sqlite.commit.after"} <= set(points)
    assert ("sqlite.commit.before" in points) == (not room)
    given = []
    for at in range(len(points) + 1):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with closing(_open(path)) as mine:
                    mine.get(VOLATILE, "a")
                    with faults.armed(at=at, action=faults.kill):
                        os.write(write, str(_pair(mine)).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (
            -signal.SIGKILL if at < len(points) else 0
        )
        given += [int(token) for token in os.read(read, 100).split()]
        os.close(read)
        rows = [store.get(VOLATILE, key) for key in KEYS]
        assert [row is None for row in rows] in ([True, True], [False, False]), "torn"
        if rows[0] and rows[1]:
            assert rows[0].revision == rows[1].revision
            given.append(rows[0].revision)
            assert store.delete_if(VOLATILE, KEYS, rows[0].revision) == 2
        given.append(_pair(store))
    assert _grow(given)
