"""SQLite's and the system's errors as errors of the one tree."""

import contextlib
import errno
import os
import sqlite3
import stat
from pathlib import Path

from holdfast.kernel.errors import HoldfastError, StoreCorrupt, StoreUnavailable
from holdfast.system.access import LACKING


class TablesChanged(Exception):
    """A table or column that was there is not: another process has restored an older state. Never
    leaves the store.
    """


_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_CLOSED_TO_US = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_AUTH,
}


def primary(error: sqlite3.Error) -> int:
    """The error's primary result code; 0 for those that the driver raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def busy(error: sqlite3.Error) -> bool:
    """True when another connection is in the way for a while."""
    return primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def corrupt(error: sqlite3.Error) -> bool:
    """True when the file is damaged, or no database."""
    # The driver's own complaint about a text column has no code.
    return primary(error) in _CORRUPT or (not primary(error) and "decode to UTF-8" in str(error))


def tables_changed(error: sqlite3.Error) -> bool:
    """True when a statement met other tables than it was made for."""
    return primary(error) == sqlite3.SQLITE_ERROR and "no such" in str(error)


def translated(path: Path, error: sqlite3.Error, *, committing: bool = False) -> HoldfastError:
    """What a SQLite error means to the caller. While `committing`, an I/O error leaves the outcome
    unknown.
    """
    code = primary(error)
    if corrupt(error):
        return StoreCorrupt(
            f"{path} is damaged or is not a SQLite database ({error}): {_restored(path)}",
            path=str(path),
        )
    if busy(error):
        return StoreUnavailable(
            f"{path} is locked by another program: close it there (a sqlite3 shell, a copy in "
            "progress) and try again",
            path=str(path),
            outcome="none",
        )
    if code == sqlite3.SQLITE_FULL or (
        code == sqlite3.SQLITE_IOERR and not committing and _no_room(path)
    ):
        return StoreUnavailable(
            f"no space left to write {path}: free some; nothing was changed",
            path=str(path),
            outcome="none",
        )
    if code in _CLOSED_TO_US:
        if (lacking := _no_descriptors()) is not None:
            return opening_failed(path, lacking)
        return StoreUnavailable(
            f"{path} cannot be opened for writing ({error}): check the permissions of the file "
            "and its folder",
            path=str(path),
            outcome="none",
        )
    outcome = "unknown" if committing else "none"
    return StoreUnavailable(
        f"{path} could not be {'committed' if committing else 'used'} ({error}); "
        + (
            "whether the change took effect is unknown: look before you repeat it"
            if committing
            else "nothing was changed"
        ),
        path=str(path),
        outcome=outcome,
    )


def _no_room(path: Path) -> bool:
    """Is the disk full? SQLite says only of some writes that this is why they failed: who opens a
    store meets an I/O error.
    """
    try:
        there = os.statvfs(path.parent)
    except OSError:
        return False
    return there.f_bavail * there.f_frsize < _ROOM_LEAST_BYTES


def _no_descriptors() -> OSError | None:
    """Are there too few descriptors left for SQLite? It says only that it cannot open a file."""
    opened = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        return error if error.errno in LACKING else None
    finally:
        for fd in opened:
            os.close(fd)
    return None


_DESCRIPTORS = 4
"""What SQLite opens at once: a database, its log, the index of that, and their folder."""

_ROOM_LEAST_BYTES = 1 << 16
"""What SQLite shares with other processes beside a database grows by half of this."""


def _restored(path: Path) -> str:
    """What to do about a damaged file. That of locks is in no backup, and is nothing but the locks
    of this boot.
    """
    if ".locks-" in path.name:
        import shlex

        return (
            f"it has locks alone, so end what holds them, then `rm {shlex.quote(str(path))}*`; "
            "the next one begins it anew"
        )
    return "put a backup in its place with `holdfast store restore FILE`"


_ELSEWHERE = "Choose another place with --store or HOLDFAST_STORE"
_NEXT = {
    errno.EROFS: (
        "the file system is read-only",
        "Mount it writable, or choose another place with --store or HOLDFAST_STORE",
    ),
    errno.ENOSPC: ("no space is left", "Free some; nothing was changed"),
    errno.ENOTDIR: ("a part of the path is not a folder", _ELSEWHERE),
    errno.ENAMETOOLONG: ("the path is too long", _ELSEWHERE),
    **{
        code: (why, f"{advice.capitalize()}; nothing was changed")
        for code, (why, advice) in LACKING.items()
    },
}


def opening_failed(path: Path, error: OSError) -> StoreUnavailable:
    """A file or folder of the store, or a copy of it, that the system does not let us make, open or
    lock.
    """
    code = error.errno or 0
    if code in (errno.EACCES, errno.EPERM):
        why = f"its permissions do not allow it{_owner_of(path)}"
        then = (
            "Work as its owner, have it shared with a group (docs/settings.md says how), or "
            "choose another place with --store"
        )
    else:
        why, then = _NEXT.get(code, (os.strerror(code), _ELSEWHERE))
    return StoreUnavailable(f"cannot open {path}: {why}. {then}", path=str(path), outcome="none")


def _owner_of(path: Path) -> str:
    """Whose it is, or the nearest thing above it that we may look at."""
    for there in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            found = os.stat(there)
            owner, mode = _user(found.st_uid), stat.S_IMODE(found.st_mode)
            return (
                f" ({there} is of {owner} with mode {mode:04o}, and you are {_user(os.geteuid())})"
            )
    return ""


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
