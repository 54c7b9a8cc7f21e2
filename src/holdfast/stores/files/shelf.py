"""The records of one space in memory, as the port's verbs see them: what was found in files, and over it what a transaction
has changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import Corrupt, InvalidValue, RecordInvalid
from holdfast.kernel.layout import Document, Wire
from holdfast.kernel.ordering import Parts, beyond_text, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage
from holdfast.stores.scoping import check_limit, check_texts

WRONG_DOCUMENT = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError)
"""What reading a document that is no record raises."""


class Entry(Generic[R]):
    """One record as it was found: its document, and what that means, worked out once."""

    __slots__ = ("_error", "_places", "_record", "document")

    def __init__(self, document: Any, *, record: R | None = None, error: Corrupt | None = None) -> None:
        self.document = document
        self._record = record
        self._error = error
        self._places: list[bytes | None] | None = None

    def record(self, space: Space[R], key: str, wire: Wire[R]) -> R:
        """The record. Raises RecordInvalid or SchemaTooNew for a damaged one."""
        if self._record is None and self._error is None:
            self._decode(space, key, wire)
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._record is not None
        return self._record

    def places(self, space: Space[R], key: str, wire: Wire[R]) -> list[bytes | None]:
        """The record's place in each index. Raises as `record` does: where a damaged one belongs, nobody knows."""
        if self._places is None:
            self._places = space.index_keys(self.record(space, key, wire))
        return self._places

    def _decode(self, space: Space[R], key: str, wire: Wire[R]) -> None:
        try:
            if not isinstance(self.document, dict):
                raise TypeError("it is not a JSON object")
            self._record = wire.read(key, self.document)
        except Corrupt as error:
            self._error = error
        except WRONG_DOCUMENT as error:
            self._error = damaged(space, key, _said(error))


class Source(Protocol[R]):
    """Where a shelf's entries come from."""

    def one(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        ...

    def all(self) -> Mapping[str, Entry[R]]:
        """Every entry."""
        ...


class Shelf(Generic[R]):
    """The records of a space. A damaged one hides no other that is asked for by its key."""

    def __init__(self, space: Space[R], wire: Wire[R], source: Source[R]) -> None:
        self._space = space
        self._wire = wire
        self._source = source
        self.changed: dict[str, Entry[R] | None] = {}

    def entry(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        return self.changed[key] if key in self.changed else self._source.one(key)

    def entries(self) -> Mapping[str, Entry[R]]:
        """Every entry."""
        found = self._source.all()
        if not self.changed:
            return found
        merged = {**found, **self.changed}
        return {key: entry for key, entry in merged.items() if entry is not None}

    def put(self, key: str, record: R) -> None:
        """Put a record in. Raises InvalidValue for one that could not be stored."""
        self._space.encode(record)
        self._space.index_keys(record)
        self.changed[key] = Entry(to_plain(self._wire.write(record)), record=record)

    def delete(self, key: str) -> bool:
        """Take a record out, damaged or not; False when there was none."""
        there = self.entry(key) is not None
        if there:
            self.changed[key] = None
        return there

    def record(self, key: str, entry: Entry[R]) -> R:
        """An entry's record. Raises RecordInvalid or SchemaTooNew."""
        return entry.record(self._space, key, self._wire)

    def between(
        self, prefix: str, start: str | None, stop: str | None, *, reverse: bool, limit: int | None, damage: Damage | None
    ) -> list[tuple[str, R]]:
        """What `range` of the port asks for."""
        check_limit(limit)
        check_texts(prefix, start, stop)
        entries = self.entries()
        low, end = max(prefix, start or ""), beyond_text(prefix) if prefix else None
        keys = sorted(
            (key for key in entries if low <= key and (stop is None or key < stop) and (end is None or key < end)),
            reverse=reverse,
        )
        return self._told(keys[:limit], lambda key: self.record(key, entries[key]), damage)

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
        entries = self.entries()
        low, high = span(match, start, stop)
        column = self._column(index)
        placed = self._told(
            list(entries), lambda key: entries[key].places(self._space, key, self._wire)[column], damage, in_order=False
        )
        found = [(place, key) for key, place in placed if place is not None and low <= place and (high is None or place < high)]
        found.sort(reverse=reverse)
        return [(key, self.record(key, entries[key])) for _, key in found[:limit]]

    def _told(
        self, keys: Sequence[str], of: Callable[[str], Any], damage: Damage | None, *, in_order: bool = True
    ) -> list[tuple[str, Any]]:
        """Something of each record under the keys; the damaged ones are told of in `damage`, or raise where it is None."""
        found = []
        broken: Damage = []
        for key in keys:
            try:
                found.append((key, of(key)))
            except Corrupt as error:
                if damage is None and in_order:
                    raise
                broken.append(error)
        if broken:
            broken.sort(key=lambda error: str(error.fields.get("key")))
            if damage is None:
                raise broken[0]
            damage += broken
        return found

    def _column(self, index: str) -> int:
        names = list(self._space.indexes)
        if index not in names:
            raise InvalidValue(f"space {self._space.name} has no index {index}: it declares {', '.join(names) or 'none'}")
        return names.index(index)


def damaged(space: Space[Any], key: str, why: str) -> RecordInvalid:
    """What to say of a record in a file that is none."""
    return RecordInvalid(
        f"{space.name}/{key} is damaged ({why}): mend its file, or take it out with `holdfast store remove {space.name} {key}`",
        space=space.name,
        key=key,
        why=why,
    )


def _said(error: BaseException) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


__all__ = ["Document", "Entry", "Shelf", "Source", "damaged"]
