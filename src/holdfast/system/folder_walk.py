"""The way to a folder, one name at a time: no symbolic link is followed that somebody else could
have put there.

A folder that a group shares can be changed by every member: any name in it may be replaced by a
link that leads to a file of root's. A link counts as the user's own where this user or root made
it, or where nobody else can change the folder it lies in.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from holdfast.kernel.errors import StoreUnavailable

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40
"""As many as the kernel follows."""

Maker = Callable[[int, str], None]
"""Makes the folder of that name in an open one."""


def open_folder(path: str | os.PathLike[str], make: Maker | None = None) -> int:
    """A descriptor of a folder, for use as `dir_fd`; `make` makes each one on the way that is not
    there.

    Raises StoreUnavailable for a link that another user could have put there, and OSError.
    """
    fd, _, left = _walk(os.fspath(path), make)
    if left:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    return fd


def resolve(path: str | os.PathLike[str]) -> str:
    """The same path without links, whether or not anything is there. Raises StoreUnavailable as
    `open_folder` does.
    """
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
            # It cannot be looked at: whoever opens it learns why.
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
    """Can others replace a folder, or one on the way to it? Where that cannot be told, they can."""
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
    """Where a link in an open folder leads; None for what is no link. Raises StoreUnavailable for
    one that is not to be followed.
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
    """Something is in a file's or folder's place that was not put there by Holdfast."""
    shown = os.fspath(path)
    return StoreUnavailable(
        f"{shown} is not used ({why}): find out who put it there, and remove it or give a path "
        "without it; what a link leads "
        "to was not touched",
        path=shown,
        why=why,
        outcome="none",
    )


def _walk(path: str, make: Maker | None) -> tuple[int, str, list[str]]:
    """The last folder on a path that is there, its path without links, and the names that are left.
    With `make`, none are.
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
            shown = os.path.join(real, part)
            try:
                below = _step(at, part, make)
            except FileNotFoundError:
                if make is not None:
                    raise
                return (
                    at,
                    real,
                    [each for each in (part, *reversed(parts)) if each not in ("", ".")],
                )
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
            # Replaced before it is closed: after an error the last one is closed, and must not be
            # another's number by then.
            left, at = at, below
            os.close(left)
            real = os.path.dirname(real) if part == ".." else shown
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(at)
        raise
    return at, real, []


def _step(at: int, part: str, make: Maker | None) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if make is None:
            raise
    make(at, part)
    return os.open(part, _FOLDER, dir_fd=at)
