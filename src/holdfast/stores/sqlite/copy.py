"""Copies from and to a SQLite store."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from holdfast.kernel import token
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.space import Space
from holdfast.stores.copy import Contents, StoredEntry, known_spaces
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite import handles, schema
from holdfast.stores.sqlite.errors import opening_failed, translated
from holdfast.stores.sqlite.filesystem import check_database
from holdfast.stores.sqlite.maintenance import stored_records, whole
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import PRIVATE, Access, make_folder

_ENTRIES = "SELECT revision, ns, at, actor, kind, subject, data FROM journal ORDER BY revision"


@contextmanager
def contents(store: SqliteStore, spaces: Sequence[Space[Any]]) -> Iterator[Contents]:
    """What the store holds, as of one moment, for the block. Blocks no writer.

    The journal of the volatile file is part of it; its locks are not. Raises SchemaTooNew for an
    unknown space.
    """
    with store.durable.lend() as connection, _volatile(store) as volatile:
        raw = connection.raw
        raw.execute("BEGIN")
        try:
            found = known_spaces(
                spaces, (row[0] for row in raw.execute("SELECT name FROM spaces ORDER BY name"))
            )
            journal = _in_one(
                [StoredEntry(*row) for row in _if_there(raw, _ENTRIES)],
                [StoredEntry(*row) for row in _if_there(volatile, _ENTRIES)],
            )
            counts = {
                space.name: _count(volatile if space.volatile else raw, space) for space in spaces
            }
            recorded = token.era(journal[-1].revision) if journal else 0
            era = max(schema.last_era(raw), schema.carried_era(store.volatile_path), recorded)
            records = (one for space in found for one, _ in stored_records(raw, space))
            yield Contents(era, counts, records, iter(journal))
        finally:
            raw.execute("ROLLBACK")


def fill(
    path: Path,
    all_of: Contents,
    spaces: Sequence[Space[Any]],
    *,
    clock: Clock | None = None,
    access: Access = PRIVATE,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Make a new store of the contents of another, whole or not at all, in an era beyond theirs.

    `ready` is called once all is written, and may raise to undo it. Raises InvalidValue when the
    file exists, StoreUnavailable when it cannot be written, RecordInvalid for a damaged record.
    """
    if path.exists():
        raise InvalidValue(f"{path} exists: a copy goes to a new store", path=str(path))
    try:
        make_folder(path.parent, access)
    except OSError as error:
        raise opening_failed(path, error) from None
    with whole(path, access) as temporary, handles.opened(temporary, isolation_level=None) as raw:
        try:
            raw.execute("BEGIN")
            schema.create(raw, token.next_era(all_of.era, (clock or SystemClock()).now()))
            for space in spaces:
                if not space.volatile:
                    schema.declare(raw, space)
            for record in all_of.records:
                row = (*record[1:], *record.places())
                raw.execute(table_of(record.space, schema.DIALECT).insert, row)
            raw.executemany(schema.APPEND, all_of.journal)
            raw.execute("COMMIT")
            ready()
        except sqlite3.Error as error:
            raise translated(path, error) from None


def _volatile(store: SqliteStore) -> AbstractContextManager[sqlite3.Connection]:
    """The current volatile file, or an empty database where there is none yet."""
    path = store.volatile_path
    if not path.exists():
        return handles.opened(Path(":memory:"))
    check_database(path, store.access)
    return handles.opened(path, mode="ro")


def _in_one(durable: list[StoredEntry], volatile: list[StoredEntry]) -> list[StoredEntry]:
    """The entries of both files by revision. The counter of one may have run into the other's
    (token.py): an entry of the volatile file then takes the next free number, because no record of
    the copy has its revision for a token.
    """
    taken = {entry.revision for entry in durable}
    revision = 0
    moved = []
    for entry in volatile:
        revision = max(entry.revision, revision + 1)
        while revision in taken:
            revision += 1
        moved.append(entry._replace(revision=revision))
    return sorted([*durable, *moved])


def _count(raw: sqlite3.Connection, space: Space[Any]) -> int:
    return sum(
        row[0]
        for row in _if_there(raw, f"SELECT count(*) FROM {table_of(space, schema.DIALECT).name}")
    )


def _if_there(raw: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a statement; none where its table does not exist yet."""
    table = sql.partition(" FROM ")[2].partition(" ")[0]
    if raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is None:
        return []
    return raw.execute(sql).fetchall()
