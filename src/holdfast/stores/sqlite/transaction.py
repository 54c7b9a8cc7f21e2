"""The port's verbs on a SQLite connection.

Reading what happened, of a durable and a volatile file at once.
"""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any

from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import JOURNAL_TOPIC, Batch, Cursor, Entry
from holdfast.stores.checks import (
    check_entry,
    check_key,
    check_texts,
    cursor_at,
    has_ended,
    places_of,
)
from holdfast.stores.sql import SqlReadTx, SqlTx
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.counter import STRIDE, SharedCounter
from holdfast.stores.sqlite.database import Database

Execute = Callable[[str, Sequence[Any]], sqlite3.Cursor]

UNFIT = (UnicodeEncodeError, OverflowError)
"""What the driver raises for a parameter that it cannot take."""

_APPEND = (
    "INSERT INTO journal (revision, ns, at, actor, kind, subject, data) VALUES (?, ?, ?, ?, ?, ?, "
    "?)"
)


class KeyTaken(Exception):
    """There is a record under the key. Never leaves the store."""


class SqliteReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(
        self, cursor: sqlite3.Cursor, namespace: str, names: frozenset[str], now: datetime
    ) -> None:
        super().__init__(namespace, names)
        self._execute: Execute = cursor.execute
        self.now = now

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._execute(sql, parameters).fetchall()
        except UNFIT as error:
            raise unfit(error) from None

    def end(self) -> None:
        """From here on it can do nothing: its connection may belong to another transaction."""
        self._execute = _ended


class SqliteTx(SqliteReadTx, SqlTx):
    """A write transaction of a file that keeps each revision itself."""

    _revision = 0
    _appended = 0

    def __init__(
        self, cursor: sqlite3.Cursor, namespace: str, names: frozenset[str], now: datetime
    ) -> None:
        super().__init__(cursor, namespace, names, now)
        self.topics: dict[str, None] = {}

    @property
    def revision(self) -> int:
        if not self._revision:
            self._revision = self._after(self._execute(schema.LAST_REVISION, ()).fetchall()[0][0])
        return self._revision

    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        faults.reach("sqlite.write")
        try:
            return self._execute(sql, parameters).rowcount
        except UNFIT as error:
            raise unfit(error) from None

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        table = self._table(space)
        places = space.index_keys(record)
        placed = tuple([place is not None for place in places])
        sql = table.puts.get(placed) or table.putting(placed, self.dialect)
        given = [bytearray(place) for place in places if place is not None]
        self.change(sql, [self._ns, key, self.revision, bytearray(space.encode(record)), *given])

    def insert(self, space: Space[R], key: str, record: R) -> None:
        """Write a record that must be new. Raises KeyTaken when it is not."""
        try:
            self.change(self._table(space).insert, self.row_of(space, key, record, self.revision))
        except sqlite3.IntegrityError:
            raise KeyTaken(key) from None

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        encoded = check_entry(data)
        revision = self.revision + self._appended
        self._appended += 1
        self.change(
            _APPEND,
            (revision, self._ns, microseconds(self.now), actor, kind, subject, bytearray(encoded)),
        )
        self.topics[JOURNAL_TOPIC] = None
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        newest = "(SELECT max(revision) FROM journal WHERE ns = ?1)"
        nth = (
            "(SELECT revision FROM journal WHERE ns = ?1 ORDER BY revision DESC LIMIT 1 OFFSET {})"
        )
        return self.change(
            f"DELETE FROM journal WHERE ns = ?1 AND revision < {newest} "
            f"AND (at < ?3 AND revision <= {nth.format('?4')} OR revision <= {nth.format('?2')})",
            (self._ns, keep, microseconds(before), least),
        )

    def notify(self, topic: str) -> None:
        check_texts(topic)
        self.topics[topic] = None

    def finish(self) -> None:
        """Before the commit: keep a revision that was given but that no journal entry keeps."""
        if self._revision and not self._appended:
            self.change(schema.KEEP_REVISION, (self._revision,))

    def committed(self) -> None:
        """After the commit, when nobody else has begun yet."""

    def _after(self, last: int) -> int:
        """The revision that follows when the file's last one is this."""
        return last + 1


class VolatileTx(SqliteTx):
    """A write transaction of a file whose revisions are counted in shared memory (counter.py)."""

    _bound = 0
    _begun: tuple[int, int] | None = None

    def __init__(
        self,
        cursor: sqlite3.Cursor,
        namespace: str,
        names: frozenset[str],
        now: datetime,
        counter: SharedCounter,
    ) -> None:
        super().__init__(cursor, namespace, names, now)
        self._counter = counter

    def finish(self) -> None:
        """Before the commit: no revision that was given here is ever given again."""
        if not self._revision:
            return
        last = self._revision + max(self._appended, 1) - 1
        if last <= self._bound:
            self._counter.give(last)
        else:
            self._begun = last, last + STRIDE
            self.change(schema.KEEP_REVISION, (last + STRIDE,))

    def committed(self) -> None:
        if self._begun:
            self._counter.begin(*self._begun)

    def _after(self, last: int) -> int:
        self._bound = last
        return self._counter.next(last)


def unfit(error: Exception) -> InvalidValue:
    """What it means that a parameter is none which SQLite can take."""
    return InvalidValue(f"no store can keep this: {error}")


def _ended(*_: Any) -> sqlite3.Cursor:
    raise has_ended()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """An instant as the journal's column has it."""
    passed = at - _EPOCH
    return (passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds


def instant(at: int) -> datetime:
    """The same back again."""
    return _EPOCH + timedelta(microseconds=at)


def number_of(durable: Database) -> int:
    """The number of the journal, which a restore by another process may change."""
    with durable.connection(TRANSACT_TIMEOUT_S) as connection:
        return durable.reading(connection, schema.journal_number, TRANSACT_TIMEOUT_S)


def read(
    files: Sequence[Database], namespace: str, cursor: Cursor, limit: int, *, reverse: bool
) -> Batch:
    """The entries of all files behind their places, merged by time; or the last ones. The batch's
    cursor has a place in each.

    Raises RecordInvalid for a damaged entry, InvalidValue for a cursor that this journal did not
    give, StoreUnavailable when a file is not where it was opened.
    """
    for database in files:
        database.place.check()
    number = number_of(files[0])
    places = places_of(cursor, 2, number)
    # From the end at least one of each, whose place is the cursor.
    most = max(limit, 1) if reverse else limit
    found = [
        _entries(database, namespace, place, most, reverse)
        for database, place in zip(files, places, strict=False)
    ]
    # Merging keeps the order within each file, whatever a stepped clock says.
    numbered = [[(file, entry) for entry in entries] for file, entries in enumerate(found)]
    merged = list(islice(merge(*numbered, key=lambda item: item[1].at, reverse=reverse), limit))
    for file, entries in enumerate(found):
        seen = entries if reverse else [entry for origin, entry in merged if origin == file]
        places[file] = max((entry.revision for entry in seen), default=places[file])
    return Batch([entry for _, entry in merged], cursor_at(number, places))


def _entries(
    database: Database, namespace: str, after: int, limit: int, reverse: bool
) -> list[Entry]:
    """A file's entries behind a revision, or its last ones."""
    select = (
        "SELECT revision, at, actor, kind, subject, data FROM journal WHERE ns = ? AND revision > "
        "? ORDER BY revision"
    )
    sql, after = (f"{select} DESC LIMIT ?", 0) if reverse else (f"{select} LIMIT ?", after)
    with database.connection(TRANSACT_TIMEOUT_S) as connection:
        rows = database.reading(
            connection,
            lambda raw: raw.execute(sql, (namespace, after, limit)).fetchall(),
            TRANSACT_TIMEOUT_S,
        )
    return [_entry(*row) for row in rows]


def _entry(revision: int, at: int, actor: str, kind: str, subject: str, data: bytes) -> Entry:
    # Loaded when there is an entry: a short command such as `jobs pick` reads the journal, and
    # mostly finds none.
    from holdfast.stores.copy import entry_data

    told = entry_data(revision, data)
    return Entry(
        revision=revision, at=instant(at), actor=actor, kind=kind, subject=subject, data=told
    )
