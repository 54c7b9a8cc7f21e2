"""A file of JSON lines that follows the journal, for people and programs that read files.

Beside the file lies its mark, which says how far the journal has been copied and how long the file
was then. What the file has beyond that is looked at before anything is added: so it does not matter
at which moment the one before was killed.

`swap_log.jsonl`: the swap log as a file of JSON lines, for people and programs that read the
folder.

The journal_mirror says what is promised of it.

The registry's transaction log: its part of the journal once more, as lines of JSON in a file that
other tools read.

    {"timestamp": "2026-01-31T12:00:00.000000Z", "operation": "host.registered", "details":
    {"subject": "h1", ...}}

The journal_mirror says what is promised of it. Its mark lies beside it, as `.cursor`.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.adapters.durable_write import make_whole, sync_folder
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

Telling = Callable[[Entry], Mapping[str, Any] | None]
"""The line that tells of an entry; None for an entry that the file does not tell of."""
Warn = Callable[[Path, Exception], object]
"""Called with the file and with what kept it from being written."""

_MARK_BYTES_MAX = 4096
_ROUNDS_MAX = 8
_FLAGS = os.O_RDWR | os.O_APPEND


class _Mark(msgspec.Struct, frozen=True):
    """How far the journal has been copied, and how long the file with this inode was then."""

    cursor: Cursor = BEGINNING
    inode: int = 0
    size: int = 0


class JournalMirror:
    """A line in a file for each entry of the journal that is told there, in order.

    Promised: none is missing and none is there twice, whenever a writer is killed or the power
    goes, with any number of processes, and when another program appends lines of its own, which are
    left as they are. The file may be moved away or emptied; it is begun anew, for whom `access`
    says. A link is not followed. Not promised: that a line is there when `catch_up` returns, since
    another process may be at it; nor, once the mark is lost, that no line comes again that was
    moved away or lies further back than MIRROR_LOOK_BACK_BYTES. Raises nothing: what goes wrong is
    warned of, once until it goes well again or fails in another way, and made good by the next
    call.
    """

    def __init__(
        self,
        path: Path,
        mark_path: Path,
        journal: Journal,
        telling: Telling,
        warn: Warn,
        *,
        from_now: bool = False,
        access: Access = PRIVATE,
    ) -> None:
        """With `from_now`, a file without a mark begins with what happens from now on, else with
        all that the journal has.
        """
        self._access = access
        self._path = path
        self._mark_path = mark_path
        self._journal = journal
        self._telling = telling
        self._warn = warn
        self._warned = ""
        if from_now:
            self._begin()

    def catch_up(self) -> None:
        """Add what is not there yet. While another is at it, that one adds this one's lines too: it
        looks again once it has let others in.
        """
        try:
            # Not for ever: who is kept at it by the others leaves the rest to the next call.
            for _ in range(_ROUNDS_MAX):
                if not self._copied():
                    break
        except (OSError, HoldfastError) as error:
            self._trouble(error)
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
                mark = _read(fd)
            finally:
                os.close(fd)
        return self._journal.lag(mark.cursor, lambda entry: self._telling(entry) is not None)

    def _copied(self) -> bool:
        """Copy what is new; True when there may be more."""
        with contextlib.closing(FlockContender(self._mark_path, self._access)) as turn:
            if not turn.try_take():
                return False
            cursor = self._copy()
        return any(self._journal.since(cursor))

    def _copy(self) -> Cursor:
        fd = open_file(self._mark_path, os.O_RDWR, self._access, make=False)
        try:
            try:
                return self._copy_on(fd, _read(fd))
            except InvalidValue:
                # The mark is another journal's: this store is a copy. What the file has already is
                # not written again.
                return self._copy_on(fd, _Mark())
        finally:
            os.close(fd)

    def _copy_on(self, fd: int, mark: _Mark) -> Cursor:
        for batch in self._journal.since(mark.cursor):
            mark = self._add(mark, batch.entries, batch.cursor)
            _put(fd, mark)
        return mark.cursor

    def _add(self, mark: _Mark, entries: Iterable[Entry], cursor: Cursor) -> _Mark:
        """Add the lines of a batch that are not in the file yet, and return the mark behind it."""
        lines = [to_json(line) for entry in entries if (line := self._telling(entry)) is not None]
        if not lines:
            return _Mark(cursor, mark.inode, mark.size)
        fd = open_file(self._path, _FLAGS, self._access)
        try:
            if not (data := _missing(fd, mark, lines)):
                return _Mark(cursor, mark.inode, mark.size)
            _write(fd, data)
            reach("journal_mirror.written")
            # The mark must not outlive what it stands for.
            os.fdatasync(fd)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if after.st_ino != mark.inode:
            sync_folder(str(self._path.parent))
        return _Mark(cursor, after.st_ino, after.st_size)

    def _begin(self) -> None:
        try:
            if not self._mark_path.exists():
                _, cursor = self._journal.tail(1)
                make_folder(self._mark_path.parent, self._access)
                self._make_mark(_Mark(cursor, *_inode_and_size(self._path)))
        except (OSError, HoldfastError) as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        """Warn of it, unless it is what the last warning was of: every change would bring
        another.
        """
        if (told := str(error)) != self._warned:
            self._warned = told
            self._warn(self._path, error)

    def _make_mark(self, mark: _Mark) -> None:
        # Unlike a rename, this leaves alone what another has begun meanwhile.
        with contextlib.suppress(FileExistsError):
            in_folder(
                self._mark_path,
                lambda folder, name: make_whole(
                    name, to_json(mark), access=self._access, folder_fd=folder, synced=True
                ),
            )
        sync_folder(str(self._mark_path.parent))


def _missing(fd: int, mark: _Mark, lines: list[bytes]) -> bytes:
    """What is to be appended so that each of the lines is in the file, whole and once.

    A last line that was cut off is completed if it is one of these. Another program's is left as it
    is, and ended.
    """
    there = os.fstat(fd)
    begun = mark.size if there.st_ino == mark.inode and mark.size <= there.st_size else 0
    # From one byte before, to see whether a line ended there.
    begin = max(begun - 1, there.st_size - MIRROR_LOOK_BACK_BYTES, 0)
    *whole, cut = _bytes_from(fd, begin, there.st_size).split(b"\n")
    known = set(whole)
    data = b"".join(line + b"\n" for line in lines if line not in known)
    if not data or not cut:
        return data
    if (whole or begin == 0) and data.startswith(cut):
        return data[len(cut) :]
    return b"\n" + data


def _bytes_from(fd: int, begin: int, end: int) -> bytes:
    pieces = []
    while begin < end and (piece := os.pread(fd, end - begin, begin)):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _inode_and_size(path: Path) -> tuple[int, int]:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0, 0
    return there.st_ino, there.st_size


def _read(fd: int) -> _Mark:
    """Where the copy stands. An empty or damaged mark means the beginning of the journal."""
    try:
        return msgspec.json.decode(os.pread(fd, _MARK_BYTES_MAX, 0), type=_Mark)
    except (msgspec.DecodeError, UnicodeError):
        return _Mark()


def _put(fd: int, mark: _Mark) -> None:
    """In one call of the kernel's, which a kill cannot cut in two; spaces cover what is left of a
    longer one.
    """
    os.pwrite(fd, to_json(mark).ljust(os.fstat(fd).st_size), 0)


def swap_log_file(
    path: Path, beside: Path, journal: Journal, access: Access = PRIVATE
) -> JournalMirror:
    """The swap log in a file; `beside` is a folder for its mark."""
    return JournalMirror(path, beside / "swap_log.cursor", journal, _line, _warn, access=access)


def _line(entry: Entry) -> dict[str, Any] | None:
    event = event_of(entry)
    if event is None:
        return None
    return {
        "at": clock.render(event.at),
        "event": event.event,
        "recipe": event.recipe,
        "who": event.who,
        "revision": event.revision,
        **{
            name: value
            for name, value in event.data.items()
            if name not in ("at", "event", "recipe", "revision")
        },
    }


def _warn(path: Path, error: Exception) -> None:
    # Loaded here, since there is mostly nothing to warn of.
    import logging

    logging.getLogger("holdfast.workflows").warning("swap log not written path=%s: %s", path, error)


TOLD = ("host.", "host_lease.", "neighbor_lease.", "lock.")
"""How the kinds of entries begin that are the registry's."""


def transaction_log(
    path: Path, journal: Journal, logger: logging.Logger, access: Access = PRIVATE
) -> JournalMirror:
    """The log in a file, beginning with what happens from now on if it is new. A path that is a
    link is followed, here once.
    """

    def warn(behind: Path, error: Exception) -> None:
        logger.warning(
            "transaction log behind path=%s: %s; it goes on with the next change", behind, error
        )

    path = Path(resolve(path))
    return JournalMirror(
        path,
        path.with_name(path.name + ".cursor"),
        journal,
        _line_transaction_log,
        warn,
        from_now=True,
        access=access,
    )


def _line_transaction_log(entry: Entry) -> dict[str, Any] | None:
    if not entry.kind.startswith(TOLD):
        return None
    details = {
        "subject": entry.subject,
        "actor": entry.actor,
        "revision": entry.revision,
        **entry.data,
    }
    return {"timestamp": clock.render(entry.at), "operation": entry.kind, "details": details}
