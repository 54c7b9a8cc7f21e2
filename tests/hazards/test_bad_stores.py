"""Damaged, foreign, unwritable and crowded stores: one clear error, nothing lost, nothing
half-written.
"""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.kernel import token
from holdfast.kernel.errors import (
    Corrupt,
    Held,
    HoldfastError,
    InvalidValue,
    LockTimeout,
    NotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.kernel.store import ReadTx, Tx
from holdfast.stores.sqlite import database, filesystem, maintenance, schema
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import faults
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.harness import OTHERS, THINGS, VOLATILE, Thing, append, put
from tests.harness.descriptors import open_below
from tests.harness.disk import mounted
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S

NOBODY = 65534


def _open(path: Path, clock: ManualClock | None = None, boot_id: str = "boot-1") -> SqliteStore:
    return SqliteStore(path, boot_id=boot_id, clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with some records, closed."""
    path = tmp_path / "store.sqlite"
    store = _open(path)
    for i in range(200):
        put(store, f"k{i:03}", Thing(owner="x", rank=i))
    append(store, "told")
    store.close()
    return path


# --- damage ---


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (b"not a database at all, " * 400, "is not a Holdfast store"),
        (b"x", "is not a Holdfast store"),
        (bytes(range(256)) * 64, "is not a Holdfast store"),
        (b"\0" * 8192, "is not a Holdfast store"),
        (b"SQLite format 3\0" + b"\xff" * 4096, "store restore"),
    ],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, advice: str
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=advice):
        _open(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_that_fails_is_not_tried_again_unless_the_database_is_busy(path: Path) -> None:
    """An I/O error was swallowed when the second try went well."""
    tries: list[int] = []

    def read(_: ReadTx) -> None:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    with closing(_open(path)) as store:
        with pytest.raises(StoreUnavailable):
            store.read(read, scope=[THINGS])
        assert len(tries) == 1
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) >= 0


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.touch()
    store = _open(path)
    assert put(store, "a") > 0
    store.close()


def test_a_database_emptied_under_its_log_is_not_taken_for_a_new_one(path: Path) -> None:
    # A store that died with work in its log, and whose database was then truncated.
    child = os.fork()
    if child == 0:
        put(_open(path), "in the log")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.truncate(path, 0)
    with pytest.raises(StoreCorrupt, match="truncated"):
        _open(path)
    assert path.with_name("store.sqlite-wal").stat().st_size > 0


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE precious (x)")
    theirs.commit()
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        _open(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_newer_layout_is_refused(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(SchemaTooNew, match="newer holdfast"):
        _open(path)


@pytest.mark.parametrize("size", [1, 100, 4096, 5000, 12288])
def test_a_truncated_database_is_found_corrupt(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(Corrupt):
        _read_everything(path)


def _read_everything(path: Path) -> None:
    store = _open(path)
    try:
        for i in range(200):
            if store.get(THINGS, f"k{i:03}") is None:
                pytest.fail("a record is gone without an error")
        if wrong := store.administration.check([THINGS]):
            raise StoreCorrupt(str(wrong))
    finally:
        store.close()


def test_check_finds_what_was_planted(path: Path) -> None:
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("UPDATE s_conformance_things SET value = '{' WHERE key = 'k001'")
        raw.execute("UPDATE s_conformance_things SET by_place = x'00' WHERE key = 'k002'")
        raw.execute("UPDATE s_conformance_things SET rev = rev + 1000000 WHERE key = 'k003'")
        raw.execute("UPDATE journal SET data = 'x'")
    raw.close()
    store = _open(path)
    found = "\n".join(store.administration.check([THINGS]))
    store.close()
    assert "k001 is damaged" in found
    assert "k002 disagrees" in found
    assert "k003 has revision" in found
    assert "journal entry" in found
    assert len(found.splitlines()) == 4


def test_a_damaged_page_is_found_and_a_restore_repairs_it(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.sqlite"
    store = _open(path)
    store.administration.backup([], saved)
    given = put(store, "after the backup")
    store.close()
    # Pages in the middle, as a bad disk would; no connection has the file open.
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(os.urandom(4096 * 4))
    with pytest.raises(Corrupt):
        _read_everything(path)
    maintenance.restore(path, saved, boot_id="boot-1")
    store = _open(path)
    assert store.administration.check([THINGS]) == []
    assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 200
    assert put(store, "new") > given
    store.close()


# --- backup, restore, eras ---


@pytest.mark.parametrize(
    "gutting",
    [
        "DROP TABLE meta",
        "DROP TABLE spaces",
        "DROP TABLE journal",
        "DELETE FROM meta",
        "DELETE FROM meta WHERE name = 'era'",
        "DELETE FROM meta WHERE name = 'revision'",
    ],
)
def test_a_store_without_its_own_tables_is_refused_and_a_restore_repairs_it(
    path: Path, tmp_path: Path, gutting: str
) -> None:
    """Errors that were never to leave the store did, from the restore too."""
    store = _open(path)
    token = put(store, "kept")
    store.administration.backup([], tmp_path / "saved")
    store.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(gutting)
    with pytest.raises(StoreCorrupt, match="holdfast store restore"):
        _open(path)
    assert open_below(path.parent) == []
    maintenance.restore(path, tmp_path / "saved", boot_id="boot-1")
    mended = _open(path)
    assert mended.get(THINGS, "kept") is not None
    assert put(mended, "new") > token
    assert mended.administration.check([THINGS]) == []
    mended.close()


def test_a_restore_never_gives_a_token_again(tmp_path: Path) -> None:
    """Not even when the store that gave it is lost, and not when the clock has been stepped
    back.
    """
    clock = ManualClock()
    path = tmp_path / "other.sqlite"
    store = _open(path, clock)
    saved = tmp_path / "saved.sqlite"
    store.administration.backup([], saved)
    clock.advance(300)
    given = [put(store, f"n{i}") for i in range(50)] + [put(store, "lock", space=VOLATILE)]
    store.close()

    maintenance.restore(path, saved, boot_id="boot-1", clock=clock)
    store = _open(path, clock, boot_id="boot-2")
    again = [put(store, "m"), put(store, "lock", space=VOLATILE)]
    assert min(again) > max(given)
    store.close()

    clock.advance(60)
    path.unlink()
    maintenance.restore(path, saved, boot_id="boot-1", clock=clock)
    store = _open(path, clock, boot_id="boot-3")
    assert put(store, "m") > max(again)
    store.close()

    clock.advance(-3600)
    store = _open(path, clock, boot_id="boot-4")
    before = put(store, "m")
    store.close()
    maintenance.restore(path, saved, boot_id="boot-1", clock=clock)
    store = _open(path, clock, boot_id="boot-5")
    assert put(store, "m") > before
    store.close()


def test_a_new_boot_begins_a_new_era_and_forgets_the_volatile(path: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    tokens = []
    for boot in range(5):
        store = _open(path, clock, boot_id=f"boot-{boot}")
        assert store.get(VOLATILE, "lock") is None
        tokens.append(put(store, "lock", space=VOLATILE))
        store.close()
        clock.advance(-10)
    assert tokens == sorted(set(tokens))
    assert [file.name for file in tmp_path.glob("*.locks-*.sqlite")] == [
        "store.sqlite.locks-boot-4.sqlite"
    ]


@pytest.mark.parametrize("remains", ["junk", "empty", "no row", "absurd", "carried"])
def test_what_is_left_of_an_earlier_boots_volatile_file_is_believed_within_reason(
    tmp_path: Path, remains: str
) -> None:
    clock = ManualClock()
    path = tmp_path / "store.sqlite"
    store = _open(path, clock)
    first = put(store, "lock", space=VOLATILE)
    store.close()
    old = tmp_path / "store.sqlite.locks-boot-1.sqlite"
    era = {"absurd": 1 << 50, "carried": token.era(first) + 9}.get(remains)
    if remains in ("junk", "empty"):
        for file in tmp_path.glob("*.locks-*"):
            file.write_bytes(os.urandom(9000) if remains == "junk" else b"")
    else:
        raw = sqlite3.connect(old)
        with raw:
            raw.execute(
                "DELETE FROM meta WHERE name = 'era'"
                if era is None
                else f"UPDATE meta SET number = {era} WHERE name = 'era'"
            )
        raw.close()
    store = _open(path, clock, boot_id="boot-2")
    second = put(store, "lock", space=VOLATILE)
    store.close()
    assert second > first
    assert token.era(second) <= token.era(first) + 2 * token.STRIDE + 3
    if remains == "carried":
        assert token.era(second) > token.era(first) + 9


def test_a_new_boot_never_gives_a_revision_again_that_a_power_loss_took_back(
    path: Path, tmp_path: Path
) -> None:
    """Followers and readers see commits before they are synced, so they may be ahead of what is
    left.
    """
    clock = ManualClock()
    path = tmp_path / "other.sqlite"
    store = _open(path, clock)
    append(store, "kept")
    saved = tmp_path / "saved.sqlite"
    store.administration.backup([], saved)
    append(store, "seen, then lost")
    cursor = store.journal().cursor
    store.close()
    # The disk comes back as it was before; the clock, too.
    path.with_name("other.sqlite-wal").unlink(missing_ok=True)
    path.write_bytes(saved.read_bytes())
    store = _open(path, clock, boot_id="boot-2")
    append(store, "new")
    assert [entry.subject for entry in store.journal(cursor).entries] == ["new"]
    store.close()


def test_open_stores_go_on_after_a_restore(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.sqlite"
    store = _open(path)
    store.administration.backup([], saved)
    last = put(store, "gone")
    maintenance.restore(path, saved, boot_id="boot-1")
    assert store.get(THINGS, "gone") is None
    assert store.get(THINGS, "k000") is not None
    assert put(store, "new") > last
    # A space whose table the backup does not have is made again.
    put(store, "other", space=OTHERS)
    maintenance.restore(path, saved, boot_id="boot-1")
    assert store.get(OTHERS, "other") is None
    put(store, "again", space=OTHERS)
    store.close()


def _replaced(folder: Path) -> list[Path]:
    """The stores that a restore has replaced, the oldest first."""
    return sorted(
        folder.glob("store.sqlite.replaced-*"), key=lambda path: (len(path.name), path.name)
    )


def test_what_a_restore_replaces_is_saved_as_a_backup(path: Path, tmp_path: Path) -> None:
    """It was gone."""
    saved = tmp_path / "saved.sqlite"
    store = _open(path)
    store.administration.backup([], saved)
    put(store, "later")
    path.chmod(0o640)
    owner = (0o640, 12345, 23456) if os.geteuid() == 0 else (0o640, os.geteuid(), os.getegid())
    os.chown(path, *owner[1:])
    clock = ManualClock(datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC))
    reported = [maintenance.restore(path, saved, boot_id="boot-1", clock=clock) for _ in range(3)]
    names = [f"store.sqlite.replaced-20260504T030201Z{end}" for end in ("", "-2", "-3")]
    assert reported == _replaced(tmp_path) == [tmp_path / name for name in names], (
        "none was overwritten"
    )
    for copy in _replaced(tmp_path):
        found = copy.stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == owner
    assert store.get(THINGS, "later") is None
    maintenance.restore(path, tmp_path / names[0], boot_id="boot-1")
    assert store.get(THINGS, "later") is not None
    assert store.administration.check([THINGS, OTHERS]) == []
    store.close()


def test_a_change_that_was_made_while_a_restore_began_is_in_the_saved_store(
    path: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.sqlite"
    store = _open(path)
    store.administration.backup([], saved)
    late = ["late"]

    def put_late() -> None:
        if late:
            put(store, late.pop())

    with faults.at_point("sqlite.gate.before", lambda _: put_late()):
        reported = maintenance.restore(path, saved, boot_id="boot-1")
    assert store.get(THINGS, "late") is None
    store.close()
    assert reported is not None
    with closing(_open(reported)) as replaced:
        assert replaced.get(THINGS, "late") is not None


def test_a_restore_of_a_missing_store_saves_nothing(path: Path, tmp_path: Path) -> None:
    assert maintenance.restore(tmp_path / "new.sqlite", path, boot_id="boot-1") is None
    assert not list(tmp_path.glob("*.replaced-*"))


@pytest.mark.parametrize("room", [1, 2], ids=["none for the copy", "none for the change"])
def test_a_store_that_cannot_be_saved_is_not_replaced(
    path: Path, tmp_path: Path, room: int
) -> None:
    """Also when the disk is full only after it was saved: nothing of the try stays behind."""
    store = _open(path)
    for _ in range(40):
        append(store, "big", {"note": "x" * 20_000})
    saved = tmp_path / "saved.sqlite"
    store.administration.backup([], saved)
    store.close()
    size = saved.stat().st_size
    with mounted(tmp_path / "small", f"size={size * (1 + room) + size // 2}") as mount:
        small = mount / "store.sqlite"
        maintenance.restore(small, saved, boot_id="boot-1")
        with closing(_open(small)) as store:
            put(store, "later")
        before = set(os.listdir(mount))
        with pytest.raises(StoreUnavailable) as caught:
            maintenance.restore(small, saved, boot_id="boot-1")
        assert caught.value.fields["outcome"] == "none", caught.value
        assert not list(mount.glob("*.replaced-*")) and not list(mount.glob(".*.tmp")), (
            set(os.listdir(mount)) - before
        )
        with closing(_open(small)) as store:
            assert store.get(THINGS, "later") is not None


def test_a_damaged_store_that_is_open_elsewhere_is_not_replaced(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.sqlite"
    store = _open(path)
    store.administration.backup([], saved)
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA application_id = 7")
    raw.execute("PRAGMA user_version = 3")
    raw.close()
    with pytest.raises(Held, match="open in another process"):
        maintenance.restore(path, saved, boot_id="boot-1")
    store.close()
    maintenance.restore(path, saved, boot_id="boot-1")
    assert list(tmp_path.glob("store.sqlite.replaced-*"))


@pytest.mark.parametrize("content", [b"", b"junk" * 4000], ids=["empty", "junk"])
def test_a_bad_backup_changes_nothing(path: Path, tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        maintenance.restore(path, bad, boot_id="boot-1")
    with pytest.raises(NotFound):
        maintenance.restore(path, tmp_path / "nosuch", boot_id="boot-1")
    store = _open(path)
    with pytest.raises(InvalidValue, match="exists"):
        store.administration.backup([], bad)
    assert store.get(THINGS, "k199") is not None
    store.close()
    assert not list(tmp_path.glob(".*tmp*"))


# --- places ---


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "store.sqlite"
        store = _open(path)
        put(store, "a")
        put(store, "lock", space=VOLATILE)
        with store.listen(["topic"]):
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.rglob("*")}
        modes["."] = path.parent.stat().st_mode & 0o777
        store.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600, 0o700}, modes
    assert {"store.sqlite-wal", "store.sqlite-shm", "store.sqlite.locks-boot-1.sqlite"} <= set(
        modes
    )


def test_a_read_only_folder(path: Path) -> None:
    """Tried as a user whom permissions bind: root they do not."""
    folder = path.parent
    os.chmod(path, 0o444)
    os.chmod(folder, 0o555)
    if os.getuid() == 0:
        for parent in folder.parents[:3]:
            os.chmod(parent, parent.stat().st_mode | 0o055)
    for place in (path, folder / "new" / "store.sqlite"):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setresuid(NOBODY, NOBODY, NOBODY)
                _open(place)
            except StoreUnavailable as error:
                os.write(write, error.message.encode())
            finally:
                os._exit(0)
        os.close(write)
        output = os.read(read, 10_000).decode()
        os.close(read)
        os.waitpid(child, 0)
        assert "permissions" in output, output
        assert "--store" in output or "check" in output
    os.chmod(folder, 0o755)


def test_a_path_that_is_a_folder_or_device(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="plain file"):
        _open(tmp_path)
    with pytest.raises((InvalidValue, StoreUnavailable)):
        _open(Path("/dev/null"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        _open(tmp_path / "file" / "store.sqlite")


@pytest.mark.parametrize(
    "kind", ["nfs4", "cifs", "fuse.sshfs", "fuse.gpfs-of-tomorrow", "virtiofs", "unknown"]
)
def test_a_file_system_that_is_not_known_to_be_local_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystem, "type_of", lambda folder: kind)
    with raises(StoreUnavailable, filesystem=kind, outcome="none") as refused:
        _open(tmp_path / "store.sqlite")
    # The setting that allows it is shown.
    assert f"HOLDFAST_FILESYSTEMS={kind}" in refused.value.message
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOLDFAST_FILESYSTEMS", f"other, {kind}")
    _open(tmp_path / "store.sqlite").close()


def test_the_type_of_a_real_file_system_is_known() -> None:
    assert filesystem.type_of(Path("/proc")) == "proc"
    assert filesystem.is_local(filesystem.type_of(Path("/dev/shm")))
    assert filesystem.type_of(Path("/")) != filesystem.UNKNOWN


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: mounts a file system")
@pytest.mark.parametrize("on_top", ["tmpfs", "ramfs"])
def test_the_mount_that_lies_on_top_is_the_one_that_counts(tmp_path: Path, on_top: str) -> None:
    for kind in ("tmpfs", on_top):
        if (
            subprocess.run(
                ["mount", "-t", kind, "none", tmp_path], capture_output=True, check=False
            ).returncode
            != 0
        ):
            pytest.skip("nothing can be mounted here")
    try:
        assert filesystem.type_of(tmp_path) == on_top
    finally:
        for _ in range(2):
            subprocess.run(["umount", tmp_path], check=True)


# --- full disks ---


def _fill(path: Path) -> tuple[int, HoldfastError]:
    """Write until the limit stops it; return how many changes were acknowledged, and the error."""
    store = _open(path)
    done = 0
    try:
        for i in range(10_000):
            put(store, f"big{i:05}", Thing(owner="nobody", rank=i, at=None), space=OTHERS)
            append(store, "x" * 200, {"pad": "y" * 4000})
            done += 1
    except HoldfastError as error:
        return done, error
    finally:
        store.close()
    raise AssertionError("never full")


def _verify_after_full(path: Path, done: int, error: HoldfastError) -> None:
    assert isinstance(error, StoreUnavailable), error
    store = _open(path)
    try:
        assert store.administration.check([THINGS, OTHERS]) == []
        for i in range(done):
            assert store.get(OTHERS, f"big{i:05}") is not None
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 200
    finally:
        store.close()


def test_a_file_size_limit_leaves_the_old_state_whole(path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
            done, error = _fill(path)
            os.write(write, f"{done} {type(error).__name__} {error.message}".encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    output = os.read(read, 10_000).decode()
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    filled, kind, message = output.split(" ", 2)
    assert kind == "StoreUnavailable", output
    assert int(filled) > 10
    _verify_after_full(path, int(filled), StoreUnavailable(message))


def test_a_full_disk_leaves_the_old_state_whole(path: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=3m") as mount:
        small = mount / "store.sqlite"
        maintenance.restore(small, path, boot_id="boot-1")
        done, error = _fill(small)
        assert "space" in error.message
        assert error.fields["outcome"] == "none"
        _verify_after_full(small, done, error)


def test_opening_a_store_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """SQLite calls it an I/O error, and that message sent its reader to look for another disk."""
    with mounted(tmp_path / "small", "size=3m") as mount:
        small, filler = mount / "store.sqlite", mount / "filler"
        store = _open(small)
        put(store, "a")
        store.close()
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with raises(StoreUnavailable, outcome="none"):
            _open(small)
        filler.unlink()
        store = _open(small)
        assert put(store, "b") > 0
        store.close()


# --- others in the way ---


def _open_and_write(path: str) -> int:
    store = _open(Path(path))
    revision = put(store, "a")
    put(store, "lock", space=VOLATILE)
    store.close()
    return revision


def test_a_new_store_opened_by_many_at_once(tmp_path: Path) -> None:
    """One of them makes it, inside the gate; the others must not take it for another program's, or
    for busy.
    """
    with multiprocessing.get_context("spawn").Pool(6) as pool:
        for turn in range(15):
            path = str(tmp_path / str(turn) / "store.sqlite")
            revisions = pool.map_async(_open_and_write, [path] * 6, chunksize=1).get(PATIENCE_S)
            assert len(set(revisions)) == 6


def test_a_checkpoint_that_gets_no_turn_does_not_fail_the_change_it_comes_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_FRAMES", 1)
    monkeypatch.setattr(database, "_CHECKPOINT_EVERY", 1)
    store = _open(path)
    blocked = os.open(path.with_name("store.sqlite-gate"), os.O_RDWR)

    def block(point: str) -> None:
        fcntl.flock(blocked, fcntl.LOCK_EX)

    met = faults.recorded(lambda: put(store, "first"))
    with faults.at_point("sqlite.checkpoint.between", block):
        assert put(store, "a") > 0
    assert "sqlite.checkpoint.between" in met
    os.close(blocked)
    assert store.get(THINGS, "a") is not None
    store.close()


def test_a_writer_stopped_inside_the_gate_is_named(path: Path) -> None:
    child = os.fork()
    if child == 0:
        mine = _open(path)
        with faults.at_point("sqlite.commit.before", faults.stop):
            put(mine, "late")
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    store = _open(path)
    with pytest.raises(LockTimeout, match=str(child)) as caught:
        store.transact(lambda tx: tx.put(THINGS, "mine", Thing()), scope=[THINGS], timeout_s=0.2)
    assert caught.value.fields["outcome"] == "none"
    # Readers are not blocked, and once it continues, nobody is.
    assert store.get(THINGS, "k000") is not None
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert put(store, "mine") > 0
    assert store.get(THINGS, "late") is not None
    store.close()


def test_a_given_up_turn_is_not_kept(path: Path) -> None:
    """A caller that timed out must not hold up others when its turn comes after all."""
    store, other = _open(path), _open(path)
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> None:
        inside.set()
        leave.wait(PATIENCE_S)

    slow = threading.Thread(target=lambda: other.transact(dawdle, scope=[THINGS]))
    slow.start()
    assert inside.wait(PATIENCE_S)
    for _ in range(3):
        with pytest.raises(LockTimeout):
            store.transact(lambda tx: None, scope=[THINGS], timeout_s=0.05)
    leave.set()
    slow.join(PATIENCE_S)
    for writer in (other, store, other, store):
        assert put(writer, "a") > 0
        writer.transact(lambda tx: None, scope=[THINGS], timeout_s=PATIENCE_S)
    store.close()
    other.close()


@pytest.mark.parametrize("way", ["deleted", "moved", "replaced"])
def test_a_store_whose_file_is_gone_takes_no_change_and_says_so(path: Path, way: str) -> None:
    store = _open(path)
    put(store, "a")
    if way == "deleted":
        path.unlink()
    else:
        path.rename(path.with_name("elsewhere"))
    if way == "replaced":
        path.touch()
    for act in (lambda: put(store, "a"), lambda: store.journal(limit=1)):
        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced") as refused:
            act()
        assert refused.value.fields["outcome"] == "none"
    if way == "moved":
        path.with_name("elsewhere").rename(path)
        put(store, "a")
    store.close()


def test_a_database_locked_by_another_program(path: Path) -> None:
    store = _open(path)
    theirs = sqlite3.connect(path, isolation_level=None)
    theirs.execute("BEGIN IMMEDIATE")
    with raises(StoreUnavailable, outcome="none"):
        store.transact(lambda tx: tx.put(THINGS, "a", Thing()), scope=[THINGS], timeout_s=0.2)
    assert store.get(THINGS, "a") is None
    theirs.execute("ROLLBACK")
    theirs.close()
    assert put(store, "a") > 0
    store.close()


def test_a_failed_sync_has_an_unknown_outcome_and_is_not_retried(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open(path)
    calls = []

    def failing(fd: int) -> None:
        calls.append(fd)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with raises(StoreUnavailable, outcome="unknown") as caught:
            put(store, "a")
    assert caught.value.fields["outcome"] == "unknown"
    assert len(calls) == 1
    assert put(store, "b") > 0
    store.close()


def _failed_change(store: SqliteStore, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with raises(StoreUnavailable, outcome="unknown"):
            put(store, key)


def test_after_a_failed_sync_no_change_is_acknowledged_before_the_log_is_restarted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = _open(path), _open(path)
    log = path.with_name("store.sqlite-wal")
    put(other, "before")
    begun = log.read_bytes()[:32]
    _failed_change(store, "in doubt", monkeypatch)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM meta").fetchone()
    with pytest.raises(StoreUnavailable) as caught:
        other.transact(
            lambda tx: tx.put(THINGS, "too early", Thing()), scope=[THINGS], timeout_s=0.1
        )
    assert caught.value.fields["outcome"] == "none"
    # What need not last waits for nothing, and nor does a look.
    other.transact(lambda tx: tx.put(THINGS, "loose", Thing()), scope=[THINGS], durable=False)
    assert other.get(THINGS, "too early") is None
    assert log.read_bytes()[:32] == begun
    reader.close()
    assert put(other, "after") > 0
    assert log.read_bytes()[:32] != begun
    begun = log.read_bytes()[:32]
    assert put(store, "later") > 0
    assert log.read_bytes()[:32] == begun, "what was put right is put right once"
    assert store.get(THINGS, "in doubt") is not None
    store.close()
    other.close()


def test_a_sync_that_another_process_saw_fail_acknowledges_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports an error once for each descriptor, and not to those opened afterwards."""
    store, other = _open(path), _open(path)
    sync = os.fdatasync

    def meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", sync)
        _failed_change(other, "in doubt", monkeypatch)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", meanwhile)
    with raises(StoreUnavailable, outcome="unknown") as caught:
        put(store, "behind it")
    assert caught.value.fields["outcome"] == "unknown"
    assert put(store, "after") > 0
    store.close()
    other.close()


def test_a_store_in_doubt_is_opened_and_read_where_its_log_cannot_be_reset(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store = _open(path)
    put(store, "before")
    _failed_change(store, "in doubt", monkeypatch)
    monkeypatch.setattr(os, "ftruncate", read_only)
    other = _open(path)
    assert other.get(THINGS, "before") is not None
    with raises(StoreUnavailable, outcome="none"):
        put(other, "after")
    store.close()
    other.close()


def _started() -> int:
    """Such as a tmux server: it outlives the one that started it, and must not inherit its
    locks.
    """
    return subprocess.Popen(["sleep", "600"], close_fds=False).pid


def _forked() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
    return child


@pytest.mark.parametrize("begin", [_started, _forked], ids=["started", "forked"])
def test_a_child_begun_inside_a_transaction_does_not_keep_the_gate(
    path: Path, begin: Callable[[], int]
) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        mine = _open(path)

        def body(tx: Tx) -> None:
            os.write(write, str(begin()).encode())
            signal.pause()

        mine.transact(body, scope=[THINGS])
    grandchild = int(os.read(read, 20))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        store = _open(path)
        store.transact(
            lambda tx: tx.put(THINGS, "a", Thing()), scope=[THINGS], timeout_s=PATIENCE_S
        )
        store.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_checkpoint_during_close_does_not_fail_the_change_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was committed and synced, and its caller got an error with the outcome `none`."""
    monkeypatch.setattr(database, "CHECKPOINT_FRAMES", 1)
    store = _open(path)
    with faults.at_point("sqlite.checkpoint.between", lambda _: store.close()):
        assert put(store, "acknowledged") > 0
    reopened = _open(path)
    assert reopened.get(THINGS, "acknowledged") is not None
    reopened.close()


def test_a_log_that_cannot_be_looked_at_does_not_fail_the_change_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller got an error of the operating system, without an outcome."""
    monkeypatch.setattr(database, "_CHECKPOINT_EVERY", 1)
    store = _open(path)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", broken)
        assert put(store, "acknowledged") > 0
    assert store.get(THINGS, "acknowledged") is not None
    store.close()


def test_a_store_that_cannot_be_opened_again_and_again_uses_up_no_descriptors(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that waits for disk space tries for as long as that takes."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(schema, "begin_boot", full)

    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            _open(path, boot_id="boot-2")
        assert open_below(path.parent) == []


@pytest.mark.parametrize("name", ["loop", "x" * 260])
def test_a_path_that_leads_nowhere_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    if name == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "other")
        (tmp_path / "other").symlink_to(tmp_path / "loop")
    with pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / name, boot_id="boot-1")
