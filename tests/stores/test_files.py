"""The files store as a place: what lies where, adoption, namespaces, signs, copies; and what
several at once see of it.
"""

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.errors import (
    InvalidName,
    InvalidValue,
    LockTimeout,
    NotFound,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.kernel.layout import FilePerRecord, OneFile, Sign
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Tx
from holdfast.stores.files import documents, folders, maintenance, signs
from holdfast.stores.files.members import composed
from holdfast.stores.files.records import RecordSet, StoredDocument
from holdfast.stores.files.store import FilesStore
from holdfast.stores.files.transaction import FilesChanged
from holdfast.stores.memory import AbsentStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.url import open_store
from holdfast.testing import faults
from tests.harness.children import dies_at
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S
from tests.stores.files_spaces import (
    ALL,
    CARDS,
    DEEP,
    HIDDEN,
    HOSTS,
    LEASES,
    LOCKED,
    SIGN,
    WIRE,
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


# --- what lies where ---


def test_everything_has_its_place(root: Path, store: FilesStore) -> None:
    for space in ALL:
        put(store, space, "a.b")
    put(store, HOSTS, "x")
    files = {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and ".holdfast" not in path.parts
    }
    assert files == {
        "lab/hosts.json",
        "lab/hosts.json.bak",
        "lab/leases.json",
        "cards/a.b.json",
        "lab/live/a.b/record.json",
    }
    assert "t_hidden" not in "".join(files)
    assert (root / ".holdfast" / "store.sqlite").is_file()


def test_a_folder_can_be_put_elsewhere(root: Path, tmp_path: Path) -> None:
    with_own = open_files(root, folders={"lab": ".", "cards": tmp_path / "outside"})
    put(with_own, HOSTS, "a")
    put(with_own, CARDS, "a")
    assert (root / "hosts.json").is_file() and (tmp_path / "outside" / "a.json").is_file()
    with_own.close()
    again = open_files(tmp_path / "outside", folders={"cards": "."})
    assert keys(again, CARDS) == ["a"]
    assert (tmp_path / "outside" / ".holdfast").is_dir()
    again.close()


def test_namespaces_do_not_meet(root: Path, store: FilesStore) -> None:
    other = open_files(root, namespace="other")
    for space in (HOSTS, CARDS):
        put(store, space, "mine")
        put(other, space, "theirs")
        assert keys(store, space) == ["mine"] and keys(other, space) == ["theirs"]
    assert (root / ".holdfast" / "namespaces" / "other" / "lab" / "hosts.json").is_file()
    other.close()


def test_a_folder_of_another_program_is_adopted_in_place(root: Path) -> None:
    (root / "lab" / "live" / "agent-1").mkdir(parents=True)
    (root / "cards").mkdir()
    (root / "lab" / "hosts.json").write_text('{"r1-h1": {"ip": "10.0.0.1", "vlan": 7}}')
    (root / "lab" / "live" / "agent-1" / "record.json").write_text('{"ip": "2"}')
    (root / "lab" / "live" / "agent-1" / "other.txt").write_text("theirs")
    (root / "cards" / "j1.json").write_text('{"ip": "3"}')
    (root / "cards" / "j1.events.log").write_text("theirs")
    (root / "cards" / "j1.lock").touch()
    store = open_files(root)
    assert (keys(store, HOSTS), keys(store, DEEP), keys(store, CARDS)) == (
        ["r1-h1"],
        ["agent-1"],
        ["j1"],
    )
    row = store.get(HOSTS, "r1-h1")
    assert row is not None and row.record.more == {"vlan": 7} and row.revision == 1
    assert store.put_new(HOSTS, [("r1-h1", Host(ip="9"))]) is None
    token = put(store, HOSTS, "r1-h2")
    assert token > row.revision
    assert shown(root / "lab" / "hosts.json")["r1-h1"] == {"ip": "10.0.0.1", "vlan": 7}
    assert shown(root / "lab" / "hosts.json.bak") == {"r1-h1": {"ip": "10.0.0.1", "vlan": 7}}
    assert store.delete_if(CARDS, ["j1"], 1) == 1
    store.transact(lambda tx: tx.delete(DEEP, "agent-1"), scope=[DEEP])
    assert (root / "cards" / "j1.events.log").exists() and (
        root / "lab" / "live" / "agent-1" / "other.txt"
    ).exists()
    store.close()


@pytest.mark.parametrize(
    "name", ["../{key}.json", "/{key}", "x.json", "{key}/{key}", "a//{key}", "./{key}"]
)
def test_a_layout_that_leaves_its_folder_is_refused(store: FilesStore, name: str) -> None:
    with pytest.raises(InvalidValue):
        put(store, Space("t_bad", Host, layout=FilePerRecord("lab", name, WIRE)), "a")
    with pytest.raises((InvalidValue, InvalidName)):
        put(store, Space("t_bad", Host, layout=OneFile("../lab", "x.json", WIRE)), "a")


@given(st.text(min_size=1, max_size=300))
def test_names_and_keys_are_one_to_one(key: str) -> None:
    name = folders.name_of(key)
    assert folders.key_of(name, [key]) == key
    assert (
        "/" not in name
        and name not in (".", "..")
        and not name.startswith(".")
        and len(name.encode()) <= 200
    )
    assert folders.key_of(name + "~", [key]) != key


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_keys_share_no_name(one: str, other: str) -> None:
    if one and other and one != other:
        assert folders.name_of(one) != folders.name_of(other)


def test_a_store_is_opened_by_its_url(root: Path) -> None:
    looking = open_store(f"files:{root}", namespace="default", boot_id="boot-1", create=False)
    assert isinstance(looking, AbsentStore) and looking.kind == "files"
    assert looking.get(HOSTS, "a") is None
    with pytest.raises(NotFound):
        put(looking, HOSTS, "a")
    assert not root.exists()
    store = open_store(f"files:{root}", namespace="default", boot_id="boot-1")
    assert store.kind == "files" and store.embedded
    put(store, HOSTS, "a")
    store.close()
    again = open_store(f"files:{root}", namespace="default", boot_id="boot-1", create=False)
    assert keys(again, HOSTS) == ["a"]
    again.close()


# --- several at once ---


def test_two_processes_see_each_others_files(root: Path, store: FilesStore) -> None:
    other = open_files(root)
    for number in range(10):
        for one, two in ((store, other), (other, store)):
            for space in (HOSTS, CARDS):
                revision = put(one, space, f"k{number}", ip=f"{number}-{id(one)}")
                row = two.get(space, f"k{number}")
                assert row is not None and (row.record.ip, row.revision) == (
                    f"{number}-{id(one)}",
                    revision,
                )
                found = two.read(
                    methodcaller("find", space, "ip", (f"{number}-{id(one)}",)),
                    scope=[space],
                )
                assert [(row.key, row.revision) for row in found] == [(f"k{number}", revision)]
    other.close()


def test_a_reader_sees_one_moment_of_all_files_and_the_inner_store(
    root: Path, store: FilesStore
) -> None:
    spaces = [HOSTS, LEASES, CARDS, HIDDEN]

    def write(value: int) -> None:
        def body(tx: Tx) -> None:
            for space in spaces:
                tx.put(space, "a", Host(ip=str(value)))

        store.transact(body, scope=spaces)

    write(0)
    done = threading.Event()
    other = open_files(root)

    def look() -> int:
        looks = 0
        while not done.is_set() or not looks:
            found = other.read(
                lambda tx: [row.record.ip for s in spaces for row in tx.range(s)], scope=spaces
            )
            assert len(set(found)) == 1 and len(found) == 4, found
            looks += 1
        return looks

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        for value in range(1, 60):
            write(value)
        done.set()
        assert sum(future.result(PATIENCE_S) for future in looking) > 10
    other.close()


def test_a_reader_that_is_always_overtaken_gets_a_turn(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, CARDS, "a")
    read, tries = store._reader.read, []

    def overtaken(*args: Any, **how: Any) -> Any:
        tries.append(how)
        if how["guarded"]:
            raise FilesChanged
        return read(*args, **how)

    monkeypatch.setattr(store._reader, "read", overtaken)
    assert keys(store, CARDS) == ["a"]
    assert [how["guarded"] for how in tries] == [True] * 8 + [False]


def test_a_transaction_in_files_cannot_be_nested(store: FilesStore) -> None:
    for inner in (HOSTS, HIDDEN):
        with pytest.raises(InvalidValue, match="inside another"):
            store.transact(lambda tx, inner=inner: put(store, inner, "x"), scope=[HOSTS])  # type: ignore[misc]
    kept: list[Tx] = []
    store.transact(kept.append, scope=[HOSTS])
    with pytest.raises(InvalidValue, match="ended"):
        kept[0].put(HOSTS, "a", Host(ip="1"))
    assert keys(store, HOSTS) == []


def test_a_child_forked_inside_a_transaction_writes_no_files(root: Path, store: FilesStore) -> None:
    put(store, HOSTS, "a")
    children = []

    def body(tx: Tx) -> None:
        tx.put(HOSTS, "b", Host(ip="2"))
        children.append(os.fork())

    parent = os.getpid()
    try:
        store.transact(body, scope=[HOSTS])
    except BaseException:
        if os.getpid() != parent:
            os._exit(0)
        raise
    if os.getpid() != parent:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert keys(store, HOSTS) == ["a", "b"]
    put(store, HOSTS, "c")
    assert list(shown(root / "lab" / "hosts.json")) == ["a", "b", "c"]


def test_locks_and_hidden_spaces_take_no_turn_at_the_latch(store: FilesStore) -> None:
    points = faults.recorded(
        lambda: (put(store, HIDDEN, "a"), store.put_new(LOCKED, [("l", Host(ip="1"))]))
    )
    assert points and not [point for point in points if point.startswith("files.")]


# --- signs ---


def test_signs_show_volatile_records(root: Path) -> None:
    store = open_files(root, shown={LOCKED: SIGN})
    folder = root / "lab" / "locks"
    token = store.put_new(LOCKED, [("r1", Host(ip="7")), ("/dev/tty", Host(ip="8"))])
    assert token is not None
    assert shown(folder / "router_r1") == {"ip": "7"} and shown(folder / "router_%2Fdev%2Ftty") == {
        "ip": "8"
    }
    put(store, LOCKED, "r1", ip="9")
    assert shown(folder / "router_r1") == {"ip": "9"}
    put(store, LOCKED, "r1", ip="free")
    assert os.listdir(folder) == ["router_%2Fdev%2Ftty"]
    assert store.delete_if(LOCKED, ["/dev/tty"], token) == 1
    assert os.listdir(folder) == []
    put(store, LOCKED, "r2", ip="1")
    store.transact(lambda tx: tx.delete(LOCKED, "r2"), scope=[rows(LOCKED)])
    assert os.listdir(folder) == []
    store.close()


def test_signs_are_brought_in_step_at_opening_and_others_files_stay(root: Path) -> None:
    store = open_files(root)
    store.put_new(LOCKED, [("r1", Host(ip="7"))])
    store.close()
    folder = root / "lab" / "locks"
    folder.mkdir(parents=True)
    (folder / "router_gone").write_text('{"ip": "1"}')
    (folder / "router_theirs").touch()
    again = open_files(root, shown={LOCKED: SIGN})
    assert sorted(os.listdir(folder)) == ["router_r1", "router_theirs"]
    again.close()


def test_a_process_stopped_while_it_writes_lock_files_blocks_no_change(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those who change what is shown nor those who open the store ever got on again."""
    monkeypatch.setattr(signs, "_TURN_S", 0.01)
    open_files(root).close()
    with open(root / ".holdfast" / "signs", "rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        store = open_files(root, shown={LOCKED: SIGN})
        assert put(store, LOCKED, "r1", ip="7") > 0
        assert not (root / "lab").exists()
    put(store, LOCKED, "r1", ip="8")
    assert shown(root / "lab" / "locks" / "router_r1") == {"ip": "8"}
    store.close()


def test_a_child_forked_while_signs_are_written_has_not_the_turn_of_its_parent(root: Path) -> None:
    store = open_files(root, shown={LOCKED: SIGN})

    def fork() -> int:
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = 1
        try:
            with pytest.raises(LockTimeout):
                store._signs._gate.run(lambda: None, 0.01)
            status = 0
        finally:
            os._exit(status)

    assert store._signs._gate.run(fork, PATIENCE_S) == 0
    store.close()


def test_a_sign_never_fails_the_change(root: Path) -> None:
    (root / "lab").mkdir(parents=True)
    (root / "lab" / "locks").write_text("a file where the folder should be")
    store = open_files(root, shown={LOCKED: SIGN})
    assert store.put_new(LOCKED, [("r1", Host(ip="7"))])
    assert put(store, LOCKED, "r1", ip="8") > 0
    store.close()
    strange: Sign[Host] = Sign(
        "lab",
        "signs/{key}",
        lambda host: {"x": object()},
        called=lambda key: None if key == "r1" else key,
    )
    store = open_files(root, shown={LOCKED: strange})
    assert put(store, LOCKED, "r1", ip="9") and put(store, LOCKED, "r2", ip="9")
    store.close()


# --- copies ---


def test_a_backup_brings_everything_back(root: Path, store: FilesStore, tmp_path: Path) -> None:
    other = open_files(root, namespace="other")
    for space in ALL:
        put(store, space, "kept", ip="1")
        put(other, space, "theirs", ip="1")
    saved = tmp_path / "saved"
    store.administration.backup(ALL, saved)
    with pytest.raises(InvalidValue, match="exists"):
        store.administration.backup(ALL, saved)
    tokens = []
    for space in ALL:
        put(store, space, "kept", ip="2")
        tokens.append(put(store, space, "later"))
        other.transact(lambda tx, space=space: tx.delete(space, "theirs"), scope=[space])  # type: ignore[misc]
    replaced = maintenance.restore(store, ALL, saved, boot_id="boot-1")
    assert [replaced] == _saved(root)
    for space in ALL:
        assert keys(store, space) == ["kept"] and keys(other, space) == ["theirs"], space.name
        row = store.get(space, "kept")
        assert row is not None and row.record.ip == "1"
    assert list(shown(root / "lab" / "hosts.json")) == ["kept"]
    assert not (root / "cards" / "later.json").exists()
    assert put(store, HOSTS, "new") > max(tokens)
    assert store.administration.check(ALL) == []
    assert not [name for name in os.listdir(root / ".holdfast") if name.startswith("restore-")]
    assert replaced is not None
    maintenance.restore(store, ALL, replaced, boot_id="boot-1")
    for space in ALL:
        assert keys(store, space) == ["kept", "later"] and keys(other, space) == [], space.name
        row = store.get(space, "kept")
        assert row is not None and row.record.ip == "2"
    other.close()


def test_a_file_that_cannot_be_saved_is_not_replaced(
    root: Path, store: FilesStore, tmp_path: Path
) -> None:
    put(store, HOSTS, "a")
    saved = tmp_path / "saved"
    store.administration.backup(ALL, saved)
    hosts = root / "lab" / "hosts.json"
    hosts.rename(tmp_path / "theirs.json")
    hosts.symlink_to(tmp_path / "theirs.json")
    with pytest.raises(StoreCorrupt, match="symbolic link"):
        maintenance.restore(store, ALL, saved, boot_id="boot-1")
    assert hosts.is_symlink() and _saved(root) == []


@pytest.mark.prove
def test_a_backup_and_a_restore_killed_at_every_point(root: Path, tmp_path: Path) -> None:
    store = open_files(root)
    for space in ALL:
        put(store, space, "a", ip="1")
    saved = tmp_path / "saved"
    store.administration.backup(ALL, saved)
    for space in ALL:
        put(store, space, "a", ip="2")
        put(store, space, "b", ip="2")
    store.close()

    def state() -> list[str]:
        look = open_files(root)
        found = look.read(
            lambda tx: [f"{row.key}{row.record.ip}" for s in ALL for row in tx.range(s)], scope=ALL
        )
        put(look, HIDDEN, "x")
        look.transact(lambda tx: tx.delete(HIDDEN, "x"), scope=[HIDDEN])
        assert look.administration.check(ALL) == []
        look.close()
        return found

    before, after = ["a2", "b2"] * 5, ["a1"] * 5
    for number, work in enumerate((_backup, _restore)):
        at, killed = 0, True
        while killed:
            killed = dies_at(partial(work, root, saved, tmp_path / f"copy-{at}"), at)
            assert state() in ([before], [before, after])[number]
            if state() == after:
                assert any(_held(copy, tmp_path) == before for copy in _saved(root)), (
                    f"killed at {at}"
                )
            at += 1
        assert at > 8
    assert state() == after


def _saved(root: Path) -> list[Path]:
    """The stores that a restore has replaced, by age."""
    return sorted(
        (root / ".holdfast").glob("store.sqlite.replaced-*"),
        key=lambda path: path.stat().st_mtime_ns,
    )


def _held(saved: Path, tmp_path: Path) -> list[str]:
    """What a saved store brings back, put into a new one."""
    elsewhere = open_files(tmp_path / f"elsewhere-{secrets.token_hex(4)}")
    maintenance.restore(elsewhere, ALL, saved, boot_id="boot-1")
    found = elsewhere.read(
        lambda tx: [f"{row.key}{row.record.ip}" for s in ALL for row in tx.range(s)], scope=ALL
    )
    elsewhere.close()
    return found


def _backup(root: Path, saved: Path, copy: Path) -> None:
    open_files(root).administration.backup(ALL, copy)


def _restore(root: Path, saved: Path, copy: Path) -> None:
    maintenance.restore(open_files(root), ALL, saved, boot_id="boot-1")


def test_a_recovery_whose_turn_does_not_come_is_not_taken_for_a_bad_disk(
    store: FilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, **__: object) -> None:
        raise LockTimeout("no turn", outcome="none")

    monkeypatch.setattr(SqliteStore, "transact", late)
    with pytest.raises(LockTimeout):
        store.administration.backup(ALL, tmp_path / "saved")


def test_a_bad_or_foreign_backup_changes_nothing(
    root: Path, store: FilesStore, tmp_path: Path
) -> None:
    put(store, HOSTS, "a")
    (tmp_path / "junk").write_bytes(b"junk" * 400)
    foreign = tmp_path / "foreign"

    elsewhere = SqliteStore(tmp_path / "elsewhere.sqlite", boot_id="boot-1")
    put(elsewhere, HOSTS, "b")
    elsewhere.administration.backup([], foreign)
    elsewhere.close()
    for source, error in (
        (tmp_path / "none", NotFound),
        (tmp_path / "junk", StoreCorrupt),
        (foreign, StoreCorrupt),
    ):
        with pytest.raises(error):
            maintenance.restore(store, ALL, source, boot_id="boot-1")
    assert keys(store, HOSTS) == ["a"]
    assert store.administration.check(ALL) == []


def test_a_closed_store_says_so_for_files_too(store: FilesStore) -> None:
    put(store, HOSTS, "a")
    store.close()
    store.close()
    for work in (
        lambda: put(store, HOSTS, "a"),
        lambda: keys(store, HOSTS),
        lambda: store.get(CARDS, "a"),
    ):
        with raises(StoreUnavailable, closed=True):
            work()


def test_content_shows_what_lies_there(root: Path, store: FilesStore) -> None:
    for space in ALL:
        put(store, space, "a", ip="1")
    assert json.loads(store.administration.content(HOSTS, "a")) == {"ip": "1"}
    (root / "cards" / "a.json").write_bytes(b"\xffjunk")
    assert store.administration.content(CARDS, "a") == b"\xffjunk"
    assert b"1" in store.administration.content(HIDDEN, "a")
    with pytest.raises(NotFound):
        store.administration.content(DEEP, "nothing")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    value=st.dictionaries(
        st.text(max_size=6), st.dictionaries(st.text(max_size=6), _JSON, max_size=4), max_size=5
    )
)
def test_a_file_put_together_of_its_records_is_the_file_written_whole(
    value: dict[str, Any],
) -> None:
    entries = {key: StoredDocument[Any](document) for key, document in value.items()}
    assert composed(RecordSet(HOSTS, WIRE, entries)) == documents.render(value)
