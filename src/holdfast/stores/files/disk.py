"""Files on a disk: read whole, replaced whole, and there after a power loss once `settle` has
returned.

A file is replaced by writing a temporary one beside it, syncing that, renaming it over the old one
and syncing the folder. The temporary file's name is always the same, since only one writer is at
the latch: what a killed one leaves, the next uses up. Symbolic links in the place of a file, or of
a folder made for one, are never followed.
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
from holdfast.stores.sqlite.filesystem import sync_names
from holdfast.system.access import LACKING, PRIVATE, Access, dress, make_folder, make_folder_in
from holdfast.system.folder_walk import open_folder, others_can_write

T = TypeVar("T")

_PERMANENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG}
"""What another try cannot mend: the name itself is not what it should be."""

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
"""What file systems say that have no second names for a file, or no more."""

_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
"""FS_IOC_GETFLAGS: a file's attributes, as `lsattr` shows them."""
_FIXED = 0x10 | 0x20
"""FS_IMMUTABLE_FL and FS_APPEND_FL: such a file keeps its name, whoever asks."""

_RACY_NS = 50_000_000
"""How old a change must be before its time proves anything: clocks of file systems tick in steps of
some milliseconds.
"""


class Unfit(Exception):
    """What is at the place of a file is no plain file, or cannot be changed; `advice` says what to
    do. It never leaves the store.
    """

    def __init__(self, why: str, advice: str = "check what is there") -> None:
        super().__init__(why)
        self.advice = advice


class Spot(NamedTuple):
    """A file's place: a folder that is there for many files, and below it a path of plain names
    that is this file's.
    """

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """The whole path."""
        return self.folder / self.name


class Signature(NamedTuple):
    """What changes when a file is changed, by whomever."""

    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int


class Found(NamedTuple):
    """A file's content. `sure` is False when the file is so young that a further change could leave
    no trace.
    """

    data: bytes
    signature: Signature
    sure: bool


class Disk:
    """Reads and replaces files; tries again `attempts` times, `delay_s` apart, when the system
    reports an error.
    """

    def __init__(self, attempts: int, delay_s: float, access: Access = PRIVATE) -> None:
        self._access = access
        self._attempts = attempts
        self._delay_s = delay_s
        self._named: set[Path] = set()

    def patiently(self, work: Callable[[], T]) -> T:
        """Do it, again while the system reports an error that may pass. Raises the last OSError."""
        for _ in range(self._attempts - 1):
            try:
                return work()
            except OSError as error:
                if error.errno in _PERMANENT:
                    raise
            # An error of a disk that passes tells nobody when it has.
            time.sleep(self._delay_s)
        return work()

    def eventually(self, look: Callable[[], T | None]) -> T | None:
        """What a look finds, or a further one as often as anything is tried here; None when none of
        them finds anything.
        """
        found = look()
        for _ in range(self._attempts - 1):
            if found is None:
                # Nobody tells when a file that is just being written is whole.
                time.sleep(self._delay_s)
                found = look()
        return found

    def read(self, spot: Spot) -> Found | None:
        """The file's content; None when there is no file. Raises Unfit for anything else in its
        place, or StoreUnavailable.
        """
        try:
            return self.patiently(lambda: _read(spot))
        except OSError as error:
            raise unreadable(spot.path, error) from None

    def stage(self, spot: Spot, data: bytes) -> int:
        """Write the temporary file beside a file's place, synced, with the mode and group of the
        file that it is to replace. Return its time in nanoseconds. Folders that are not there are
        made. Raises StoreUnavailable, and then nothing but a temporary file is left.
        """
        try:
            return self.patiently(lambda: self._stage(spot, data))
        except (OSError, Unfit) as error:
            raise _unwritable(spot.path, error) from None

    def place(self, spot: Spot, *, keep: bool) -> None:
        """Put the staged file in its place; with `keep`, the one that was there stays beside it as
        `.bak`.
        """
        with _parent(spot) as (folder, name):
            if keep:
                _keep(folder, name)
            faults.reach("files.rename.before")
            os.rename(temporary(name), name, src_dir_fd=folder, dst_dir_fd=folder)
            faults.reach("files.rename.after")

    def check_removable(self, spot: Spot) -> None:
        """Raise StoreUnavailable for a file that `remove` would not get rid of: behind a link, a
        folder, in a closed one, or fixed in its place.
        """
        try:
            with contextlib.suppress(FileNotFoundError), _parent(spot) as (folder, name):
                _refuse_fixed(name, folder, _lstat(name, folder))
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, Unfit) as error:
            raise _unwritable(spot.path, error) from None

    def remove(self, spot: Spot) -> None:
        """Remove a file, if it is there, and the folders made for it that are empty then. A folder
        in its place, or a link on the way to it, is somebody else's and stays.
        """
        with (
            contextlib.suppress(FileNotFoundError, IsADirectoryError, Unfit),
            _parent(spot) as (folder, name),
        ):
            faults.reach("files.unlink.before")
            os.unlink(name, dir_fd=folder)
            faults.reach("files.unlink.after")
        _remove_empty(spot)

    def unstage(self, spot: Spot) -> None:
        """Take away what `stage` left, after all. Best effort: what stays is used up by the next
        that stages.
        """
        with contextlib.suppress(OSError, Unfit), _parent(spot) as (folder, name):
            os.unlink(temporary(name), dir_fd=folder)
        _remove_empty(spot)

    def settle(self, spot: Spot) -> None:
        """Return once the names of a file's folder, and of those above it that were made for it,
        survive a power loss.
        """
        faults.reach("files.folder_sync.before")
        for parent in spot.path.parents:
            with contextlib.suppress(FileNotFoundError):
                sync(parent)
            if parent == spot.folder:
                break
        faults.reach("files.folder_sync.after")

    def _stage(self, spot: Spot, data: bytes) -> int:
        self._make_folder(spot.folder)
        with _parent(spot, make=self._access) as (folder, name):
            old = _lstat(name, folder)
            _refuse_fixed(name, folder, old)
            staged = temporary(name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=folder)
            faults.reach("files.write.before")
            fd = os.open(
                staged,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
            try:
                _dress(fd, old, self._access)
                _write(fd, data)
                # To the nanosecond, which no file of another program has: the kernel's own time
                # stands still for milliseconds, and a removed file's number is soon another's. Or a
                # change right after ours might leave no trace.
                now_ns = time.time_ns()
                os.utime(fd, ns=(now_ns, now_ns))
                faults.reach("files.write.after")
                os.fsync(fd)
                faults.reach("files.sync.after")
            finally:
                os.close(fd)
            return now_ns

    def _make_folder(self, folder: Path) -> None:
        """Sync its name too if it is empty: whoever made it may have been killed before. With a
        file in it, that was done.
        """
        if folder in self._named and folder.is_dir():
            return
        make_folder(folder, self._access)
        with os.scandir(folder) as entries:
            fresh = all(entry.name.startswith(".") for entry in entries)
        if fresh:
            sync_names(folder)
        self._named.add(folder)


def temporary(name: str) -> str:
    """The name under which a file's next content is written."""
    return f".{name}.tmp"


def backup_of(name: str) -> str:
    """The name under which a file's previous content is kept."""
    return f"{name}.bak"


def signature_of(path: Path | str) -> Signature | None:
    """A file's signature; None when there is nothing. Raises StoreUnavailable when that cannot be
    told.
    """
    try:
        return signature_of_stat(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def signature_of_stat(found: os.stat_result) -> Signature:
    """The same of a file that was looked at already."""
    return Signature(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def sync(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(spot: Spot) -> None:
    """Make a file's content survive a power loss, whoever wrote it."""
    with _parent(spot) as (folder, name):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def unreadable(path: Path | str, error: OSError) -> StoreUnavailable:
    """What it means that a file or folder cannot be read. `tried` says that it was tried as often
    as is configured already.
    """
    why, advice = LACKING.get(
        error.errno or 0, (os.strerror(error.errno or 0), "check its permissions and the disk")
    )
    return StoreUnavailable(
        f"cannot read {path} ({why}): {advice}",
        path=str(path),
        outcome="none",
        tried=True,
    )


def _unwritable(path: Path, error: Exception) -> StoreUnavailable:
    number = error.errno if isinstance(error, OSError) else None
    why = str(error) if number is None else os.strerror(number)
    advice = (
        "free some space"
        if number in (errno.ENOSPC, errno.EDQUOT)
        else "check what is there, its permissions and the disk"
    )
    why, advice = LACKING.get(number or 0, (why, advice))
    advice = error.advice if isinstance(error, Unfit) else advice
    return StoreUnavailable(
        f"cannot write {path} ({why}): {advice}", path=str(path), outcome="none", tried=True
    )


def _read(spot: Spot) -> Found | None:
    try:
        with _parent(spot) as (folder, name):
            fd = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
            around = os.fstat(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unfit("it is a symbolic link") from None
        raise
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise Unfit("it is no plain file")
        if before.st_nlink > 1 and others_can_write(around) and not _is_seen_by_all(before, around):
            raise Unfit(
                "it has a second name elsewhere, and others can write its folder", "remove it"
            )
        data = _read_all(fd, before.st_size)
        signature = signature_of_stat(os.fstat(fd))
        sure = (
            signature == signature_of_stat(before)
            and time.time_ns() - max(signature.mtime_ns, signature.ctime_ns) > _RACY_NS
        )
        return Found(data, signature, sure)
    finally:
        os.close(fd)


def _is_seen_by_all(found: os.stat_result, around: os.stat_result) -> bool:
    """May those who can write the folder read the file by themselves?"""
    return bool(found.st_mode & stat.S_IROTH) or (
        found.st_gid == around.st_gid and bool(found.st_mode & stat.S_IRGRP)
    )


def _read_all(fd: int, size: int) -> bytes:
    # One byte more than there should be: so the end is seen without a further call.
    parts = [os.read(fd, size + 1)]
    while len(parts[-1]) > 0 and sum(map(len, parts)) != size:
        parts.append(os.read(fd, size + 1))
    return b"".join(parts)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


@contextmanager
def _parent(spot: Spot, *, make: Access | None = None) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that a file is in, reached through no symbolic link, and the
    file's name there.
    """
    *between, name = spot.name.split("/")
    fd = open_folder(spot.folder)
    try:
        for depth, part in enumerate(between):
            try:
                fd = _step(fd, part, make=make)
            except NotADirectoryError:
                raise _no_folder(Path(spot.folder, *between[: depth + 1])) from None
        yield fd, name
    finally:
        os.close(fd)


def _step(folder: int, part: str, *, make: Access | None) -> int:
    """Go down into a folder. The one above is closed, unless this raises. Raises NotADirectoryError
    for a link as well.
    """
    if make is not None:
        make_folder_in(folder, part, make)
    below = os.open(
        part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    os.close(folder)
    return below


def _no_folder(path: Path) -> Unfit:
    if path.is_symlink():
        return Unfit(
            f"{path} is a symbolic link, and links are not followed",
            "remove the link; what it leads to stays",
        )
    return Unfit(f"{path} is no folder", "move it away")


def _refuse_fixed(name: str, folder: int, found: os.stat_result | None) -> None:
    """Raise Unfit for what can be neither replaced nor removed although its folder may be written.

    Asked before the commit: behind it, the files could not follow, and every later change would
    wait for that.
    """
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        raise Unfit("it is a folder")
    around = os.fstat(folder)
    if around.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid, around.st_uid):
        raise Unfit("it is another user's, in a folder where only its owner may remove it")
    if not stat.S_ISREG(found.st_mode):
        return
    try:
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError:
        # Gone, or closed to this user: then nothing more is to be learnt of it.
        return
    try:
        if _flags(fd) & _FIXED:
            raise Unfit("it is immutable or append-only", "free it with `chattr -ia`")
        if _mount(fd) != _mount(folder):
            raise Unfit("a file is mounted over it", "free it with `umount`")
    finally:
        os.close(fd)


def _flags(fd: int) -> int:
    try:
        found: int = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, struct.pack("l", 0))[:4])[0]
    except OSError:
        # The file system has no such attributes.
        return 0
    return found


def _mount(fd: int) -> str:
    """The id of the mount that a file was opened through. A device number would not do: a folder
    may be mounted into itself.
    """
    with open(f"/proc/self/fdinfo/{fd}") as info:
        return next((line for line in info if line.startswith("mnt_id:")), "")


def _remove_empty(spot: Spot) -> None:
    """Remove the folders that were made for this file, as long as nobody keeps anything in them."""
    for parent in spot.path.parents:
        if parent == spot.folder:
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
    """Give a new file the mode, and as far as this is allowed the owner and group, of the one it
    replaces.
    """
    if old is None or not stat.S_ISREG(old.st_mode):
        dress(fd, access)
        return
    for owner in (old.st_uid, -1):
        try:
            os.fchown(fd, owner, old.st_gid)
            break
        except PermissionError:
            continue
    os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)


def _keep(folder: int, name: str) -> None:
    """Let the file under its name be the previous version."""
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
    """Where the file system has no links."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(source)
        target = os.open(
            copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        try:
            _dress(target, found, PRIVATE)
            _write(target, _read_all(source, found.st_size))
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
