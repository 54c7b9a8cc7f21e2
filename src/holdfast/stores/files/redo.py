"""The redo log: what the files of a change must hold, committed in the inner store before any of
them is touched, and applied to the files afterwards.

While a redo record exists, each of its files may still be the old one, or be the new one. The next
process at the latch applies the record again. A reader takes the record's content for the file's.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from holdfast.kernel.codec import Record, to_json, to_plain
from holdfast.kernel.layout import Wire
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import ReadTx, Tx
from holdfast.stores.files.disk import Disk, Location, UnusableFile, sync_file, temporary
from holdfast.stores.files.documents import parse, render
from holdfast.stores.files.folders import StoreFolders

_PART_BYTES = 700_000
"""Bytes of a file in one row. In base64 and with the other fields, a row stays below the bound of a
record, while a file may have any size.
"""

Stamp = tuple[int, int]
"""A staged file's time in nanoseconds, and its size."""


class FileChange(NamedTuple):
    """The new content of a file; without `data` the file is to be removed. With `keep` the previous
    file stays as `.bak`.

    `lock` is the file that other programs lock while they change this one. `before` is the digest
    of the content that the change was decided by; it is empty when there was no file, and None when
    it does not matter. A file with neither that content nor the new one was changed by such a
    program since, and stays as it is.

    The redo record of a file with many records has only `delta`, the changed documents, in place of
    `data`: otherwise each change of one record would write all of them twice. `stamp` identifies
    the staged file, whose time no other file has. Where that file is gone, the documents are merged
    into the file in its place, which may be repeated any number of times.
    """

    location: Location
    data: bytes | None
    keep: bool
    lock: Path | None = None
    before: str | None = None
    delta: bytes | None = None
    stamp: Stamp | None = None


class RedoPart(Record, frozen=True, kw_only=True):
    """A row of a redo record. With `more`, the next row continues the same file."""

    folder: str
    name: str
    data: bytes | None
    keep: bool
    more: bool
    lock: str | None = None
    before: str | None = None
    stamp: Stamp | None = None
    """With a stamp, `data` is a delta."""


class RevisionMark(Record, frozen=True, kw_only=True):
    """A record that exists for its revision, and for what the file of a record has no place for."""

    aside: dict[str, Any] | UnsetType = UNSET


class _RedoSpace(Space[RedoPart]):
    def encode(self, record: RedoPart) -> bytes:
        # Rows are made here alone and within the bound. The usual check reads each one back, which
        # costs as much as writing it.
        return to_json(record)


REDO = _RedoSpace("files_redo", RedoPart)
GENERATIONS = Space("files_generations", RevisionMark)
"""By the name of a space: the revision at which its files were last changed."""


def _key(number: int) -> str:
    return f"{number:08}"


FIRST = _key(0)
"""The first row of a redo record, if there is one."""


def write_redo(tx: Tx, folders: StoreFolders, changes: Iterable[FileChange]) -> None:
    """Write the redo record of the changes in their transaction."""
    for key, part in redo_rows(folders, changes):
        tx.put(REDO, key, part)


def redo_rows(
    folders: StoreFolders, changes: Iterable[FileChange]
) -> Iterator[tuple[str, RedoPart]]:
    """The rows of a redo record, with their keys."""
    number = 0
    for change in changes:
        is_delta = change.delta is not None and change.stamp is not None
        data = change.delta if is_delta else change.data
        pieces: list[bytes | None] = [None]
        if data is not None:
            starts = range(0, max(len(data), 1), _PART_BYTES)
            pieces = [data[start : start + _PART_BYTES] for start in starts]
        for nth, piece in enumerate(pieces, start=1):
            yield (
                _key(number),
                RedoPart(
                    folder=folders.to_text(change.location.folder),
                    name=change.location.name,
                    data=piece,
                    keep=change.keep,
                    more=nth < len(pieces),
                    lock=None if change.lock is None else folders.to_text(change.lock),
                    before=change.before,
                    stamp=change.stamp if is_delta else None,
                ),
            )
            number += 1


def read_redo(tx: ReadTx, folders: StoreFolders) -> dict[Location, FileChange]:
    """The committed changes that may not be in their files yet."""
    found: dict[Location, FileChange] = {}
    pieces: list[bytes] = []
    for row in tx.range(REDO):
        part = row.record
        if part.data is not None:
            pieces.append(part.data)
        if not part.more:
            location = Location(folders.from_text(part.folder), part.name)
            lock = None if part.lock is None else folders.from_text(part.lock)
            data = None if part.data is None else b"".join(pieces)
            whole, delta = (data, None) if part.stamp is None else (None, data)
            found[location] = FileChange(
                location, whole, part.keep, lock, part.before, delta, part.stamp
            )
            pieces = []
    return found


def clear_redo(tx: Tx) -> None:
    """Remove the redo record. Only once its files hold the change and are synced: otherwise a power
    loss could take back a committed change.
    """
    number = 0
    while tx.delete(REDO, _key(number)):
        number += 1


def content_of(disk: Disk, change: FileChange) -> bytes | None:
    """What the file of a redo record must hold; None when it must not exist. Raises
    StoreUnavailable, and UnusableFile when only the delta is known and the file to merge it into is
    damaged or gone.
    """
    if change.delta is None:
        return change.data
    current, staged = disk.read(change.location), None
    with suppress(UnusableFile):
        staged = disk.read(change.location.sibling(temporary))
    for found in (current, staged):
        if found is not None and (found.signature.mtime_ns, found.signature.bytes) == change.stamp:
            return found.data
    try:
        value = None if current is None else parse(current.data)
    except ValueError as error:
        raise UnusableFile(str(error)) from None
    if not isinstance(value, dict):
        raise UnusableFile("it is gone" if current is None else "it is not a JSON object")
    new = parse(change.delta)
    removed = {key for key, document in new.items() if document is None}
    return render({key: value for key, value in {**value, **new}.items() if key not in removed})


def with_before(disk: Disk, changes: Iterable[FileChange]) -> list[FileChange]:
    """The changes with the digests of the files that they are decided by, where other programs
    change those too. Raises StoreUnavailable.
    """
    return [
        change if change.lock is None else change._replace(before=_digest_on(disk, change.location))
        for change in changes
    ]


def apply_changes(disk: Disk, changes: Iterable[FileChange], *, staged: bool) -> list[Location]:
    """Make the files hold the changes, and sync them. May be repeated any number of times. With
    `staged`, this process has just staged the files; without it, the changes are a redo record's.

    Return the files that another program has changed since, which stay as they are. Raises OSError,
    UnusableFile or StoreUnavailable; then some files are still the old ones.
    """
    folders: dict[Any, Location] = {}
    overtaken = []
    if not staged:
        # All contents are worked out before the first is applied: if one cannot be, every file
        # stays as it is.
        changes = [
            change
            if change.delta is None
            else change._replace(data=content_of(disk, change), delta=None, stamp=None)
            for change in changes
        ]
    for change in changes:
        if not staged and change.before is not None:
            expected = (change.before, _digest(change.data))
            if _digest_on(disk, change.location) not in expected:
                overtaken.append(change.location)
                continue
        disk.retry(lambda change=change: _apply(disk, change, staged=staged))  # type: ignore[misc]
        folders[change.location.folder, change.location.path.parent] = change.location
    # One sync for each folder, after all renames.
    for location in folders.values():
        disk.retry(lambda location=location: disk.settle(location))  # type: ignore[misc]
    return overtaken


def _apply(disk: Disk, change: FileChange, *, staged: bool) -> None:
    location, data = change.location, change.data
    if data is None:
        disk.remove(location)
        return
    if staged:
        try:
            disk.place(location, keep=change.keep)
            return
        except FileNotFoundError:
            # An earlier attempt renamed it already, or somebody removed the temporary file.
            pass
    found = disk.read(location)
    if found is not None and found.data == data:
        # The process that wrote it may have been killed before it synced.
        sync_file(location)
        return
    disk.stage(location, data)
    disk.place(location, keep=change.keep)


def _digest_on(disk: Disk, location: Location) -> str:
    try:
        found = disk.read(location)
    except UnusableFile as error:
        # No plain file: any file that another program puts there has a different digest.
        return str(error)
    return _digest(None if found is None else found.data)


def _digest(data: bytes | None) -> str:
    return "" if data is None else blake2b(data, digest_size=16).hexdigest()


def mark_of(space: Space[R], wire: Wire[R], record: R) -> RevisionMark:
    """The mark that is stored for a record in a file."""
    aside = wire.aside(record)
    return RevisionMark(
        schema_version=space.schema_version, aside=UNSET if aside is None else to_plain(aside)
    )


_revision_spaces: dict[tuple[str, int], Space[RevisionMark]] = {}


def revision_space(space: Space[Any]) -> Space[RevisionMark]:
    """The inner space with the revisions of a space in files. It has the same schema version, so
    that an older program refuses a newer store.
    """
    known = _revision_spaces.get((space.name, space.schema_version))
    if known is None:
        upgrades = dict.fromkeys(range(1, space.schema_version), dict)
        known = Space(
            space.name, RevisionMark, schema_version=space.schema_version, upgrades=upgrades
        )
        _revision_spaces[space.name, space.schema_version] = known
    return known
