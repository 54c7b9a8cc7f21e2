"""Who may use the files and folders that are made: their owner alone or, where it is configured, a group. Decided here alone,
for stores and adapters alike.

The modes are exact, whatever the umask. What lies beside something of ours takes after it, so that of all processes that share
a store each makes files that the others can use, also those that were not told of the group.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from holdfast.kernel.errors import InvalidValue, StoreUnavailable

_GROUP_WRITES = stat.S_IRGRP | stat.S_IWGRP


class Access(NamedTuple):
    """The modes of new folders and files, and the group that shares them, if there is one."""

    folder: int = 0o700
    file: int = 0o600
    gid: int | None = None


PRIVATE = Access()
"""For their owner alone."""


def shared_by(gid: int) -> Access:
    """For a group: what is made in such a folder is the group's too."""
    return Access(0o2775, 0o660, gid)


def access_for(group: str | None) -> Access:
    """As the settings say: for a group of that name, or for the owner alone. Raises InvalidValue for an unknown group."""
    if group is None:
        return PRIVATE
    # Most programs have no group to look up.
    import grp

    try:
        return shared_by(grp.getgrnam(group).gr_gid)
    except KeyError:
        raise InvalidValue(
            f"there is no group {group[:60]!a} on this machine: make it, or leave `group` out", field="group"
        ) from None


def access_like(path: str | os.PathLike[str]) -> Access:
    """That of a file or folder of ours: shared if its group may read and write it, else private, also when it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return PRIVATE
    return shared_by(found.st_gid) if found.st_mode & _GROUP_WRITES == _GROUP_WRITES else PRIVATE


def make_folder(path: Path, access: Access = PRIVATE) -> None:
    """Make a folder and those above it that are not there. Those that are stay as they are. Raises OSError."""
    missing = []
    for each in (path, *path.parents):
        if os.path.isdir(each):
            break
        missing.append(each)
    for each in reversed(missing):
        make_one_folder(each, access)


def make_one_folder(path: str | os.PathLike[str], access: Access = PRIVATE) -> None:
    """Make a folder in one that is there, unless it is there itself. Raises OSError."""
    try:
        if access.gid is None:
            os.mkdir(path, access.folder)
            os.chmod(path, access.folder)
        else:
            _rename_into(path, access)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def open_file(path: str | os.PathLike[str], flags: int, access: Access = PRIVATE) -> int:
    """Open a file, which is made if it is not there; close-on-exec. Raises OSError."""
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                return _made(path, flags, access)
            except FileExistsError:
                continue


def dress(fd: int, access: Access) -> None:
    """Give a new file, by its descriptor, its mode and group. Raises OSError."""
    if access.gid is not None:
        os.fchown(fd, -1, access.gid)
    os.fchmod(fd, access.file)


def match_owner(path: str | os.PathLike[str], original: str | os.PathLike[str]) -> None:
    """Give a file the mode and, as far as this process may, the owner and group of another. Raises OSError."""
    found = os.stat(original)
    for owner in (found.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.chown(path, owner, found.st_gid)
            break
    os.chmod(path, stat.S_IMODE(found.st_mode) & 0o777)


def make_node(path: str | os.PathLike[str], kind: int, access: Access = PRIVATE) -> None:
    """Make an empty file (`S_IFREG`) or a FIFO (`S_IFIFO`) without opening it. Raises OSError, FileExistsError when there is
    something."""
    if access.gid is None:
        os.mknod(path, kind | access.file)
        os.chmod(path, access.file)
        return
    unfinished = _unfinished(path)
    os.mknod(unfinished, kind | 0o600)
    try:
        os.chown(unfinished, -1, access.gid)
        os.chmod(unfinished, access.file)
        os.link(unfinished, path)
    finally:
        os.unlink(unfinished)


def check_shared(folder: Path, access: Access) -> None:
    """Refuse a folder that was there already and in which a group cannot work: what is made there by others would not be the
    group's. Raises StoreUnavailable that says how to mend it, and OSError."""
    if access.gid is None:
        return
    found = os.stat(folder)
    if found.st_gid == access.gid and found.st_mode & 0o2070 == 0o2070:
        return
    raise StoreUnavailable(
        f"{folder} is to be shared by group {access.gid} and is not: `chgrp {access.gid} {folder} && chmod 2775 {folder}`",
        path=str(folder),
        outcome="none",
    )


def _rename_into(path: str | os.PathLike[str], access: Access) -> None:
    """Whoever finds it finds it with its mode: another of the group may want to work in it at once."""
    assert access.gid is not None
    unfinished = _unfinished(path)
    os.mkdir(unfinished, 0o700)
    try:
        os.chown(unfinished, -1, access.gid)
        os.chmod(unfinished, access.folder)
        os.rename(unfinished, path)
    except OSError as error:
        os.rmdir(unfinished)
        # One that is there already, with something in it.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _made(path: str | os.PathLike[str], flags: int, access: Access) -> int:
    if access.gid is not None:
        # Under its name it has its mode from the first moment on: another of the group may open it at once.
        make_node(path, stat.S_IFREG, access)
        return os.open(path, flags | os.O_CLOEXEC)
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, access.file)
    try:
        os.fchmod(fd, access.file)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unfinished(path: str | os.PathLike[str]) -> str:
    head, name = os.path.split(os.fspath(path))
    return os.path.join(head, f".{name[:200]}.{os.urandom(6).hex()}.new")
