"""Check, backup and restore of a files store.

A backup is one file: the inner store, with a redo record in it that holds every file. So a restore
is that of the inner store, after which the files are brought up as after any change: killed at any
moment, it is done or not begun.
"""

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Corrupt, LockTimeout, NotFound, StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.kernel.store import Administration, Tx
from holdfast.stores.files import redo
from holdfast.stores.files.apply import bring_up
from holdfast.stores.files.cache import Cabinet
from holdfast.stores.files.disk import Spot, Unfit, backup_of
from holdfast.stores.files.documents import Unsound, documents_of, pattern_of
from holdfast.stores.files.folder_lock import locks_of
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.record_set import Entry
from holdfast.stores.files.redo import GENERATIONS, REDO, Change, laid_out, shadow_of
from holdfast.stores.files.repair import GONE
from holdfast.stores.files.store import FilesStore
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite import maintenance, schema
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import access_like, make_one_folder

Spaces = Sequence[Space[Any]]


class Part(NamedTuple):
    """The files of a namespace, and its part of the inner store."""

    namespace: str
    cabinet: Cabinet
    inner: SqliteStore

    def pending(self) -> dict[Spot, Change]:
        """The changes whose files may not be as they should yet."""
        return self.inner.read(lambda tx: redo.pending(tx, self.cabinet.folders), scope=[REDO])

    def keys(self, space: Space[Any]) -> list[str]:
        """Every key that the inner store knows of a space in files."""
        shadow = shadow_of(space)
        return self.inner.read(lambda tx: [row.key for row in tx.range(shadow)], scope=[shadow])


class FilesAdministration(Administration):
    """The files and the inner store, as one."""

    def __init__(self, store: FilesStore) -> None:
        super().__init__(store.kind)
        self._store = store

    def check(self, spaces: Spaces) -> list[str]:
        return check(self._store, spaces)

    def content(self, space: Space[Any], key: str) -> bytes:
        return content(self._store, space, key)

    def backup(self, spaces: Spaces, target: Path) -> None:
        backup(self._store, spaces, target)


def check(store: FilesStore, spaces: Spaces) -> list[str]:
    """Look at every file, record and journal entry and return what is wrong, a line each; nothing
    is changed.
    """
    inner = [shadow_of(space) if laid_out(space) else space for space in spaces]
    found = store.inner.administration.check([*inner, REDO, GENERATIONS])
    with parts_of(store) as parts:
        for part in parts:
            for space in spaces:
                found += [f"{part.namespace}: {wrong}" for wrong in _wrong(part, space)]
    return found


def content(store: FilesStore, space: Space[Any], key: str) -> bytes:
    """A record as it lies in its file, damaged or not. Raises NotFound, and StoreCorrupt for a file
    of which nothing can be read.
    """
    layout = laid_out(space)
    if layout is None:
        return store.inner.administration.content(space, key)
    part = Part(store.namespace, store.cabinet, store.inner)
    found: bytes | None = None
    if isinstance(layout, OneFile):
        # Any read mends such a file, if that can be done, and tells of it.
        store.read(lambda _: None, scope=[space])
        entry = entries_of(part, space).get(key)
        found = None if entry is None else to_json(entry.document)
    else:
        pending = part.pending()
        spot = store.cabinet.spot_of(layout, key)
        with suppress(Unfit):
            read = store.disk.read(spot)
            found = pending[spot].data if spot in pending else None if read is None else read.data
    if found is None:
        raise NotFound(
            f"there is no {space.name}/{key} in namespace {store.namespace}",
            space=space.name,
            key=key,
        )
    return found


def backup(store: FilesStore, spaces: Spaces, target: Path) -> None:
    """Write the inner store and all files, of all namespaces and as of one moment, to one new file.
    Others wait meanwhile.

    Raises InvalidValue when the target exists, StoreUnavailable when it cannot be written,
    StoreCorrupt for a damaged file.
    """

    def work() -> None:
        with parts_of(store) as parts:
            for part in parts:
                recover(store, part)
            # Into the copy alone: in the store itself, killed before they were gone, they would
            # outrank what a person writes into the files after that.
            found = [(part, _changes(part, spaces)) for part in parts]
            inner = maintenance.SqliteAdministration(store.inner)
            inner.backup(spaces, target, lambda raw: _keep_all(raw, found))

    store.alone(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def restore(
    store: FilesStore, spaces: Spaces, source: Path, *, boot_id: str, save: bool = True
) -> Path | None:
    """Put a backup in the store's place, files and all, in a new era. Files of records that it does
    not have are removed. Return where the replaced store is saved, as a backup with all files in
    it; None without `save`.

    Killed at any moment, it is done when the next change is made, or was not begun. Raises as that
    of a SQLite store does, and StoreCorrupt for a file that cannot be saved.
    """

    def work() -> Path | None:
        with parts_of(store) as parts, _copied(store, source) as prepared:
            saving = None
            if save:
                for part in parts:
                    recover(store, part)
                found = [(part, _changes(part, spaces)) for part in parts]
                saving = maintenance.Saving(complete=lambda raw: _keep_all(raw, found))
            for part in parts:
                _complete(prepared, part, spaces, boot_id)
            saved = maintenance.restore(store.inner.path, prepared, boot_id=boot_id, saving=saving)
        with parts_of(store) as parts:
            for part in parts:
                recover(store, part)
        store.cabinet.forget()
        return saved

    return store.alone(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def replace_inner(
    root: Path, given: Mapping[str, str], spaces: Spaces, source: Path, *, boot_id: str
) -> Path | None:
    """Put a backup in the place of a store whose inner store cannot be opened. Return where the
    damaged one is saved: every file of the store is then in the folder `<saved>-files`.

    The files are brought up when the store is opened next; those of records that the backup does
    not have stay.
    """
    own = Folders(root, DEFAULT_NAMESPACE, given).own

    def set_aside(saved: Path) -> None:
        target = saved.with_name(f"{saved.name}-files")
        temporary = target.with_name(f".{target.name}.tmp")
        make_one_folder(temporary, access_like(own))
        try:
            for namespace in _namespaces(own):
                for place in _places(Folders(root, namespace, given), spaces):
                    _copy_place(place, temporary / namespace, without=own)
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


def _places(folders: Folders, spaces: Spaces) -> set[Spot]:
    """The files of several records with the versions before them, and the folders of files of one
    record, by their layouts alone.
    """
    found: set[Spot] = set()
    for space in spaces:
        layout = laid_out(space)
        if isinstance(layout, OneFile):
            folder = folders.of(layout.folder)
            found |= {Spot(folder, layout.name), Spot(folder, backup_of(layout.name))}
        elif layout is not None:
            found.add(Spot(folders.of(layout.folder), pattern_of(layout.name).base))
    return {spot for spot in found if spot.path.exists()}


def _copy_place(spot: Spot, target: Path, *, without: Path) -> None:
    """Copy a file or a folder as it is. `without` is the store's own folder, into which it is
    copied.
    """
    copy = target / spot.folder.name / spot.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if spot.path.is_dir():
        skipped = lambda folder, _: [without.name] if Path(folder) == without.parent else []  # noqa: E731
        shutil.copytree(spot.path, copy, symlinks=True, ignore=skipped, dirs_exist_ok=True)
    else:
        shutil.copy2(spot.path, copy, follow_symlinks=False)


def _sync_tree(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for each in (path, *(os.path.join(path, name) for name in names)):
            if not os.path.islink(each):
                fd = os.open(each, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


def _wrong(part: Part, space: Space[Any]) -> Iterator[str]:
    layout, cabinet = laid_out(space), part.cabinet
    if layout is None:
        return
    try:
        entries = entries_of(part, space)
        if isinstance(layout, OneFile):
            yield from _wrong_copy(cabinet, space, layout)
    except (Unsound, StoreCorrupt, StoreUnavailable) as error:
        yield str(error)
        return
    for key in sorted(entries):
        try:
            entries[key].places(space, key, layout.wire)
        except Corrupt as error:
            yield error.message


def _wrong_copy(cabinet: Cabinet, space: Space[Any], layout: OneFile[Any]) -> Iterator[str]:
    """Is the previous version of a file fit to restore it from?"""
    spot = cabinet.spot(layout)
    kept = replace(layout, name=backup_of(layout.name))
    try:
        documents_of(kept, cabinet.sheet(space, kept, {}))
    except (Unsound, ValueError) as error:
        path = backup_of(str(spot.path))
        yield f"{path}, the version before, is damaged ({error}): the next change makes it anew"


def _changes(part: Part, spaces: Spaces) -> list[Change]:
    """Every file as it is."""
    changes = []
    locks = _locks(part, spaces)
    # So that a restore keeps the version before it, as any change does, and not one that is older
    # still.
    whole = {
        part.cabinet.spot(layout)
        for space in spaces
        if isinstance(layout := laid_out(space), OneFile)
    }
    for spot in _spots(part, spaces):
        try:
            found = part.cabinet.disk.read(spot)
        except Unfit as error:
            raise StoreCorrupt(
                f"{spot.path} cannot be backed up: {error}. Move it away and try again",
                path=str(spot.path),
            ) from None
        if found is not None:
            changes.append(
                Change(spot, found.data, keep=spot in whole, lock=locks.get(spot.folder))
            )
    return changes


def _keep_all(raw: sqlite3.Connection, found: Iterable[tuple[Part, list[Change]]]) -> None:
    """Write a redo record of the files into a copy of the inner store."""
    table = table_of(REDO, schema.DIALECT)
    for space in (REDO, GENERATIONS):
        schema.declare(raw, space)
    raw.execute(f"DELETE FROM {table.name}")
    last = raw.execute(schema.LAST_REVISION).fetchone()[0]
    for part, changes in found:
        rows = redo.numbered(part.cabinet.folders, changes)
        raw.executemany(
            table.insert, ((part.namespace, key, last, REDO.encode(row)) for key, row in rows)
        )


def _spots(part: Part, spaces: Spaces) -> Iterator[Spot]:
    """The place of every file that is there."""
    seen: set[Spot] = set()
    for space in spaces:
        layout = laid_out(space)
        if isinstance(layout, OneFile):
            spots = [part.cabinet.spot(layout)]
        elif isinstance(layout, FilePerRecord):
            cards = part.cabinet.cards(space, layout, {}, lambda space=space: part.keys(space))  # type: ignore[misc]
            spots = [part.cabinet.spot_of(layout, key) for key in sorted(cards.entries)]
        else:
            continue
        yield from (spot for spot in spots if spot not in seen and os.path.lexists(spot.path))
        seen.update(spots)


def _locks(part: Part, spaces: Spaces) -> dict[Path, Path]:
    """The lock of each folder that other programs change too, by the folder."""
    layouts = [layout for space in spaces if (layout := laid_out(space)) is not None]
    return {
        lock.parent: lock
        for layout in layouts
        if (lock := part.cabinet.lock_of(layout)) is not None
    }


def _sheets(part: Part, spaces: Spaces) -> list[Spot]:
    """The place of every file of several records, whether or not there is one."""
    return [
        part.cabinet.spot(layout)
        for space in spaces
        if isinstance(layout := laid_out(space), OneFile)
    ]


def entries_of(part: Part, space: Space[Any]) -> Mapping[str, Entry[Any]]:
    """The records of a space that lies in files, damaged ones included. Raises Unsound,
    StoreCorrupt or StoreUnavailable.
    """
    layout, pending = laid_out(space), part.pending()
    if isinstance(layout, OneFile):
        sheet, pile = part.cabinet.drawn(space, layout, pending)
        if sheet.data is None and part.inner.get(GENERATIONS, space.name) is not None:
            raise Unsound(part.cabinet.spot(layout), layout, space, GONE)
        return pile.entries
    assert layout is not None
    part.cabinet.refuse_gone(layout, pending, lambda: part.keys(space))
    return part.cabinet.cards(space, layout, pending, lambda: part.keys(space)).entries


def recover(store: FilesStore, part: Part) -> None:
    """At the latch: bring the files of a namespace up to what was committed. Raises LockTimeout and
    StoreUnavailable.
    """
    try:
        # In a durable transaction, as no file may be ahead of the inner store.
        left = part.inner.transact(lambda tx: redo.pending(tx, part.cabinet.folders), scope=[REDO])
        bring_up(store.disk, left.values(), staged=False)
    except LockTimeout:
        # An OSError too, but not one of the disk's.
        raise
    except (OSError, Unfit) as error:
        raise StoreUnavailable(
            f"the files of {store.root} cannot be brought up ({error}): mend that, and the next "
            "change brings them up",
            path=str(store.root),
            outcome="unknown",
        ) from None
    part.inner.transact(redo.clear, scope=[REDO], durable=False)


def _complete(prepared: Path, part: Part, spaces: Spaces, boot_id: str) -> None:
    """Let the redo record of a backup also remove the files that it does not have. Raises
    StoreCorrupt for a backup of another kind of store.
    """
    folders, locks = part.cabinet.folders, _locks(part, spaces)
    spots = [*_spots(part, spaces), *_sheets(part, spaces)]
    with closing(SqliteStore(prepared, boot_id=boot_id, namespace=part.namespace)) as copy:
        with copy.durable.connection() as connection:
            if not schema.is_current(connection.raw, GENERATIONS):
                raise StoreCorrupt(
                    "this is a backup of another kind of store: give one of a files store"
                )

        def extend(tx: Tx) -> None:
            changes = redo.pending(tx, folders)
            missing = [spot for spot in spots if spot not in changes]
            gone = [
                Change(spot, None, keep=False, lock=locks.get(spot.folder))
                for spot in _also_before(missing)
            ]
            redo.keep(tx, folders, [*changes.values(), *gone])

        copy.transact(extend, scope=[REDO])


def _also_before(spots: Iterable[Spot]) -> Iterator[Spot]:
    """Files, and the versions before them: what is not in a backup must not come back from there
    either.
    """
    for spot in spots:
        yield spot
        head, slash, last = spot.name.rpartition("/")
        if os.path.lexists((before := Spot(spot.folder, f"{head}{slash}{backup_of(last)}")).path):
            yield before


@contextmanager
def _copied(store: FilesStore, source: Path) -> Iterator[Path]:
    """A private copy of a backup, in a folder of its own since opening a store makes files beside
    it.
    """
    if not source.is_file():
        raise NotFound(
            f"there is no backup {source}: give a file that `holdfast store backup` made",
            path=str(source),
        )
    folder = store.cabinet.folders.own / f"restore-{secrets.token_hex(4)}"
    make_one_folder(folder)
    try:
        try:
            copy = shutil.copyfile(source, folder / "store.sqlite")
        except OSError as error:
            raise StoreUnavailable(
                f"cannot copy {source} ({error.strerror}): check it and the disk", outcome="none"
            ) from None
        # Outside of that: what fails in the block, such as a wait for a lock, is no failure to
        # copy.
        yield Path(copy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def all_locks(store: FilesStore, spaces: Spaces) -> tuple[Path, ...]:
    """The lock of every folder, in all namespaces, that other programs change too; in their
    order.
    """
    found = {
        path for name in _namespaces_of(store) for path in locks_of(store.folders_of(name), spaces)
    }
    return tuple(sorted(found))


def _namespaces_of(store: FilesStore) -> list[str]:
    return sorted({store.namespace, *_namespaces(store.cabinet.folders.own)})


@contextmanager
def parts_of(store: FilesStore) -> Iterator[list[Part]]:
    """Every namespace that has files."""
    with ExitStack() as open_ones:
        parts = []
        for name in _namespaces_of(store):
            if name == store.namespace:
                parts.append(Part(name, store.cabinet, store.inner))
                continue
            cabinet, inner = store.elsewhere(name)
            parts.append(Part(name, cabinet, open_ones.enter_context(closing(inner))))
        yield parts


def _namespaces(own: Path) -> list[str]:
    """The default namespace, and those that have a folder."""
    folder = own / "namespaces"
    return sorted({DEFAULT_NAMESPACE, *(os.listdir(folder) if folder.is_dir() else [])})
