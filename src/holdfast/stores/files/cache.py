"""The files of a store as this process last read them. A file is read again when its signature
shows that some program has changed it; in a large folder inotify names the files to check.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import FILES_WATCHED_FROM
from holdfast.kernel.space import R, Space
from holdfast.stores.files.disk import (
    Disk,
    Location,
    Signature,
    UnusableFile,
    signature_of,
    signature_of_stat,
    unreadable,
)
from holdfast.stores.files.documents import (
    GONE,
    NO_FILE,
    DamagedFile,
    ParsedFile,
    documents_of,
    parse,
)
from holdfast.stores.files.folders import (
    Pattern,
    StoreFolders,
    check_file_name,
    is_hashed,
    key_of,
    pattern_of,
)
from holdfast.stores.files.members import changed_members
from holdfast.stores.files.records import RecordSet, StoredDocument, damaged
from holdfast.stores.files.redo import FileChange, content_of
from holdfast.system.folder_watch import FolderWatch

Keys = Callable[[], Iterable[str]]
"""Returns every key of a space that the store knows, to map hashed file names to keys."""

Pending = Mapping[Location, FileChange]
"""Committed changes that may not be in their files yet."""


class FolderCache(Generic[R]):
    """The records of a space with one file for each. Safe for threads, by a mutex: what the kernel
    reported to one thread, it does not report to another.

    In a folder with many files inotify reports the files to check. In any other folder each file
    is checked, every time.
    """

    def __init__(self, space: Space[R], layout: FilePerRecord[R], folder: Path, disk: Disk) -> None:
        self._space = space
        self._disk = disk
        self._pattern = pattern_of(layout.name)
        self._folder = folder / self._pattern.base
        self._mutex = threading.Lock()
        self._watch = FolderWatch(self._folder)
        self._records = RecordSet(space, layout.wire, {})
        self._news: dict[str, StoredDocument[R] | None] = {}
        """What was read since the record set was made."""
        self._signatures: dict[str, Signature] = {}
        """By key. A file that was too young when it was read has none here."""
        self._keys: dict[str, str] = {}
        """By the name in the folder."""
        self._suspects: set[str] = set()
        """Names to check. Each stays until that has succeeded."""
        self._any_suspect = True

    def one(self, key: str) -> StoredDocument[R] | None:
        """The entry under a key. Raises StoreUnavailable."""
        with self._mutex:
            signature = signature_of(self._location(key).path)
            if signature is None:
                return None
            if signature == self._signatures.get(key):
                return self._known(key)
            signature, entry = self._read(key)
            if signature is not None:
                self._learn(self._pattern.component(key), key, signature, entry)
            return entry

    def all(self, known: Keys) -> RecordSet[R]:
        """Every record. Raises StoreUnavailable."""
        with self._mutex:
            # inotify watches this folder, not those in it.
            if self._pattern.rest or len(self._keys) < FILES_WATCHED_FROM:
                self._watch.stop()
                changed = None
            else:
                changed = self._watch.changed()
            if changed is None:
                self._any_suspect = True
            else:
                self._suspects.update(filter(self._pattern.name_in, changed))
            if self._any_suspect:
                self._check_all(known)
            else:
                for name in list(self._suspects):
                    self._check(name, signature_of(self._path(name)), known)
            if self._news:
                self._records, self._news = self._records.changed(self._news), {}
            return self._records

    def remember(self, key: str, entry: StoredDocument[R] | None) -> None:
        """At the latch: note that this process has just written or removed (None) a file."""
        with self._mutex:
            signature = None if entry is None else signature_of(self._location(key).path)
            self._learn(self._pattern.component(key), key, signature, entry)

    def _check_all(self, known: Keys) -> None:
        seen: set[str] = set()
        for name, signature in self._listed():
            seen.add(name)
            self._check(name, signature, known)
        for name in self._keys.keys() - seen:
            self._check(name, None, known)
        self._suspects &= seen
        # Only now: a scan that fails half-way must be repeated.
        self._any_suspect = False

    def _check(self, name: str, signature: Signature | None, known: Keys) -> None:
        key = self._keys.get(name) or _key_of(self._pattern.name_in(name), known)
        if key is not None and (signature is None or signature != self._signatures.get(key)):
            signature, entry = (None, None) if signature is None else self._read(key)
            self._learn(name, key, signature, entry)
        self._suspects.discard(name)
        if key is None and is_hashed(name.removeprefix(self._pattern.prefix)):
            # The store may be about to commit the key of this hash.
            self._suspects.add(name)

    def _learn(
        self, name: str, key: str, signature: Signature | None, entry: StoredDocument[R] | None
    ) -> None:
        if entry is not self._known(key):
            self._news[key] = entry
        if entry is None:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key
        if entry is None or signature is None:
            self._signatures.pop(key, None)
        else:
            self._signatures[key] = signature

    def _known(self, key: str) -> StoredDocument[R] | None:
        return self._news[key] if key in self._news else self._records.entries.get(key)

    def _read(self, key: str) -> tuple[Signature | None, StoredDocument[R] | None]:
        try:
            found = self._disk.read(self._location(key))
        except UnusableFile as error:
            return None, StoredDocument(
                None, error=damaged(self._space, key, str(error), malformed=True)
            )
        if found is None:
            return None, None
        return found.signature if found.sure else None, _entry_of(self._space, key, found.data)

    def _listed(self) -> Iterator[tuple[str, Signature | None]]:
        # A generator, so that its `except OSError` does not catch a LockTimeout, an OSError too, of
        # the loop that uses it.
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if self._pattern.name_in(entry.name):
                        yield entry.name, self._signature(entry)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unreadable(self._folder, error) from None

    def _signature(self, entry: "os.DirEntry[str]") -> Signature | None:
        if self._pattern.rest:
            return signature_of(self._path(entry.name))
        try:
            return signature_of_stat(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._folder}/{self._pattern.path_of_component(name)}"

    def _location(self, key: str) -> Location:
        return Location(self._folder, self._pattern.path(key))


class _KnownFile(NamedTuple):
    signature: Signature | None
    """None when the file was too young for its signature to prove anything."""
    file: ParsedFile


class _KnownRecords(NamedTuple):
    file: ParsedFile
    records: RecordSet[Any]


class FileCache:
    """What was read, by file and by space. Threads share the values, which are never changed."""

    def __init__(self, folders: StoreFolders, disk: Disk) -> None:
        self.folders = folders
        self.disk = disk
        self._files: dict[Path, _KnownFile] = {}
        self._records: dict[Space[Any], _KnownRecords] = {}
        self._folder_caches: dict[Space[Any], FolderCache[Any]] = {}

    def file(self, space: Space[Any], layout: OneFile[Any], pending: Pending) -> ParsedFile:
        """The one file of a layout. Raises DamagedFile for no JSON, and StoreUnavailable."""
        location = self.location(layout)
        known = self._files.get(location.path)
        try:
            if location in pending:
                data = content_of(self.disk, pending[location])
                return NO_FILE if data is None else _parsed(data)
            if (
                known is not None
                and known.signature is not None
                and known.signature == signature_of(location.path)
            ):
                return known.file
            found = self.disk.read(location)
            if found is None:
                return NO_FILE
            if known is not None and known.file.data == found.data:
                file = known.file
            else:
                file = self._merged(space, layout, known, found.data) or _parsed(found.data)
        except (UnusableFile, ValueError) as error:
            raise DamagedFile(location, layout, space, str(error)) from None
        self._files[location.path] = _KnownFile(found.signature if found.sure else None, file)
        return file

    def _merged(
        self, space: Space[R], layout: OneFile[R], known: _KnownFile | None, data: bytes
    ) -> ParsedFile | None:
        """The new content of a file, of which only what has changed is parsed; None where the whole
        must be. Its records are noted.
        """
        records = self._records.get(space)
        if known is None or records is None or records.file is not known.file:
            return None
        changes = changed_members(layout, *records, data)
        if changes is None:
            return None
        file = ParsedFile(data, is_ours=True)
        self._records[space] = _KnownRecords(file, records.records.changed(changes))
        return file

    def file_records(
        self, space: Space[R], layout: OneFile[R], pending: Pending, *, was_written: bool
    ) -> tuple[ParsedFile, RecordSet[R]]:
        """The one file of a space, and its records. Raises DamagedFile or StoreUnavailable."""
        file = self.file(space, layout, pending)
        if was_written and file.data is None:
            # If it counted as empty, its records would seem deleted.
            raise DamagedFile(self.location(layout), layout, space, GONE)
        known = self._records.get(space)
        if known is not None and known.file is file:
            return known
        try:
            documents = documents_of(layout, file)
        except ValueError as error:
            raise DamagedFile(self.location(layout), layout, space, str(error)) from None
        # An unchanged document keeps its entry, and so its decoded record.
        before = {} if known is None else known.records.entries
        entries: dict[str, StoredDocument[R]] = {}
        for key, document in documents.items():
            old = before.get(key)
            # Compared as JSON too: for Python 1, 1.0 and True are equal.
            if old is not None and (
                old.document is document
                or (old.document == document and to_json(old.document) == to_json(document))
            ):
                entries[key] = old
            else:
                entries[key] = StoredDocument(document)
        records = RecordSet(space, layout.wire, entries)
        self._records[space] = _KnownRecords(file, records)
        return file, records

    def record(
        self, space: Space[R], layout: FilePerRecord[R], key: str, pending: Pending
    ) -> StoredDocument[R] | None:
        """The record in a key's own file. Raises StoreUnavailable."""
        if pending and (location := self.location_of(layout, key)) in pending:
            return _pending_entry(space, key, pending[location])
        return self.folder_cache(space, layout).one(key)

    def records(
        self, space: Space[R], layout: FilePerRecord[R], pending: Pending, known_keys: Keys
    ) -> RecordSet[R]:
        """The records of a space with a file for each. Raises StoreUnavailable."""
        records = self.folder_cache(space, layout).all(known_keys)
        if not pending:
            return records
        folder, pattern = self._folder(layout)
        written: dict[str, StoredDocument[R] | None] = {}
        for location, change in pending.items():
            component, _, rest = location.name.partition("/")
            is_ours = location.folder == folder and rest == pattern.rest
            key = _key_of(pattern.name_in(component) if is_ours else None, known_keys)
            if key is not None:
                written[key] = _pending_entry(space, key, change)
        return records.changed(written)

    def remember_file(
        self, location: Location, file: ParsedFile, records: Mapping[Space[Any], RecordSet[Any]]
    ) -> None:
        """Note that this process has just written a file, at the latch."""
        self._files[location.path] = _KnownFile(signature_of(location.path), file)
        for space, found in records.items():
            self._records[space] = _KnownRecords(file, found)

    def refuse_missing_folder(
        self, layout: FilePerRecord[Any], pending: Pending, known_keys: Keys
    ) -> None:
        """Raise StoreCorrupt when the folder of a space with records does not exist: most likely it
        is not mounted, and the records would seem deleted.
        """
        folder, _ = self._folder(layout)
        if (
            folder.is_dir()
            or any(location.folder == folder for location in pending)
            or not any(True for _ in known_keys())
        ):
            return
        raise StoreCorrupt(
            f"{folder} is gone, with the records in it: mount it or put it back, or make an empty "
            "folder to continue without them",
            path=str(folder),
            aside=None,
            restored=False,
            why="it is gone",
        )

    def location(self, layout: OneFile[Any]) -> Location:
        return Location(self.folders.of(layout.folder), check_file_name(layout.name))

    def location_of(self, layout: FilePerRecord[Any], key: str) -> Location:
        folder, pattern = self._folder(layout)
        return Location(folder, pattern.path(key))

    def forget(self) -> None:
        """Read every file again from now on."""
        self._files, self._records, self._folder_caches = {}, {}, {}

    def _folder(self, layout: FilePerRecord[Any]) -> tuple[Path, Pattern]:
        pattern = pattern_of(layout.name)
        return self.folders.of(layout.folder) / pattern.base, pattern

    def folder_cache(self, space: Space[R], layout: FilePerRecord[R]) -> FolderCache[R]:
        known = self._folder_caches.get(space)
        if known is None:
            # Another thread may have made one meanwhile, and all must share one.
            known = self._folder_caches.setdefault(
                space, FolderCache(space, layout, self.folders.of(layout.folder), self.disk)
            )
        return known


def _key_of(name: str | None, known: Keys) -> str | None:
    return key_of(name, known() if is_hashed(name) else ()) if name else None


def _parsed(data: bytes) -> ParsedFile:
    """Raises ValueError for bytes that are no JSON."""
    file = ParsedFile(data)
    file.value  # noqa: B018 - parsed for its error
    return file


def _entry_of(space: Space[R], key: str, data: bytes) -> StoredDocument[R]:
    try:
        return StoredDocument(parse(data))
    except ValueError as error:
        return StoredDocument(None, error=damaged(space, key, str(error), malformed=True))


def _pending_entry(space: Space[R], key: str, change: FileChange) -> StoredDocument[R] | None:
    return None if change.data is None else _entry_of(space, key, change.data)
