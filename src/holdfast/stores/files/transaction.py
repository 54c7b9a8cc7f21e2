"""The port's transaction over files and the inner store, and the files that it changes.

A read opens a snapshot of the inner store, blocks no writer and takes no lock. The snapshot has the
generation of each space, which changes with its files, and the redo record of changes that may not
be in the files yet. The reader then reads the files and compares the generations with the current
ones. A change is committed before it touches a file; so if no generation has changed, the files
read belong to the snapshot.

A space with a layout is a view of its files (records.py); any other is the inner transaction's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

from holdfast.kernel.codec import to_json
from holdfast.kernel.layout import OneFile
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Rows, Space
from holdfast.kernel.store import Damage, ReadTx, Row
from holdfast.stores.checks import check_key, has_ended, out_of_scope
from holdfast.stores.files.cache import FileCache, Pending
from holdfast.stores.files.disk import Location
from holdfast.stores.files.documents import DamagedFile, ParsedFile, render, with_documents
from holdfast.stores.files.folders import file_layout, lock_path
from holdfast.stores.files.members import composed, is_whole_file, spliced
from holdfast.stores.files.records import RecordSet, Revisions, SpaceView, StoredDocument
from holdfast.stores.files.redo import (
    GENERATIONS,
    REDO,
    FileChange,
    RevisionMark,
    mark_of,
    read_redo,
    revision_space,
)
from holdfast.stores.port import plan_of
from holdfast.stores.query import Query, QueryTx
from holdfast.stores.sqlite.database import left_s
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.transaction import SqliteReadTx, SqliteTx

X = TypeVar("X", bound=SqliteReadTx)


class FilesReadTx(QueryTx, Generic[X]):
    """A snapshot of files and inner store."""

    def __init__(self, tx: X, names: frozenset[str], views: Mapping[str, SpaceView[Any]]) -> None:
        self._tx = tx
        self._names = names
        self._views = views
        self._ended = False

    @property
    def now(self) -> datetime:
        return self._tx.now

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        view = self._view(space)
        if view is None:
            return self._tx.get(space, key, expected=expected)
        return view.get(key, self._own_revision)

    def select(self, space: Space[R], query: Query, damaged: Damage | None) -> list[Row[R]]:
        view = self._view(space)
        if view is None:
            return self._tx.select(space, query, damaged)
        return view.select(query, damaged, self._own_revision)

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        view = self._view(space)
        if view is None:
            return self._tx.count(space, index, match)
        return view.count(index, match)

    def end(self) -> None:
        """Refuse every further call: what this transaction changes is decided."""
        self._ended = True

    def _view(self, space: Space[R]) -> SpaceView[R] | None:
        if self._ended:
            raise has_ended()
        if file_layout(space) is None:
            return None
        if space.name not in self._names:
            raise out_of_scope(space)
        return self._views[space.name]

    def _own_revision(self) -> int:
        raise AssertionError("a snapshot has changed nothing")


class FilesTx(FilesReadTx[SqliteTx]):
    """A transaction over files and inner store. It notes the keys of changed records that a sign
    shows; `sign_of` returns the sign of a space.
    """

    def __init__(
        self,
        tx: SqliteTx,
        names: frozenset[str],
        views: Mapping[str, SpaceView[Any]],
        sign_of: Callable[[Space[Any]], object],
    ) -> None:
        super().__init__(tx, names, views)
        self._sign_of = sign_of
        self.shown: dict[Space[Any], set[str]] = {}

    @property
    def revision(self) -> int:
        return self._tx.revision

    def put(self, space: Space[R], key: str, record: R) -> None:
        view = self._view(space)
        if view is None:
            self._note(space, key)
            self._tx.put(space, key, record)
            return
        check_key(key)
        view.put(key, record)
        self._tx.put(revision_space(space), key, mark_of(space, view.layout.wire, record))

    def delete(self, space: Space[Any], key: str) -> bool:
        view = self._view(space)
        if view is None:
            self._note(space, key)
            return self._tx.delete(space, key)
        if not view.delete(key):
            return False
        self._tx.delete(revision_space(space), key)
        return True

    def _take_first(
        self, space: Space[R], query: Query, but_for: Collection[str], damaged: Damage | None
    ) -> Row[R] | None:
        if self._view(space) is None:
            return self._tx._take_first(space, query, but_for, damaged)
        return super()._take_first(space, query, but_for, damaged)

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        return self._tx.append(actor=actor, kind=kind, subject=subject, data=data)

    def token(self) -> int:
        return self._tx.token()

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        return self._tx.trim(keep=keep, before=before, least=least)

    def notify(self, topic: str) -> None:
        self._tx.notify(topic)

    def mark_changed(self) -> list[SpaceView[Any]]:
        """Begin a new generation of each space whose files change, and return those spaces."""
        views = [view for view in self._views.values() if view.changed]
        for view in views:
            self._tx.put(GENERATIONS, view.space.name, RevisionMark())
        return views

    def _note(self, space: Space[Any], key: str) -> None:
        if self._sign_of(space) is not None:
            self.shown.setdefault(space, set()).add(key)

    def _own_revision(self) -> int:
        return self._tx.revision


class NewFile(NamedTuple):
    """A file to write or remove, and the call that puts its content into the cache, once the file
    is in its place.
    """

    change: FileChange
    remember: Callable[[], None]


def new_files(views: Iterable[SpaceView[Any]], cache: FileCache) -> list[NewFile]:
    """The new files of the changed spaces. Several spaces may share one file."""
    found = []
    sharing: dict[Location, list[SpaceView[Any]]] = {}
    for view in views:
        space, layout = view.space, view.layout
        if isinstance(layout, OneFile):
            sharing.setdefault(cache.location(layout), []).append(view)
            continue
        lock = lock_path(cache.folders, layout)
        remember = cache.folder_cache(space, layout).remember
        for key, entry in sorted(view.changed.items()):
            data = None if entry is None else render(entry.document)
            change = FileChange(cache.location_of(layout, key), data, keep=False, lock=lock)
            found.append(NewFile(change, partial(remember, key, entry)))
    for location, together in sharing.items():
        first = together[0]
        assert first.file is not None
        file = first.file
        for view in together:
            assert isinstance(view.layout, OneFile)
            file = _content(view, view.layout, file)
        lock, delta = lock_path(cache.folders, first.layout), _delta(file, first)
        change = FileChange(location, file.data, keep=True, lock=lock, delta=delta)
        records = {view.space: view.records() for view in together}
        found.append(NewFile(change, partial(cache.remember_file, location, file, records)))
    return found


def _content(view: SpaceView[Any], layout: OneFile[Any], file: ParsedFile) -> ParsedFile:
    records = view.records()
    if is_whole_file(layout):
        data = spliced(view.found(), file.data, view.changed) if file.is_ours else None
        return ParsedFile(data or composed(records), is_ours=True)
    documents = {key: entry.document for key, entry in records.entries.items()}
    return ParsedFile(render(with_documents(layout, file.value, documents)))


def _delta(file: ParsedFile, view: SpaceView[Any]) -> bytes | None:
    """The changed documents by key, null for a removed one; None where the whole file is shorter,
    or is more than this space's documents by key.
    """
    if not is_whole_file(view.layout) or view.file is None or view.file.data is None:
        return None
    delta = to_json(
        {key: None if entry is None else entry.document for key, entry in view.changed.items()}
    )
    return delta if len(delta) < len(file.data or b"") else None


T = TypeVar("T")


class FilesChanged(BaseException):
    """The files changed during a read. No Exception, so that no body catches it."""


class FilesScope(NamedTuple):
    """A scope's spaces in files, the names of all its spaces, and the inner scope."""

    spaces: tuple[Space[Any], ...]
    names: frozenset[str]
    inner: tuple[Space[Any] | Rows, ...]


@lru_cache(maxsize=1024)
def scope_of(scope: tuple[Space[Any] | Rows, ...]) -> FilesScope:
    """Split a scope, once for all its transactions. Without spaces in files it is the inner
    store's unchanged.
    """
    plan = plan_of(scope)
    in_files = tuple(space for space in plan.spaces if file_layout(space) is not None)
    if not in_files:
        return FilesScope((), plan.names, scope)
    others = [space for space in plan.spaces if file_layout(space) is None]
    revisions = map(revision_space, in_files)
    return FilesScope(in_files, plan.names, (REDO, GENERATIONS, *revisions, *others))


class SnapshotReader:
    """Reads for one store. Keeps the revisions of the last generation of each space."""

    def __init__(self, cache: FileCache, inner: SqliteStore) -> None:
        self.cache = cache
        self._inner = inner
        self._revisions: dict[Any, Any] = {}

    def forget(self) -> None:
        """Read every file and revision again from now on."""
        self.cache.forget()
        self._revisions = {}

    def read(
        self,
        body: Callable[[ReadTx], T],
        scope: FilesScope,
        deadline: float,
        *,
        eager: bool,
        guarded: bool,
    ) -> T:
        """Run the body on a snapshot. With `eager`, all files are read before it begins. With
        `guarded`, raises FilesChanged when a file may have changed meanwhile; the caller at the
        latch needs no guard.
        """

        def snapshot(tx: ReadTx) -> T:
            pending = read_redo(tx, self.cache.folders)
            before = [_revision(tx.get(GENERATIONS, space.name)) for space in scope.spaces]

            def check() -> None:
                if not guarded:
                    return
                current = (
                    self._inner.get(GENERATIONS, space.name, timeout_s=left_s(deadline))
                    for space in scope.spaces
                )
                if [_revision(row) for row in current] != before:
                    raise FilesChanged

            try:
                views = self.views(tx, scope, pending, check)
            except DamagedFile:
                # A file read in the middle of a change only seems damaged.
                check()
                raise
            check()
            if eager:
                for view in views.values():
                    view.records()
            mine = FilesReadTx(cast(SqliteReadTx, tx), scope.names, views)
            try:
                return body(mine)
            finally:
                mine.end()

        return self._inner.read(snapshot, scope=scope.inner, timeout_s=left_s(deadline))

    def views(
        self, tx: ReadTx, scope: FilesScope, pending: Pending, check: Callable[[], None]
    ) -> dict[str, SpaceView[Any]]:
        """The scope's spaces in files, by name. Raises DamagedFile and StoreCorrupt."""
        return {space.name: self._view(tx, space, pending, check) for space in scope.spaces}

    def _view(
        self, tx: ReadTx, space: Space[R], pending: Pending, check: Callable[[], None]
    ) -> SpaceView[R]:
        """A space in files. Records with a file each are read when they are needed; `check` is
        called after each such read, and raises when the files may have changed since the snapshot.
        """
        layout, cache = file_layout(space), self.cache
        assert layout is not None
        generation = _revision(tx.get(GENERATIONS, space.name))
        revisions = Revisions(tx, space, generation, self._revisions)
        if isinstance(layout, OneFile):
            file, found = cache.file_records(space, layout, pending, was_written=generation > 0)
            return SpaceView(space, layout, revisions, found.entries.get, lambda: found, file)
        cache.refuse_missing_folder(layout, pending, revisions.all)

        def find(key: str) -> StoredDocument[R] | None:
            entry = cache.record(space, layout, key, pending)
            check()
            return entry

        def load() -> RecordSet[R]:
            records = cache.records(space, layout, pending, revisions.all)
            check()
            return records

        return SpaceView(space, layout, revisions, find, load)


def _revision(row: Row[Any] | None) -> int:
    return 0 if row is None else row.revision
