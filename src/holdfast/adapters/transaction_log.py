"""The registry's transaction log: its part of the journal once more, as lines of JSON in a file that other tools read.

    {"timestamp": "2026-01-31T12:00:00.000000Z", "operation": "host.registered", "details": {"subject": "h1", ...}}

Beside the file lies another, `.cursor`, which says how far the journal has been copied and how long the file was then. Whoever
comes next goes on from there, so that a killed process loses no line and repeats none.
"""

import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.kernel import clock
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.faults import reach
from holdfast.kernel.store import BEGINNING, Cursor, Entry
from holdfast.primitives.journal import Journal

TOLD = ("host.", "host_lease.", "neighbor_lease.", "lock.")
"""How the kinds of entries begin that are the registry's."""

_MARK_BYTES_MAX = 4096
_ROUNDS_MAX = 8


class _Mark(msgspec.Struct, frozen=True):
    """How far the journal has been copied, and how long the file with this inode was then."""

    cursor: Cursor = BEGINNING
    inode: int = 0
    size: int = 0


class TransactionLog:
    """Copies the journal to a file. A copy that cannot be made now is a warning, and is made with the next."""

    def __init__(self, path: Path, journal: Journal, logger: logging.Logger) -> None:
        self._path = path
        self._mark_path = path.with_name(path.name + ".cursor")
        self._journal = journal
        self._logger = logger
        try:
            if not self._mark_path.exists():
                self._begin()
        except (OSError, HoldfastError) as error:
            self._warn(error)

    def catch_up(self) -> None:
        """Copy what is new. While another process is at it, that one copies this one's entries too: it looks again once it
        has let others in."""
        try:
            # Not for ever: who is kept at it by the others leaves the rest to the next change.
            for _ in range(_ROUNDS_MAX):
                if not self._copied():
                    return
        except (OSError, HoldfastError) as error:
            self._warn(error)

    def _copied(self) -> bool:
        """Copy what is new; True when there may be more."""
        fd = os.open(self._mark_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            mark = self._copy(fd, _read(fd))
        finally:
            os.close(fd)
        return any(self._journal.since(mark.cursor))

    def _copy(self, mark_fd: int, mark: _Mark) -> _Mark:
        for batch in self._journal.since(mark.cursor):
            log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                there = os.fstat(log)
                if there.st_ino == mark.inode and there.st_size > mark.size:
                    # One was killed after it had written and before it could say so: its lines come again.
                    os.ftruncate(log, mark.size)
                _write(log, b"".join(_lines(batch.entries)))
                reach("transaction_log.written")
                after = os.fstat(log)
            finally:
                os.close(log)
            mark = _Mark(batch.cursor, after.st_ino, after.st_size)
            _put(mark_fd, mark)
        return mark

    def _begin(self) -> None:
        """The log begins with what happens from now on."""
        _, cursor = self._journal.tail(1)
        size, inode = 0, 0
        if self._path.exists():
            there = self._path.stat()
            size, inode = there.st_size, there.st_ino
        temporary = self._mark_path.with_name(f"{self._mark_path.name}.{os.getpid()}")
        temporary.write_bytes(to_json(_Mark(cursor, inode, size)))
        try:
            # Unlike a rename, this leaves alone what another has begun meanwhile.
            os.link(temporary, self._mark_path)
        except FileExistsError:
            return
        finally:
            temporary.unlink()

    def _warn(self, error: Exception) -> None:
        self._logger.warning("transaction log behind path=%s: %s; it goes on with the next change", self._path, error)


def _lines(entries: Iterable[Entry]) -> Iterable[bytes]:
    for entry in entries:
        if entry.kind.startswith(TOLD):
            details = {"subject": entry.subject, "actor": entry.actor, "revision": entry.revision, **entry.data}
            line = {"timestamp": clock.render(entry.at), "operation": entry.kind, "details": details}
            yield to_json(line) + b"\n"


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(fd: int) -> _Mark:
    """Where the copy stands. An empty or damaged mark means the beginning: lines may come twice, and none is lost."""
    try:
        return msgspec.json.decode(os.pread(fd, _MARK_BYTES_MAX, 0), type=_Mark)
    except (msgspec.DecodeError, UnicodeError):
        return _Mark()


def _put(fd: int, mark: _Mark) -> None:
    """In one call of the kernel's, which a kill cannot cut in two; spaces cover what is left of a longer one."""
    data = to_json(mark)
    os.pwrite(fd, data.ljust(os.fstat(fd).st_size), 0)
