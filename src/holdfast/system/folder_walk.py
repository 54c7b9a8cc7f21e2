"""Opens a folder one name at a time, and follows no symbolic link that another user could have put
there.

Every member of a group can change a shared folder, and replace any name in it by a link to one of
root's files. A link is trusted when this user or root made it, or when nobody else can write its
folder.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from msgspec import Struct

from holdfast.kernel.errors import StoreUnavailable

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40
"""The kernel's own limit."""

Maker = Callable[[int, str], None]
"""Makes a folder of that name in an open folder."""


class Folder(Struct, frozen=True):
    """A folder that the caller keeps open while it opens files in it."""

    fd: int
    exposed: bool
    """Could anybody but this user and root change the names in it?"""

    @classmethod
    def of(cls, fd: int) -> "Folder":
        return cls(fd, others_can_write(os.fstat(fd)))


def open_folder(path: str | os.PathLike[str], make: Maker | None = None) -> int:
    """A descriptor of a folder, for use as `dir_fd`; `make` makes the missing folders on the way.

    Raises OSError, and StoreUnavailable for a link that another user could have put there.
    """
    fd, _, left = _walk(os.fspath(path), make)
    if left:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    return fd


def resolve(path: str | os.PathLike[str]) -> str:
    """The path without links, existing or not. Raises StoreUnavailable as `open_folder` does."""
    unresolved = os.path.join(os.getcwd(), path)
    for _ in range(_LINKS_MAX):
        head, name = os.path.split(unresolved.rstrip("/"))
        if name in ("", ".", ".."):
            head, name = unresolved, ""
        try:
            fd, real, left = _walk(head, None)
            try:
                target = (
                    None if left or not name else link_target(fd, name, os.path.join(real, name))
                )
            finally:
                os.close(fd)
        except OSError:
            # It cannot be read: opening it will show why.
            break
        if target is None:
            return os.path.normpath(os.path.join(real, *left, name))
        unresolved = os.path.join(real, target)
    return unresolved


def others_can_write(folder: os.stat_result) -> bool:
    """Can anybody but this user and root change the names in a folder?"""
    return folder.st_uid not in (os.geteuid(), 0) or bool(
        folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def is_exposed(path: str) -> bool:
    """Can others replace a folder, or one on the way to it? True where that cannot be seen."""
    fd = os.open("/", _FOLDER)
    try:
        for part in filter(None, path.split("/")):
            around = os.fstat(fd)
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            kept = around.st_mode & stat.S_ISVTX and os.fstat(fd).st_uid in (os.geteuid(), 0)
            if others_can_write(around) and not (kept and around.st_uid in (os.geteuid(), 0)):
                return True
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def link_target(folder: int, name: str, shown: str) -> str | None:
    """The target of a link in an open folder; None for anything else. Raises StoreUnavailable for
    an untrusted link.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return None
        target = os.readlink(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.st_uid not in (os.geteuid(), 0) and others_can_write(os.fstat(folder)):
        raise untrusted(
            shown,
            f"it is a symbolic link of user {found.st_uid}, in a folder that others can write",
        )
    return target


def untrusted(path: str | os.PathLike[str], why: str) -> StoreUnavailable:
    """The error for a file or folder that another user may have put there."""
    shown = os.fspath(path)
    return StoreUnavailable(
        f"{shown} is not used ({why}): find out who put it there, and remove it or give a path "
        "without it; the target of a link was not touched",
        path=shown,
        why=why,
        outcome="none",
    )


def _walk(path: str, make: Maker | None) -> tuple[int, str, list[str]]:
    """Open the last existing folder on a path. Return its descriptor, its path without links, and
    the names left, of which there are none with `make`.
    """
    at = os.open("/" if path.startswith("/") else ".", _FOLDER)
    real = "/" if path.startswith("/") else os.getcwd()
    parts = path.split("/")[::-1]
    links = 0
    try:
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            shown = f"{real}/{part}" if real != "/" else f"/{part}"
            try:
                try:
                    below = os.open(part, _FOLDER, dir_fd=at)
                except FileNotFoundError:
                    if make is None:
                        missing = (part, *parts[::-1])
                        return at, real, [each for each in missing if each not in ("", ".")]
                    make(at, part)
                    below = os.open(part, _FOLDER, dir_fd=at)
            except NotADirectoryError:
                target = link_target(at, part, shown)
                if target is None:
                    raise NotADirectoryError(
                        errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown
                    ) from None
                if (links := links + 1) > _LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
                parts += target.split("/")[::-1]
                if not target.startswith("/"):
                    continue
                below, shown = os.open("/", _FOLDER), "/"
            # Assigned before the old one is closed: the error path closes `at`, which must not be
            # a closed number that another thread has opened again.
            left, at = at, below
            os.close(left)
            real = os.path.dirname(real) if part == ".." else shown
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(at)
        raise
    return at, real, []
