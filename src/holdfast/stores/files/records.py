"""The records of one space: as they were found in files, and as a transaction sees them."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from msgspec import UNSET

from holdfast.kernel.codec import raise_if_stack_full, to_json, to_plain
from holdfast.kernel.errors import Corrupt, RecordInvalid
from holdfast.kernel.layout import Document, FilePerRecord, OneFile, Wire
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, ReadTx, Row
from holdfast.stores.checks import storable
from holdfast.stores.files.documents import WRONG_DOCUMENT, ParsedFile, as_member
from holdfast.stores.files.redo import revision_space
from holdfast.stores.query import Places, Query, SortedIndexes, keys_between


class StoredDocument(Generic[R]):
    """A record's document as it was found, with the record decoded from it once."""

    __slots__ = ("_error", "_places", "_record", "document", "written")

    def __init__(
        self, document: Any, *, record: R | None = None, error: Corrupt | None = None
    ) -> None:
        self.document = document
        self._record = record
        self._error = error
        self._places: list[bytes | None] | None = None
        self.written: bytes | None = None
        """The document as a member of its file, once `rendered` was called."""

    def rendered(self, key: str) -> bytes:
        """The document as a member of its file, rendered once: most changes change one of many."""
        if self.written is None:
            self.written = as_member(key, self.document)
        return self.written

    def record(self, space: Space[R], key: str, wire: Wire[R]) -> R:
        """Raises RecordInvalid or SchemaTooNew for a damaged record."""
        if self._record is None and self._error is None:
            self._decode(space, key, wire)
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._record is not None
        return self._record

    def places(self, space: Space[R], key: str, wire: Wire[R]) -> list[bytes | None]:
        """The record's place in each index. Raises as `record` does: a damaged record has none."""
        record = self.record(space, key, wire)
        if self._places is None:
            self._places = space.index_keys(record)
        return self._places

    def _decode(self, space: Space[R], key: str, wire: Wire[R]) -> None:
        try:
            if not isinstance(self.document, dict):
                self._error = damaged(space, key, "it is not a JSON object", malformed=True)
                return
            record = wire.read(key, self.document)
            if record.schema_version != space.schema_version:
                record = space.decode(key, to_json(record))
            # Another program may have written what no store accepts. It is damaged then: a
            # transaction that only meets it must not fail later, when it encodes the record.
            space.encode(record)
            self._places = space.index_keys(record)
            self._record = record
        except Corrupt as error:
            self._error = error
        except WRONG_DOCUMENT as error:
            raise_if_stack_full(error)
            self._error = damaged(
                space, key, f"it has no {error}" if isinstance(error, KeyError) else str(error)
            )


class RecordSet(Generic[R]):
    """The entries of a space by key, with their order by key and by index. Threads share it, so it
    is never changed once shared: `changed` returns a new one.
    """

    def __init__(
        self, space: Space[R], wire: Wire[R], entries: dict[str, StoredDocument[R]]
    ) -> None:
        self._space = space
        self._wire = wire
        self.entries = entries
        self._keys: list[str] | None = None
        self._indexes: SortedIndexes | None = None
        self._damaged: dict[str, Corrupt] = {}

    def sorted_keys(self) -> list[str]:
        if self._keys is None:
            self._keys = sorted(self.entries)
        return self._keys

    def indexes(self) -> SortedIndexes:
        """The keys in the order of each index, without damaged records."""
        if self._indexes is None:
            placed = [(key, self._places(key, entry)) for key, entry in self.entries.items()]
            self._indexes = SortedIndexes(
                len(self._space.indexes),
                ((key, places) for key, places in placed if places is not None),
            )
        return self._indexes

    def damaged(self) -> Mapping[str, Corrupt]:
        self.indexes()
        return self._damaged

    def changed(self, changes: Mapping[str, StoredDocument[R] | None]) -> "RecordSet[R]":
        """A copy with these entries; None removes one."""
        copy = RecordSet(self._space, self._wire, dict(self.entries))
        copy._keys = None if self._keys is None else list(self._keys)
        if self._indexes is not None:
            copy._indexes = self._indexes.copy()
            copy._damaged = dict(self._damaged)
        for key, entry in changes.items():
            copy.set(key, entry)
        return copy

    def set(self, key: str, entry: StoredDocument[R] | None) -> None:
        """Put an entry; None removes it. Only while the set is not shared: a batch of a thousand
        changes must not copy the set a thousand times.
        """
        before = self.entries.get(key)
        if entry is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = entry
        if self._keys is not None and (before is None) != (entry is None):
            if entry is None:
                del self._keys[bisect_left(self._keys, key)]
            else:
                insort(self._keys, key)
        if self._indexes is not None:
            was_damaged = self._damaged.pop(key, None) is not None
            old = None if was_damaged or before is None else self._places(key, before)
            self._indexes.move(key, old, None if entry is None else self._places(key, entry))

    def _places(self, key: str, entry: StoredDocument[R]) -> Places | None:
        try:
            return entry.places(self._space, key, self._wire)
        except Corrupt as error:
            self._damaged[key] = error
            return None


ADOPTED = 1
"""The revision of a record that a person or another program has put in a file: below every token.
"""

_FEW = 8
"""Up to so many revisions are looked up one by one; for more, all of a space are read."""


class Revisions:
    """The revisions of a space's records, read from the inner store. All revisions of a generation
    are kept in `cache`, which the transactions of a store share.
    """

    def __init__(
        self, tx: ReadTx, space: Space[Any], generation: int, cache: dict[Any, Any]
    ) -> None:
        self._tx = tx
        self._space = revision_space(space)
        self._place = (space.name, generation)
        self._cache = cache
        self._is_private = False

    def make_private(self) -> None:
        """Leave the shared cache: this transaction changes the space, and may be rolled back."""
        if not self._is_private:
            self._is_private, self._cache = True, dict(self._cache)

    def of(self, keys: Sequence[str]) -> list[int]:
        known = self._cache.get(self._place)
        if known is None and len(keys) <= _FEW:
            found = [self._tx.get(self._space, key) for key in keys]
            return [ADOPTED if row is None else row.revision for row in found]
        known = known if known is not None else self.all()
        return [known.get(key, ADOPTED) for key in keys]

    def aside(self, key: str) -> Document | None:
        """What was kept of a record beside its file."""
        row = self._tx.get(self._space, key)
        return None if row is None or row.record.aside is UNSET else row.record.aside

    def all(self) -> dict[str, int]:
        """Every revision by key."""
        known: dict[str, int] | None = self._cache.get(self._place)
        if known is None:
            known = {row.key: row.revision for row in self._tx.range(self._space)}
            # Only the latest generation of a space is kept.
            for old in [place for place in list(self._cache) if place[0] == self._place[0]]:
                self._cache.pop(old, None)
            self._cache[self._place] = known
        return known


class SpaceView(Generic[R]):
    """A space in files as a transaction sees it: its own changes over what was found in files.
    `find` returns one entry of those, and `load` all of them. `file` is the space's one file, where
    it has one. `own` in the calls returns the revision of the transaction.
    """

    def __init__(
        self,
        space: Space[R],
        layout: OneFile[R] | FilePerRecord[R],
        revisions: Revisions,
        find: Callable[[str], StoredDocument[R] | None],
        load: Callable[[], RecordSet[R]],
        file: ParsedFile | None = None,
    ) -> None:
        self.space = space
        self.layout = layout
        self.file = file
        self.changed: dict[str, StoredDocument[R] | None] = {}
        self._revisions = revisions
        self._find = find
        self._load = load
        self._records: RecordSet[R] | None = None
        self._is_own = False
        """Only a set that was made here may be changed; any other is shared."""

    def records(self) -> RecordSet[R]:
        if self._records is None:
            found = self._load()
            self._is_own = bool(self.changed)
            self._records = found.changed(self.changed) if self._is_own else found
        return self._records

    def found(self) -> RecordSet[R]:
        """What was found in files, without the changes of this transaction."""
        return self._load()

    def get(self, key: str, own: Callable[[], int]) -> Row[R] | None:
        entry = self._entry(key) if storable(key) else None
        return None if entry is None else self._rows([(key, self._record(key, entry))], own)[0]

    def select(self, query: Query, damaged: Damage | None, own: Callable[[], int]) -> list[Row[R]]:
        """The records that a query asks for. Every damaged record of the space counts as found by
        an index: it could have any place in it.
        """
        records = self.records()
        if query.by is not None:
            keys = records.indexes().keys(self.space, query)
            _report_damage(records, damaged)
            return self._rows([(key, self._record(key, records.entries[key])) for key in keys], own)
        found = []
        for key in keys_between(records.sorted_keys(), query):
            try:
                found.append((key, self._record(key, records.entries[key])))
            except Corrupt as error:
                if damaged is None:
                    raise
                damaged.append(error)
        return self._rows(found, own)

    def count(self, index: str | None, match: Parts) -> int:
        records = self.records()
        if index is None:
            return len(records.entries)
        number = records.indexes().count(self.space, index, match)
        _report_damage(records, None)
        return number

    def put(self, key: str, record: R) -> None:
        """Raises InvalidValue for a record that no store accepts."""
        self.space.encode(record)
        self.space.index_keys(record)
        self._set(key, StoredDocument(to_plain(self.layout.wire.write(record)), record=record))

    def delete(self, key: str) -> bool:
        """Remove a record, damaged or not; False when there was none."""
        existed = storable(key) and self._entry(key) is not None
        if existed:
            self._set(key, None)
        return existed

    def _entry(self, key: str) -> StoredDocument[R] | None:
        if key in self.changed:
            return self.changed[key]
        # What was loaded stays true for this transaction, whatever happens to the files since.
        return self._find(key) if self._records is None else self._records.entries.get(key)

    def _record(self, key: str, entry: StoredDocument[R]) -> R:
        """A copy of an entry's record: what the caller does to objects inside it must not reach the
        next reader, nor the file. Raises RecordInvalid or SchemaTooNew.
        """
        wire = self.layout.wire
        record = entry.record(self.space, key, wire)
        # Only a record of such a form has something aside, so most reads need no second one.
        if key not in self.changed and wire.aside(record) is not None:
            aside = self._revisions.aside(key)
            record = record if aside is None else wire.rejoin(record, aside)
        return self.space.decode(key, to_json(record))

    def _rows(self, found: Sequence[tuple[str, R]], own: Callable[[], int]) -> list[Row[R]]:
        """Records with their revisions."""
        old = [key for key, _ in found if key not in self.changed]
        known = dict(zip(old, self._revisions.of(old), strict=True)) if old else {}
        return [Row(key, record, known[key] if key in known else own()) for key, record in found]

    def _set(self, key: str, entry: StoredDocument[R] | None) -> None:
        self._revisions.make_private()
        self.changed[key] = entry
        if self._records is None:
            return
        if self._is_own:
            self._records.set(key, entry)
        else:
            self._records, self._is_own = self._records.changed({key: entry}), True


def _report_damage(records: RecordSet[Any], damaged: Damage | None) -> None:
    errors = records.damaged()
    for key in sorted(errors):
        if damaged is None:
            raise errors[key]
        damaged.append(errors[key])


def damaged(space: Space[Any], key: str, why: str, *, malformed: bool = False) -> RecordInvalid:
    """The error for a damaged record in a file; `malformed`: it is not even a JSON object."""
    return RecordInvalid(
        f"{space.name}/{key} is damaged ({why}): correct its file, or remove it with `holdfast "
        f"store remove {space.name} {key}`",
        space=space.name,
        key=key,
        why=why,
        malformed=malformed,
    )
