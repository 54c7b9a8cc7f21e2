"""From one store to another, with every token, record and journal entry as it is.

All that a store holds, of every namespace, as it travels from one store to another; and what can be
wrong with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.kernel.errors import Corrupt, InvalidValue, RecordInvalid, SchemaTooNew
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.factory import open_store
from holdfast.stores.url import StoreUrl
from holdfast.system.access import Access


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
    """What a store held at one moment: the last era of the tokens it has given, how many records
    each of its spaces had, the records of those that are not volatile, and its journal in the order
    of revisions.
    """

    era: int
    counts: dict[str, int]
    records: Iterator[Kept]
    journal: Iterator[Told]


def known_spaces(spaces: Iterable[Space[Any]], found: Iterable[str]) -> list[Space[Any]]:
    """Those of the spaces that were found. Raises SchemaTooNew for one that is not known: it would
    be left behind.
    """
    by_name = {space.name: space for space in spaces}
    names = list(found)
    for name in names:
        if name not in by_name:
            raise SchemaTooNew(
                f"space {name} is not known to this program: use the holdfast that wrote it",
                space=name,
            )
    return [by_name[name] for name in names]


def wrong_with(record: Kept, places: Sequence[bytes | None], last: int) -> str | None:
    """What is wrong with a record that has these places in its indexes, in a store that gave
    revisions up to `last`.
    """
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
            f"journal entry {revision} is damaged ({error}): `holdfast store check` tells what "
            "else is",
            revision=revision,
        ) from None


def wrong_with_entry(revision: int, data: bytes | str) -> str | None:
    """What is wrong with the data of a journal entry."""
    try:
        entry_data(revision, data)
    except RecordInvalid as error:
        return error.message
    return None


T = TypeVar("T")


def copy(
    source: Store,
    target: str,
    spaces: Sequence[Space[Any]],
    *,
    boot_id: str,
    files: FilesSettings,
    access: Access,
    through: Callable[[Contents], Contents],
    ready: Callable[[], None],
) -> dict[str, int]:
    """Copy everything of a store, as of one moment, to a new store at a URL; return how many
    records each space has there.

    Promised: all or nothing. Tokens stay as they are, and the target gives only greater ones than
    the source ever gave. All namespaces and the whole journal come along. Not promised: what is
    written to the source after that moment. `through` is given what the source holds before
    anything is written, and returns what is to be copied; `ready` is called when all is written and
    not yet in its place. Both may raise, and then nothing was done. Raises InvalidValue or
    Collision for a target that holds something, SchemaTooNew, RecordInvalid or StoreCorrupt for
    what this program cannot read.
    """

    def hand_on(everything: Contents) -> dict[str, int]:
        passed = through(everything)
        _fill(target, passed, spaces, boot_id, files, access, ready)
        return {
            space.name: passed.counts.get(space.name, 0) for space in spaces if not space.volatile
        }

    return _handed(source, spaces, hand_on)


def _handed(source: Store, spaces: Sequence[Space[Any]], use: Callable[[Contents], T]) -> T:
    if source.kind == "postgres":
        from holdfast.stores.postgres import maintenance
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(source, PostgresStore)
        with maintenance.contents(source, spaces) as everything:
            return use(everything)
    if source.kind == "files":
        from holdfast.stores.files import copy as files
        from holdfast.stores.files.store import FilesStore

        assert isinstance(source, FilesStore)
        return files.handed(source, spaces, use)
    from holdfast.stores.sqlite import copy as sqlite
    from holdfast.stores.sqlite.store import SqliteStore

    if not isinstance(source, SqliteStore):
        raise InvalidValue(f"a {source.kind} store cannot be copied: it ends with its process")
    with sqlite.contents(source, spaces) as everything:
        return use(everything)


def _fill(
    target: str,
    everything: Contents,
    spaces: Sequence[Space[Any]],
    boot_id: str,
    files: FilesSettings,
    access: Access,
    ready: Callable[[], None],
) -> None:
    url = StoreUrl(target)
    if url.kind == "sqlite" and url.path and url.rest:
        from holdfast.stores.sqlite import copy as sqlite

        sqlite.fill(url.path, everything, spaces, access=access, ready=ready)
    elif url.kind == "files" and url.path and url.rest:
        from holdfast.stores.files import copy as copying

        copying.fill(
            url.path,
            everything,
            spaces,
            given=files.folders,
            boot_id=boot_id,
            access=access,
            ready=ready,
        )
    elif not url.embedded:
        _fill_database(target, everything, spaces, boot_id)
    else:
        # Said before it is opened, which would make it.
        raise InvalidValue(
            "that is no place for a copy: give sqlite:PATH, files:DIR or postgresql://..."
        )


def _fill_database(
    target: str, everything: Contents, spaces: Sequence[Space[Any]], boot_id: str
) -> None:
    with closing(open_store(target, namespace="default", boot_id=boot_id)) as store:
        from holdfast.stores.postgres import maintenance
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        maintenance.fill(store, everything, spaces)
