"""All that a store holds, of every namespace, as it travels from one store to another; and what can be wrong with it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.kernel.errors import Corrupt, RecordInvalid, SchemaTooNew
from holdfast.kernel.space import Space


class Kept(NamedTuple):
    """A record as it is stored."""

    space: Space[Any]
    namespace: str
    key: str
    revision: int
    value: bytes

    def places(self) -> list[bytes | None]:
        """The record's places in the indexes of its space. Raises RecordInvalid or SchemaTooNew."""
        return self.space.index_keys(self.space.decode(self.key, self.value))


class Told(NamedTuple):
    """A journal entry as it is stored; `at` is in microseconds since 1970."""

    revision: int
    namespace: str
    at: int
    actor: str
    kind: str
    subject: str
    data: bytes


class Contents(NamedTuple):
    """What a store held at one moment: the last era of the tokens it has given, how many records each of its spaces had, the
    records of those that are not volatile, and its journal in the order of revisions."""

    era: int
    counts: dict[str, int]
    records: Iterator[Kept]
    journal: Iterator[Told]


def known_spaces(spaces: Iterable[Space[Any]], found: Iterable[str]) -> list[Space[Any]]:
    """Those of the spaces that were found. Raises SchemaTooNew for one that is not known: it would be left behind."""
    by_name = {space.name: space for space in spaces}
    names = list(found)
    for name in names:
        if name not in by_name:
            raise SchemaTooNew(f"space {name} is not known to this program: use the holdfast that wrote it", space=name)
    return [by_name[name] for name in names]


def wrong_with(record: Kept, places: Sequence[bytes | None], last: int) -> str | None:
    """What is wrong with a record that has these places in its indexes, in a store that gave revisions up to `last`."""
    where = f"{record.namespace}: {record.space.name}/{record.key}"
    try:
        true_places = record.places()
    except Corrupt as error:
        return f"{record.namespace}: {error.message}"
    if true_places != list(places):
        return f"{where} disagrees with its indexes: put it again to mend them"
    if record.revision > last:
        return f"{where} has revision {record.revision}, beyond the last one given ({last})"
    return None


def entry_data(revision: int, data: bytes | str) -> dict[str, Any]:
    """What a journal entry says. Raises RecordInvalid for a damaged one."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RecordInvalid(
            f"journal entry {revision} is damaged ({error}): `holdfast store check` tells what else is", revision=revision
        ) from None


def wrong_with_entry(revision: int, data: bytes | str) -> str | None:
    """What is wrong with the data of a journal entry."""
    try:
        entry_data(revision, data)
    except RecordInvalid as error:
        return error.message
    return None
