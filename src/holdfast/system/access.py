"""Modes, owners and groups of the files and folders that Holdfast makes: for their owner alone or,
where it is configured, for a group.

Modes are exact, whatever the umask. A new file takes the mode and group of the store it belongs to,
so that all processes that share the store can use it, also one that has no group configured.

A user who can write a folder can put anything under any name in it: a link to one of root's files,
a hard link to it, a FIFO. So each name is opened without following links, from its folder, which
`folder_walk` reaches safely; and the opened file is checked before it is used. Modes and owners are
set through descriptors, never through names.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.system.folder_walk import Folder, open_folder, others_can_write, untrusted

T = TypeVar("T")
AnyPath = str | os.PathLike[str]

_GROUP_WRITES = stat.S_IRGRP | stat.S_IWGRP
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Non-blocking, because a FIFO in a file's place would block the open for ever."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 5
_RENAME_NOREPLACE = 1
_NO_FILE = {
    errno.ENXIO: "it is no plain file",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "it is a symbolic link",
}


LACKING = {
    errno.EMFILE: (
        "this process has too many files open",
        "raise its limit with `ulimit -n`, or close some",
    ),
    errno.ENFILE: (
        "this machine has too many files open",
        "close some (`ulimit -n` bounds each process), or raise fs.file-max",
    ),
    errno.ENOLCK: ("its file system gives no locks", "choose a local file system that has them"),
}
"""Errors that are not about the file: why, and what to do."""


def unusable(path: AnyPath, error: OSError, advice: str = "check its folder") -> StoreUnavailable:
    """The error for a file or folder that the system does not let us use."""
    why, advice = LACKING.get(error.errno or 0, (error.strerror or str(error), advice))
    return StoreUnavailable(
        f"{os.fspath(path)} cannot be used ({why}): {advice}", path=os.fspath(path), outcome="none"
    )


class Access(Struct, frozen=True):
    """The modes of new folders and files, and the group that shares them, if any. `owner` is the
    user of an existing store, whose files are trusted like one's own.
    """

    folder: int = 0o700
    file: int = 0o600
    gid: int | None = None
    owner: int | None = None


PRIVATE = Access()


def shared_by(gid: int, owner: int | None = None) -> Access:
    """For a group. The set-group-id bit gives the group what is made in such a folder."""
    return Access(0o2775, 0o660, gid, owner)


def access_for(group: str | None) -> Access:
    """For the group of that name, or the owner alone. Raises InvalidValue."""
    if group is None:
        return PRIVATE
    # Imported here, because most programs have no group to look up.
    import grp

    try:
        return shared_by(grp.getgrnam(group).gr_gid)
    except KeyError:
        raise InvalidValue(
            f"there is no group {group[:60]!a} on this machine: make it, or leave `group` out",
            field="group",
        ) from None


def access_like(path: AnyPath) -> Access:
    """The access of an existing file or folder; the owner's alone where there is none."""
    try:
        return access_of(os.lstat(path))
    except OSError:
        return PRIVATE


def access_of(found: os.stat_result) -> Access:
    """The access of what `lstat` found: shared if its group may read and write it."""
    if found.st_mode & _GROUP_WRITES == _GROUP_WRITES and not stat.S_ISLNK(found.st_mode):
        return shared_by(found.st_gid, found.st_uid)
    return Access(owner=found.st_uid)


def in_folder(path: AnyPath, work: Callable[[int, str], T], *, private: bool = False) -> T:
    """Call `work` with a descriptor of the path's folder, and the last name. Raises as
    `open_folder` does, with `private` as `open_private_folder` does, and what the work raises.
    """
    head, name = os.path.split(os.fspath(path))
    while True:
        folder = open_private_folder(head) if private else open_folder(head)
        try:
            return work(folder, name)
        except FileNotFoundError:
            if os.fstat(folder).st_nlink:
                raise
            # Another process has just replaced this empty folder by its own: try again.
        finally:
            os.close(folder)


def open_made_folder(path: AnyPath, access: Access = PRIVATE) -> int:
    """A descriptor of a folder, for use as `dir_fd`. It and the missing ones above it are made;
    existing ones stay unchanged. Raises as `open_folder` does.
    """
    for _ in range(_ATTEMPTS):
        # Another process may replace a folder that was just made by its own.
        with contextlib.suppress(FileNotFoundError):
            return open_folder(path, lambda folder, name: make_folder_in(folder, name, access))
    return open_folder(path, lambda folder, name: make_folder_in(folder, name, access))


def make_folder(path: AnyPath, access: Access = PRIVATE) -> None:
    """Make a folder and the missing ones above it. Existing ones stay unchanged. Raises OSError."""
    os.close(open_made_folder(path, access))


def make_one_folder(path: AnyPath, access: Access = PRIVATE) -> None:
    """Make a folder in an existing one, unless it exists. Raises OSError."""
    in_folder(path, lambda folder, name: make_folder_in(folder, name, access))
    os.close(open_folder(path))


def make_private_folder(path: AnyPath) -> None:
    """Make a folder for this user alone, and the missing ones above it; close an existing one to
    others.

    Raises OSError, and StoreUnavailable for a folder that another user may have put there.
    """
    make_folder(path)
    fd = open_private_folder(path)
    try:
        # Not by `fchmod`, which an O_PATH descriptor does not allow.
        os.chmod(f"/proc/self/fd/{fd}", PRIVATE.folder)
    finally:
        os.close(fd)


def open_private_folder(path: AnyPath) -> int:
    """A descriptor of a folder that belongs to this user or to root, or that only its owner can
    have put there.

    Raises OSError, and StoreUnavailable for any other folder, whose owner could read and write the
    files in it.
    """
    fd = open_folder(path)
    found = os.fstat(fd)
    try:
        around = os.stat("..", dir_fd=fd)
    except OSError:
        around = found
    alone = around.st_uid == found.st_uid and not around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if found.st_uid in (os.geteuid(), 0) or alone:
        return fd
    os.close(fd)
    raise untrusted(path, f"it is a folder of user {found.st_uid}, in one that others can write")


def open_file(
    path: AnyPath,
    flags: int,
    access: Access = PRIVATE,
    *,
    make: bool = True,
    private: bool = False,
    folder: Folder | None = None,
) -> int:
    """Open a plain file, close-on-exec; with `make`, a missing one is made. `folder` is its
    folder, where the caller has it open; with `private` it must be one that `open_private_folder`
    accepts.

    Raises OSError. Raises StoreUnavailable for a link, for anything but a plain file and, in a
    folder that others can write, for a file that no user of `access` would have made.
    """
    if folder is None:
        return in_folder(
            path,
            lambda fd, _: open_file(path, flags, access, make=make, folder=Folder.of(fd)),
            private=private,
        )
    name = os.path.basename(path)
    # Truncated later: the file may not be ours.
    opened = (flags & ~os.O_TRUNC) | _SAFELY
    while True:
        try:
            fd = os.open(name, opened, dir_fd=folder.fd)
        except FileNotFoundError:
            if not make:
                raise
            try:
                fd = _made(folder.fd, name, opened, access)
            except FileExistsError:
                continue
        except OSError as error:
            if error.errno in _NO_FILE:
                raise untrusted(path, _NO_FILE[error.errno]) from None
            raise
        break
    try:
        found = os.fstat(fd)
        if folder.exposed or not stat.S_ISREG(found.st_mode):
            writing = flags & os.O_ACCMODE != os.O_RDONLY
            refuse_planted(path, found, os.fstat(folder.fd), access, writing=writing)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def refuse_planted(
    path: AnyPath, found: os.stat_result, around: os.stat_result, access: Access, *, writing: bool
) -> None:
    """Raise StoreUnavailable for anything but a plain file, and for one that another user may have
    planted. `around` is its folder.

    In a folder that others can write, they can link any file to this name. So the file must be the
    group's, which they can use without us; or belong to a trusted user and have no second name.
    """
    if not stat.S_ISREG(found.st_mode):
        raise untrusted(
            path, "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else "it is no plain file"
        )
    if not others_can_write(around):
        return
    wanted = _GROUP_WRITES if writing else stat.S_IRGRP
    if found.st_gid == access.gid and found.st_mode & wanted == wanted:
        return
    if found.st_nlink > 1 and (writing or not found.st_mode & stat.S_IROTH):
        raise untrusted(path, "it has a second name elsewhere, in a folder that others can write")
    if writing and found.st_uid not in (os.geteuid(), 0, access.owner, around.st_uid):
        raise untrusted(
            path, f"it is a file of user {found.st_uid}, in a folder that others can write"
        )


def read_file(path: AnyPath, access: Access = PRIVATE, *, private: bool = False) -> bytes:
    """The content of a file. Raises as `open_file` does, and FileNotFoundError."""
    with open(open_file(path, os.O_RDONLY, access, make=False, private=private), "rb") as file:
        return file.read()


def replace_file(
    path: AnyPath, data: bytes, access: Access = PRIVATE, *, private: bool = False
) -> None:
    """Replace a file, or a link in its place, whole or not at all; or make it. It need not survive
    a power loss. Raises OSError, and StoreUnavailable for its folder.
    """

    def replace(folder: int, name: str) -> None:
        draft = _draft(name)
        fd = os.open(draft, os.O_WRONLY | _NEW, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as file:
                dress(fd, access)
                file.write(data)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise

    in_folder(path, replace, private=private)


def remove_file(path: AnyPath) -> None:
    """Remove a file, if it exists. Raises OSError, and StoreUnavailable for its folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        in_folder(path, lambda folder, name: os.unlink(name, dir_fd=folder))


def dress(fd: int, access: Access) -> None:
    """Give a new file its mode and group. Raises OSError."""
    if access.gid is not None:
        os.fchown(fd, -1, access.gid)
    os.fchmod(fd, access.file)


def dress_like(fd: int, original: os.stat_result) -> None:
    """Give a file another one's mode and, where allowed, owner and group. Raises OSError."""
    for owner in (original.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, owner, original.st_gid)
            break
    os.fchmod(fd, stat.S_IMODE(original.st_mode) & 0o777)


def match_owner(path: AnyPath, original: AnyPath) -> None:
    """As `dress_like`, by paths. Raises OSError, and StoreUnavailable for anything but a plain file
    with one name.
    """
    found = os.lstat(original)
    fd = open_file(path, os.O_RDONLY, make=False)
    try:
        if os.fstat(fd).st_nlink > 1:
            raise untrusted(path, "it has a second name elsewhere")
        dress_like(fd, found)
    finally:
        os.close(fd)


def check_shared(folder: Path, access: Access) -> None:
    """Refuse an existing folder in which a group cannot work: new files of other users would not be
    the group's. Raises OSError, and StoreUnavailable with the commands that correct it.
    """
    if access.gid is None:
        return
    found = os.stat(folder)
    if found.st_gid == access.gid and found.st_mode & 0o2070 == 0o2070:
        return
    raise StoreUnavailable(
        f"{folder} is not shared by group {access.gid}: run `chgrp {access.gid} {folder} && chmod "
        f"2775 {folder}`",
        path=str(folder),
        outcome="none",
    )


def _rename_new(folder: int, old: str, new: str) -> None:
    """Rename within a folder. Raises FileExistsError when the new name is taken: a plain rename
    would replace an empty folder in which another process already works.
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.renameat2(
            folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE
        )
        error = ctypes.get_errno() if failed else 0
    except (ImportError, AttributeError):
        # A Python or C library without it, or a process that may no longer read its own modules.
        error = errno.ENOSYS
    if error in (errno.ENOSYS, errno.EINVAL):
        # EINVAL: the file system does not support the flag.
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
    elif error:
        raise OSError(error, os.strerror(error), new)


def make_folder_in(folder: int, name: str, access: Access) -> None:
    """Make a folder, unless the name is taken. A group's folder is made under another name and
    renamed with its final mode: another member may use it at once.
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return
    draft = name if access.gid is None else _draft(name)
    try:
        os.mkdir(draft, 0o700, dir_fd=folder)
    except FileExistsError:
        return
    try:
        fd = os.open(
            draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
        )
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "another folder was put in its place", name)
            if access.gid is not None:
                os.fchown(fd, -1, access.gid)
            os.fchmod(fd, access.folder)
        finally:
            os.close(fd)
        if draft != name:
            _rename_new(folder, draft, name)
    except OSError as error:
        if draft == name:
            raise
        with contextlib.suppress(OSError):
            os.rmdir(draft, dir_fd=folder)
        # The name was taken meanwhile: the caller checks what is there.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _made(folder: int, name: str, flags: int, access: Access) -> int:
    if access.gid is not None:
        # Made with its final mode: another member may open it at once.
        make_node(folder, name, stat.S_IFREG, access)
        return os.open(name, flags, dir_fd=folder)
    fd = os.open(name, flags | _NEW, access.file, dir_fd=folder)
    try:
        os.fchmod(fd, access.file)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_node(folder: int, name: str, kind: int, access: Access = PRIVATE) -> None:
    """Make an empty file (`S_IFREG`) or a FIFO (`S_IFIFO`) in an open folder, without opening it
    under its name. Raises OSError, FileExistsError when the name is taken.
    """
    if access.gid is None:
        os.mknod(name, kind | access.file, dir_fd=folder)
        # O_PATH: closing any other descriptor would drop this process's SQLite locks on the file.
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(fd)
            if (
                stat.S_IMODE(found.st_mode) != access.file
                and found.st_uid == os.geteuid()
                and found.st_nlink == 1
            ):
                os.chmod(f"/proc/self/fd/{fd}", access.file)
        finally:
            os.close(fd)
        return
    draft = _draft(name)
    os.mknod(draft, kind | 0o600, dir_fd=folder)
    try:
        fd = os.open(draft, os.O_RDONLY | _SAFELY, dir_fd=folder)
        try:
            found = os.fstat(fd)
            if (
                stat.S_IFMT(found.st_mode) != kind
                or found.st_uid != os.geteuid()
                or found.st_nlink > 1
            ):
                raise PermissionError(errno.EPERM, "another file was put in its place", name)
            dress(fd, access)
        finally:
            os.close(fd)
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)


def _draft(name: str) -> str:
    return f".{name[:200]}.{os.urandom(6).hex()}.new"
