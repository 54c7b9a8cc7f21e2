"""The write-ahead log, synced by a descriptor of our own.

SQLite runs with synchronous=NORMAL, so a COMMIT writes to the log without syncing it, and the next
writer may come in. A durable transaction then calls fdatasync itself, outside the gate: one call
covers every frame written before it, whoever wrote them. The descriptor is opened after its
connection and closed with it: while a connection is open, nobody can delete the log it uses, so the
descriptor cannot outlive the file it stands for.

The mark that a log is in doubt: a sync of it failed, so some of what it holds may not be on disk,
and never will be.

After a failed sync the kernel takes the pages for written. A later sync by another descriptor
succeeds and says nothing of them, and whatever stands behind them in the log is lost with them at a
power loss. So nothing more is acknowledged by any process until the log was copied into the
database and begun anew (Database.certain).

The mark is the length of the gate's side file, which has no content of its own: to change a length
takes no space, and every process sees it at once. It means nothing after a power loss: what can be
read then is what is on disk.

The bound of the write-ahead log, and who keeps it from being begun anew.

A log is begun anew when all of it is copied into the database and no reader is left that began
before. A reader that is stopped (Ctrl-Z, SIGSTOP) inside a read is such a one, so every change
makes the log longer. Nothing here can move that reader: it is named, and beyond LOG_BYTES_MAX
changes are refused, before the disk is full for everybody.
"""

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path

from holdfast.kernel import faults
from holdfast.kernel.errors import StoreCorrupt, StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_MAX
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import PRIVATE, Access, access_like, open_file

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
    """Inside the gate: copy what the log holds into the database, which SQLite syncs before it
    gives up the log, and take the mark away. A sync that fails meanwhile was of a log that is not
    there any more. Raises sqlite3.Error or StoreUnavailable; then the log stays in doubt.
    """
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
        f"a sync of {database} has failed, and its log cannot be begun anew ({why}): check the "
        "disk and try again; nothing was "
        "changed",
        path=str(database),
        outcome="none",
    )


_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096
_PAGE_BYTES_MIN = 512


def log_path(database: Path) -> Path:
    """Where SQLite keeps a database's log."""
    return database.with_name(database.name + "-wal")


def refuse_truncated(database: Path) -> None:
    """SQLite takes a file of less than a page for a new database, and deletes the log beside it
    with what it holds. Raises StoreCorrupt for such a file, unless both are new.
    """
    # The log first: another process may be making both at this moment, and makes the log last.
    try:
        logged = log_path(database).stat().st_size
    except FileNotFoundError:
        logged = 0
    size = database.stat().st_size
    if 0 < size < _PAGE_BYTES_MIN or (size == 0 and logged):
        raise StoreCorrupt(
            f"{database} was truncated to {size} bytes: run `holdfast store restore FILE`",
            path=str(database),
        )


class Log:
    """One descriptor on the log, belonging to one connection."""

    _fd = _folder_fd = -1

    def __init__(self, database: Path, access: Access = PRIVATE) -> None:
        self._fd = open_file(log_path(database), os.O_RDONLY, access, make=False)
        self._database = database
        # Now, while nothing is at stake: after a commit there might be no descriptor left for it.
        self._folder_fd = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Make everything in the log survive a power loss. Raises OSError; then nothing is known of
        it, the log is marked as in doubt, and the connection must not be used again.
        """
        faults.reach("sqlite.sync.before")
        try:
            if (folder := self._folder_fd) >= 0:
                # The log may be new, and then so is its name in the folder.
                os.fsync(folder)
                self._close_folder()
            os.fdatasync(self._fd)
        except OSError:
            raise_mark(self._database)
            raise
        faults.reach("sqlite.sync.after")

    def _close_folder(self) -> None:
        folder, self._folder_fd = self._folder_fd, -1
        if folder >= 0:
            os.close(folder)

    def reaches(self, frame: int) -> bool:
        """Has the log, since it was last begun anew, got that many frames? A frame that is left
        over from before has another salt than the header.
        """
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
        # Its leader has this lock from before anybody else can see the round, and lets go of it
        # whatever happens: who waits for the round takes it in turn.
        self.over = threading.Lock()
        self.synced = False
        self.error: OSError | None = None

    def wait(self) -> None:
        """Return when its leader has ended, or given up."""
        with self.over:
            pass


class SharedSync:
    """Lets the threads of a process share syncs: whoever asks while one is running is covered by
    the next one.

    Ctrl-C may end a leader anywhere. Nothing has to be put right then: a round is under way while
    its lock is locked.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._current = _Round()
        self._next: _Round | None = None

    def sync(self, log: Log) -> None:
        """Return once a sync has ended that began after this call. Raises OSError if that one
        failed.
        """
        while True:
            done = self._join(log)
            if done.error is not None:
                raise done.error
            if done.synced:
                return
            # Its leader was interrupted, before or in the sync; nothing failed, and nothing is
            # known to be synced.

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


_READ_MARKS = range(123, 128)
"""The bytes of a -shm file that SQLite's readers lock: 120 locks begin there, and the marks of
readers are the last five.
"""


def readers_of(database: Path) -> list[int]:
    """The processes inside a read of a database, from /proc/locks, those that are stopped first;
    empty when the kernel does not tell. The -shm file is only looked at by name: to open and close
    it would drop this process's own locks.
    """
    try:
        inode = database.with_name(database.name + "-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    found: dict[int, None] = {}
    for words in (line.split() for line in lines):
        # A line of a waiter has an arrow in front; it holds nothing. A process of another pid
        # namespace shows as 0.
        if (
            words[1] == "POSIX"
            and words[5].endswith(f":{inode}")
            and int(words[6]) in _READ_MARKS
            and int(words[4])
        ):
            found[int(words[4])] = None
    return sorted(found, key=lambda pid: (not is_stopped(pid), pid))


def is_stopped(pid: int) -> bool:
    """Is a process stopped, by a signal or a debugger?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


def blame(database: Path) -> tuple[str, str]:
    """Who keeps the log of a database from being begun anew, and what to do about it, in words."""
    readers = readers_of(database)
    if not readers:
        return (
            "no reader can be seen from here",
            f"`fuser -v {database}` shows who has it open: end what hangs there",
        )
    pid = readers[0]
    state = "is stopped inside a read" if is_stopped(pid) else "is inside a read"
    return (
        f"process {pid} {state}",
        f"let it go on (kill -CONT {pid}), or end it (kill -KILL {pid})",
    )


def too_long(database: Path, size: int) -> StoreUnavailable:
    """A change is refused, as the log has reached its bound."""
    who, mend = blame(database)
    return StoreUnavailable(
        f"the log of {database} has {size >> 20} MB, its bound is {LOG_BYTES_MAX >> 20} MB, and "
        "it cannot be begun anew: "
        f"{who}; nothing was changed. {mend[0].upper()}{mend[1:]}",
        path=str(database),
        bytes=size,
        reader_pids=readers_of(database),
        outcome="none",
    )


def log_size(database: Path) -> int:
    """How long the log of a database is; 0 when there is none."""
    try:
        return log_path(database).stat().st_size
    except OSError:
        return 0
