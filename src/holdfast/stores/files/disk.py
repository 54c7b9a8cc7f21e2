"""Files on a disk, read whole and replaced whole so that they survive a power loss.

A file is replaced in four steps: write a temporary file beside it and sync that (`stage`), rename
it over the old file (`place`), sync the folder (`settle`). The temporary name is always the same,
because only one writer is at the latch: the next writer reuses what a killed one left. A symbolic
link in the place of a file, or of a folder made for one, is never followed.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.kernel import faults
from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite.filesystem import mount_of
from holdfast.system.access import (
    LACKING,
    PRIVATE,
    Access,
    dress,
    dress_like,
    make_folder,
    make_folder_in,
)
from holdfast.system.folder_walk import open_folder, others_can_write
from holdfast.system.sync import sync_names, sync_path

T = TypeVar("T")

_PERMANENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG}
"""Errors about the name itself, which another attempt cannot change."""

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
"""How file systems refuse a hard link that they do not support."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Non-blocking, because a FIFO in a file's place would block the open for ever."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
"""FS_IOC_GETFLAGS: a file's attributes, as `lsattr` shows them."""
_FIXED = 0x10 | 0x20
"""FS_IMMUTABLE_FL and FS_APPEND_FL: not even root can rename or remove such a file."""

_RACY_NS = 50_000_000
"""A younger change time proves nothing: clocks of file systems tick in steps of milliseconds, so
that a second change in the same tick leaves the signature as it was.
"""


class UnusableFile(Exception):
    """No plain file that can be changed is in a file's place. Never leaves the store."""

    def __init__(self, why: str, advice: str = "check what is there") -> None:
        super().__init__(why)
        self.advice = advice


class Location(NamedTuple):
    """Where a file is: `folder` holds many files and stays; `name` is this file's path below it,
    whose folders come and go with the file.
    """

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def sibling(self, rename: Callable[[str], str]) -> "Location":
        """The location in the same folder whose last name is `rename` of this one's."""
        head, slash, last = self.name.rpartition("/")
        return Location(self.folder, f"{head}{slash}{rename(last)}")


class Signature(NamedTuple):
    """What changes whenever a file is changed, by any program."""

    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int


class FileContent(NamedTuple):
    """A file as it was read. Without `sure`, a later change could have the same signature."""

    data: bytes
    signature: Signature
    sure: bool


class Disk:
    """Reads and replaces files. A system error that may pass is retried: `attempts` times in all,
    `delay_s` apart.
    """

    def __init__(self, attempts: int, delay_s: float, access: Access = PRIVATE) -> None:
        self._access = access
        self._attempts = attempts
        self._delay_s = delay_s
        self._synced_folders: set[Path] = set()

    def retry(self, work: Callable[[], T]) -> T:
        """Call `work` until it raises no error that may pass. Raises the last OSError."""
        for _ in range(self._attempts - 1):
            try:
                return work()
            except OSError as error:
                if error.errno in _PERMANENT:
                    raise
            # A disk does not notify anybody when an error is over.
            time.sleep(self._delay_s)
        return work()

    def retry_until_found(self, find: Callable[[], T | None]) -> T | None:
        """Call `find` until it returns something; None after as many attempts as `retry` makes."""
        found = find()
        for _ in range(self._attempts - 1):
            if found is None:
                # Nothing signals that another program has finished writing a file.
                time.sleep(self._delay_s)
                found = find()
        return found

    def read(self, location: Location) -> FileContent | None:
        """The file's content; None when there is none. Raises UnusableFile and StoreUnavailable."""
        try:
            return self.retry(lambda: _read(location))
        except OSError as error:
            raise unreadable(location.path, error) from None

    def stage(self, location: Location, data: bytes) -> int:
        """Write and sync the temporary file that is to replace a file, with that file's mode and
        group. Missing folders are made. Return the temporary file's time in nanoseconds. Raises
        StoreUnavailable, which leaves at most a temporary file.
        """
        try:
            return self.retry(lambda: self._stage(location, data))
        except (OSError, UnusableFile) as error:
            raise _unwritable(location.path, error) from None

    def place(self, location: Location, *, keep: bool) -> None:
        """Rename the staged file into its place; with `keep`, the old file stays as `.bak`."""
        with _parent(location) as (folder, name):
            if keep:
                _keep_previous(folder, name)
            faults.reach("files.rename.before")
            os.rename(temporary(name), name, src_dir_fd=folder, dst_dir_fd=folder)
            faults.reach("files.rename.after")

    def check_removable(self, location: Location) -> None:
        """Raise StoreUnavailable for a file that `remove` could not remove: behind a link, a
        folder, in a closed folder, immutable or mounted over.
        """
        try:
            with contextlib.suppress(FileNotFoundError), _parent(location) as (folder, name):
                _refuse_fixed(name, folder, _lstat(name, folder))
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, UnusableFile) as error:
            raise _unwritable(location.path, error) from None

    def remove(self, location: Location) -> None:
        """Remove a file, if it exists, and the folders made for it that are empty then. A folder in
        its place, or a link on the way to it, belongs to somebody else and stays.
        """
        with (
            contextlib.suppress(FileNotFoundError, IsADirectoryError, UnusableFile),
            _parent(location) as (folder, name),
        ):
            faults.reach("files.unlink.before")
            os.unlink(name, dir_fd=folder)
            faults.reach("files.unlink.after")
        _remove_empty_folders(location)

    def unstage(self, location: Location) -> None:
        """Remove a staged file. Best effort: the next `stage` replaces what stays."""
        with contextlib.suppress(OSError, UnusableFile), _parent(location) as (folder, name):
            os.unlink(temporary(name), dir_fd=folder)
        _remove_empty_folders(location)

    def settle(self, location: Location) -> None:
        """Sync the names in the file's folder, and in those made for it."""
        faults.reach("files.folder_sync.before")
        for parent in location.path.parents:
            with contextlib.suppress(FileNotFoundError):
                sync_path(parent)
            if parent == location.folder:
                break
        faults.reach("files.folder_sync.after")

    def _stage(self, location: Location, data: bytes) -> int:
        self._make_folder(location.folder)
        with _parent(location, make=self._access) as (folder, name):
            old = _lstat(name, folder)
            _refuse_fixed(name, folder, old)
            staged = temporary(name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=folder)
            faults.reach("files.write.before")
            fd = os.open(staged, _NEW, 0o600, dir_fd=folder)
            try:
                _dress(fd, old, self._access)
                _write(fd, data)
                # A time to the nanosecond, unlike that of any other program's file. The kernel's
                # own file time stands still for milliseconds, and inode numbers are reused: a
                # change right after ours could leave the same signature and go unnoticed.
                now_ns = time.time_ns()
                os.utime(fd, ns=(now_ns, now_ns))
                faults.reach("files.write.after")
                # Before the rename: a power loss could otherwise leave an empty file in its place.
                os.fsync(fd)
                faults.reach("files.sync.after")
            finally:
                os.close(fd)
            return now_ns

    def _make_folder(self, folder: Path) -> None:
        if folder in self._synced_folders and folder.is_dir():
            return
        make_folder(folder, self._access)
        with os.scandir(folder) as entries:
            empty = all(entry.name.startswith(".") for entry in entries)
        # The process that made an empty folder may have been killed before it synced the folder's
        # own name. A folder with a file in it has been synced.
        if empty:
            sync_names(folder)
        self._synced_folders.add(folder)


def temporary(name: str) -> str:
    """The name under which a file's next content is staged."""
    return f".{name}.tmp"


def backup_of(name: str) -> str:
    """The name under which a file's previous content is kept."""
    return f"{name}.bak"


def signature_of(path: Path | str) -> Signature | None:
    """The signature of a file; None when there is none. Raises StoreUnavailable."""
    try:
        return signature_of_stat(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def signature_of_stat(found: os.stat_result) -> Signature:
    return Signature(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def sync_file(location: Location) -> None:
    """Make a file's content survive a power loss, whichever program wrote it."""
    with _parent(location) as (folder, name):
        sync_path(name, dir_fd=folder, flags=os.O_NOFOLLOW)


def unreadable(path: Path | str, error: OSError) -> StoreUnavailable:
    """The error for a file or folder that cannot be read, after all retries."""
    why, advice = LACKING.get(
        error.errno or 0, (os.strerror(error.errno or 0), "check its permissions and the disk")
    )
    return StoreUnavailable(
        f"cannot read {path} ({why}): {advice}", path=str(path), outcome="none", tried=True
    )


def _unwritable(path: Path, error: OSError | UnusableFile) -> StoreUnavailable:
    if isinstance(error, UnusableFile):
        why, advice = str(error), error.advice
    elif error.errno is None:
        why, advice = str(error), "check what is there, its permissions and the disk"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        why, advice = os.strerror(error.errno), "free some space"
    else:
        otherwise = os.strerror(error.errno), "check what is there, its permissions and the disk"
        why, advice = LACKING.get(error.errno, otherwise)
    return StoreUnavailable(
        f"cannot write {path} ({why}): {advice}", path=str(path), outcome="none", tried=True
    )


def _read(location: Location) -> FileContent | None:
    try:
        with _parent(location) as (folder, name):
            fd = os.open(name, _READ, dir_fd=folder)
            around = os.fstat(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnusableFile("it is a symbolic link") from None
        raise
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise UnusableFile("it is no plain file")
        # Somebody who can write the folder may have hard-linked a secret file to this name, to
        # have it shown to them. A file that they can read anyway is no secret.
        secret = not before.st_mode & stat.S_IROTH and not (
            before.st_gid == around.st_gid and before.st_mode & stat.S_IRGRP
        )
        if before.st_nlink > 1 and secret and others_can_write(around):
            raise UnusableFile(
                "it has a second name elsewhere, and others can write its folder", "remove it"
            )
        data = _read_all(fd, before.st_size)
        signature = signature_of_stat(os.fstat(fd))
        unchanged = signature == signature_of_stat(before)
        age_ns = time.time_ns() - max(signature.mtime_ns, signature.ctime_ns)
        return FileContent(data, signature, unchanged and age_ns > _RACY_NS)
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    # One byte more than expected: a short read then shows the end without a further call.
    parts = [os.read(fd, size + 1)]
    while len(parts[-1]) > 0 and sum(map(len, parts)) != size:
        parts.append(os.read(fd, size + 1))
    return b"".join(parts)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


@contextmanager
def _parent(location: Location, *, make: Access | None = None) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that a file is in, reached through no symbolic link, and the
    file's name there. With `make`, missing folders are made.
    """
    *between, name = location.name.split("/")
    fd = open_folder(location.folder)
    try:
        for depth, part in enumerate(between):
            try:
                if make is not None:
                    make_folder_in(fd, part, make)
                below = os.open(part, _FOLDER, dir_fd=fd)
            except NotADirectoryError:
                path = Path(location.folder, *between[: depth + 1])
                # The kernel reports this for a link as well.
                if path.is_symlink():
                    raise UnusableFile(
                        f"{path} is a symbolic link, and links are not followed",
                        "remove the link; what it leads to stays",
                    ) from None
                raise UnusableFile(f"{path} is no folder", "move it away") from None
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def _refuse_fixed(name: str, folder: int, found: os.stat_result | None) -> None:
    """Raise UnusableFile for a file that cannot be replaced or removed although its folder may be
    written.

    Checked before the commit: afterwards the files could never follow the committed change, and
    every later change would be refused.
    """
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        raise UnusableFile("it is a folder")
    around = os.fstat(folder)
    if around.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid, around.st_uid):
        raise UnusableFile("it is another user's, in a folder where only its owner may remove it")
    if not stat.S_ISREG(found.st_mode):
        return
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError:
        # Removed, or closed to this user: its attributes cannot be read.
        return
    try:
        attributes = 0
        # Some file systems have no such attributes.
        with contextlib.suppress(OSError):
            found_flags = fcntl.ioctl(fd, _GET_FLAGS, struct.pack("l", 0))
            attributes = struct.unpack("i", found_flags[:4])[0]
        if attributes & _FIXED:
            raise UnusableFile("it is immutable or append-only", "free it with `chattr -ia`")
        # Not by the device number: it is the same when a folder is mounted into itself.
        if mount_of(fd) != mount_of(folder):
            raise UnusableFile("a file is mounted over it", "free it with `umount`")
    finally:
        os.close(fd)


def _remove_empty_folders(location: Location) -> None:
    for parent in location.path.parents:
        if parent == location.folder:
            return
        try:
            os.rmdir(parent)
        except OSError:
            return


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _dress(fd: int, old: os.stat_result | None, access: Access) -> None:
    """Give a new file the mode, owner and group of the one that it replaces."""
    if old is None or not stat.S_ISREG(old.st_mode):
        dress(fd, access)
    else:
        dress_like(fd, old)


def _keep_previous(folder: int, name: str) -> None:
    """Keep a file's content as `.bak`. By a link and a rename: the file itself never lacks its
    name, and a `.bak` is always whole.
    """
    old = temporary(backup_of(name))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(old, dir_fd=folder)
    faults.reach("files.keep.before")
    try:
        os.link(name, old, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _copy(folder, name, old)
    faults.reach("files.keep.between")
    os.rename(old, backup_of(name), src_dir_fd=folder, dst_dir_fd=folder)
    faults.reach("files.keep.after")


def _copy(folder: int, name: str, copy: str) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(source)
        target = os.open(copy, _NEW, 0o600, dir_fd=folder)
        try:
            _dress(target, found, PRIVATE)
            _write(target, _read_all(source, found.st_size))
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
