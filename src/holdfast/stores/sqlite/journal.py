"""Reading what happened, of a durable and a volatile file at once."""

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Batch, Cursor, Entry
from holdfast.stores.scoping import cursor_at, places_of
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database import Database
from holdfast.stores.sqlite.transaction import instant


def number_of(durable: Database) -> int:
    """The number of the journal, which a restore by another process may change."""
    with durable.connection(TRANSACT_TIMEOUT_S) as connection:
        return durable.reading(connection, schema.journal_number, TRANSACT_TIMEOUT_S)


def read(files: Sequence[Database], namespace: str, cursor: Cursor, limit: int, *, reverse: bool) -> Batch:
    """The entries of all files behind their places, merged by time; or the last ones. The batch's cursor has a place in each.

    Raises RecordInvalid for a damaged entry, InvalidValue for a cursor that this journal did not give, StoreUnavailable when a
    file is not where it was opened.
    """
    for database in files:
        database.place.check()
    number = number_of(files[0])
    places = places_of(cursor, 2, number)
    # From the end at least one of each, whose place is the cursor.
    most = max(limit, 1) if reverse else limit
    found = [_entries(database, namespace, place, most, reverse) for database, place in zip(files, places, strict=False)]
    # Merging keeps the order within each file, whatever a stepped clock says.
    numbered = [[(file, entry) for entry in entries] for file, entries in enumerate(found)]
    merged = list(islice(merge(*numbered, key=lambda item: item[1].at, reverse=reverse), limit))
    for file, entries in enumerate(found):
        seen = entries if reverse else [entry for origin, entry in merged if origin == file]
        places[file] = max((entry.revision for entry in seen), default=places[file])
    return Batch([entry for _, entry in merged], cursor_at(number, places))


def _entries(database: Database, namespace: str, after: int, limit: int, reverse: bool) -> list[Entry]:
    """A file's entries behind a revision, or its last ones."""
    select = "SELECT revision, at, actor, kind, subject, data FROM journal WHERE ns = ? AND revision > ? ORDER BY revision"
    sql, after = (f"{select} DESC LIMIT ?", 0) if reverse else (f"{select} LIMIT ?", after)
    with database.connection(TRANSACT_TIMEOUT_S) as connection:
        rows = database.reading(
            connection, lambda raw: raw.execute(sql, (namespace, after, limit)).fetchall(), TRANSACT_TIMEOUT_S
        )
    return [_entry(*row) for row in rows]


def _entry(revision: int, at: int, actor: str, kind: str, subject: str, data: bytes) -> Entry:
    # Loaded when there is an entry: a short command such as `jobs pick` reads the journal, and mostly finds none.
    from holdfast.stores.contents import entry_data

    told = entry_data(revision, data)
    return Entry(revision=revision, at=instant(at), actor=actor, kind=kind, subject=subject, data=told)
