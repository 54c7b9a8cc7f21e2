"""Where a store may live, and with which permissions."""

import contextlib
import os
import stat
from pathlib import Path

from holdfast.access import Access, check_shared, make_folder, make_node
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.stores.sqlite.translate import opening_failed

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gfs2", "ocfs2", "beegfs", "gpfs", "pvfs2", "coda"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "ceph", "davfs", "davfs2", "s3fs", "rclone", "gcsfuse", "goofys")}
)
"""File systems that several machines may share. SQLite's log needs the memory of one machine."""


class Place:
    """Where a file was when it was opened. SQLite goes on in a file that has no name any more, and nobody would find there what
    was acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._file = self._now()

    def check(self) -> None:
        """Raises StoreUnavailable when another file is there, or none."""
        if self._now() != self._file:
            raise StoreUnavailable(
                f"{self._path} is not the file any more that this process has open: it was moved, deleted or replaced. Put it "
                "back, or stop every program that uses it and run `holdfast store restore FILE`; nothing was changed",
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
    """Make the store's folder and an empty database file, for those who are to have access, unless they are there.

    Raises StoreUnavailable, for a network file system with a pointer to PostgreSQL; InvalidValue for a path that is a
    folder or special file.
    """
    try:
        make_folder(path.parent, access)
        refuse_network(path.parent)
        if not path.exists():
            check_shared(path.parent, access)
            sync_names(path.parent)
            make_empty(path, access)
        mode = path.stat().st_mode
    except OSError as error:
        raise opening_failed(path, error) from None
    if not stat.S_ISREG(mode):
        raise InvalidValue(f"{path} is not a plain file: give --store sqlite:PATH the path of a file", path=str(path))


def sync_names(folder: Path) -> None:
    """Make the names of the folder and of those above it survive a power loss: any of them may be new.

    Done before the database file is made. So whoever finds that file knows that its folder lasts, whichever process made
    it; and whoever finds only the folder does this again.
    """
    device = folder.stat().st_dev
    for parent in folder.parents:
        # A new folder is on the file system of its parent, so behind a mount point none is new.
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
    """Make an empty file, unless there is one.

    Without opening it: closing a descriptor of a database drops the locks that SQLite holds on it in this process.
    """
    with contextlib.suppress(FileExistsError):
        make_node(path, stat.S_IFREG, access)


def refuse_network(folder: Path) -> None:
    """Raise StoreUnavailable if the folder is on a file system that several machines may share."""
    kind = type_of(folder)
    if kind in NETWORK:
        raise StoreUnavailable(
            f"{folder} is on a network file system ({kind}), where SQLite cannot keep a store safe: use a local disk, or "
            "PostgreSQL (--store postgresql://...) for several machines",
            path=str(folder),
            filesystem=kind,
            outcome="none",
        )


def type_of(folder: Path) -> str:
    """The type of the file system a folder is on, from the mount table; "" when it is not told."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""
    for line in table.splitlines():
        if f" {wanted} " in line:
            return line.partition(" - ")[2].split(" ", 1)[0]
    return ""
