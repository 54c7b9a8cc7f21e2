"""The write-ahead log: syncs shared among threads, failed syncs, and the log's size limit.

SQLite runs with synchronous=NORMAL: a COMMIT writes to the log without a sync, so the next writer
can start. A durable transaction then calls fdatasync itself, outside the gate. One call covers all
frames written before it, by any process.

A failed sync leaves a mark. The kernel takes the pages of a failed sync for written, so a later
sync by another descriptor succeeds although these pages, and everything behind them in the log, are
lost at a power loss. So no process acknowledges anything until the log was copied into the database
and restarted (Database.repair_log). The mark is the length of the gate's side file, which has no
content: changing a length needs no space, and all processes see it at once. After a power loss the
mark means nothing: what can be read then is on disk.

SQLite restarts a log when all of it is copied into the database and no reader is left that began
before. A reader stopped inside a read (Ctrl-Z, SIGSTOP) prevents that, so every change makes the
log longer. Holdfast cannot move such a reader. It names the process, and beyond LOG_BYTES_MAX it
refuses changes, before the disk is full for everybody.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.kernel import faults
from holdfast.kernel.errors import StoreCorrupt, StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_MAX
from holdfast.processes import scan
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import Access, access_like, open_file
from holdfast.system.folder_walk import Folder

_BUSY_SLEEP_S = 0.001
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096
_PAGE_BYTES_MIN = 512
_READ_MARKS = range(123, 128)
"""The bytes of a -shm file that SQLite's readers lock: the last five of the locks from byte 120."""


def gate_path(database: Path) -> Path:
    return database.with_name(database.name + "-gate")


def log_path(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def is_marked(gate: Gate) -> bool:
    """Has a sync of the log failed? True where the system does not say. Every durable change asks
    twice, so it asks by the gate's descriptor, which costs less than a stat by name.
    """
    try:
        return not gate.is_empty()
    except OSError:
        pass  # Another thread has closed the gate.
    try:
        return os.lstat(gate.path).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def restart_marked_log(
    database: Path, gate: Gate, raw: sqlite3.Connection, deadline: float
) -> None:
    """Inside the gate: copy the log into the database, restart the log and remove the mark.

    SQLite syncs the database before it gives up the log. Raises sqlite3.Error or StoreUnavailable;
    then the mark stays.
    """
    while is_marked(gate):
        if not raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            try:
                _set_mark(database, 0)
            except OSError as error:
                raise _not_yet(database, os.strerror(error.errno or 0)) from None
        elif time.monotonic() + _BUSY_SLEEP_S > deadline:
            raise _not_yet(database, "another program reads it, and must end first")
        else:
            # SQLite does not notify anybody when a reader ends.
            time.sleep(_BUSY_SLEEP_S)


def _set_mark(database: Path, length: int) -> None:
    fd = open_file(gate_path(database), os.O_RDWR, access_like(database), make=False)
    try:
        os.ftruncate(fd, length)
    finally:
        os.close(fd)


def _not_yet(database: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"a sync of {database} has failed, and its log cannot be restarted ({why}): check the disk "
        "and try again; nothing was changed",
        path=str(database),
        outcome="none",
    )


def refuse_truncated(database: Path, found: Mapping[str, os.stat_result]) -> None:
    """Raise StoreCorrupt for a database that was cut to less than a page, by what `check_database`
    found. SQLite would take it for a new one, and delete the log beside it with what the log holds.
    """
    size = found[""].st_size
    if 0 < size < _PAGE_BYTES_MIN or (size == 0 and "-wal" in found and found["-wal"].st_size):
        raise StoreCorrupt(
            f"{database} was truncated to {size} bytes: run `holdfast store restore FILE`",
            path=str(database),
        )


class Log:
    """A descriptor on the log, opened after its connection and closed with it: while a connection
    is open, nobody can delete the log, so the descriptor never survives its file.
    """

    _fd = _folder_fd = -1

    def __init__(self, database: Path, access: Access, folder: Folder) -> None:
        self._fd = open_file(log_path(database), os.O_RDONLY, access, make=False, folder=folder)
        self._database = database
        # Opened now, while nothing is at stake: after a commit no descriptor may be left for it.
        self._folder_fd = os.open(
            ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.fd
        )

    def sync(self) -> None:
        """Make everything in the log survive a power loss. Raises OSError; then the outcome is
        unknown, the log is marked, and the connection must not be used again.
        """
        if faults.hook is not None:
            faults.reach("sqlite.sync.before")
        try:
            if (folder := self._folder_fd) >= 0:
                # The log may be new, and then so is its name in the folder.
                os.fsync(folder)
                self._folder_fd = -1
                os.close(folder)
            os.fdatasync(self._fd)
        except OSError:
            # Where not even the mark can be written, neither can a change.
            with contextlib.suppress(OSError, StoreUnavailable):
                _set_mark(self._database, 1)
            raise
        if faults.hook is not None:
            faults.reach("sqlite.sync.after")

    def reaches(self, frame: int) -> bool:
        """Has the log this many frames since its restart? A frame from before the restart has
        another salt than the header.
        """
        salt = os.pread(self._fd, 8, 16)
        at = _HEADER_BYTES + (frame - 1) * (_FRAME_HEADER_BYTES + _PAGE_BYTES) + 8
        return len(salt) == 8 and os.pread(self._fd, 8, at) == salt

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptors, once. SQLite holds no lock on the log, so this drops none."""
        folder, self._folder_fd = self._folder_fd, -1
        if folder >= 0:
            os.close(folder)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class _Round:
    """One sync, and the threads that wait for it. Its leader locks `over` before anybody else can
    see the round, and unlocks it whatever happens.
    """

    __slots__ = ("error", "over", "synced")

    def __init__(self) -> None:
        self.over = threading.Lock()
        self.synced = False
        self.error: OSError | None = None

    def wait(self) -> None:
        """Return when its leader has ended, or given up."""
        with self.over:
            pass


class SharedSync:
    """Shares syncs among the threads of a process: a thread that asks while one is running is
    covered by the next one.

    Ctrl-C may end a leader anywhere, and nothing has to be repaired: a round is running as long as
    its lock is locked.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._current = _Round()
        self._next: _Round | None = None

    def sync(self, log: Log) -> None:
        """Return once a sync has ended that began after this call. Raises OSError if it failed."""
        while True:
            done = self._join(log)
            if done.error is not None:
                raise done.error
            if done.synced:
                return
            # Its leader was interrupted, so nothing is known to be synced.

    def _join(self, log: Log) -> _Round:
        """Take part in one round to its end, and lead it if nobody else does."""
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
                        # A thread that asks from here on is not covered by this round.
                        self._current, self._next = mine, None
                try:
                    log.sync()
                    mine.synced = True
                except OSError as error:
                    mine.error = error
        if lead:
            return mine
        assert following is not None
        following.wait()
        return following


def readers_of(database: Path) -> list[int]:
    """The processes inside a read of a database, stopped ones first; empty when the kernel does not
    say.
    """
    # Most programs never meet a reader that is in their way.
    from holdfast.system.flock import kernel_locks

    # By name only: opening and closing the -shm file would drop this process's own locks.
    locks = kernel_locks(database.with_name(database.name + "-shm"))
    pids = {pid for kind, pid, byte in locks if kind == "POSIX" and byte in _READ_MARKS and pid}
    return sorted(pids, key=lambda pid: (not is_stopped(pid), pid))


def is_stopped(pid: int) -> bool:
    """Is a process stopped, by a signal or a debugger?"""
    # As text: the numbers in /proc/locks are those of /proc, whatever pid namespace this is.
    seen = scan.stat(str(pid))
    return seen is not None and seen.state in "Tt"


def blame(database: Path) -> tuple[str, str]:
    """Who prevents the restart of a database's log, and what to do about it."""
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
    """The error for a change while the log is at its size limit."""
    who, remedy = blame(database)
    return StoreUnavailable(
        f"the log of {database} has {size >> 20} MB, its limit is {LOG_BYTES_MAX >> 20} MB, and it "
        f"cannot be restarted: {who}; nothing was changed. {remedy[0].upper()}{remedy[1:]}",
        path=str(database),
        bytes=size,
        reader_pids=readers_of(database),
        outcome="none",
    )


def log_size(database: Path) -> int:
    """The size of a database's log; 0 without one."""
    try:
        return log_path(database).stat().st_size
    except OSError:
        return 0
