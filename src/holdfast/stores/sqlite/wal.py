"""The write-ahead log, synced by a descriptor of our own.

SQLite runs with synchronous=NORMAL, so a COMMIT writes to the log without syncing it, and the next writer may come in. A
durable transaction then calls fdatasync itself, outside the gate: one call covers every frame written before it, whoever
wrote them. The descriptor is opened after its connection and closed with it: while a connection is open, nobody can delete
the log it uses, so the descriptor cannot outlive the file it stands for.
"""

import os
import threading
from pathlib import Path

from holdfast.kernel import faults
from holdfast.kernel.errors import StoreCorrupt
from holdfast.stores.sqlite import doubt

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096
_PAGE_BYTES_MIN = 512


def log_path(database: Path) -> Path:
    """Where SQLite keeps a database's log."""
    return database.with_name(database.name + "-wal")


def refuse_truncated(database: Path) -> None:
    """SQLite takes a file of less than a page for a new database, and deletes the log beside it with what it holds. Raises
    StoreCorrupt for such a file, unless both are new."""
    # The log first: another process may be making both at this moment, and makes the log last.
    try:
        logged = log_path(database).stat().st_size
    except FileNotFoundError:
        logged = 0
    size = database.stat().st_size
    if 0 < size < _PAGE_BYTES_MIN or (size == 0 and logged):
        raise StoreCorrupt(f"{database} was truncated to {size} bytes: run `holdfast store restore FILE`", path=str(database))


class Log:
    """One descriptor on the log, belonging to one connection."""

    def __init__(self, database: Path) -> None:
        self._fd = os.open(log_path(database), os.O_RDONLY | os.O_CLOEXEC)
        self._database = database
        self._folder_synced = False

    def sync(self) -> None:
        """Make everything in the log survive a power loss. Raises OSError; then nothing is known of it, the log is marked as in
        doubt, and the connection must not be used again."""
        faults.reach("sqlite.sync.before")
        try:
            if not self._folder_synced:
                # The log may be new, and then so is its name in the folder.
                self._sync_folder()
            os.fdatasync(self._fd)
        except OSError:
            doubt.raise_mark(self._database)
            raise
        faults.reach("sqlite.sync.after")

    def _sync_folder(self) -> None:
        fd = os.open(self._database.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._folder_synced = True

    def reaches(self, frame: int) -> bool:
        """Has the log, since it was last begun anew, got that many frames? A frame that is left over from before has
        another salt than the header."""
        salt = os.pread(self._fd, 8, 16)
        at = _HEADER_BYTES + (frame - 1) * (_FRAME_HEADER_BYTES + _PAGE_BYTES) + 8
        return len(salt) == 8 and os.pread(self._fd, 8, at) == salt

    def close(self) -> None:
        """Close the descriptor. SQLite holds no lock through the log, so this drops none."""
        os.close(self._fd)


class _Round:
    """One sync, and those who wait for it. Until it has ended well, its leader counts as interrupted."""

    __slots__ = ("done", "error", "interrupted")

    def __init__(self) -> None:
        self.done: threading.Event | None = None
        self.error: OSError | None = None
        self.interrupted = True


class SharedSync:
    """Lets the threads of a process share syncs: whoever asks while one is running is covered by the next one."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._current: _Round | None = None
        self._next: _Round | None = None

    def sync(self, log: Log) -> None:
        """Return once a sync has ended that began after this call. Raises OSError if that one failed."""
        while True:
            mine = self._join(log)
            if mine.error is not None:
                raise mine.error
            if not mine.interrupted:
                return
            # Its leader met Ctrl-C, before or in the sync; nothing failed, and nothing is known to be synced.

    def _join(self, log: Log) -> _Round:
        """Take part in a round to its end, as its leader or not."""
        with self._mutex:
            previous = self._current
            if previous is None:
                mine = self._current = _Round()
                lead = True
            else:
                lead = self._next is None
                mine = self._next = self._next or _Round()
                waited = previous if lead else mine
                done = waited.done = waited.done or threading.Event()
        try:
            if previous is not None:
                done.wait()
            if lead:
                self._lead(mine, log)
        finally:
            if lead:
                self._end(mine)
        return mine

    def _lead(self, mine: _Round, log: Log) -> None:
        try:
            log.sync()
        except OSError as error:
            mine.error = error
        mine.interrupted = False

    def _end(self, mine: _Round) -> None:
        with self._mutex:
            if self._current is mine:
                self._current, self._next = self._next, None
            elif self._next is mine:
                self._next = None
            if mine.done is not None:
                mine.done.set()
