"""The mark that a log is in doubt: a sync of it failed, so some of what it holds may not be on disk, and never will be.

After a failed sync the kernel takes the pages for written. A later sync by another descriptor succeeds and says nothing of
them, and whatever stands behind them in the log is lost with them at a power loss. So nothing more is acknowledged by any
process until the log was copied into the database and begun anew (Database.certain).

The mark is the length of the gate's side file, which has no content of its own: to change a length takes no space, and every
process sees it at once. It means nothing after a power loss: what can be read then is what is on disk.
"""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from holdfast.access import access_like, open_file
from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite.gate import Gate

_BUSY_SLEEP_S = 0.001


def gate_path(database: Path) -> Path:
    """The side file of a database's gate."""
    return database.with_name(database.name + "-gate")


def raise_mark(database: Path) -> None:
    """Put the log in doubt. Where not even this can be written, neither can a change."""
    with contextlib.suppress(OSError, StoreUnavailable):
        _set_length(database, 1)


def is_marked(gate: Gate) -> bool:
    """Is the log in doubt? Yes, where that cannot be told. Every durable change asks twice."""
    try:
        return not gate.is_empty()
    except OSError:
        # Closed meanwhile, by another thread.
        return _is_marked_by_name(gate.path)


def _is_marked_by_name(gate: Path) -> bool:
    try:
        return os.lstat(gate).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def empty_log(database: Path, gate: Gate, raw: sqlite3.Connection, deadline: float) -> None:
    """Inside the gate: copy what the log holds into the database, which SQLite syncs before it gives up the log, and take the
    mark away. A sync that fails meanwhile was of a log that is not there any more. Raises sqlite3.Error or StoreUnavailable;
    then the log stays in doubt."""
    while is_marked(gate):
        if not raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            _clear_mark(database)
        elif time.monotonic() + _BUSY_SLEEP_S > deadline:
            raise _not_yet(database, "another program reads it, and must end first")
        else:
            # SQLite tells nobody when a reader is done.
            time.sleep(_BUSY_SLEEP_S)


def _clear_mark(database: Path) -> None:
    try:
        _set_length(database, 0)
    except OSError as error:
        raise _not_yet(database, os.strerror(error.errno or 0)) from None


def _set_length(database: Path, length: int) -> None:
    fd = open_file(gate_path(database), os.O_RDWR, access_like(database), make=False)
    try:
        os.ftruncate(fd, length)
    finally:
        os.close(fd)


def _not_yet(database: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"a sync of {database} has failed, and its log cannot be begun anew ({why}): check the disk and try again; nothing was "
        "changed",
        path=str(database),
        outcome="none",
    )
