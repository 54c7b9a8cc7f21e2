"""The errors of SQLite and of the system as errors of Holdfast."""

import contextlib
import errno
import os
import sqlite3
import stat
from pathlib import Path

from holdfast.kernel.errors import HoldfastError, StoreCorrupt, StoreUnavailable
from holdfast.system.access import LACKING

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_NOT_ALLOWED = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_AUTH,
}
_DESCRIPTORS = 4
"""What SQLite opens at once: a database, its log, the index of the log, and their folder."""
_FREE_BYTES_MIN = 1 << 16
"""The -shm file grows by half of this."""


class TablesChanged(Exception):
    """A table or column is gone: another process has restored an older state. Never leaves the
    store.
    """


def primary(error: sqlite3.Error) -> int:
    """The error's primary result code; 0 for one that the driver raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def busy(error: sqlite3.Error) -> bool:
    return primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def corrupt(error: sqlite3.Error) -> bool:
    # The driver's own complaint about a text column has no code.
    return primary(error) in _CORRUPT or (not primary(error) and "decode to UTF-8" in str(error))


def tables_changed(error: sqlite3.Error) -> bool:
    return primary(error) == sqlite3.SQLITE_ERROR and "no such" in str(error)


def translated(path: Path, error: sqlite3.Error, *, committing: bool = False) -> HoldfastError:
    """What a SQLite error means to the caller. While `committing`, an I/O error leaves the outcome
    unknown.
    """
    code = primary(error)
    if corrupt(error):
        return StoreCorrupt(
            f"{path} is damaged or is not a SQLite database ({error}): {_repair(path)}",
            path=str(path),
        )
    if busy(error):
        why = (
            f"{path} is locked by another program: close it there (a sqlite3 shell, a copy in "
            "progress) and try again"
        )
    elif code == sqlite3.SQLITE_FULL or (
        code == sqlite3.SQLITE_IOERR and not committing and _disk_is_full(path)
    ):
        why = f"no space left to write {path}: free some; nothing was changed"
    elif code in _NOT_ALLOWED:
        if (lacking := _no_descriptors()) is not None:
            return opening_failed(path, lacking)
        why = (
            f"{path} cannot be opened for writing ({error}): check the permissions of the file "
            "and its folder"
        )
    elif committing:
        return StoreUnavailable(
            f"{path} could not be committed ({error}); whether the change took effect is unknown: "
            "check before you repeat it",
            path=str(path),
            outcome="unknown",
        )
    else:
        why = f"{path} could not be used ({error}); nothing was changed"
    return StoreUnavailable(why, path=str(path), outcome="none")


def _disk_is_full(path: Path) -> bool:
    """SQLite reports a full disk for some writes only; opening a store fails with an I/O error."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _FREE_BYTES_MIN


def _no_descriptors() -> OSError | None:
    """Why SQLite could not open a file, if too few descriptors are left: SQLite does not say."""
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


def _repair(path: Path) -> str:
    # The volatile file is in no backup, and holds nothing but the locks of this boot.
    if ".locks-" in path.name:
        import shlex

        return (
            f"it has locks alone, so end what holds them, then `rm {shlex.quote(str(path))}*`; "
            "the next one begins it anew"
        )
    return "put a backup in its place with `holdfast store restore FILE`"


_ELSEWHERE = "Choose another place with --store or HOLDFAST_STORE"
_REASONS = {
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
    """The system refused to make, open or lock a file of the store, or a copy of it."""
    code = error.errno or 0
    if code in (errno.EACCES, errno.EPERM):
        why = f"its permissions do not allow it{_owner_of(path)}"
        advice = (
            "Work as its owner, have it shared with a group (docs/settings.md says how), or "
            "choose another place with --store"
        )
    else:
        why, advice = _REASONS.get(code, (os.strerror(code), _ELSEWHERE))
    return StoreUnavailable(f"cannot open {path}: {why}. {advice}", path=str(path), outcome="none")


def _owner_of(path: Path) -> str:
    """The owner of a path, or of the nearest folder above it that we may read."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            found = os.stat(place)
            owner, mode = _user(found.st_uid), stat.S_IMODE(found.st_mode)
            return (
                f" ({place} is of {owner} with mode {mode:04o}, and you are {_user(os.geteuid())})"
            )
    return ""


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
