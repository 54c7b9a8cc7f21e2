"""Reading the journal, which lies in the durable and the volatile file."""

import sqlite3
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any

from holdfast.kernel.store import Batch, Cursor, Entry
from holdfast.stores.journal import cursor_at, places_of, stored_entry
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database import Database, retry

_SELECT = (
    "SELECT revision, at, actor, kind, subject, data FROM journal WHERE ns = ? AND revision > ? "
    "ORDER BY revision"
)


def read(
    files: Sequence[Database], namespace: str, cursor: Cursor, limit: int, *, reverse: bool
) -> Batch:
    """The entries of all files behind the cursor, merged by time; or the last ones. The cursor has
    a place in each file.

    Raises RecordInvalid for a damaged entry, InvalidValue for a cursor of another journal,
    StoreUnavailable when a file is not where it was opened.
    """
    for database in files:
        database.check_identity()
    # From the end at least one of each file, whose place is the cursor.
    most = max(limit, 1) if reverse else limit
    found, number, places = [], 0, list[int]()
    for file, database in enumerate(files):
        with database.lend() as connection:
            if file == 0:
                # Read each time: a restore by another process may change it.
                number = retry(None, schema.journal_number, connection.raw)
                places = places_of(cursor, 2, number)
            found.append(_entries(connection.raw, namespace, places[file], most, reverse))
    # Merging keeps the order within each file, whatever a stepped clock says.
    merged = list(islice(merge(*found, key=attrgetter("at"), reverse=reverse), limit))
    returned = set(map(id, merged))
    for file, entries in enumerate(found):
        for entry in entries:
            if reverse or id(entry) in returned:
                places[file] = max(places[file], entry.revision)
    return Batch(merged, cursor_at(number, places))


def _entries(
    raw: sqlite3.Connection, namespace: str, after: int, limit: int, reverse: bool
) -> list[Entry]:
    sql, after = (f"{_SELECT} DESC LIMIT ?", 0) if reverse else (f"{_SELECT} LIMIT ?", after)
    rows = retry(None, _rows, raw, sql, (namespace, after, limit))
    return [stored_entry(*row) for row in rows]


def _rows(raw: sqlite3.Connection, *statement: Any) -> list[tuple[Any, ...]]:
    return raw.execute(*statement).fetchall()
