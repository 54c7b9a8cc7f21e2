"""A file of JSON lines that follows the journal, for people and programs that read files.

Beside the file is its mark: how far the journal was copied, and how long the file was then. What
the file has beyond that is read before anything is added, so a writer may be killed at any moment.

`swap_log_file` makes the swap log of a folder, `transaction_log` the log of a network registry.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.adapters.durable_write import make_whole
from holdfast.domains.workflows.ports import event_of
from holdfast.kernel import clock
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.faults import reach
from holdfast.kernel.limits import MIRROR_LOOK_BACK_BYTES
from holdfast.kernel.store import BEGINNING, Cursor, Entry
from holdfast.primitives.journal import Journal, Lag
from holdfast.system.access import PRIVATE, Access, in_folder, make_folder, open_file
from holdfast.system.flock import FlockContender
from holdfast.system.folder_walk import resolve
from holdfast.system.sync import sync_path

LineOf = Callable[[Entry], Mapping[str, Any] | None]
"""The line for an entry; None for an entry that the file leaves out."""
Warn = Callable[[Path, Exception], object]
"""Called with the file and with the error that kept it from being written."""

_MARK_BYTES_MAX = 4096
_SYNC_EVERY_S = 1.0
_ROUNDS_MAX = 8
_REGISTRY_KINDS = ("host.", "host_lease.", "neighbor_lease.", "lock.")


class _LogEnd(msgspec.Struct, frozen=True):
    """How far the journal has been copied, and how long the file with this inode was then."""

    cursor: Cursor = BEGINNING
    inode: int = 0
    size: int = 0


class _Mark(_LogEnd, frozen=True, omit_defaults=True):
    """The place behind the last line, and in `synced` the one that survives a power loss: it counts
    after the boot in which the mark was written. Without it, the mark itself does.
    """

    synced: _LogEnd | None = None
    synced_at_s: float = 0.0
    """On the clock of that boot."""
    boot_id: str = ""

    def in_boot(self, boot_id: str) -> "_Mark":
        """What holds of the mark in a boot."""
        if self.synced is None or self.boot_id == boot_id:
            return self
        return _Mark(self.synced.cursor, self.synced.inode, self.synced.size)

    def ends_in(self, there: os.stat_result) -> bool:
        """Whether a file is the marked one, with all of its marked lines."""
        return there.st_ino == self.inode and self.size <= there.st_size


class JournalMirror:
    """A file with a line for each entry of the journal for which `line_of` gives one, in order.

    Promised: no line is missing and none is there twice, whenever a writer is killed or the power
    goes, with any number of processes, and when another program appends lines of its own, which are
    left as they are. The file may be moved away or emptied; a new one begins, with the mode of
    `access`. A link is not followed. Not promised: that a line is there when `catch_up` returns,
    since another process may be writing it; nor, once the mark is lost, that no line is repeated
    that was moved away or is further back than MIRROR_LOOK_BACK_BYTES. Raises nothing: it warns of
    a failure once, until it succeeds or fails in another way, and the next call adds what is
    missing.
    """

    def __init__(
        self,
        path: Path,
        mark_path: Path,
        journal: Journal,
        line_of: LineOf,
        warn: Warn,
        *,
        from_now: bool = False,
        access: Access = PRIVATE,
        boot_id: str = "",
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `from_now`, a file without a mark begins with the next entry, otherwise with all
        that the journal has. With the `boot_id` of this machine, the lines of a second are synced
        together; without it, those of each call.
        """
        self._access = access
        self._boot_id = boot_id
        self._now_s = now_s
        self._path = path
        self._mark_path = mark_path
        self._journal = journal
        self._line_of = line_of
        self._warn = warn
        self._warned = ""
        if from_now:
            self._begin_now()

    def catch_up(self) -> None:
        """Add the missing lines. While another process adds lines, it adds these too: it looks
        again after it has released its lock.
        """
        try:
            # A process that others keep busy leaves the rest to the next call.
            for _ in range(_ROUNDS_MAX):
                with contextlib.closing(FlockContender(self._mark_path, self._access)) as lock:
                    if not lock.try_take():
                        break
                    cursor = self._copy(lock.fileno())
                if not any(self._journal.since(cursor)):
                    break
        except (OSError, HoldfastError) as error:
            self._warn_once(error)
        else:
            self._warned = ""

    def lag(self) -> Lag:
        """How far the file is behind the journal. Raises OSError when its mark cannot be read."""
        try:
            fd = open_file(self._mark_path, os.O_RDONLY, self._access, make=False)
        except FileNotFoundError:
            mark = _Mark()
        else:
            try:
                mark = _read_mark(fd)
            finally:
                os.close(fd)
        cursor = mark.in_boot(self._boot_id).cursor
        return self._journal.lag(cursor, lambda entry: self._line_of(entry) is not None)

    def _copy(self, fd: int) -> Cursor:
        """Copy what is new behind the mark in an open file, and return how far."""
        try:
            return self._copy_from(fd, _read_mark(fd).in_boot(self._boot_id))
        except InvalidValue:
            # The mark is another journal's: this store is a copy. Lines that the file has are not
            # written again.
            return self._copy_from(fd, _Mark())

    def _copy_from(self, fd: int, mark: _Mark) -> Cursor:
        for batch in self._journal.since(mark.cursor):
            mark = self._add(mark, batch.entries, batch.cursor)
            _put(fd, mark)
        return mark.cursor

    def _add(self, mark: _Mark, entries: Iterable[Entry], cursor: Cursor) -> _Mark:
        """Add the lines of a batch that are not in the file yet, and return the mark behind it."""
        lines = [to_json(line) for entry in entries if (line := self._line_of(entry)) is not None]
        if not lines:
            return replace(mark, cursor=cursor)
        fd = open_file(self._path, os.O_RDWR | os.O_APPEND, self._access)
        try:
            there = os.fstat(fd)
            data = _missing(fd, there, mark, lines)
            while data:
                data = data[os.write(fd, data) :]
            reach("journal_mirror.written")
            now_s = self._now_s()
            if self._may_wait(mark, there, now_s):
                after = os.fstat(fd)
                synced = mark.synced or _LogEnd(mark.cursor, mark.inode, mark.size)
                return _Mark(
                    cursor, after.st_ino, after.st_size, synced, mark.synced_at_s, self._boot_id
                )
            if mark.synced is not None and not mark.ends_in(there):
                # The file was moved away or emptied, with lines that were not synced yet. They are
                # in a file that only its mover knows.
                os.sync()
            # The mark must not survive a power loss that its lines do not.
            os.fdatasync(fd)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if after.st_ino != mark.inode:
            sync_path(self._path.parent)
        if not self._boot_id:
            return _Mark(cursor, after.st_ino, after.st_size)
        return _Mark(cursor, after.st_ino, after.st_size, synced_at_s=now_s, boot_id=self._boot_id)

    def _may_wait(self, mark: _Mark, there: os.stat_result, now_s: float) -> bool:
        """Whether new lines may wait for the next sync. After a power loss, lines that were not
        synced are copied again.
        """
        return (
            bool(self._boot_id)
            and mark.boot_id == self._boot_id
            and 0 <= now_s - mark.synced_at_s < _SYNC_EVERY_S
            and mark.ends_in(there)
        )

    def _begin_now(self) -> None:
        try:
            if self._mark_path.exists():
                return
            _, cursor = self._journal.tail(1)
            make_folder(self._mark_path.parent, self._access)
            try:
                there = self._path.stat(follow_symlinks=False)
                mark = _Mark(cursor, there.st_ino, there.st_size)
            except FileNotFoundError:
                mark = _Mark(cursor)
            # Unlike a rename, this leaves a mark alone that another process has made meanwhile.
            with contextlib.suppress(FileExistsError):
                in_folder(
                    self._mark_path,
                    lambda folder, name: make_whole(
                        name, to_json(mark), access=self._access, folder_fd=folder, synced=True
                    ),
                )
            sync_path(self._mark_path.parent)
        except (OSError, HoldfastError) as error:
            self._warn_once(error)

    def _warn_once(self, error: Exception) -> None:
        # Every change would bring another warning.
        if (text := str(error)) != self._warned:
            self._warned = text
            self._warn(self._path, error)


def swap_log_file(
    path: Path, beside: Path, journal: Journal, access: Access = PRIVATE
) -> JournalMirror:
    """The swap log in a file; `beside` is a folder for its mark."""

    def warn(behind: Path, error: Exception) -> None:
        logging.getLogger("holdfast.workflows").warning(
            "swap log not written path=%s: %s", behind, error
        )

    mark_path = beside / "swap_log.cursor"
    return JournalMirror(path, mark_path, journal, _swap_line, warn, access=access)


def transaction_log(
    path: Path,
    journal: Journal,
    logger: logging.Logger,
    access: Access = PRIVATE,
    *,
    boot_id: str = "",
) -> JournalMirror:
    """The log of a network registry in a file. A new one begins with the next entry. A path that is
    a link is followed, here once. Its mark is beside it, as `.cursor`.
    """

    def warn(behind: Path, error: Exception) -> None:
        logger.warning(
            "transaction log behind path=%s: %s; it goes on with the next change", behind, error
        )

    path = Path(resolve(path))
    mark_path = path.with_name(path.name + ".cursor")
    return JournalMirror(
        path,
        mark_path,
        journal,
        _registry_line,
        warn,
        from_now=True,
        access=access,
        boot_id=boot_id,
    )


def _missing(fd: int, there: os.stat_result, mark: _Mark, lines: list[bytes]) -> bytes:
    """What must be appended so that each of the lines is in the file, whole and once. A last line
    that was cut off is completed if it is one of these. Another program's is only ended.
    """
    begun = mark.size if mark.ends_in(there) else 0
    # From one byte before, to see whether a line ended there.
    begin = max(begun - 1, there.st_size - MIRROR_LOOK_BACK_BYTES, 0)
    read = b""
    while begin + len(read) < there.st_size and (
        piece := os.pread(fd, there.st_size - begin - len(read), begin + len(read))
    ):
        read += piece
    *whole, cut = read.split(b"\n")
    known = set(whole)
    data = b"".join(line + b"\n" for line in lines if line not in known)
    if not data or not cut:
        return data
    if (whole or begin == 0) and data.startswith(cut):
        return data[len(cut) :]
    return b"\n" + data


def _read_mark(fd: int) -> _Mark:
    """The mark. An empty or damaged one means the beginning of the journal."""
    try:
        return msgspec.json.decode(os.pread(fd, _MARK_BYTES_MAX, 0), type=_Mark)
    except (msgspec.DecodeError, UnicodeError):
        return _Mark()


def _put(fd: int, mark: _Mark) -> None:
    # One pwrite, which a kill cannot cut in two. Spaces cover the rest of a longer mark.
    os.pwrite(fd, to_json(mark).ljust(os.fstat(fd).st_size), 0)


def _swap_line(entry: Entry) -> dict[str, Any] | None:
    event = event_of(entry)
    if event is None:
        return None
    own = {"at", "event", "recipe", "revision"}
    return {
        "at": clock.render(event.at),
        "event": event.event,
        "recipe": event.recipe,
        "who": event.who,
        "revision": event.revision,
        **{name: value for name, value in event.data.items() if name not in own},
    }


def _registry_line(entry: Entry) -> dict[str, Any] | None:
    if not entry.kind.startswith(_REGISTRY_KINDS):
        return None
    details = {
        "subject": entry.subject,
        "actor": entry.actor,
        "revision": entry.revision,
        **entry.data,
    }
    return {"timestamp": clock.render(entry.at), "operation": entry.kind, "details": details}
