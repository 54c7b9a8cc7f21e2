"""Damaged, unwritable, linked and hand-edited files: each is reported, restored if possible, and
hides no sound record.
"""

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import (
    Held,
    InvalidValue,
    LockTimeout,
    RecordInvalid,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.kernel.store import Tx
from holdfast.stores.files import disk, latch, maintenance
from holdfast.stores.files.store import FilesStore
from holdfast.stores.sqlite import filesystem
from holdfast.stores.sqlite.maintenance import SqliteAdministration
from tests.harness.disk import mounted
from tests.harness.errors import raises
from tests.stores.files_spaces import (
    ALL,
    CARDS,
    DEEP,
    HOSTS,
    LEASES,
    Host,
    keys,
    open_files,
    put,
    shown,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(root: Path) -> Iterator[FilesStore]:
    store = open_files(root)
    yield store
    store.close()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("precious")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:20] + b"\0" * 40),
    "truncated": _cut,
    "empty": lambda path: os.truncate(path, 0),
    "blank": lambda path: path.write_bytes(b"\n"),
    "no_json": lambda path: path.write_text("hello"),
    "wrong_type": lambda path: path.write_text("[1, 2]"),
    "null": lambda path: path.write_text("null"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "deep": lambda path: path.write_bytes(b"[" * 20_000),
    "two": lambda path: path.write_bytes(path.read_bytes() * 2),
    "folder": _folder,
    "fifo": _fifo,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("reader", [True, False], ids=["read", "changed"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("space", [HOSTS, LEASES], ids=["whole", "part"])
def test_a_damaged_file_is_moved_aside_restored_and_reported_once(
    root: Path, store: FilesStore, damage: Callable[[Path], Any], reader: bool, space: Any
) -> None:
    put(store, space, "a")
    put(store, space, "b")
    put(store, space, "c")
    path = root / "lab" / space.layout.name
    damage(path)
    left = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreCorrupt) as caught:
        keys(store, space) if reader else put(store, space, "d")
    fields = caught.value.fields
    assert (
        fields["restored"] is True
        and str(path) in caught.value.message
        and f"{path}.bak" in caught.value.message
    )
    aside = [found for found in path.parent.iterdir() if ".corrupt-" in found.name]
    if left is None and not aside:
        assert fields["aside"] is None
    else:
        assert [str(found) for found in aside] == [fields["aside"]]
        assert not aside[0].is_file() or aside[0].read_bytes() == left
    # The version before the last change, and from here on all is well.
    assert keys(store, space) == ["a", "b"]
    put(store, space, "d")
    assert keys(store, space) == ["a", "b", "d"]
    assert store.administration.check(ALL) == []


def test_a_damaged_file_without_a_sound_copy_stays_and_is_reported_each_time(
    root: Path, store: FilesStore
) -> None:
    put(store, HOSTS, "a")
    put(store, HOSTS, "b")
    path = root / "lab" / "hosts.json"
    path.write_text("garbage")
    path.with_name("hosts.json.bak").write_text("{")
    for _ in range(2):
        for work in (lambda: keys(store, HOSTS), lambda: put(store, HOSTS, "c")):
            with pytest.raises(StoreCorrupt, match=r"no sound hosts\.json\.bak") as caught:
                work()
            assert caught.value.fields["restored"] is False
    assert path.read_text() == "garbage"
    assert any("hosts.json" in line for line in store.administration.check(ALL))
    put(store, LEASES, "x")
    assert keys(store, LEASES) == ["x"]


@pytest.mark.parametrize("damage", ["{", "[]"])
def test_a_record_of_a_damaged_file_cannot_be_removed_and_the_error_says_so(
    root: Path, store: FilesStore, damage: str
) -> None:
    """An error that was never to leave the store did."""
    put(store, HOSTS, "a", ip="1")
    put(store, HOSTS, "a", ip="2")
    path = root / "lab" / "hosts.json"
    path.write_text(damage)
    with pytest.raises(StoreCorrupt, match="restored from"):
        store.administration.content(HOSTS, "a")
    assert b'"1"' in store.administration.content(HOSTS, "a")
    path.write_text(damage)
    path.with_name("hosts.json.bak").unlink()
    with pytest.raises(StoreCorrupt, match="no sound"):
        store.administration.content(HOSTS, "a")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_files_have_no_second_name_a_damaged_one_is_set_aside_too(
    root: Path, store: FilesStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put(store, HOSTS, "a", ip="1")
    put(store, HOSTS, "a", ip="2")
    path = root / "lab" / "hosts.json"
    path.write_text("{")

    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreCorrupt) as caught:
        keys(store, HOSTS)
    assert caught.value.fields["restored"] and Path(caught.value.fields["aside"]).read_text() == "{"
    put(store, HOSTS, "b", ip="3")
    assert keys(store, HOSTS) == ["a", "b"]


def test_a_file_lost_with_its_copy_is_reported_before_it_counts_as_empty(
    root: Path, store: FilesStore
) -> None:
    put(store, HOSTS, "a")
    put(store, HOSTS, "b")
    for path in (root / "lab").iterdir():
        path.unlink()
    with pytest.raises(StoreCorrupt, match="lost") as caught:
        keys(store, HOSTS)
    assert caught.value.fields["restored"] is False
    assert keys(store, HOSTS) == []
    put(store, HOSTS, "c")
    assert keys(store, HOSTS) == ["c"]


def test_a_missing_folder_is_reported_until_it_is_back(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "a")
    os.rename(root / "lab", root / "moved")
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="mount"):
            keys(store, HOSTS)
    os.rename(root / "moved", root / "lab")
    assert keys(store, HOSTS) == ["a"]


@pytest.mark.parametrize("begin", ["gone", "truncated"])
def test_a_file_that_is_just_being_saved_is_not_taken_for_damaged(
    root: Path, store: FilesStore, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    """A reader meets an editor that writes in place, or removes and rewrites, in the middle."""
    put(store, HOSTS, "a")
    put(store, HOSTS, "b")
    path = root / "lab" / "hosts.json"
    DAMAGE[begin](path)
    monkeypatch.setattr(time, "sleep", lambda _: path.write_text('{"edited": {"ip": "5"}}'))
    assert keys(store, HOSTS) == ["edited"]
    assert not [found for found in path.parent.iterdir() if ".corrupt-" in found.name]


def test_one_damaged_record_hides_no_other_and_survives(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "good", ip="1")
    path = root / "lab" / "hosts.json"
    bad = {"ip": 5, "nested": [1, 2.5, None, {"é": "\u2028"}], "big": 12345678901234567890123}
    path.write_text(path.read_text().replace("{", '{"bad": ' + _json(bad) + ', "worse": [1],', 1))
    assert store.get(HOSTS, "good") is not None
    for key in ("bad", "worse"):
        with pytest.raises(RecordInvalid, match=key) as caught:
            store.get(HOSTS, key)
        assert caught.value.fields["key"] == key
    reported: list[Any] = []
    assert store.read(
        lambda tx: [r.key for r in tx.range(HOSTS, damaged=reported)], scope=[HOSTS]
    ) == ["good"]
    assert [error.fields["key"] for error in reported] == ["bad", "worse"]
    with pytest.raises(RecordInvalid):
        store.read(lambda tx: tx.find(HOSTS, "ip", ("1",)), scope=[HOSTS])
    put(store, HOSTS, "new", ip="2")
    assert shown(path)["bad"] == bad and shown(path)["worse"] == [1]
    assert len([line for line in store.administration.check(ALL) if "damaged" in line]) == 2
    assert store.transact(lambda tx: tx.delete(HOSTS, "bad"), scope=[HOSTS])
    put(store, HOSTS, "worse", ip="3")
    assert store.administration.check(ALL) == []


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


@pytest.mark.parametrize(
    "damage",
    [d for name, d in DAMAGE.items() if name != "gone"],
    ids=[n for n in DAMAGE if n != "gone"],
)
def test_a_damaged_file_of_one_record_hides_no_other(
    root: Path, store: FilesStore, damage: Callable[[Path], Any]
) -> None:
    for key in ("a", "b"):
        put(store, CARDS, key)
    path = root / "cards" / "a.json"
    damage(path)
    with pytest.raises(RecordInvalid) as caught:
        store.get(CARDS, "a")
    assert caught.value.fields["key"] == "a"
    assert store.get(CARDS, "b") is not None
    reported: list[Any] = []
    assert store.read(
        lambda tx: [r.key for r in tx.range(CARDS, damaged=reported)], scope=[CARDS]
    ) == ["b"]
    assert [error.fields["key"] for error in reported] == ["a"]
    assert len(store.administration.check(ALL)) == 1


# --- links and odd names ---


def test_links_are_refused_and_not_followed(root: Path, store: FilesStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "record.json"
    secret.write_text('{"ip": "secret"}')
    for space in (CARDS, DEEP, HOSTS):
        put(store, space, "a")
        put(store, space, "a")
    (root / "cards" / "a.json").unlink()
    (root / "cards" / "a.json").symlink_to(secret)
    shutil.rmtree(root / "lab" / "live" / "a")
    (root / "lab" / "live" / "a").symlink_to(outside)
    for space in (CARDS, DEEP):
        with pytest.raises(RecordInvalid, match="link"):
            store.get(space, "a")
    # A link to a file is replaced by a file; one to a folder is refused. Neither is followed.
    put(store, CARDS, "a", ip="2")
    assert not (root / "cards" / "a.json").is_symlink()
    with pytest.raises(StoreUnavailable, match="link"):
        put(store, DEEP, "a", ip="2")
    with pytest.raises(StoreUnavailable, match="link"):
        store.transact(lambda tx: tx.delete(DEEP, "a"), scope=[DEEP])
    # The next caller does not repeat what was refused.
    put(store, DEEP, "b")
    assert (root / "lab" / "live" / "a").is_symlink()
    hosts = root / "lab" / "hosts.json"
    hosts.unlink()
    hosts.symlink_to(secret)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="symbolic link"):
            put(store, HOSTS, "b")
    assert hosts.is_symlink()
    assert secret.read_text() == '{"ip": "secret"}' and os.listdir(outside) == ["record.json"]


def test_a_folder_in_place_of_a_record_cannot_be_deleted_and_blocks_nothing(
    root: Path, store: FilesStore
) -> None:
    put(store, CARDS, "a")
    (root / "cards" / "a.json").unlink()
    (root / "cards" / "a.json").mkdir()
    with pytest.raises(StoreUnavailable, match="folder"):
        store.transact(lambda tx: tx.delete(CARDS, "a"), scope=[CARDS])
    put(store, CARDS, "b")
    assert (root / "cards" / "a.json").is_dir()


@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../../x",
        "/etc/passwd",
        ".hidden",
        "a/b",
        "x" * 1024,
        "é" * 300,
        "%2E",
        "%~a",
        "a%",
        "-",
    ],
)
def test_odd_keys_stay_inside(root: Path, store: FilesStore, key: str, tmp_path: Path) -> None:
    for space in (CARDS, DEEP):
        put(store, space, key, ip="7")
        assert keys(store, space) == [key]
        row = store.get(space, key)
        assert row is not None and row.record.ip == "7"
    assert os.listdir(tmp_path) == ["state"]
    assert len(os.listdir(root / "cards")) == 1 and len(os.listdir(root / "lab" / "live")) == 1
    assert store.transact(
        lambda tx: [tx.delete(space, key) for space in (CARDS, DEEP)], scope=[CARDS, DEEP]
    ) == [True, True]
    assert os.listdir(root / "cards") == [] and os.listdir(root / "lab") == ["live"]


# --- disks ---


def test_a_full_disk_leaves_the_old_state_whole(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=4m") as mount:
        store = open_files(mount / "state")
        put(store, HOSTS, "a", ip="1")
        put(store, LEASES, "a", ip="1")
        filler = mount / "filler"
        filler.write_bytes(b"x" * (os.statvfs(mount).f_bavail * 4096 - 3 * 4096))

        def grow(tx: Tx) -> None:
            tx.put(LEASES, "b", Host(ip="2"))
            tx.put(HOSTS, "b", Host(ip="2", more={"filler": "y" * 200_000}))
            tx.append(actor="t", kind="k", subject="never")

        with pytest.raises(StoreUnavailable, match="space") as caught:
            store.transact(grow, scope=[HOSTS, LEASES])
        assert caught.value.fields["outcome"] == "none"
        assert keys(store, HOSTS) == keys(store, LEASES) == ["a"]
        assert all(entry.subject != "never" for entry in store.journal().entries)
        assert not list((mount / "state" / "lab").glob(".*"))
        filler.unlink()
        store.transact(grow, scope=[HOSTS, LEASES])
        assert keys(store, HOSTS) == keys(store, LEASES) == ["a", "b"]
        store.close()


def test_a_file_size_limit_leaves_the_old_state_whole(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            try:
                put(store, HOSTS, "b", filler="y" * 300_000)
            except StoreUnavailable as error:
                status = 0 if error.fields["outcome"] == "none" else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert keys(store, HOSTS) == ["a"]


class _Failing:
    """Stands for `os` and fails a call the first so many times."""

    def __init__(self, call: str, times: int, number: int) -> None:
        self.call, self.left, self.number, self.failed = call, times, number, 0

    def __getattr__(self, name: str) -> Any:
        if name == self.call and self.left:
            self.left -= 1
            self.failed += 1

            def fail(*_: Any, **__: Any) -> None:
                raise OSError(self.number, os.strerror(self.number))

            return fail
        return getattr(os, name)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_an_error_that_passes_is_tried_again(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    put(store, HOSTS, "a")
    failing = _Failing(call, 2, number)
    monkeypatch.setattr(disk, "os", failing)
    put(store, HOSTS, "b")
    assert failing.failed == 2
    assert keys(store, HOSTS) == ["a", "b"]


@pytest.mark.parametrize("call", ["write", "open"])
def test_an_error_that_stays_before_the_commit_changes_nothing(
    root: Path, store: FilesStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(store, HOSTS, "a")
    before = (root / "lab" / "hosts.json").read_bytes()
    failing = _Failing(call, 1000, errno.EIO)
    monkeypatch.setattr(disk, "os", failing)
    with pytest.raises(StoreUnavailable) as caught:
        put(store, HOSTS, "b")
    assert caught.value.fields["outcome"] == "none"
    assert caught.value.message.count("nothing was changed") == 1
    assert failing.failed >= 3
    monkeypatch.undo()
    assert keys(store, HOSTS) == ["a"] and (root / "lab" / "hosts.json").read_bytes() == before


def test_an_error_that_stays_behind_the_commit_is_made_good_by_the_next(
    root: Path, store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is made and durable, and the call reports that; the files follow when the disk
    works again.
    """
    put(store, HOSTS, "a")
    monkeypatch.setattr(disk, "os", _Failing("rename", 1000, errno.EIO))
    revision = put(store, HOSTS, "b")
    row = store.get(HOSTS, "b")
    assert row is not None and row.revision == revision
    assert list(shown(root / "lab" / "hosts.json")) == ["a"]
    for call in ("rename", "write"):
        monkeypatch.setattr(disk, "os", _Failing(call, 1000, errno.EIO))
        with pytest.raises(StoreUnavailable) as caught:
            put(store, HOSTS, "c")
        assert caught.value.fields["outcome"] == "none"
        assert caught.value.fields["path"] == str(root)
    monkeypatch.undo()
    assert keys(store, HOSTS) == ["a", "b"]
    put(store, LEASES, "x")
    assert list(shown(root / "lab" / "hosts.json")) == ["a", "b"]


def test_a_network_file_system_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(
        filesystem, "type_of", lambda folder: "nfs4" if "elsewhere" in str(folder) else "ext4"
    )
    with pytest.raises(StoreUnavailable, match="PostgreSQL"):
        open_files(elsewhere / "state")
    with pytest.raises(StoreUnavailable, match="PostgreSQL"):
        open_files(root, folders={"lab": elsewhere})


def test_a_file_in_the_roots_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(InvalidValue, match="folder"):
        open_files(path)


def test_memory_for_a_disk_is_as_good(store: FilesStore) -> None:
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("there is no /dev/shm here")
    root = folder / f"holdfast-test-{os.getpid()}"
    try:
        there = open_files(root)
        put(there, HOSTS, "a")
        assert keys(there, HOSTS) == ["a"]
        there.close()
    finally:
        shutil.rmtree(root)


# --- people ---


def test_what_a_person_changed_is_seen_and_what_they_added_survives(
    root: Path, store: FilesStore
) -> None:
    put(store, HOSTS, "a", ip="1", colour="red")
    put(store, LEASES, "x")
    revision = put(store, CARDS, "c", ip="1")
    hosts, leases, card = (
        root / "lab" / "hosts.json",
        root / "lab" / "leases.json",
        root / "cards" / "c.json",
    )
    for turn in range(3):
        # In place, as an editor does it, and of the same length each time.
        hosts.write_text(
            hosts.read_text().replace("red", "tan")
            if turn % 2
            else hosts.read_text().replace("tan", "red")
        )
        row = store.get(HOSTS, "a")
        assert row is not None and row.record.more == {"colour": "tan" if turn % 2 else "red"}
    leases.write_text(leases.read_text().replace("{", '{"_comment": {"by": "me"},', 1))
    card.write_text('{"ip": "9", "note": "by hand"}')
    (root / "cards" / "new.json").write_text('{"ip": "10"}')
    put(store, LEASES, "y")
    assert shown(leases)["_comment"] == {"by": "me"}
    found = store.read(lambda tx: tx.range(CARDS), scope=[CARDS])
    assert [(row.key, row.record.ip, row.record.more) for row in found] == [
        ("c", "9", {"note": "by hand"}),
        ("new", "10", {}),
    ]
    assert [row.revision for row in found] == [revision, 1]
    (root / "cards" / "new.json").unlink()
    assert keys(store, CARDS) == ["c"]


def test_files_are_for_people(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "b", ip="2")
    put(store, HOSTS, "a", ip="1", zone="z")
    path = root / "lab" / "hosts.json"
    assert (
        path.read_text()
        == '{\n  "a": {\n    "ip": "1",\n    "zone": "z"\n  },\n  "b": {\n    "ip": "2"\n  }\n}\n'
    )
    if shutil.which("jq"):
        done = subprocess.run(
            ["jq", "-r", ".a.ip", str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout == "1\n"
    assert shown(path.with_name("hosts.json.bak")) == {"b": {"ip": "2"}}


def test_mode_and_group_are_kept_and_new_files_are_private(root: Path, store: FilesStore) -> None:
    before = os.umask(0)
    try:
        put(store, HOSTS, "a")
        put(store, DEEP, "a")
        hosts = root / "lab" / "hosts.json"
        assert stat.S_IMODE(hosts.stat().st_mode) == 0o600
        for folder in (root, root / "lab", root / "lab" / "live", root / "lab" / "live" / "a"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        hosts.chmod(0o664)
        if os.geteuid() == 0:
            os.chown(hosts, 1234, 4321)
        put(store, HOSTS, "b")
        found = hosts.stat()
        assert stat.S_IMODE(found.st_mode) == 0o664
        if os.geteuid() == 0:
            assert (found.st_uid, found.st_gid) == (1234, 4321)
    finally:
        os.umask(before)


def test_a_file_larger_than_any_record_is_no_bound(
    root: Path, store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(tx: Tx) -> None:
        for number in range(40):
            tx.put(HOSTS, f"h{number:03}", Host(ip=str(number), more={"filler": "z" * 100_000}))

    # So that it lies in the redo record, in several parts, until the disk works again.
    monkeypatch.setattr(disk, "os", _Failing("rename", 1000, errno.EIO))
    store.transact(fill, scope=[HOSTS])
    assert len(keys(store, HOSTS)) == 40
    assert not (root / "lab" / "hosts.json").exists()
    monkeypatch.undo()
    put(store, LEASES, "x")
    assert (root / "lab" / "hosts.json").stat().st_size > 4_000_000
    assert len(keys(store, HOSTS)) == 40 and store.administration.check(ALL) == []


def test_an_accepted_request_is_in_the_journal(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "a")
    put(store, HOSTS, "b")
    (root / "lab" / "hosts.json").write_text("torn")
    with pytest.raises(StoreCorrupt) as caught:
        keys(store, HOSTS)
    (entry,) = [entry for entry in store.journal().entries if entry.kind == "store.repaired"]
    assert entry.subject == "hosts.json"
    assert entry.data["restored"] and entry.data["aside"] == caught.value.fields["aside"]


def test_a_missing_folder_of_records_is_reported_until_it_is_back(
    root: Path, store: FilesStore
) -> None:
    put(store, CARDS, "a")
    os.rename(root / "cards", root / "unmounted")
    for ask in (
        lambda: keys(store, CARDS),
        lambda: store.get(CARDS, "a"),
        lambda: put(store, CARDS, "b"),
    ):
        with pytest.raises(StoreCorrupt, match="cards is gone"):
            ask()
    assert "cards is gone" in store.administration.check(ALL)[0]
    os.rename(root / "unmounted", root / "cards")
    assert keys(store, CARDS) == ["a"]


def test_a_folder_without_records_may_go(root: Path, store: FilesStore) -> None:
    put(store, CARDS, "a")
    store.transact(lambda tx: tx.delete(CARDS, "a"), scope=[CARDS])
    os.rmdir(root / "cards")
    assert keys(store, CARDS) == []
    put(store, CARDS, "b")
    assert keys(store, CARDS) == ["b"]


def test_after_a_restore_the_version_before_is_that_before_the_restore(
    root: Path, store: FilesStore, tmp_path: Path
) -> None:
    put(store, HOSTS, "a")
    store.administration.backup(ALL, tmp_path / "saved")
    for key in ("b", "c"):
        put(store, HOSTS, key)
    maintenance.restore(store, ALL, tmp_path / "saved", boot_id="boot-1")
    assert sorted(shown(root / "lab" / "hosts.json.bak")) == ["a", "b", "c"]
    assert keys(store, HOSTS) == ["a"]


def test_a_restore_that_waits_too_long_for_the_inner_store_is_no_failure_to_copy(
    root: Path, store: FilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout is an OSError too. Reported as an error of the disk, it sent its reader to a
    sound backup.
    """
    put(store, HOSTS, "a")
    store.administration.backup(ALL, tmp_path / "saved")
    put(store, HOSTS, "b")
    transact = store.inner.transact
    impatient = lambda body, **more: transact(body, **{**more, "timeout_s": 0.0})  # noqa: E731
    monkeypatch.setattr(store.inner, "transact", impatient)
    # Read before the gate is taken, so that what waits for it is the restore itself.
    monkeypatch.setattr(store._latch, "recover", lambda *_: None)
    gate = os.open(root / ".holdfast" / "store.sqlite-gate", os.O_RDWR)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout) as caught:
            maintenance.restore(store, ALL, tmp_path / "saved", boot_id="boot-1")
    finally:
        os.close(gate)
    assert (
        caught.value.fields["resource"].endswith("store.sqlite-gate")
        and caught.value.fields["outcome"] == "none"
    )
    assert not list((root / ".holdfast").glob("restore-*"))
    monkeypatch.undo()
    assert keys(store, HOSTS) == ["a", "b"]


def test_a_backup_that_is_killed_leaves_nothing_that_outranks_a_hand(
    root: Path, store: FilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, HOSTS, "a")

    def killed(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(SqliteAdministration, "backup", killed)
    monkeypatch.setattr(latch, "clear_redo", lambda _: None)
    with pytest.raises(SystemExit):
        store.administration.backup(ALL, tmp_path / "saved")
    (root / "lab" / "hosts.json").write_text('{"by hand": {"ip": "7"}}')
    assert keys(store, HOSTS) == ["by hand"]
    put(store, HOSTS, "b")
    assert keys(store, HOSTS) == ["b", "by hand"]


def test_what_a_backup_does_not_have_does_not_come_back_from_the_version_before(
    root: Path, store: FilesStore, tmp_path: Path
) -> None:
    put(store, CARDS, "c")
    store.administration.backup(ALL, tmp_path / "saved")
    for key in ("a", "b"):
        put(store, HOSTS, key)
    maintenance.restore(store, ALL, tmp_path / "saved", boot_id="boot-1")
    assert [path.name for path in (root / "lab").iterdir()] == []
    assert (keys(store, HOSTS), keys(store, CARDS)) == ([], ["c"])


def test_a_folder_of_two_stores_is_refused_and_its_owner_named(root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with closing(open_files(root, folders={"lab": shared})) as first:
        put(first, HOSTS, "a")
        with raises(Held, holder=f"files:{root}"):
            open_files(tmp_path / "other", folders={"lab": shared})
        # The folder of another store, and one that is itself a store.
        put(first, CARDS, "c")
        for inner in (root / "cards", root):
            with raises(Held, holder=f"files:{root}"):
                open_files(tmp_path / "other", folders={"lab": inner})
    with closing(open_files(root, folders={"lab": shared})) as first:
        assert keys(first, HOSTS) == ["a"]
    # A store that was moved takes its folders along.
    root.rename(tmp_path / "moved")
    with closing(open_files(tmp_path / "moved", folders={"lab": shared})) as first:
        assert keys(first, HOSTS) == ["a"]
        with pytest.raises(Held, match="moved"):
            open_files(shared)
