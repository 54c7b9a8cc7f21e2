"""All records of one space in files: what was found of each, and their order by each index,
worked out once.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, Generic

from holdfast.kernel.codec import blame_stack, to_json
from holdfast.kernel.errors import Corrupt, RecordInvalid
from holdfast.kernel.layout import Wire
from holdfast.kernel.space import R, Space
from holdfast.stores.files.documents import WRONG_DOCUMENT, as_member
from holdfast.stores.ranks import Places, Ranks


class Entry(Generic[R]):
    """One record as it was found: its document, and what that means, worked out once."""

    __slots__ = ("_error", "_places", "_record", "document", "written")

    def __init__(
        self, document: Any, *, record: R | None = None, error: Corrupt | None = None
    ) -> None:
        self.document = document
        self._record = record
        self._error = error
        self._places: list[bytes | None] | None = None
        self.written: bytes | None = None
        """What `rendered` has returned."""

    def rendered(self, key: str) -> bytes:
        """The document as it stands under its key in a file for people. Written once: of a
        thousand records one is new.
        """
        if self.written is None:
            self.written = as_member(key, self.document)
        return self.written

    def record(self, space: Space[R], key: str, wire: Wire[R]) -> R:
        """The record. Raises RecordInvalid or SchemaTooNew for a damaged one."""
        if self._record is None and self._error is None:
            self._decode(space, key, wire)
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._record is not None
        return self._record

    def places(self, space: Space[R], key: str, wire: Wire[R]) -> list[bytes | None]:
        """The record's place in each index. Raises as `record` does: where a damaged one
        belongs, nobody knows.
        """
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
            # Another program may write what could not be stored here: no transaction is to fail by
            # meeting it.
            space.encode(record)
            self._places = space.index_keys(record)
            self._record = record
        except Corrupt as error:
            self._error = error
        except WRONG_DOCUMENT as error:
            blame_stack(error)
            self._error = damaged(
                space, key, f"it has no {error}" if isinstance(error, KeyError) else str(error)
            )


class Pile(Generic[R]):
    """The entries of a space by key. One that is shared is never changed: `changed` makes
    another.
    """

    def __init__(self, space: Space[R], wire: Wire[R], entries: dict[str, Entry[R]]) -> None:
        self._space = space
        self._wire = wire
        self.entries = entries
        self._keys: list[str] | None = None
        self._ranks: Ranks | None = None
        self._broken: dict[str, Corrupt] = {}

    def sorted_keys(self) -> list[str]:
        """Their keys, sorted."""
        if self._keys is None:
            self._keys = sorted(self.entries)
        return self._keys

    def ranks(self) -> Ranks:
        """Their order by each index. The places of damaged records are not known."""
        if self._ranks is None:
            placed = [(key, self._places(key, entry)) for key, entry in self.entries.items()]
            self._ranks = Ranks(
                len(self._space.indexes),
                ((key, places) for key, places in placed if places is not None),
            )
        return self._ranks

    def broken(self) -> Mapping[str, Corrupt]:
        """The damaged records, by key."""
        self.ranks()
        return self._broken

    def changed(self, changes: Mapping[str, Entry[R] | None]) -> "Pile[R]":
        """The pile with these entries instead; None: without it."""
        pile = Pile(self._space, self._wire, dict(self.entries))
        pile._keys = None if self._keys is None else list(self._keys)
        if self._ranks is not None:
            pile._ranks = self._ranks.copy()
            pile._broken = dict(self._broken)
        for key, entry in changes.items():
            pile.set(key, entry)
        return pile

    def set(self, key: str, entry: Entry[R] | None) -> None:
        """Put an entry in; None: take it out. Only for who made this pile and has not shared it
        yet: a batch of a thousand changes must not copy everything a thousand times.
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
        if self._ranks is not None:
            self._move(self._ranks, key, before, entry)

    def _move(
        self, ranks: Ranks, key: str, before: Entry[R] | None, after: Entry[R] | None
    ) -> None:
        was = None if self._broken.pop(key, None) or before is None else self._places(key, before)
        ranks.move(key, was, None if after is None else self._places(key, after))

    def _places(self, key: str, entry: Entry[R]) -> Places | None:
        try:
            return entry.places(self._space, key, self._wire)
        except Corrupt as error:
            self._broken[key] = error
            return None


def damaged(space: Space[Any], key: str, why: str, *, malformed: bool = False) -> RecordInvalid:
    """What to say of a record in a file that is none; `malformed` is what is not even a JSON
    object.
    """
    return RecordInvalid(
        f"{space.name}/{key} is damaged ({why}): mend its file, or take it out with `holdfast "
        f"store remove {space.name} {key}`",
        space=space.name,
        key=key,
        why=why,
        malformed=malformed,
    )
