"""How files and the inner store are read as of one moment, without keeping anybody waiting.

A reader looks at the inner store in a snapshot, which says when the files of a space were last
changed and what is committed but not in them yet. Then it reads the files, and looks whether that
is still so. Before a file is touched, the change is committed; so if nothing was committed, what
was read belongs to the snapshot.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel.layout import OneFile
from holdfast.kernel.space import Rows, Space
from holdfast.kernel.store import ReadTx, Row
from holdfast.stores.checks import plan_of
from holdfast.stores.files import redo
from holdfast.stores.files.cache import Cabinet, CardSource, Pending, SheetSource
from holdfast.stores.files.documents import Sheet, Unsound
from holdfast.stores.files.redo import GENERATIONS, REDO, laid_out, shadow_of
from holdfast.stores.files.repair import GONE
from holdfast.stores.files.transaction import FilesReadTx, Revisions, Room, Shelf, Source
from holdfast.stores.sqlite.store import SqliteStore

T = TypeVar("T")


class Moved(BaseException):
    """The files were changed while they were read. No error of the body's kind, so that no body
    catches it. Never leaves the store.
    """


class InFiles(NamedTuple):
    """A scope with spaces in files: those, the names of all, and what the inner store must have
    in its own.
    """

    laid: tuple[Space[Any], ...]
    names: frozenset[str]
    inner: tuple[Space[Any] | Rows, ...]


@lru_cache(maxsize=1024)
def scope_of(scope: tuple[Space[Any] | Rows, ...]) -> InFiles:
    """A scope worked out, once for all its transactions. Without spaces in files, it is the
    inner store's as it is.
    """
    plan = plan_of(scope)
    laid = tuple(space for space in plan.spaces if laid_out(space) is not None)
    if not laid:
        return InFiles((), plan.names, scope)
    others = [space for space in plan.spaces if laid_out(space) is None]
    return InFiles(laid, plan.names, (REDO, GENERATIONS, *map(shadow_of, laid), *others))


class Picture:
    """Reads for one store. Remembers the revisions of each space as of its last change."""

    def __init__(self, cabinet: Cabinet, inner: SqliteStore) -> None:
        self.cabinet = cabinet
        self._inner = inner
        self._revisions: dict[Any, Any] = {}

    def forget(self) -> None:
        """Read everything anew from here on."""
        self.cabinet.forget()
        self._revisions = {}

    def look(self, body: Callable[[ReadTx], T], plan: InFiles, *, eager: bool, guarded: bool) -> T:
        """Read files and inner store as of one moment. Raises Moved, if guarded, when that did
        not succeed.
        """

        def snapshot(tx: ReadTx) -> T:
            pending = redo.pending(tx, self.cabinet.folders)
            before = [_revision(tx.get(GENERATIONS, space.name)) for space in plan.laid]

            def still() -> None:
                if (
                    guarded
                    and [_revision(self._inner.get(GENERATIONS, space.name)) for space in plan.laid]
                    != before
                ):
                    raise Moved

            try:
                rooms = self.rooms(tx, plan, pending, still)
            except Unsound:
                still()
                raise
            still()
            if eager:
                for room in rooms.values():
                    room.shelf.pile()
            mine = FilesReadTx(tx, plan.names, rooms)
            try:
                return body(mine)
            finally:
                mine.end()

        return self._inner.read(snapshot, scope=plan.inner)

    def rooms(
        self, tx: ReadTx, plan: InFiles, pending: Pending, still: Callable[[], None]
    ) -> dict[str, Room[Any]]:
        """The spaces in files that a scope names. Raises Unsound for a damaged file of several
        records.
        """
        rooms = {}
        for space in plan.laid:
            layout = laid_out(space)
            assert layout is not None
            generation = _revision(tx.get(GENERATIONS, space.name))
            revisions = Revisions(tx, space, generation, self._revisions)
            sheet: Sheet | None = None
            source: Source[Any]
            if isinstance(layout, OneFile):
                sheet, pile = self.cabinet.drawn(space, layout, pending)
                source = SheetSource(pile)
                if generation and sheet.data is None:
                    raise Unsound(self.cabinet.spot(layout), layout, space, GONE)
            else:
                self.cabinet.refuse_gone(layout, pending, revisions.all)
                source = CardSource(self.cabinet, space, layout, pending, revisions.all, still)
            rooms[space.name] = Room(
                space, layout, Shelf(space, layout.wire, source), revisions, sheet
            )
        return rooms


def _revision(row: Row[Any] | None) -> int:
    return 0 if row is None else row.revision
