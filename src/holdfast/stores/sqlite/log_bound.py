"""The bound of the write-ahead log, and who keeps it from being begun anew.

A log is begun anew when all of it is copied into the database and no reader is left that began before. A reader that is stopped
(Ctrl-Z, SIGSTOP) inside a read is such a one, so every change makes the log longer. Nothing here can move that reader: it is
named, and beyond LOG_BYTES_MAX changes are refused, before the disk is full for everybody.
"""

from pathlib import Path

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_MAX
from holdfast.stores.sqlite.wal import log_path

_READ_MARKS = range(123, 128)
"""The bytes of a -shm file that SQLite's readers lock: 120 locks begin there, and the marks of readers are the last five."""


def readers_of(database: Path) -> list[int]:
    """The processes inside a read of a database, from /proc/locks, those that are stopped first; empty when the kernel does not
    tell. The -shm file is only looked at by name: to open and close it would drop this process's own locks."""
    try:
        inode = database.with_name(database.name + "-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    found: dict[int, None] = {}
    for words in (line.split() for line in lines):
        # A line of a waiter has an arrow in front; it holds nothing. A process of another pid namespace shows as 0.
        if words[1] == "POSIX" and words[5].endswith(f":{inode}") and int(words[6]) in _READ_MARKS and int(words[4]):
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
        return "no reader can be seen from here", f"`fuser -v {database}` shows who has it open: end what hangs there"
    pid = readers[0]
    state = "is stopped inside a read" if is_stopped(pid) else "is inside a read"
    return f"process {pid} {state}", f"let it go on (kill -CONT {pid}), or end it (kill -KILL {pid})"


def too_long(database: Path, size: int) -> StoreUnavailable:
    """A change is refused, as the log has reached its bound."""
    who, mend = blame(database)
    return StoreUnavailable(
        f"the log of {database} has {size >> 20} MB, its bound is {LOG_BYTES_MAX >> 20} MB, and it cannot be begun anew: "
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
