"""The records of one space as a transaction sees them: what was found in files, and over it what the transaction changed."""

from bisect import bisect_left
from itertools import islice
from typing import Generic, Protocol

from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import Corrupt
from holdfast.kernel.layout import Wire
from holdfast.kernel.ordering import Parts, beyond_text, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage
from holdfast.stores.files.pile import Entry, Pile
from holdfast.stores.scoping import check_limit, check_texts, index_number


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
        """An entry's record, as one of the caller's own: what it does to an object inside must not reach the next reader, nor
        the file. Raises RecordInvalid or SchemaTooNew."""
        return self._space.decode(key, to_json(entry.record(self._space, key, self._wire)))

    def between(
        self, prefix: str, start: str | None, stop: str | None, *, reverse: bool, limit: int | None, damage: Damage | None
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
        """What `find` of the port asks for. A damaged record could be any of those, so each of them counts as one."""
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
