"""The write-ahead log, synced by a descriptor of our own.

SQLite runs with synchronous=NORMAL, so a COMMIT writes to the log without syncing it, and the next writer may come in. A
durable transaction then calls fdatasync itself, outside the gate: one call covers every frame written before it, whoever
wrote them. The descriptor is opened after its connection and closed with it: while a connection is open, nobody can delete
the log it uses, so the descriptor cannot outlive the file it stands for.
"""

import os
import threading
from pathlib import Path

from holdfast.access import PRIVATE, Access, open_file
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

    _fd = _folder_fd = -1

    def __init__(self, database: Path, access: Access = PRIVATE) -> None:
        self._fd = open_file(log_path(database), os.O_RDONLY, access, make=False)
        self._database = database
        # Now, while nothing is at stake: after a commit there might be no descriptor left for it.
        self._folder_fd = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Make everything in the log survive a power loss. Raises OSError; then nothing is known of it, the log is marked as in
        doubt, and the connection must not be used again."""
        faults.reach("sqlite.sync.before")
        try:
            if (folder := self._folder_fd) >= 0:
                # The log may be new, and then so is its name in the folder.
                os.fsync(folder)
                self._close_folder()
            os.fdatasync(self._fd)
        except OSError:
            doubt.raise_mark(self._database)
            raise
        faults.reach("sqlite.sync.after")

    def _close_folder(self) -> None:
        folder, self._folder_fd = self._folder_fd, -1
        if folder >= 0:
            os.close(folder)

    def reaches(self, frame: int) -> bool:
        """Has the log, since it was last begun anew, got that many frames? A frame that is left over from before has
        another salt than the header."""
        salt = os.pread(self._fd, 8, 16)
        at = _HEADER_BYTES + (frame - 1) * (_FRAME_HEADER_BYTES + _PAGE_BYTES) + 8
        return len(salt) == 8 and os.pread(self._fd, 8, at) == salt

    def size(self) -> int:
        """How long the log's file is."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptors, once. SQLite holds no lock through the log, so this drops none."""
        self._close_folder()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class _Round:
    """One sync, and those who wait for it."""

    __slots__ = ("error", "over", "synced")

    def __init__(self) -> None:
        # Its leader has this lock from before anybody else can see the round, and lets go of it whatever happens: who waits for
        # the round takes it in turn.
        self.over = threading.Lock()
        self.synced = False
        self.error: OSError | None = None

    def wait(self) -> None:
        """Return when its leader has ended, or given up."""
        with self.over:
            pass


class SharedSync:
    """Lets the threads of a process share syncs: whoever asks while one is running is covered by the next one.

    Ctrl-C may end a leader anywhere. Nothing has to be put right then: a round is under way while its lock is locked.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._current = _Round()
        self._next: _Round | None = None

    def sync(self, log: Log) -> None:
        """Return once a sync has ended that began after this call. Raises OSError if that one failed."""
        while True:
            done = self._join(log)
            if done.error is not None:
                raise done.error
            if done.synced:
                return
            # Its leader was interrupted, before or in the sync; nothing failed, and nothing is known to be synced.

    def _join(self, log: Log) -> _Round:
        """Take part in a round to its end, as its leader or not."""
        mine = _Round()
        with mine.over:
            with self._mutex:
                current, following = self._current, self._next
                lead = following is None or not following.over.locked()
                at_once = lead and not current.over.locked()
                if at_once:
                    self._current = mine
                elif lead:
                    self._next = mine
            if lead:
                if not at_once:
                    current.wait()
                    with self._mutex:
                        # From here on it is too late to be covered by this round.
                        self._current, self._next = mine, None
                self._lead(mine, log)
        if lead:
            return mine
        assert following is not None
        following.wait()
        return following

    def _lead(self, mine: _Round, log: Log) -> None:
        try:
            log.sync()
            mine.synced = True
        except OSError as error:
            mine.error = error
