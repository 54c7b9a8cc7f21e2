"""Reads of files and inner store as of one moment, which block no writer.

A reader opens a snapshot of the inner store. That has the generation of each space, which changes
with its files, and the redo record of changes that may not be in the files yet. The reader then
reads the files and compares the generations with the current ones. A change is committed before it
touches a file; so if no generation has changed, the files read belong to the snapshot.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel.layout import OneFile
from holdfast.kernel.space import Rows, Space
from holdfast.kernel.store import ReadTx, Row
from holdfast.stores.files.cache import FileCache, FolderSource, Pending
from holdfast.stores.files.documents import DamagedFile, ParsedFile
from holdfast.stores.files.folders import file_layout
from holdfast.stores.files.records import Overlay, Source
from holdfast.stores.files.redo import GENERATIONS, REDO, read_redo, revision_space
from holdfast.stores.files.repair import GONE
from holdfast.stores.files.transaction import FilesReadTx, Revisions, SpaceView
from holdfast.stores.port import plan_of
from holdfast.stores.sqlite.store import SqliteStore

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
        self, body: Callable[[ReadTx], T], scope: FilesScope, *, eager: bool, guarded: bool
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
                current = (self._inner.get(GENERATIONS, space.name) for space in scope.spaces)
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
                    view.overlay.records()
            mine = FilesReadTx(tx, scope.names, views)
            try:
                return body(mine)
            finally:
                mine.end()

        return self._inner.read(snapshot, scope=scope.inner)

    def views(
        self, tx: ReadTx, scope: FilesScope, pending: Pending, check: Callable[[], None]
    ) -> dict[str, SpaceView[Any]]:
        """The scope's spaces in files, by name. Raises DamagedFile and StoreCorrupt."""
        views = {}
        for space in scope.spaces:
            layout = file_layout(space)
            assert layout is not None
            generation = _revision(tx.get(GENERATIONS, space.name))
            revisions = Revisions(tx, space, generation, self._revisions)
            file: ParsedFile | None = None
            source: Source[Any]
            if isinstance(layout, OneFile):
                file, source = self.cache.file_records(space, layout, pending)
                if generation and file.data is None:
                    # It was written once. Taken for empty, its records would seem deleted.
                    raise DamagedFile(self.cache.location(layout), layout, space, GONE)
            else:
                self.cache.refuse_missing_folder(layout, pending, revisions.all)
                source = FolderSource(self.cache, space, layout, pending, revisions.all, check)
            overlay = Overlay(space, layout.wire, source)
            views[space.name] = SpaceView(space, layout, overlay, revisions, file)
        return views


def _revision(row: Row[Any] | None) -> int:
    return 0 if row is None else row.revision
