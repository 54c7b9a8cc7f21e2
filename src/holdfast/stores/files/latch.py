"""Exclusive turns to change files.

The latch is a flock among the processes of this store. Other programs that change a layout's folder
take the lock file which the layout names; it is taken around each change too. Folder locks are
taken before the latch, in the order of their paths, so that waiting for another program delays no
change of other files. The first process at the latch completes what a killed one left.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError, LockTimeout, StoreUnavailable
from holdfast.stores.files.disk import Disk, UnusableFile
from holdfast.stores.files.folders import StoreFolders
from holdfast.stores.files.redo import FIRST, REDO, apply_changes, clear_redo, read_redo
from holdfast.stores.sqlite.database import left_s
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.gate import Gate
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import LACKING, Access, open_file
from holdfast.system.flock import flock_holder
from holdfast.system.folder_walk import Folder

T = TypeVar("T")


class _LocksNeeded(Exception):
    """A redo record has files in folders whose locks were not taken."""

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__(", ".join(map(str, paths)))
        self.paths = tuple(paths)


class _Replaced(Exception):
    """The locked file is no longer at its path, where other programs open it."""


class FolderLock(Gate):
    """The lock of one folder. A missing lock file is made; a missing folder is not."""

    def run(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        def checked() -> T:
            try:
                at_path, locked = os.lstat(self.path), os.fstat(self._fd)
            except OSError:
                raise _Replaced from None
            if (at_path.st_dev, at_path.st_ino) != (locked.st_dev, locked.st_ino):
                raise _Replaced
            return work()

        return super().run(checked, timeout_s, sleepy=sleepy)

    @staticmethod
    def _opened(path: Path, access: Access, folder: Folder | None = None) -> int:
        """Raises FileNotFoundError for a missing folder, StoreUnavailable for no plain file."""
        try:
            # Reading is enough for a lock: another user's lock file may not be writable.
            return open_file(path, os.O_RDONLY, access, folder=folder)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(str(path)) from None
        except OSError as error:
            if error.errno in LACKING:
                raise opening_failed(path, error) from None
            raise _unusable(path, os.strerror(error.errno or 0)) from None
        except StoreUnavailable as error:
            raise _unusable(path, error.fields.get("why", "it is no plain file")) from None

    def _late(self, timeout_s: float) -> LockTimeout:
        holder = flock_holder(self.path)
        who = f"process {holder}" if holder else "another program"
        return LockTimeout(
            f"{self.path} was not free within {timeout_s:.3g} s: {who} holds it; nothing was "
            "changed. Try again; if that process is stopped, continue or end it",
            resource=str(self.path),
            holder_pid=holder,
            outcome="none",
        )


class Latch:
    """Turns to change the files of one store, and recovery at the start of each turn."""

    def __init__(
        self, folders: StoreFolders, inner: SqliteStore, disk: Disk, access: Access
    ) -> None:
        self._folders = folders
        self._inner = inner
        self._disk = disk
        self._access = access
        self._locks: dict[Path, FolderLock] = {}
        """Those that this store has used."""
        self._gate = self._new_gate()

    def run(self, work: Callable[[], T], timeout_s: float, locks: tuple[Path, ...] = ()) -> T:
        """Call `work` while no other thread or process of this store changes files, after applying
        what a killed process left. `locks` are those of the folders that the work changes, in their
        order: programs that take them are kept out too. Raises LockTimeout when the turn does not
        come in time.
        """
        faults.reach("files.latch.before")

        def in_turn() -> T:
            faults.reach("files.latch.after")
            self.recover(deadline, locks)
            return work()

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._locked(
                    locks, lambda: self._gate.run(in_turn, left_s(deadline), sleepy=True), deadline
                )
            except _LocksNeeded as needed:
                # Taken again from outside: a wait for another program at the latch would hold up
                # every change.
                locks = tuple(sorted({*locks, *needed.paths}))

    def recover(self, deadline: float, locks: tuple[Path, ...]) -> None:
        """In a turn: apply the redo record that a killed process left. Raises StoreUnavailable, and
        _LocksNeeded for files whose lock is not in `locks`.
        """
        if self._inner.get(REDO, FIRST) is not None:
            recover(self._folders, self._inner, self._disk, locks, deadline, outcome="none")

    def close(self) -> None:
        """Close the gate and every lock, each once no thread is inside."""
        self._gate.close()
        while self._locks:
            self._locks.popitem()[1].close()

    def abandon(self) -> None:
        """In a forked child: drop the parent's latch and locks without unlocking them."""
        self._gate.abandon()
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            lock.abandon()

    def reopen(self) -> None:
        """In a forked child, after `abandon`. Raises StoreUnavailable."""
        self._gate = self._new_gate()

    def _new_gate(self) -> Gate:
        return Gate(self._folders.own / "latch", self._access)

    def _locked(self, paths: Sequence[Path], work: Callable[[], T], deadline: float) -> T:
        """Call `work` with all of these locks, which are given in their order.

        A folder that does not exist has no lock, and no program can hold it. Raises LockTimeout,
        which names the file and the process that holds it where the kernel shows that, and
        StoreUnavailable for a lock that is no plain file.
        """
        if not paths:
            return work()
        path, rest = paths[0], paths[1:]
        while True:
            lock = self._locks.get(path)
            if lock is None:
                try:
                    mine = FolderLock(path, self._access)
                except FileNotFoundError:
                    break
                lock = self._locks.setdefault(path, mine)
                if lock is not mine:
                    # Another thread opened it first.
                    mine.close()
            try:
                return lock.run(
                    lambda: self._locked(rest, work, deadline), left_s(deadline), sleepy=True
                )
            except _Replaced:
                self._locks.pop(path, None)
                lock.close()
        return self._locked(rest, work, deadline)


def recover(
    folders: StoreFolders,
    inner: SqliteStore,
    disk: Disk,
    locks: Collection[Path] | None,
    deadline: float,
    *,
    outcome: str,
) -> None:
    """At the latch: apply a redo record, and remove it. Raises LockTimeout; StoreUnavailable with
    this outcome when a file cannot be written; and _LocksNeeded for files whose lock is not in
    `locks`. None for `locks`: all that there are were taken.
    """
    # In a durable transaction: the killed process may not have synced its commit, and no file may
    # be ahead of the inner store after a power loss.
    pending = inner.transact(
        lambda tx: read_redo(tx, folders), scope=[REDO], timeout_s=left_s(deadline)
    )
    needed = {change.lock for change in pending.values() if change.lock is not None}
    if locks is not None and (missing := needed.difference(locks)):
        raise _LocksNeeded(missing)
    try:
        overtaken = apply_changes(disk, pending.values(), staged=False)
    except (OSError, UnusableFile, StoreUnavailable) as error:
        raise StoreUnavailable(
            f"the last change could not be completed in the files of {folders.root} ({error}): "
            "correct that, and the next change completes it"
            + ("; this call changed nothing" if outcome == "none" else ""),
            path=str(folders.root),
            outcome=outcome,
        ) from None
    # The dead process's lock was free at once. Another program may have read the old file, changed
    # it and begun to work by it: its change wins.
    for location in overtaken:
        warn(
            "%s was changed by another program before the change of a killed process reached it: "
            "it stays as it is",
            location.path,
        )
        facts = {"path": str(location.path)}
        append_entry(inner, "store.conflict", location.path.name, facts)
    remove_redo(inner, deadline)


def remove_redo(inner: SqliteStore, deadline: float) -> None:
    """At the latch: remove the redo record, once its files are in place and synced."""
    faults.reach("files.clear.before")
    # Not durable: applying a record twice is harmless.
    inner.transact(clear_redo, scope=[REDO], durable=False, timeout_s=left_s(deadline))
    faults.reach("files.clear.after")


def _unusable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot lock {path} ({why}), so that other programs could change its folder at the same "
        "time: make it a plain file that you may read, or remove it, and it is made again",
        path=str(path),
        outcome="none",
    )


def append_entry(inner: SqliteStore, kind: str, subject: str, facts: dict[str, Any]) -> None:
    """Append a journal entry of the store itself, best effort."""
    with contextlib.suppress(HoldfastError):
        inner.transact(
            lambda tx: tx.append(actor="holdfast", kind=kind, subject=subject, data=facts),
            scope=[],
        )


def warn(event: str, *fields: object) -> None:
    # Without importing logging, which would slow down every start.
    if "logging" in sys.modules:
        sys.modules["logging"].getLogger("holdfast.stores.files").warning(event, *fields)
