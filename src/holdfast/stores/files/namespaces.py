"""The namespaces of a files store, each with its files and its part of the inner store, for work on
a store as a whole.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.kernel.errors import LockTimeout, StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.stores.files.cache import FileCache
from holdfast.stores.files.disk import Location, UnusableFile
from holdfast.stores.files.documents import DamagedFile
from holdfast.stores.files.folders import file_layout, lock_path, lock_paths
from holdfast.stores.files.records import Entry
from holdfast.stores.files.redo import (
    GENERATIONS,
    REDO,
    Change,
    apply_changes,
    clear_redo,
    read_redo,
    revision_space,
)
from holdfast.stores.files.repair import GONE
from holdfast.stores.files.store import FilesStore
from holdfast.stores.sqlite.store import SqliteStore

Spaces = Sequence[Space[Any]]


class NamespaceFiles(NamedTuple):
    """The files of a namespace, and its part of the inner store."""

    namespace: str
    cache: FileCache
    inner: SqliteStore

    def pending(self) -> dict[Location, Change]:
        """The committed changes that may not be in their files yet."""
        return self.inner.read(lambda tx: read_redo(tx, self.cache.folders), scope=[REDO])

    def keys(self, space: Space[Any]) -> list[str]:
        """Every key of a space in files that the inner store knows."""
        known = revision_space(space)
        return self.inner.read(lambda tx: [row.key for row in tx.range(known)], scope=[known])

    def entries(self, space: Space[Any]) -> Mapping[str, Entry[Any]]:
        """The records of a space in files, damaged ones included. Raises DamagedFile, StoreCorrupt
        or StoreUnavailable.
        """
        layout, pending = file_layout(space), self.pending()
        if isinstance(layout, OneFile):
            file, records = self.cache.file_records(space, layout, pending)
            if file.data is None and self.inner.get(GENERATIONS, space.name) is not None:
                raise DamagedFile(self.cache.location(layout), layout, space, GONE)
            return records.entries
        assert layout is not None
        self.cache.refuse_missing_folder(layout, pending, lambda: self.keys(space))
        return self.cache.records(space, layout, pending, lambda: self.keys(space)).entries

    def recover(self) -> None:
        """At the latch: apply the redo record. Raises LockTimeout and StoreUnavailable."""
        folders = self.cache.folders
        try:
            # In a durable transaction: after a power loss no file may be ahead of the inner store.
            left = self.inner.transact(lambda tx: read_redo(tx, folders), scope=[REDO])
            apply_changes(self.cache.disk, left.values(), staged=False)
        except LockTimeout:
            # A LockTimeout is an OSError too, but no error of the disk.
            raise
        except (OSError, UnusableFile) as error:
            raise StoreUnavailable(
                f"the last change could not be completed in the files of {folders.root} ({error}): "
                "correct that, and the next change completes it",
                path=str(folders.root),
                outcome="unknown",
            ) from None
        self.inner.transact(clear_redo, scope=[REDO], durable=False)

    def locations(self, spaces: Spaces) -> list[Location]:
        """Where every existing file of the spaces is."""
        found: dict[Location, None] = {}
        for space in spaces:
            layout = file_layout(space)
            if isinstance(layout, OneFile):
                found[self.cache.location(layout)] = None
            elif isinstance(layout, FilePerRecord):
                records = self.cache.records(space, layout, {}, lambda s=space: self.keys(s))  # type: ignore[misc]
                found |= {
                    self.cache.location_of(layout, key): None for key in sorted(records.entries)
                }
        return [location for location in found if os.path.lexists(location.path)]

    def shared_files(self, spaces: Spaces) -> list[Location]:
        """Where the files of several records are, whether or not they exist."""
        layouts = map(file_layout, spaces)
        return [self.cache.location(layout) for layout in layouts if isinstance(layout, OneFile)]

    def locks(self, spaces: Spaces) -> dict[Path, Path]:
        """The lock of each folder that other programs change too, by the folder."""
        layouts = [layout for space in spaces if (layout := file_layout(space)) is not None]
        paths = (lock_path(self.cache.folders, layout) for layout in layouts)
        return {path.parent: path for path in paths if path is not None}

    def current_files(self, spaces: Spaces) -> list[Change]:
        """Every file as it is now. Raises StoreCorrupt for one that is no plain file."""
        changes = []
        locks = self.locks(spaces)
        # Kept as `.bak` when they are restored, as at any change. Otherwise a `.bak` of before the
        # restore would stay, and could replace restored records later.
        kept = set(self.shared_files(spaces))
        for location in self.locations(spaces):
            try:
                found = self.cache.disk.read(location)
            except UnusableFile as error:
                raise StoreCorrupt(
                    f"{location.path} cannot be backed up: {error}. Move it away and try again",
                    path=str(location.path),
                ) from None
            if found is not None:
                lock = locks.get(location.folder)
                changes.append(Change(location, found.data, keep=location in kept, lock=lock))
        return changes


def all_locks(store: FilesStore, spaces: Spaces) -> tuple[Path, ...]:
    """The locks of shared folders, of all namespaces, in their order."""
    folders = (store.folders_of(namespace) for namespace in _namespaces_of(store))
    return tuple(sorted({path for each in folders for path in lock_paths(each, spaces)}))


@contextmanager
def open_namespaces(store: FilesStore) -> Iterator[list[NamespaceFiles]]:
    """Every namespace that has files."""
    with ExitStack() as stack:
        found = []
        for name in _namespaces_of(store):
            if name == store.namespace:
                found.append(NamespaceFiles(name, store.cache, store.inner))
                continue
            cache, inner = store.open_namespace(name)
            found.append(NamespaceFiles(name, cache, stack.enter_context(closing(inner))))
        yield found


def _namespaces_of(store: FilesStore) -> list[str]:
    return sorted({store.namespace, *namespace_names(store.folders.own)})


def namespace_names(own: Path) -> list[str]:
    """The default namespace, and those that have a folder."""
    folder = own / "namespaces"
    return sorted({DEFAULT_NAMESPACE, *(os.listdir(folder) if folder.is_dir() else [])})
