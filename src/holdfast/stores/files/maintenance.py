"""A files store as a whole, with all its namespaces: check, backup and restore.

A backup is one file: the inner store with a redo record of every file. To restore it is to restore
the inner store; then the redo record is applied, as after any change. Killed at any moment, a
restore is complete or has not begun.
"""

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Corrupt, StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.kernel.store import Administration, Tx
from holdfast.stores.checks import no_record
from holdfast.stores.files.cache import FileCache
from holdfast.stores.files.disk import Location, UnusableFile, backup_of
from holdfast.stores.files.documents import DamagedFile, documents_of
from holdfast.stores.files.folders import StoreFolders, file_layout, lock_paths, pattern_of
from holdfast.stores.files.latch import recover
from holdfast.stores.files.records import StoredDocument
from holdfast.stores.files.redo import (
    GENERATIONS,
    REDO,
    FileChange,
    read_redo,
    redo_rows,
    revision_space,
    write_redo,
)
from holdfast.stores.files.store import FilesStore
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite import maintenance, schema
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import access_like, make_one_folder
from holdfast.system.sync import sync_path

Spaces = Sequence[Space[Any]]


class NamespaceFiles(NamedTuple):
    """The files of a namespace, and its part of the inner store."""

    namespace: str
    cache: FileCache
    inner: SqliteStore

    def pending(self) -> dict[Location, FileChange]:
        """The committed changes that may not be in their files yet."""
        return self.inner.read(lambda tx: read_redo(tx, self.cache.folders), scope=[REDO])

    def keys(self, space: Space[Any]) -> list[str]:
        """Every key of a space in files that the inner store knows."""
        known = revision_space(space)
        return self.inner.read(lambda tx: [row.key for row in tx.range(known)], scope=[known])

    def entries(self, space: Space[Any]) -> Mapping[str, StoredDocument[Any]]:
        """The records of a space in files, damaged ones included. Raises DamagedFile, StoreCorrupt
        or StoreUnavailable.
        """
        layout, pending = file_layout(space), self.pending()
        if isinstance(layout, OneFile):
            was_written = self.inner.get(GENERATIONS, space.name) is not None
            _, found = self.cache.file_records(space, layout, pending, was_written=was_written)
            return found.entries
        assert layout is not None
        self.cache.refuse_missing_folder(layout, pending, lambda: self.keys(space))
        return self.cache.records(space, layout, pending, lambda: self.keys(space)).entries

    def recover(self) -> None:
        """At the latch, with all locks: apply the redo record. Raises LockTimeout and
        StoreUnavailable.
        """
        deadline = time.monotonic() + TRANSACT_TIMEOUT_S
        folders, disk = self.cache.folders, self.cache.disk
        recover(folders, self.inner, disk, None, deadline, outcome="unknown")

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
        return {path.parent: path for path in lock_paths(self.cache.folders, spaces)}

    def current_files(self, spaces: Spaces) -> list[FileChange]:
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
                changes.append(FileChange(location, found.data, keep=location in kept, lock=lock))
        return changes


def all_locks(store: FilesStore, spaces: Spaces) -> tuple[Path, ...]:
    """The locks of shared folders, of all namespaces, in their order."""
    folders = map(store.folders_of, {store.namespace, *namespace_names(store.folders.own)})
    return tuple(sorted({path for each in folders for path in lock_paths(each, spaces)}))


@contextmanager
def open_namespaces(store: FilesStore) -> Iterator[list[NamespaceFiles]]:
    """Every namespace that has files."""
    found = [NamespaceFiles(store.namespace, store.cache, store.inner)]
    with ExitStack() as stack:
        for name in namespace_names(store.folders.own):
            if name != store.namespace:
                inner = stack.enter_context(closing(store.inner_of(name)))
                cache = FileCache(store.folders_of(name), store.disk)
                found.append(NamespaceFiles(name, cache, inner))
        yield sorted(found, key=attrgetter("namespace"))


def namespace_names(own: Path) -> list[str]:
    """The default namespace, and those that have a folder."""
    folder = own / "namespaces"
    return sorted({DEFAULT_NAMESPACE, *(os.listdir(folder) if folder.is_dir() else [])})


class FilesAdministration(Administration):
    def __init__(self, store: FilesStore) -> None:
        super().__init__(store.kind)
        self._store = store

    def check(self, spaces: Spaces) -> list[str]:
        inner = [revision_space(space) if file_layout(space) else space for space in spaces]
        found = self._store.inner.administration.check([*inner, REDO, GENERATIONS])
        with open_namespaces(self._store) as namespaces:
            for each in namespaces:
                for space in spaces:
                    found += [f"{each.namespace}: {problem}" for problem in _problems(each, space)]
        return found

    def content(self, space: Space[Any], key: str) -> bytes:
        """A record as it is in its file, damaged or not. Raises NotFound, and StoreCorrupt for a
        file that cannot be read.
        """
        store, layout = self._store, file_layout(space)
        if layout is None:
            return store.inner.administration.content(space, key)
        files = NamespaceFiles(store.namespace, store.cache, store.inner)
        found: bytes | None = None
        if isinstance(layout, OneFile):
            # A read restores a damaged file, if that can be done, and reports it.
            store.read(lambda _: None, scope=[space])
            entry = files.entries(space).get(key)
            found = None if entry is None else to_json(entry.document)
        else:
            pending = files.pending()
            location = store.cache.location_of(layout, key)
            with suppress(UnusableFile):
                read = store.disk.read(location)
                if location in pending:
                    found = pending[location].data
                elif read is not None:
                    found = read.data
        if found is None:
            raise no_record(space, key, store.namespace)
        return found

    def backup(self, spaces: Spaces, target: Path) -> None:
        """Write the inner store and all files, of all namespaces and as of one moment, to one new
        file. Other changes wait meanwhile. Raises StoreCorrupt for a damaged file too.
        """
        store = self._store

        def work() -> None:
            with open_namespaces(store) as namespaces:
                found = _recovered_files(namespaces, spaces)
                # The redo record goes into the copy alone. In the store, a kill before its removal
                # would let it overwrite what a person writes into the files afterwards.
                inner = maintenance.SqliteAdministration(store.inner)
                inner.backup(spaces, target, lambda raw: _put_files(raw, found))

        store.exclusively(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def restore(
    store: FilesStore, spaces: Spaces, source: Path, *, boot_id: str, save: bool = True
) -> Path | None:
    """Replace the store by a backup, files included, in a new era. Files of records that the backup
    does not have are removed. Return where the replaced store is saved, as a backup with all its
    files; None without `save`.

    Killed at any moment, it is completed by the next change or has not begun. Raises as a restore
    of a SQLite store does, and StoreCorrupt for a file that cannot be saved.
    """

    def work() -> Path | None:
        with open_namespaces(store) as namespaces, _copied(store, source) as prepared:
            saving = None
            if save:
                found = _recovered_files(namespaces, spaces)
                saving = maintenance.Saving(complete=lambda raw: _put_files(raw, found))
            for each in namespaces:
                _add_removals(prepared, each, spaces, boot_id)
            saved = maintenance.restore(store.inner.path, prepared, boot_id=boot_id, saving=saving)
        with open_namespaces(store) as namespaces:
            for each in namespaces:
                each.recover()
        store.cache.forget()
        return saved

    return store.exclusively(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def replace_inner(
    root: Path, given: Mapping[str, str], spaces: Spaces, source: Path, *, boot_id: str
) -> Path | None:
    """Replace a store whose inner store cannot be opened by a backup. Return where the damaged one
    is saved; its files are then copied to the folder `<saved>-files`.

    The backup's files are written when the store is next opened. Files of records that the backup
    does not have stay.
    """
    own = StoreFolders(root, DEFAULT_NAMESPACE, given).own

    def set_aside(saved: Path) -> None:
        target = saved.with_name(f"{saved.name}-files")
        temporary = target.with_name(f".{target.name}.tmp")
        make_one_folder(temporary, access_like(own))
        try:
            for namespace in namespace_names(own):
                for each in _existing(StoreFolders(root, namespace, given), spaces):
                    _copy_tree(each, temporary / namespace, without=own)
            _sync_tree(temporary)
            os.rename(temporary, target)
        except shutil.Error as error:
            raise StoreUnavailable(str(error), outcome="none") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    return maintenance.restore(
        own / "store.sqlite",
        source,
        boot_id=boot_id,
        saving=maintenance.Saving(set_aside=set_aside),
    )


def _recovered_files(
    namespaces: Iterable[NamespaceFiles], spaces: Spaces
) -> list[tuple[NamespaceFiles, list[FileChange]]]:
    for each in namespaces:
        each.recover()
    return [(each, each.current_files(spaces)) for each in namespaces]


def _put_files(
    raw: sqlite3.Connection, found: Iterable[tuple[NamespaceFiles, list[FileChange]]]
) -> None:
    """Write a redo record of the files into a copy of the inner store."""
    table = table_of(REDO, schema.DIALECT)
    for space in (REDO, GENERATIONS):
        schema.declare(raw, space)
    raw.execute(f"DELETE FROM {table.name}")
    last = raw.execute(schema.LAST_REVISION).fetchone()[0]
    for files, changes in found:
        rows = redo_rows(files.cache.folders, changes)
        raw.executemany(
            table.insert, ((files.namespace, key, last, REDO.encode(row)) for key, row in rows)
        )


def _add_removals(prepared: Path, files: NamespaceFiles, spaces: Spaces, boot_id: str) -> None:
    """Let the redo record of a backup also remove the files that the backup does not have. Raises
    StoreCorrupt for a backup of another kind of store.
    """
    folders, locks = files.cache.folders, files.locks(spaces)
    locations = [*files.locations(spaces), *files.shared_files(spaces)]
    with closing(SqliteStore(prepared, boot_id=boot_id, namespace=files.namespace)) as copy:
        with copy.durable.lend() as connection:
            if schema.outdated(connection.raw, [GENERATIONS]):
                raise StoreCorrupt(
                    "this is a backup of another kind of store: give one of a files store"
                )

        def extend(tx: Tx) -> None:
            changes = read_redo(tx, folders)
            removed = []
            for location in locations:
                if location not in changes:
                    removed.append(location)
                    # Its `.bak` too, from which the file could be restored later.
                    if os.path.lexists((before := location.sibling(backup_of)).path):
                        removed.append(before)
            gone = [
                FileChange(location, None, keep=False, lock=locks.get(location.folder))
                for location in removed
            ]
            write_redo(tx, folders, [*changes.values(), *gone])

        copy.transact(extend, scope=[REDO])


@contextmanager
def _copied(store: FilesStore, source: Path) -> Iterator[Path]:
    """A private copy of a backup, in a folder of its own: opening it makes files beside it."""
    maintenance.refuse_missing(source)
    folder = store.folders.own / f"restore-{secrets.token_hex(4)}"
    make_one_folder(folder)
    try:
        try:
            copy = shutil.copyfile(source, folder / "store.sqlite")
        except OSError as error:
            raise StoreUnavailable(
                f"cannot copy {source} ({error.strerror}): check it and the disk", outcome="none"
            ) from None
        # Outside the inner `try`: a LockTimeout of the block is an OSError, but no failure to copy.
        yield Path(copy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _problems(files: NamespaceFiles, space: Space[Any]) -> Iterator[str]:
    layout = file_layout(space)
    if layout is None:
        return
    try:
        entries = files.entries(space)
    except (DamagedFile, StoreCorrupt, StoreUnavailable) as error:
        yield str(error)
        return
    if isinstance(layout, OneFile):
        # Is the previous version of the file fit to restore it from?
        path = files.cache.location(layout).path
        kept = replace(layout, name=backup_of(layout.name))
        try:
            documents_of(kept, files.cache.file(space, kept, {}))
        except StoreUnavailable as error:
            yield str(error)
        except (DamagedFile, ValueError) as error:
            yield (
                f"{backup_of(str(path))}, the previous version, is damaged ({error}): the next "
                "change replaces it"
            )
    for key in sorted(entries):
        try:
            entries[key].places(space, key, layout.wire)
        except Corrupt as error:
            yield error.message


def _existing(folders: StoreFolders, spaces: Spaces) -> set[Location]:
    """The files of several records with their `.bak`, and the folders of the others."""
    found: set[Location] = set()
    for space in spaces:
        layout = file_layout(space)
        if isinstance(layout, OneFile):
            folder = folders.of(layout.folder)
            found |= {Location(folder, layout.name), Location(folder, backup_of(layout.name))}
        elif layout is not None:
            found.add(Location(folders.of(layout.folder), pattern_of(layout.name).base))
    return {location for location in found if location.path.exists()}


def _copy_tree(location: Location, target: Path, *, without: Path) -> None:
    """Copy a file or a folder, except `without`, the store's own folder: the target is in it."""
    copy = target / location.folder.name / location.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if location.path.is_dir():

        def skip(folder: str, _: list[str]) -> list[str]:
            return [without.name] if Path(folder) == without.parent else []

        shutil.copytree(location.path, copy, symlinks=True, ignore=skip, dirs_exist_ok=True)
    else:
        shutil.copy2(location.path, copy, follow_symlinks=False)


def _sync_tree(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for each in (path, *(os.path.join(path, name) for name in names)):
            if not os.path.islink(each):
                sync_path(each)
