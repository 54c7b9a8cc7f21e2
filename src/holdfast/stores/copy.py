"""Copies of a whole store, all namespaces, with every token, record and journal entry unchanged;
and checks of what a copy carries.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel.errors import Corrupt, InvalidValue, SchemaTooNew
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.url import StoreUrl, open_store
from holdfast.system.access import Access


class StoredRecord(NamedTuple):
    """A record as it is stored, of any namespace."""

    space: Space[Any]
    namespace: str
    key: str
    revision: int
    value: bytes

    def places(self) -> list[bytes | None]:
        """The record's places in the indexes of its space. Raises RecordInvalid or SchemaTooNew."""
        return self.space.index_keys(self.space.decode(self.key, self.value))


class StoredEntry(NamedTuple):
    """A journal entry as it is stored; `at` is in microseconds since 1970."""

    revision: int
    namespace: str
    at: int
    actor: str
    kind: str
    subject: str
    data: bytes


class Contents(NamedTuple):
    """Everything in a store at one moment."""

    era: int
    """The last era of its tokens."""
    counts: dict[str, int]
    """The number of records by space."""
    records: Iterator[StoredRecord]
    """Those of durable spaces."""
    journal: Iterator[StoredEntry]
    """In the order of revisions."""


def known_spaces(spaces: Iterable[Space[Any]], found: Iterable[str]) -> list[Space[Any]]:
    """The spaces with the names found in a store. Raises SchemaTooNew for an unknown one, which the
    copy would lack.
    """
    by_name = {space.name: space for space in spaces}
    known = []
    for name in found:
        if name not in by_name:
            raise SchemaTooNew(
                f"space {name} is not known to this program: use the holdfast that wrote it",
                space=name,
            )
        known.append(by_name[name])
    return known


def record_problem(record: StoredRecord, places: Sequence[bytes | None], last: int) -> str | None:
    """The problem of a record with these places in its indexes, in a store whose last revision is
    `last`; None for a sound one.
    """
    where = f"{record.namespace}: {record.space.name}/{record.key}"
    try:
        true_places = record.places()
    except Corrupt as error:
        return f"{record.namespace}: {error.message}"
    if true_places != list(places):
        return f"{where} disagrees with its indexes: put it again to correct them"
    if record.revision > last:
        return f"{where} has revision {record.revision}, after the store's last one ({last})"
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
    """Copy a whole store, as of one moment, to a new store at a URL, all or nothing. Return the
    number of records of each space there.

    Tokens stay unchanged, and the target gives only greater ones than the source ever gave. Changes
    of the source after that moment are not copied. `through` gets the contents before anything is
    written, and returns what to copy. `ready` is called when contents is written and not yet in
    its place; a database has no such moment. Either may raise to leave nothing done.

    Raises InvalidValue or Collision for a target that is not empty, and SchemaTooNew, RecordInvalid
    or StoreCorrupt for contents that this program cannot read.
    """

    def fill(contents: Contents) -> dict[str, int]:
        chosen = through(contents)
        url = StoreUrl(target)
        if url.kind == "sqlite" and url.path and url.rest:
            from holdfast.stores.sqlite import copy as sqlite

            sqlite.fill(url.path, chosen, spaces, access=access, ready=ready)
        elif url.kind == "files" and url.path and url.rest:
            from holdfast.stores.files import copy as copying

            copying.fill(
                url.path,
                chosen,
                spaces,
                given=files.folders,
                boot_id=boot_id,
                access=access,
                ready=ready,
            )
        elif not url.embedded:
            with closing(open_store(target, namespace="default", boot_id=boot_id)) as store:
                # After opening, which says how to install a missing driver.
                from holdfast.stores.postgres import maintenance
                from holdfast.stores.postgres.store import PostgresStore

                assert isinstance(store, PostgresStore)
                maintenance.fill(store, chosen, spaces)
        else:
            # Refused before it is opened, because opening it would make it.
            raise InvalidValue(
                "that is no place for a copy: give sqlite:PATH, files:DIR or postgresql://..."
            )
        return {
            space.name: chosen.counts.get(space.name, 0) for space in spaces if not space.volatile
        }

    return _use_contents(source, spaces, fill)


def _use_contents(source: Store, spaces: Sequence[Space[Any]], use: Callable[[Contents], T]) -> T:
    if source.kind == "postgres":
        from holdfast.stores.postgres import maintenance
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(source, PostgresStore)
        with maintenance.contents(source, spaces) as contents:
            return use(contents)
    if source.kind == "files":
        from holdfast.stores.files import copy as files
        from holdfast.stores.files.store import FilesStore

        assert isinstance(source, FilesStore)
        return files.use_contents(source, spaces, use)
    from holdfast.stores.sqlite import copy as sqlite
    from holdfast.stores.sqlite.store import SqliteStore

    if not isinstance(source, SqliteStore):
        raise InvalidValue(f"a {source.kind} store cannot be copied: it ends with its process")
    with sqlite.contents(source, spaces) as contents:
        return use(contents)
