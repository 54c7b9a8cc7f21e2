"""A folder of so many files that the kernel tells which were changed: whatever is done to one of
them is seen by the next reader, and the others are not looked at.
"""

import ctypes
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier

import pytest

from holdfast.kernel.errors import RecordInvalid
from holdfast.kernel.limits import FILES_WATCHED_FROM
from holdfast.kernel.store import Store, Tx
from holdfast.stores.files import cache
from holdfast.stores.files.disk import signature_of
from holdfast.stores.files.store import FilesStore
from tests.harness.descriptors import open_below, watches
from tests.harness.errors import raises
from tests.stores.files_spaces import CARDS, Host, open_files, put

MANY = FILES_WATCHED_FROM + 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def cards(root: Path) -> Path:
    """A folder of cards, written by hand."""
    folder = root / "cards"
    folder.mkdir(parents=True)
    _fill(folder)
    return folder


@pytest.fixture
def store(root: Path, cards: Path) -> Iterator[FilesStore]:
    assert cards.is_dir()
    store = open_files(root)
    for _ in range(3):
        # Known, then watched, then told of.
        assert len(_found(store)) == MANY
    yield store
    store.close()


def _fill(folder: Path) -> None:
    for number in range(MANY):
        (folder / f"c{number:04}.json").write_text(json.dumps({"ip": f"{number:04}"}))


def _found(store: Store) -> list[str]:
    """Every address in its order, by the index."""
    return [row.record.ip for row in store.read(lambda tx: tx.find(CARDS, "ip"), scope=[CARDS])]


def _in_place(folder: Path) -> str:
    (folder / "c0007.json").write_text(json.dumps({"ip": "zzzz"}))
    return "zzzz"


def _replaced(folder: Path) -> str:
    (folder / "new").write_text(json.dumps({"ip": "zzzz"}))
    os.rename(folder / "new", folder / "c0007.json")
    return "zzzz"


def _made(folder: Path) -> str:
    (folder / "other.json").write_text(json.dumps({"ip": "zzzz"}))
    return "zzzz"


def _removed(folder: Path) -> str:
    (folder / f"c{MANY - 1:04}.json").unlink()
    return f"{MANY - 2:04}"


def _renamed(folder: Path) -> str:
    os.rename(folder / f"c{MANY - 1:04}.json", folder / "aside")
    return f"{MANY - 2:04}"


def _moved_in(folder: Path) -> str:
    (folder.parent / "elsewhere.json").write_text(json.dumps({"ip": "zzzz"}))
    os.rename(folder.parent / "elsewhere.json", folder / "c0007.json")
    return "zzzz"


def _another_folder(folder: Path) -> str:
    shutil.move(folder, folder.with_name("before"))
    folder.mkdir()
    _fill(folder)
    return _in_place(folder)


CHANGES = [_in_place, _replaced, _made, _removed, _renamed, _moved_in, _another_folder]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_whatever_is_done_to_a_file_is_seen_at_once(
    store: FilesStore, cards: Path, change: Callable[[Path], str]
) -> None:
    # Each within the tick of the file system's clock that the one before was in.
    for ip in ("y001", "y002", "y003", "0003"):
        (cards / "c0003.json").write_text(json.dumps({"ip": ip}))
        assert ip in _found(store)
    last = change(cards)
    assert _found(store)[-1] == last
    assert _found(store)[-1] == last


def test_the_other_files_are_not_looked_at(
    store: FilesStore, cards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    look = signature_of

    def noting(path: Path | str) -> object:
        looked.append(os.path.basename(path))
        return look(path)

    monkeypatch.setattr(cache, "signature_of", noting)
    monkeypatch.setattr(cache.FolderCache, "_check_all", None)
    _in_place(cards)
    assert _found(store)[-1] == "zzzz"
    assert looked == ["c0007.json"]
    assert put(store, CARDS, "c0008", ip="zzzzz")
    assert _found(store)[-2:] == ["zzzz", "zzzzz"]
    assert set(looked) == {"c0007.json", "c0008.json"}


def test_another_process_is_seen_and_sees(store: FilesStore, root: Path) -> None:
    other = open_files(root)
    for number in range(20):
        one, two = (store, other) if number % 2 else (other, store)
        # The longest are named by a hash, which only the store can read.
        put(one, CARDS, f"c{number:04}" * (60 if number % 3 else 1), ip=f"z{number:03}")
        assert _found(two)[-1] == f"z{number:03}"
    other.close()


def test_more_than_the_kernel_keeps(store: FilesStore, cards: Path) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(kept + 1):
        # Two in a row of the same would be told as one.
        os.utime(cards / f"c{number % 2:04}.json")
    _in_place(cards)
    assert _found(store)[-1] == "zzzz"
    _made(cards)
    assert _found(store)[-2:] == ["zzzz", "zzzz"]


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_without_inotify_changes_are_found_by_scanning(
    root: Path, cards: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    libc = ctypes.CDLL(None)
    monkeypatch.setattr(libc, call, lambda *_: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    store = open_files(root)
    for _ in range(3):
        assert len(_found(store)) == MANY
    _in_place(cards)
    assert _found(store)[-1] == "zzzz"
    store.close()


def test_a_notice_to_one_thread_reaches_the_others(store: FilesStore, cards: Path) -> None:
    threads = 4
    begin = Barrier(threads)

    def look(_: int) -> str:
        begin.wait()
        return _found(store)[-1]

    with ThreadPoolExecutor(threads) as pool:
        for number in range(100):
            (cards / "c0007.json").write_text(json.dumps({"ip": f"z{number:03}"}))
            assert set(pool.map(look, range(threads))) == {f"z{number:03}"}


def test_a_forked_child_takes_nothing_from_its_parent(store: FilesStore, cards: Path) -> None:
    _in_place(cards)
    child = os.fork()
    if child == 0:
        try:
            seen = [_found(store)[-1] for _ in range(3)]
        finally:
            os._exit(0 if seen == ["zzzz"] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert _found(store)[-1] == "zzzz"


def test_a_file_that_cannot_be_read_is_looked_at_until_it_can(
    store: FilesStore, cards: Path
) -> None:
    (cards / "c0007.json").write_text("{")
    for _ in range(2):
        with raises(RecordInvalid, key="c0007", malformed=True):
            _found(store)
    _in_place(cards)
    assert _found(store)[-1] == "zzzz"


def test_what_failed_half_way_is_not_forgotten(
    store: FilesStore, cards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_place(cards)
    _removed(cards)

    def failing(path: Path | str) -> object:
        raise RuntimeError(path)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "signature_of", failing)
        with pytest.raises(RuntimeError):
            _found(store)
    assert _found(store)[-2:] == [f"{MANY - 2:04}", "zzzz"]


def test_nothing_is_left_open(root: Path, cards: Path) -> None:
    assert cards.is_dir()
    before = watches()
    store = open_files(root)
    for _ in range(3):
        _found(store)
    assert watches() == before + 1 and open_below(root)
    store.close()
    assert watches() == before and not open_below(root)


def test_fewer_files_are_looked_at_each_and_need_no_watch(store: FilesStore, cards: Path) -> None:
    watched = watches()
    for number in range(60):
        (cards / f"c{number:04}.json").unlink()
    assert len(_found(store)) == MANY - 60
    assert len(_found(store)) == MANY - 60 and watches() == watched - 1
    assert _in_place(cards) == _found(store)[-1]
    put(store, CARDS, "c0007", ip="aaaa")
    assert store.get(CARDS, "c0007").record == Host(ip="aaaa")  # type: ignore[union-attr]


def _change_and_compare(task: tuple[str, int]) -> int:
    """Change records at random, each time comparing what is known of all of them with what lies
    there.
    """
    root, seed = Path(task[0]), task[1]
    random, store = Random(seed), open_files(root)

    def body(tx: Tx) -> None:
        there = {
            path.stem: json.loads(path.read_text())["ip"]
            for path in (root / "cards").glob("*.json")
        }
        assert {row.key: row.record.ip for row in tx.find(CARDS, "ip")} == there
        for _ in range(random.randint(1, 3)):
            key = f"c{random.randrange(MANY + 20):04}"
            if random.random() < 0.2:
                tx.delete(CARDS, key)
            else:
                tx.put(CARDS, key, Host(ip=f"{random.randrange(10_000):04}"))

    for _ in range(60):
        store.transact(body, scope=[CARDS])
    store.close()
    return seed


def test_several_processes_know_what_lies_there(root: Path, cards: Path) -> None:
    assert cards.is_dir()
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(
            _change_and_compare, [(str(root), seed) for seed in range(3)], chunksize=1
        ) == [0, 1, 2]
