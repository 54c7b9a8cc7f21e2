"""The port's verbs over a store whose spaces lie partly in files: those go to shelves, all others
to the inner transaction.

The records of one space as a transaction sees them: what was found in files, and over it what the
transaction changed.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import Corrupt
from holdfast.kernel.layout import FilePerRecord, OneFile, Wire
from holdfast.kernel.order import Parts, beyond_text, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, ReadTx, Row, Tx
from holdfast.stores.checks import (
    check_key,
    check_limit,
    check_texts,
    has_ended,
    index_number,
    out_of_scope,
    storable,
)
from holdfast.stores.files.documents import Sheet
from holdfast.stores.files.record_set import Entry, Pile
from holdfast.stores.files.redo import GENERATIONS, Mark, laid_out, shadow_of


class Source(Protocol[R]):
    """Where a shelf's entries come from."""

    def one(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        ...

    def all(self) -> Pile[R]:
        """Every entry."""
        ...


class Shelf(Generic[R]):
    """The records of a space. A damaged one hides no other that is asked for by its key."""

    def __init__(self, space: Space[R], wire: Wire[R], source: Source[R]) -> None:
        self._space = space
        self._wire = wire
        self._source = source
        self.changed: dict[str, Entry[R] | None] = {}
        self._pile: Pile[R] | None = None
        self._is_own = False
        """Was the pile made here? Then it may be changed; else all share it."""

    def entry(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        return self.changed[key] if key in self.changed else self._source.one(key)

    def pile(self) -> Pile[R]:
        """Every entry."""
        if self._pile is None:
            found = self._source.all()
            self._is_own = bool(self.changed)
            self._pile = found.changed(self.changed) if self._is_own else found
        return self._pile

    def put(self, key: str, record: R) -> None:
        """Put a record in. Raises InvalidValue for one that could not be stored."""
        self._space.encode(record)
        self._space.index_keys(record)
        self._set(key, Entry(to_plain(self._wire.write(record)), record=record))

    def delete(self, key: str) -> bool:
        """Take a record out, damaged or not; False when there was none."""
        there = self.entry(key) is not None
        if there:
            self._set(key, None)
        return there

    def record(self, key: str, entry: Entry[R]) -> R:
        """An entry's record, as one of the caller's own: what it does to an object inside must not
        reach the next reader, nor the file. Raises RecordInvalid or SchemaTooNew.
        """
        return self._space.decode(key, to_json(entry.record(self._space, key, self._wire)))

    def between(
        self,
        prefix: str,
        start: str | None,
        stop: str | None,
        *,
        reverse: bool,
        limit: int | None,
        damage: Damage | None,
    ) -> list[tuple[str, R]]:
        """What `range` of the port asks for."""
        check_limit(limit)
        check_texts(prefix, start, stop)
        pile = self.pile()
        entries, keys = pile.entries, pile.sorted_keys()
        ends = [end for end in (stop, beyond_text(prefix) if prefix else None) if end is not None]
        low = bisect_left(keys, max(prefix, start or ""))
        between = keys[low : bisect_left(keys, min(ends)) if ends else len(keys)]
        found = []
        for key in islice(reversed(between) if reverse else between, limit):
            try:
                found.append((key, self.record(key, entries[key])))
            except Corrupt as error:
                if damage is None:
                    raise
                damage.append(error)
        return found

    def by_index(
        self,
        index: str,
        match: Parts,
        start: Parts | None,
        stop: Parts | None,
        *,
        reverse: bool,
        limit: int | None,
        damage: Damage | None,
    ) -> list[tuple[str, R]]:
        """What `find` of the port asks for. A damaged record could be any of those, so each of them
        counts as one.
        """
        check_limit(limit)
        pile, number = self.pile(), index_number(self._space, index)
        self._tell(pile, damage)
        keys = pile.ranks().keys(number, *span(match, start, stop), reverse=reverse)
        return [(key, self.record(key, pile.entries[key])) for key in islice(keys, limit)]

    def count(self, index: str | None, match: Parts) -> int:
        """What `count` of the port asks for."""
        pile = self.pile()
        if index is None:
            return len(pile.entries)
        number = index_number(self._space, index)
        self._tell(pile, None)
        return pile.ranks().count(number, *span(match))

    def _set(self, key: str, entry: Entry[R] | None) -> None:
        self.changed[key] = entry
        if self._pile is None:
            return
        if self._is_own:
            self._pile.set(key, entry)
        else:
            self._pile, self._is_own = self._pile.changed({key: entry}), True

    def _tell(self, pile: Pile[R], damage: Damage | None) -> None:
        broken = pile.broken()
        for key in sorted(broken):
            if damage is None:
                raise broken[key]
            damage.append(broken[key])


X = TypeVar("X", bound=ReadTx)

ADOPTED = 1
"""The revision of a record that another program, or a person, has put in a file: below every token.
"""

_FEW = 8


class Revisions:
    """The revisions of a space's records, looked up in the inner store; all of them are remembered
    for a generation.
    """

    def __init__(
        self, tx: ReadTx, space: Space[Any], generation: int, remembered: dict[Any, Any]
    ) -> None:
        self._tx = tx
        self._shadow = shadow_of(space)
        self._place = (space.name, generation)
        self._remembered = remembered
        self._separate = False

    def separate(self) -> None:
        """Remember for this transaction alone from here on: it changes the space, and what it sees
        then may be taken back.
        """
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
        return [
            Row(key, record, known[key] if key in known else revision()) for key, record in found
        ]


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
        return (
            None
            if entry is None
            else room.rows([(key, room.shelf.record(key, entry))], self._own)[0]
        )

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
            return self._tx.range(
                space,
                prefix=prefix,
                start=start,
                stop=stop,
                reverse=reverse,
                limit=limit,
                damaged=damaged,
            )
        return room.rows(
            room.shelf.between(prefix, start, stop, reverse=reverse, limit=limit, damage=damaged),
            self._own,
        )

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
            return self._tx.find(
                space,
                index,
                match,
                start=start,
                stop=stop,
                reverse=reverse,
                limit=limit,
                damaged=damaged,
            )
        found = room.shelf.by_index(
            index, match, start, stop, reverse=reverse, limit=limit, damage=damaged
        )
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

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
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
