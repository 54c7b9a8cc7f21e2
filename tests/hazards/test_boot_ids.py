"""Processes with different boot ids on one store: all share one volatile file while anybody uses
it.

The same with real containers is in test_containers.py.
"""

import os
import signal
from pathlib import Path

import pytest

from holdfast.kernel.store import ReadTx
from holdfast.stores.sqlite import maintenance
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.users import Users
from holdfast.system.access import PRIVATE
from holdfast.testing.conformance.harness import VOLATILE, Thing, put
from tests.harness.processes import state_of
from tests.harness.timeouts import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def _open(path: Path, boot_id: str) -> SqliteStore:
    return SqliteStore(path, boot_id=boot_id)


def _lock_files(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.glob("*.locks-*.sqlite"))


def test_a_boot_id_that_comes_later_takes_the_file_in_use(path: Path) -> None:
    host, inside = _open(path, "boot-1"), _open(path, "boot-2")
    assert host.put_new(VOLATILE, [("lock", Thing())]) is not None
    assert inside.put_new(VOLATILE, [("lock", Thing())]) is None
    assert _lock_files(path) == ["store.sqlite.locks-boot-1.sqlite"]
    # The one that is left keeps the file in use, also for those who come now.
    host.close()
    late = _open(path, "boot-1")
    assert late.put_new(VOLATILE, [("lock", Thing())]) is None
    late.close()
    third = _open(path, "boot-3")
    assert third.put_new(VOLATILE, [("lock", Thing())]) is None
    third.close()
    inside.close()
    # As after a reboot.
    again = _open(path, "boot-3")
    assert again.put_new(VOLATILE, [("lock", Thing())]) is not None
    assert _lock_files(path) == ["store.sqlite.locks-boot-3.sqlite"]
    again.close()


def test_a_store_knows_which_boot_ids_use_it(path: Path) -> None:
    host, inside = _open(path, "boot-1"), _open(path, "boot-2")
    assert host.boot_in_use("boot-2")
    assert inside.boot_in_use("boot-1")
    assert not host.boot_in_use("boot-3")
    inside.close()
    assert not host.boot_in_use("boot-2")
    # A closed one cannot tell.
    host.close()
    assert host.boot_in_use("boot-3")


def test_the_marks_of_a_killed_process_are_gone_and_those_of_its_forked_child_stay(
    path: Path,
) -> None:
    host = _open(path, "boot-1")
    ready_r, ready_w = os.pipe()
    parent = os.fork()
    if parent == 0:
        store = _open(path, "boot-2")
        child = os.fork()
        os.write(ready_w, b".")
        if child == 0:
            os.write(ready_w, f"{os.getpid()} ".encode())
            store.get(VOLATILE, "lock")
        signal.pause()
    os.close(ready_w)
    reported = b""
    while reported.count(b".") < 2 or b" " not in reported:
        reported += os.read(ready_r, 100)
    child = int(reported.replace(b".", b"").split()[0])
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert host.boot_in_use("boot-2")
    os.kill(child, signal.SIGKILL)
    # No event reports that the kernel has closed the last of its descriptors.
    until(lambda: not host.boot_in_use("boot-2"))
    os.close(ready_r)
    host.close()


def test_a_child_that_is_forked_while_a_store_is_opened_keeps_no_mark_of_it(path: Path) -> None:
    host = _open(path, "boot-1")
    read_fd, write_fd = os.pipe()
    parent = os.fork()
    if parent == 0:
        # Forked off when the mark was made, and before any store had it: as by another thread.
        mark = Users(path, PRIVATE, "boot-2")
        if (child := os.fork()) == 0:
            signal.pause()
        os.write(write_fd, str(child).encode())
        os.kill(os.getpid(), signal.SIGKILL)
        mark.close()
    os.waitpid(parent, 0)
    child = int(os.read(read_fd, 100))
    # The child lives, and nobody with that boot id has the store open.
    until(lambda: not host.boot_in_use("boot-2"))
    assert state_of(child) not in (None, "Z")
    os.kill(child, signal.SIGKILL)
    os.close(read_fd)
    os.close(write_fd)
    host.close()


@pytest.mark.parametrize("used", [True, False])
def test_a_restore_keeps_the_volatile_file_of_open_stores(
    path: Path, tmp_path: Path, used: bool
) -> None:
    """A backup has the boot id of its time, by which the next who came would have looked for the
    locks.
    """
    store = _open(path, "boot-1")
    put(store, "a")
    store.administration.backup([], tmp_path / "saved.sqlite")
    store.close()
    store = _open(path, "boot-2")
    if used:
        assert store.put_new(VOLATILE, [("lock", Thing())]) is not None
    maintenance.restore(path, tmp_path / "saved.sqlite", boot_id="boot-2")
    for boot_id in ("boot-1", "boot-2", "boot-3"):
        late = _open(path, boot_id)
        assert (late.put_new(VOLATILE, [("lock", Thing())]) is None) == (
            used or boot_id != "boot-1"
        )
        late.close()
    seen = store.read(lambda tx: _keys(tx), scope=[VOLATILE])
    assert seen == ["lock"]
    assert _lock_files(path) == ["store.sqlite.locks-boot-2.sqlite"]
    store.close()


def _keys(tx: ReadTx) -> list[str]:
    return [row.key for row in tx.range(VOLATILE)]
