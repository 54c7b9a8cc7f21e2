"""From the records that a transaction changed to the files that must change."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import Space
from holdfast.stores.files.cache import FileCache
from holdfast.stores.files.disk import Location
from holdfast.stores.files.documents import ParsedFile, members, render, with_documents
from holdfast.stores.files.folders import lock_path
from holdfast.stores.files.records import Entry
from holdfast.stores.files.redo import Change
from holdfast.stores.files.transaction import SpaceView


class RecordFile(NamedTuple):
    """The new state of a record with a file of its own; no entry: it is removed."""

    space: Space[Any]
    layout: FilePerRecord[Any]
    key: str
    entry: Entry[Any] | None


class FileChanges(NamedTuple):
    """The new files of a transaction: those with several records, with the spaces in each, and
    those with one.
    """

    files: dict[Location, tuple[ParsedFile, list[SpaceView[Any]]]]
    records: list[RecordFile]

    def changes(self, cache: FileCache) -> list[Change]:
        """The files to write or remove."""
        found = [
            Change(
                location,
                file.data,
                keep=True,
                lock=lock_path(cache.folders, views[0].layout),
                delta=_delta(file, views[0]),
            )
            for location, (file, views) in self.files.items()
        ]
        for _, layout, key, entry in self.records:
            data = None if entry is None else render(entry.document)
            location = cache.location_of(layout, key)
            lock = lock_path(cache.folders, layout)
            found.append(Change(location, data, keep=False, lock=lock))
        return found

    def remember(self, cache: FileCache) -> None:
        """Put the content of the files into the cache, once they are in place."""
        for location, (file, views) in self.files.items():
            records = {view.space: view.overlay.records() for view in views}
            cache.remember_file(location, file, records)
        for each in self.records:
            cache.remember_record(*each)


def file_changes(views: Iterable[SpaceView[Any]], cache: FileCache) -> FileChanges:
    """The new files of the changed spaces."""
    found = FileChanges({}, [])
    for view in views:
        if isinstance(view.layout, FilePerRecord):
            for key, entry in sorted(view.overlay.changed.items()):
                found.records.append(RecordFile(view.space, view.layout, key, entry))
            continue
        assert view.file is not None
        location = cache.location(view.layout)
        file, others = found.files.get(location, (view.file, []))
        found.files[location] = ParsedFile(_content(view, view.layout, file)), [*others, view]
    return found


def _content(view: SpaceView[Any], layout: OneFile[Any], file: ParsedFile) -> bytes:
    records = view.overlay.records()
    entries = records.entries
    if _is_whole_file(layout):
        # Joined from members that were rendered before: of a thousand records one is new.
        return members(
            [entries[key].written or entries[key].rendered(key) for key in records.sorted_keys()]
        )
    documents = {key: entry.document for key, entry in entries.items()}
    return render(with_documents(layout, file.value, documents))


def _delta(file: ParsedFile, view: SpaceView[Any]) -> bytes | None:
    """The changed documents by key, null for a removed one; None where the whole file is shorter,
    or is more than this space's documents by key.
    """
    if not _is_whole_file(view.layout) or view.file is None or view.file.data is None:
        return None
    delta = to_json(
        {
            key: None if entry is None else entry.document
            for key, entry in view.overlay.changed.items()
        }
    )
    return delta if len(delta) < len(file.data or b"") else None


def _is_whole_file(layout: OneFile[Any] | FilePerRecord[Any]) -> bool:
    """Is the file an object of this space's documents by key, and nothing else?"""
    return isinstance(layout, OneFile) and layout.part is None and layout.gather is dict
