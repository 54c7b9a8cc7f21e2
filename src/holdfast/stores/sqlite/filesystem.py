"""Where a store may lie, and how its files are made."""

import contextlib
import os
import sqlite3
import stat
from pathlib import Path

from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import (
    Access,
    access_like,
    check_names,
    check_shared,
    make_folder,
    make_node,
)
from holdfast.system.folder_walk import untrusted

LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs", "nilfs2"}
    | {"tmpfs", "ramfs", "overlay", "aufs", "ecryptfs", "fuse.fuse-overlayfs"}
)
"""File systems of one machine whose locks, shared memory and syncs hold: SQLite's log needs all of
them. Any other may be shared by several machines, each with a memory of its own.
"""

UNKNOWN = "unknown"
VARIABLE = "HOLDFAST_FILESYSTEMS"
"""Names more of them, separated by commas, for a user who knows that they are as good."""


class FileIdentity:
    """Which file a path named when it was opened. SQLite goes on in a file that was deleted, and
    nobody would find there what was acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._file = self._now()

    def check(self) -> None:
        """Raise StoreUnavailable when the path names another file, or none."""
        if self._now() != self._file:
            raise StoreUnavailable(
                f"{self._path} is not the file any more that this process has open: it was moved, "
                "deleted or replaced. Put it back, or stop every program that uses it and run "
                "`holdfast store restore FILE`; nothing was changed",
                path=self._path,
                outcome="none",
            )

    def _now(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def prepare(path: Path, access: Access) -> None:
    """Make the store's folder and an empty database file, unless they exist.

    Raises StoreUnavailable, for a network file system with a pointer to PostgreSQL; InvalidValue
    for a path that is a folder or special file.
    """
    try:
        make_folder(path.parent, access)
        refuse_network(path.parent)
        if not path.exists():
            check_shared(path.parent, access)
            sync_names(path.parent)
            make_empty(path, access)
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidValue(
                f"{path} is not a plain file: give --store sqlite:PATH the path of a file",
                path=str(path),
            )
        check_database(path, access_like(path))
    except OSError as error:
        raise opening_failed(path, error) from None


def check_database(path: Path, access: Access) -> None:
    """Before SQLite opens a database and the files beside it by name: refuse what other users put
    under one of these names. Raises StoreUnavailable and OSError.
    """
    check_names(
        [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))], access
    )


def refuse_followed(raw: sqlite3.Connection, path: Path) -> None:
    """Raise StoreUnavailable if SQLite has followed a link to another file, before anything of it
    is read. The link may have been put there after this program resolved the path.
    """
    raw.text_factory = bytes
    try:
        opened = raw.execute("PRAGMA database_list").fetchone()[2]
    finally:
        raw.text_factory = str
    if opened != os.fsencode(path):
        raise untrusted(path, f"a link leads to {os.fsdecode(opened)}")


def sync_names(folder: Path) -> None:
    """Make the names of the folder and of those above it survive a power loss: any may be new.

    Done before the database file is made. So a process that finds the file knows that its folder
    lasts, whoever made it; and a process that finds only the folder does this again.
    """
    device = folder.stat().st_dev
    for parent in folder.parents:
        # A new folder is on the file system of its parent, so above a mount point none is new.
        if parent.stat().st_dev != device:
            return
        try:
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_empty(path: Path, access: Access) -> None:
    """Make an empty file, unless it exists, without opening it: closing a descriptor of a database
    drops the locks that SQLite holds on it in this process.
    """
    with contextlib.suppress(FileExistsError):
        make_node(path, stat.S_IFREG, access)


def refuse_network(folder: Path) -> None:
    """Raise StoreUnavailable if several machines may share the folder's file system."""
    kind = type_of(folder)
    if not is_local(kind):
        raise StoreUnavailable(
            f"{folder} is on a file system of type {kind}, which is not known to be of this "
            "machine alone, with locks and shared memory that hold: use a local disk, or "
            "PostgreSQL (--store postgresql://...) for several machines. If you know that it is as "
            f"good as a local disk, set {VARIABLE}={kind}",
            path=str(folder),
            filesystem=kind,
            outcome="none",
        )


def is_local(kind: str) -> bool:
    """May a store lie on a file system of this type?"""
    return kind in LOCAL or kind in os.environ.get(VARIABLE, "").replace(" ", "").split(",")


def type_of(folder: Path) -> str:
    """The type of the folder's file system, from the mount table; `unknown` when that does not say.
    Raises OSError.
    """
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        device = os.fstat(fd).st_dev
        fdinfo = Path(f"/proc/self/fdinfo/{fd}").read_text()
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except FileNotFoundError:
        # No /proc.
        return UNKNOWN
    finally:
        os.close(fd)
    table = [line.split(" ") for line in mounts.splitlines()]
    mount = next((line.split()[1] for line in fdinfo.splitlines() if line[:7] == "mnt_id:"), "")
    number = f"{os.major(device)}:{os.minor(device)}"
    # By the mount first: parts of a btrfs have device numbers that are in no table. In a chroot
    # only the number may be.
    found = [words for words in table if words[0] == mount] or [
        words for words in table if words[2] == number
    ]
    return found[-1][found[-1].index("-") + 1] if found else UNKNOWN
