"""The port's verbs over a store whose spaces lie partly in files: those go to shelves, all others to the inner transaction."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, ReadTx, Row, Tx
from holdfast.stores.files.redo import GENERATIONS, Mark, laid_out, shadow_of
from holdfast.stores.files.sheet import Sheet
from holdfast.stores.files.shelf import Shelf
from holdfast.stores.scoping import check_key, has_ended, out_of_scope, storable

X = TypeVar("X", bound=ReadTx)

ADOPTED = 1
"""The revision of a record that another program, or a person, has put in a file: below every token."""

_FEW = 8


class Revisions:
    """The revisions of a space's records, looked up in the inner store; all of them are remembered for a generation."""

    def __init__(self, tx: ReadTx, space: Space[Any], generation: int, remembered: dict[Any, Any]) -> None:
        self._tx = tx
        self._shadow = shadow_of(space)
        self._place = (space.name, generation)
        self._remembered = remembered
        self._separate = False

    def separate(self) -> None:
        """Remember for this transaction alone from here on: it changes the space, and what it sees then may be taken back."""
        if not self._separate:
            self._separate, self._remembered = True, dict(self._remembered)

    def of(self, keys: Sequence[str]) -> list[int]:
        """The revision of each key."""
        known = self._remembered.get(self._place)
        if known is None and len(keys) <= _FEW:
            found = [self._tx.get(self._shadow, key) for key in keys]
            return [ADOPTED if row is None else row.revision for row in found]
        known = known if known is not None else self.all()
        return [known.get(key, ADOPTED) for key in keys]

    def all(self) -> dict[str, int]:
        """Every revision by key."""
        known: dict[str, int] | None = self._remembered.get(self._place)
        if known is None:
            known = {row.key: row.revision for row in self._tx.range(self._shadow)}
            for old in [place for place in list(self._remembered) if place[0] == self._place[0]]:
                self._remembered.pop(old, None)
            self._remembered[self._place] = known
        return known


class Room(Generic[R]):
    """One space in files, as a transaction sees it."""

    def __init__(
        self,
        space: Space[R],
        layout: OneFile[R] | FilePerRecord[R],
        shelf: Shelf[R],
        revisions: Revisions,
        sheet: Sheet | None = None,
    ) -> None:
        self.space = space
        self.layout = layout
        self.shelf = shelf
        self.sheet = sheet
        self.revisions = revisions

    def rows(self, found: Sequence[tuple[str, R]], revision: Callable[[], int]) -> list[Row[R]]:
        """Records with their revisions; what this transaction has put has its own."""
        old = [key for key, _ in found if key not in self.shelf.changed]
        known = dict(zip(old, self.revisions.of(old), strict=True)) if old else {}
        return [Row(key, record, known[key] if key in known else revision()) for key, record in found]


class FilesReadTx(Generic[X]):
    """A snapshot of files and inner store."""

    def __init__(self, tx: X, names: frozenset[str], rooms: Mapping[str, Room[Any]]) -> None:
        self._tx = tx
        self._names = names
        self._rooms = rooms
        self._ended = False

    @property
    def now(self) -> datetime:
        return self._tx.now

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        room = self._room(space)
        if room is None:
            return self._tx.get(space, key, expected=expected)
        entry = room.shelf.entry(key) if storable(key) else None
        return None if entry is None else room.rows([(key, room.shelf.record(key, entry))], self._own)[0]

    def range(
        self,
        space: Space[R],
        *,
        prefix: str = "",
        start: str | None = None,
        stop: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        room = self._room(space)
        if room is None:
            return self._tx.range(space, prefix=prefix, start=start, stop=stop, reverse=reverse, limit=limit, damaged=damaged)
        return room.rows(room.shelf.between(prefix, start, stop, reverse=reverse, limit=limit, damage=damaged), self._own)

    def find(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        start: Parts | None = None,
        stop: Parts | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        room = self._room(space)
        if room is None:
            return self._tx.find(space, index, match, start=start, stop=stop, reverse=reverse, limit=limit, damaged=damaged)
        found = room.shelf.by_index(index, match, start, stop, reverse=reverse, limit=limit, damage=damaged)
        return room.rows(found, self._own)

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        room = self._room(space)
        if room is None:
            return self._tx.count(space, index, match)
        return room.shelf.count(index, match)

    def end(self) -> None:
        """From here on it can do nothing: what it would change is decided."""
        self._ended = True

    def _room(self, space: Space[R]) -> Room[R] | None:
        if self._ended:
            raise has_ended()
        if laid_out(space) is None:
            return None
        if space.name not in self._names:
            raise out_of_scope(space)
        return self._rooms[space.name]

    def _own(self) -> int:
        raise AssertionError("a snapshot has changed nothing")


class FilesTx(FilesReadTx[Tx]):
    """A transaction over files and inner store."""

    @property
    def revision(self) -> int:
        return self._tx.revision

    def put(self, space: Space[R], key: str, record: R) -> None:
        room = self._room(space)
        if room is None:
            self._tx.put(space, key, record)
            return
        check_key(key)
        room.shelf.put(key, record)
        room.revisions.separate()
        # Its number is due also if nobody asks for it.
        self._tx.put(shadow_of(space), key, Mark(schema_version=space.schema_version))

    def delete(self, space: Space[Any], key: str) -> bool:
        room = self._room(space)
        if room is None:
            return self._tx.delete(space, key)
        if not storable(key) or not room.shelf.delete(key):
            return False
        room.revisions.separate()
        self._tx.delete(shadow_of(space), key)
        return True

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        if self._room(space) is None:
            return self._tx.take_first(space, index, match, but_for=but_for, damaged=damaged)
        found = self.find(space, index, match, limit=1 + len(but_for), damaged=damaged)
        return next((row for row in found if row.key not in but_for), None)

    def append(self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None) -> int:
        return self._tx.append(actor=actor, kind=kind, subject=subject, data=data)

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        return self._tx.trim(keep=keep, before=before, least=least)

    def notify(self, topic: str) -> None:
        self._tx.notify(topic)

    def changed(self) -> Iterable[Room[Any]]:
        """The spaces in files that this transaction has changed; marks each as changed now."""
        rooms = [room for room in self._rooms.values() if room.shelf.changed]
        for room in rooms:
            self._tx.put(GENERATIONS, room.space.name, Mark())
        return rooms

    def _own(self) -> int:
        return self._tx.revision
