"""Processes at a files store, killed at every point or stopped: all files change or none, and
nobody waits for a dead one.
"""

import json
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.testing import faults
from tests.harness.children import dies_at, kill_while_busy
from tests.stores.files_spaces import (
    ALL,
    CARDS,
    DEEP,
    HIDDEN,
    HOSTS,
    LAID,
    LEASES,
    Host,
    keys,
    open_files,
    put,
    shown,
)

pytestmark = pytest.mark.prove


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: what a kill leaves is the same there, and nothing
    waits for a disk.
    """
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-death-", dir="/dev/shm") as folder:
        yield Path(folder)


def _step(store: Store, value: int) -> None:
    """Bring files of every layout, a record that is in none and the journal from one value to the
    next.
    """

    def body(tx: Tx) -> None:
        for space in ALL:
            tx.put(space, "a", Host(ip=str(value)))
        for space in LAID:
            tx.delete(space, f"old-{value - 1}")
            tx.put(space, f"old-{value}", Host(ip="0"))
        tx.append(actor="t", kind="step", subject=str(value))

    store.transact(body, scope=ALL)


def put_hosts(tx: Tx, number: int) -> None:
    for n in range(number):
        tx.put(HOSTS, f"h{n}", Host(ip=str(n)))


def _value(store: Store) -> int:
    """The one value that everything shows to a reader; anything torn fails here."""

    def look(tx: ReadTx) -> set[str]:
        found = {row.record.ip for space in ALL if (row := tx.get(space, "a"))}
        for space in LAID:
            found |= {row.key.removeprefix("old-") for row in tx.range(space, prefix="old-")}
        return found

    values = store.read(look, scope=ALL)
    assert len(values) == 1, f"torn: {values}"
    value = int(values.pop())
    logged = [int(entry.subject) for entry in store.journal().entries if entry.kind == "step"]
    assert logged[-1] == value and logged == sorted(set(logged))
    return value


def _in_files(root: Path) -> set[str]:
    lab = root / "lab"
    return {
        shown(lab / "hosts.json")["a"]["ip"],
        next(entry["ip"] for entry in shown(lab / "leases.json")["leases"] if entry["name"] == "a"),
        shown(root / "cards" / "a.json")["ip"],
        shown(lab / "live" / "a" / "record.json")["ip"],
        *(path.stem.removeprefix("old-") for path in (root / "cards").glob("old-*.json")),
        *(
            path.parent.name.removeprefix("old-")
            for path in (lab / "live").glob("old-*/record.json")
        ),
    }


def test_a_transaction_over_several_files_killed_at_every_point(tmp_path: Path) -> None:
    root = tmp_path / "state"
    store = open_files(root)
    _step(store, 1)
    points = faults.recorded(lambda: _step(store, 2))
    store.close()
    for wanted in ("latch", "write", "keep", "rename", "unlink", "folder_sync", "clear"):
        assert f"files.{wanted}.before" in points and f"files.{wanted}.after" in points, wanted
    committed = points.index("sqlite.commit.after")
    assert points.index("files.sync.after") < committed < points.index("files.rename.before")
    value = 2
    for at in range(len(points) + 1):

        def work(following: int = value + 1) -> None:
            _step(open_files(root), following)

        assert dies_at(work, at) == (at < len(points))
        store = open_files(root)
        now = _value(store)
        assert now == (value + 1 if at >= committed else value), f"killed at {points[at : at + 1]}"
        # The next one at the latch brings the files up, whatever it came for.
        put(store, HOSTS, "other")
        assert _value(store) == now
        assert _in_files(root) == {str(now)}
        assert store.administration.check(ALL) == []
        store.close()
        value = now
    assert value > 2
    left = [path.name for path in root.rglob(".*.tmp")]
    assert len(left) <= 6, left


def test_the_recovery_itself_killed_at_every_point(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    store = open_files(dead)
    _step(store, 1)
    store.close()

    def die_committed() -> None:
        mine = open_files(dead)
        with faults.at_point("files.rename.before", faults.kill):
            _step(mine, 2)

    assert dies_at(die_committed, 10_000)
    at, killed = 0, True
    while killed:
        root = tmp_path / str(at)
        shutil.copytree(dead, root)
        killed = dies_at(lambda root=root: put(open_files(root), DEEP, "x"), at)  # type: ignore[misc]
        store = open_files(root)
        assert _value(store) == 2
        put(store, CARDS, "y")
        assert _in_files(root) == {"2"}
        store.close()
        at += 1
    assert at > 20


def test_the_first_change_killed_at_every_point(tmp_path: Path) -> None:
    at, killed = 0, True
    while killed:
        root = tmp_path / str(at)
        killed = dies_at(lambda root=root: _first(open_files(root)), at)  # type: ignore[misc]
        store = open_files(root)
        assert keys(store, HOSTS) == keys(store, DEEP)
        before = put(store, LEASES, "x")
        store.close()
        again = open_files(root)
        assert put(again, LEASES, "x") > before
        assert again.administration.check(ALL) == []
        again.close()
        at += 1
    assert at > 30


def test_a_recovery_touches_no_file_before_the_commit_is_synced(tmp_path: Path) -> None:
    """The one who was killed may have been between its commit and its sync, and then the power may
    go as well.
    """
    root = tmp_path / "state"
    store = open_files(root)
    _step(store, 1)
    store.close()

    def die_unsynced() -> None:
        mine = open_files(root)
        with faults.at_point("sqlite.sync.before", faults.kill):
            _step(mine, 2)

    assert dies_at(die_unsynced, 10_000)
    store = open_files(root)
    points = faults.recorded(lambda: put(store, HOSTS, "x"))
    assert (
        points.index("sqlite.sync.after")
        < points.index("files.rename.before")
        < points.index("files.clear.before")
    )
    assert _value(store) == 2
    store.close()


def _first(store: Store) -> None:
    def body(tx: Tx) -> None:
        tx.put(HOSTS, "a", Host(ip="1"))
        tx.put(DEEP, "a", Host(ip="1"))

    store.transact(body, scope=[HOSTS, DEEP])


def test_kills_at_random_moments_under_load(tmp_path: Path) -> None:
    root = tmp_path / "state"
    store = open_files(root)
    _step(store, 1)
    store.close()
    value = 1
    for turn in range(12):
        kill_while_busy(lambda: partial(_advance, open_files(root)), 1 + turn % 5)
        store = open_files(root)
        now = _value(store)
        put(store, HIDDEN, "x")
        put(store, HOSTS, "x")
        assert _in_files(root) == {str(now)}
        store.close()
        assert now > value
        value = now


def _advance(store: Store) -> None:
    def body(tx: Tx) -> None:
        row = tx.get(CARDS, "a")
        assert row is not None
        value = int(row.record.ip) + 1
        for space in ALL:
            tx.put(space, "a", Host(ip=str(value)))
        for space in LAID:
            tx.delete(space, f"old-{value - 1}")
            tx.put(space, f"old-{value}", Host(ip="0"))
        tx.append(actor="t", kind="step", subject=str(value))

    store.transact(body, scope=ALL)


@pytest.mark.parametrize(
    "point",
    ["files.rename.before", "files.rename.after", "files.clear.before", "files.write.before"],
)
def test_a_writer_stopped_at_the_latch_is_named_and_readers_go_on(
    tmp_path: Path, point: str
) -> None:
    root = tmp_path / "state"
    store = open_files(root)
    _step(store, 1)
    child = os.fork()
    if child == 0:
        try:
            mine = open_files(root)
            with faults.at_point(point, faults.stop):
                _step(mine, 2)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    with pytest.raises(LockTimeout, match=str(child)) as caught:
        store.transact(lambda tx: tx.put(HOSTS, "x", Host(ip="1")), scope=[HOSTS], timeout_s=0.1)
    assert caught.value.fields["outcome"] == "none" and caught.value.fields["holder_pid"] == child
    # What is committed is seen, though its files are not there yet.
    assert _value(store) == (1 if point == "files.write.before" else 2)
    status = None
    while status is None or not os.WIFEXITED(status):
        # It stops again at each point of that name.
        os.kill(child, signal.SIGCONT)
        status = os.waitpid(child, os.WUNTRACED)[1]
    assert os.WEXITSTATUS(status) == 0
    assert _value(store) == 2
    assert store.get(HOSTS, "x") is None
    assert _in_files(root) == {"2"}
    store.close()


@pytest.mark.parametrize(
    "since", ["nothing", "the staged file is gone", "it was edited", "it is damaged", "it is gone"]
)
def test_a_killed_change_of_one_record_among_many_is_finished_whatever_was_done_since(
    tmp_path: Path, since: str
) -> None:
    """A redo record of a large file has the new record alone: the rest is in the staged file, or in
    the one before.
    """
    root = tmp_path / "state"
    file = root / "lab" / "hosts.json"
    with closing(open_files(root)) as store:
        store.transact(lambda tx: put_hosts(tx, 300), scope=[HOSTS])
        put(store, HOSTS, "before")

    def die() -> None:
        def body(tx: Tx) -> None:
            tx.put(HOSTS, "new", Host(ip="1"))
            tx.delete(HOSTS, "h7")

        with faults.at_point("files.rename.before", faults.kill):
            open_files(root).transact(body, scope=[HOSTS])

    assert dies_at(die, 10_000)
    expected = {*(f"h{n}" for n in range(300) if n != 7), "before", "new"}
    assert "new" not in shown(file)
    staged = file.with_name(".hosts.json.tmp")
    assert set(shown(staged)) == expected
    if since != "nothing":
        staged.unlink()
    if since == "it was edited":
        file.write_text(json.dumps({**shown(file), "by-hand": {"ip": "2"}}))
        expected |= {"by-hand"}
    elif since == "it is damaged":
        file.unlink()
        file.write_text("{")
    elif since == "it is gone":
        file.unlink()
    with closing(open_files(root)) as store:
        if since in ("it is damaged", "it is gone"):
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as refused:
                    put(store, CARDS, "x")
                assert refused.value.fields["outcome"] == "none"
            # As it says: put it right, and nothing is lost.
            shutil.copy(file.with_name("hosts.json.bak"), file)
        assert set(keys(store, HOSTS)) == expected
        put(store, CARDS, "x")
        assert set(shown(file)) == expected
        assert store.administration.check(ALL) == []


def test_a_killed_change_of_one_record_among_many_at_every_point(tmp_path: Path) -> None:
    root = tmp_path / "state"
    with closing(open_files(root)) as store:
        store.transact(lambda tx: put_hosts(tx, 100), scope=[HOSTS])
    at, killed, there = 0, True, 100
    while killed:
        killed = dies_at(lambda at=at: put(open_files(root), HOSTS, f"n{at}"), at)  # type: ignore[misc]
        with closing(open_files(root)) as store:
            now = len(keys(store, HOSTS))
            assert now - there in (0, 1)
            put(store, CARDS, "y")
            assert (
                sorted(shown(root / "lab" / "hosts.json")) == keys(store, HOSTS)
                and len(keys(store, HOSTS)) == now
            )
        there, at = now, at + 1
    assert at > 20


def test_a_read_ends_at_its_time_limit_while_another_program_has_the_inner_store(
    tmp_path: Path,
) -> None:
    store = open_files(tmp_path / "state")
    _step(store, 1)
    # As before a fork: without a connection of ours, another program can lock the whole database.
    store.inner.before_fork()
    theirs = sqlite3.connect(store.inner.path, isolation_level=None)
    theirs.execute("PRAGMA locking_mode = EXCLUSIVE")
    theirs.execute("BEGIN EXCLUSIVE")
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="another program"):
        store.read(lambda tx: tx.range(HOSTS), scope=[HOSTS], timeout_s=0.1)
    assert time.monotonic() - began_s < TRANSACT_TIMEOUT_S / 2
    theirs.close()
    assert _value(store) == 1
    store.close()
