"""Copies of a whole files store to another store, and from another store to a new files store."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET

from holdfast.kernel import token
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import Collision, StoreCorrupt
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.stores.copy import Contents, StoredRecord
from holdfast.stores.files.cache import FileCache
from holdfast.stores.files.disk import Disk, Location
from holdfast.stores.files.documents import DamagedFile, render, with_documents
from holdfast.stores.files.folders import StoreFolders, file_layout, lock_path
from holdfast.stores.files.maintenance import NamespaceFiles, all_locks, open_namespaces
from holdfast.stores.files.records import ADOPTED, StoredDocument
from holdfast.stores.files.redo import (
    GENERATIONS,
    REDO,
    FileChange,
    RevisionMark,
    mark_of,
    redo_rows,
    revision_space,
)
from holdfast.stores.files.store import FilesStore, make_root
from holdfast.stores.sqlite import copy
from holdfast.system.access import PRIVATE, Access

T = TypeVar("T")

Spaces = Sequence[Space[Any]]
GivenFolders = Mapping[str, str | Path]

_MARK = GENERATIONS.encode(RevisionMark())


def use_contents(store: FilesStore, spaces: Spaces, use: Callable[[Contents], T]) -> T:
    """Call `use` with everything in the store, files included, as of one moment. Other changes wait
    meanwhile.

    Raises SchemaTooNew for an unknown space, and StoreCorrupt for a damaged file; the iterator of
    records raises RecordInvalid.
    """

    def work() -> T:
        with open_namespaces(store) as namespaces:
            for each in namespaces:
                each.recover()
            with copy.contents(store.inner, _inner_spaces(spaces)) as inner:
                found = [
                    _FoundRecords(each, space, _entries(each, space))
                    for each in namespaces
                    for space in spaces
                    if file_layout(space)
                ]
                counts = {space.name: inner.counts.get(space.name, 0) for space in spaces}
                # The inner store counts revisions. A record that a person added has none.
                counts |= dict.fromkeys((one.space.name for one in found), 0)
                for one in found:
                    counts[one.space.name] += len(one.entries)
                return use(Contents(inner.era, counts, _records(inner, found), inner.journal))

    return store.exclusively(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def fill(
    root: Path,
    contents: Contents,
    spaces: Spaces,
    *,
    given: GivenFolders,
    boot_id: str,
    access: Access = PRIVATE,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Make a new store of another one's contents, all or nothing, in a later era.

    It first makes an inner store with a redo record of every file: killed after that, the next
    change writes the files. `ready` is called once everything is written, and may raise to undo it.
    Raises Collision when the folder has such files, and as `fill` of a SQLite store does.
    """
    root = Path(root)
    folders = StoreFolders(root, DEFAULT_NAMESPACE, given)
    for space in spaces:
        _refuse_existing(FileCache(folders, Disk(1, 0)), space)
    make_root(root, access)
    namespaces = {DEFAULT_NAMESPACE}
    copy.fill(
        folders.own / "store.sqlite",
        contents._replace(records=_inner_records(contents, root, given, namespaces)),
        _inner_spaces(spaces),
        access=access,
        ready=ready,
    )
    for namespace in sorted(namespaces):
        with closing(
            FilesStore(root, boot_id=boot_id, namespace=namespace, folders=given, access=access)
        ) as store:
            store.exclusively(lambda: None, TRANSACT_TIMEOUT_S)


class _FoundRecords(NamedTuple):
    files: NamespaceFiles
    space: Space[Any]
    entries: Mapping[str, StoredDocument[Any]]


def _inner_spaces(spaces: Spaces) -> list[Space[Any]]:
    return [
        *(revision_space(space) if file_layout(space) else space for space in spaces),
        REDO,
        GENERATIONS,
    ]


def _entries(files: NamespaceFiles, space: Space[Any]) -> Mapping[str, StoredDocument[Any]]:
    try:
        return files.entries(space)
    except DamagedFile as damage:
        raise StoreCorrupt(
            f"{damage.location.path} is damaged ({damage.why}): read the store once, which "
            "restores it, and copy again",
            path=str(damage.location.path),
        ) from None


def _records(inner: Contents, found: Sequence[_FoundRecords]) -> Iterator[StoredRecord]:
    """The records of the inner store, then those in files with their revisions in it."""
    in_files = {one.space.name for one in found}
    marks: dict[tuple[str, str, str], StoredRecord] = {}
    for kept in inner.records:
        if kept.space.name in in_files:
            marks[kept.space.name, kept.namespace, kept.key] = kept
        elif kept.space not in (REDO, GENERATIONS):
            yield kept
    for files, space, entries in found:
        layout = file_layout(space)
        assert layout is not None
        for key in sorted(entries):
            mark = marks.get((space.name, files.namespace, key))
            revision = ADOPTED if mark is None else mark.revision
            record = entries[key].record(space, key, layout.wire)
            if mark is not None:
                aside = mark.space.decode(key, mark.value).aside
                record = record if aside is UNSET else layout.wire.rejoin(record, aside)
            yield StoredRecord(space, files.namespace, key, revision, space.encode(record))


def _inner_records(
    contents: Contents, root: Path, given: GivenFolders, namespaces: set[str]
) -> Iterator[StoredRecord]:
    """The inner store's records: for a record in files its revision, and a redo record of all.
    Adds the namespaces with files to `namespaces`.
    """
    documents: dict[str, dict[Space[Any], dict[str, Any]]] = {}
    for kept in contents.records:
        layout = file_layout(kept.space)
        if layout is None:
            yield kept
            continue
        record, inner = kept.space.decode(kept.key, kept.value), revision_space(kept.space)
        document = to_plain(layout.wire.write(record))
        documents.setdefault(kept.namespace, {}).setdefault(kept.space, {})[kept.key] = document
        mark = inner.encode(mark_of(kept.space, layout.wire, record))
        yield StoredRecord(inner, kept.namespace, kept.key, kept.revision, mark)
    revision = token.first(contents.era)
    for namespace, by_space in documents.items():
        namespaces.add(namespace)
        cache = FileCache(StoreFolders(root, namespace, given), Disk(1, 0))
        for key, part in redo_rows(cache.folders, _changes(cache, by_space)):
            yield StoredRecord(REDO, namespace, key, revision, REDO.encode(part))
        for space in by_space:
            yield StoredRecord(GENERATIONS, namespace, space.name, revision, _MARK)


def _changes(
    cache: FileCache, by_space: Mapping[Space[Any], Mapping[str, Any]]
) -> Iterator[FileChange]:
    files: dict[Location, tuple[Any, Path | None]] = {}
    for space, documents in by_space.items():
        layout = file_layout(space)
        assert layout is not None
        lock = lock_path(cache.folders, layout)
        if isinstance(layout, OneFile):
            location = cache.location(layout)
            value, _ = files.get(location, (None, None))
            files[location] = with_documents(layout, value, documents), lock
            continue
        for key, document in documents.items():
            location = cache.location_of(layout, key)
            yield FileChange(location, render(document), keep=False, lock=lock)
    for location, (value, lock) in files.items():
        yield FileChange(location, render(value), keep=False, lock=lock)


def _refuse_existing(cache: FileCache, space: Space[Any]) -> None:
    layout = file_layout(space)
    existing: Path | None = None
    if isinstance(layout, OneFile) and os.path.lexists(cache.location(layout).path):
        existing = cache.location(layout).path
    elif isinstance(layout, FilePerRecord) and (
        entries := cache.records(space, layout, {}, tuple).entries
    ):
        existing = cache.location_of(layout, min(entries)).path
    if existing is not None:
        raise Collision(f"the target has {existing}: a copy needs a new store", path=str(existing))
