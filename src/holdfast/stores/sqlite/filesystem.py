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
    check_shared,
    in_folder,
    make_node,
    open_file,
    refuse_planted,
)
from holdfast.system.folder_walk import Folder, untrusted
from holdfast.system.sync import sync_names

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


def make_database(path: Path, access: Access, folder: Folder) -> os.stat_result:
    """Make an empty database file in its open folder, unless it exists; return what is there.
    Raises OSError, StoreUnavailable, and InvalidValue for a folder or special file.
    """
    try:
        found = os.stat(path.name, dir_fd=folder.fd, follow_symlinks=False)
    except FileNotFoundError:
        check_shared(path.parent, access)
        sync_names(path.parent)
        make_empty(path, access, folder.fd)
        found = os.stat(path.name, dir_fd=folder.fd, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise untrusted(path, "it is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidValue(
            f"{path} is not a plain file: give --store sqlite:PATH the path of a file",
            path=str(path),
        )
    return found


def check_database(
    path: Path, access: Access, folder: Folder | None = None
) -> dict[str, os.stat_result]:
    """Before SQLite opens a database and the files beside it by name: refuse what other users put
    under one of these names. Return what is there, by the ending of its name. Raises
    StoreUnavailable and OSError.
    """
    if folder is None:
        return in_folder(path, lambda fd, _: check_database(path, access, Folder.of(fd)))
    found = {}
    # The log first: another process may be making both now, and it makes the log last.
    for ending in ("-wal", "", "-shm", "-journal"):
        try:
            there = os.stat(path.name + ending, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if folder.exposed or not stat.S_ISREG(there.st_mode):
            refuse_planted(f"{path}{ending}", there, os.fstat(folder.fd), access, writing=True)
        found[ending] = there
    return found


def open_side_file(path: Path, access: Access, folder: Folder | None = None) -> int:
    """Open a file that lies beside a database, or make it. Raises StoreUnavailable."""
    try:
        return open_file(path, os.O_RDWR, access, folder=folder)
    except OSError as error:
        raise opening_failed(path, error) from None


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


def make_empty(path: Path, access: Access, folder: int | None = None) -> None:
    """Make an empty file, unless it exists; `folder` is a descriptor of its folder. Without opening
    it: closing a descriptor of a database drops the locks that SQLite holds on it in this process.
    """
    if folder is None:
        in_folder(path, lambda around, _: make_empty(path, access, around))
        return
    with contextlib.suppress(FileExistsError):
        make_node(folder, path.name, stat.S_IFREG, access)


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
        device, mount = os.fstat(fd).st_dev, mount_of(fd)
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except FileNotFoundError:
        # No /proc.
        return UNKNOWN
    finally:
        os.close(fd)
    number = f"{os.major(device)}:{os.minor(device)}"
    by_mount = by_number = UNKNOWN
    for line in mounts.splitlines():
        words = line.split(" ")
        if words[0] == mount:
            by_mount = words[words.index("-") + 1]
        if words[2] == number:
            by_number = words[words.index("-") + 1]
    # By the mount first: parts of a btrfs have device numbers that are in no table. In a chroot
    # only the number may be.
    return by_number if by_mount == UNKNOWN else by_mount


def mount_of(fd: int) -> str:
    """The number of the mount that an open file is on; empty where /proc does not say."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as info:
            return next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")
    except FileNotFoundError:
        return ""
