"""The port's verbs on a SQLite connection."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.stores.scoping import check_entry, check_texts
from holdfast.stores.sql import SqlReadTx, SqlTx
from holdfast.stores.sqlite import schema

_APPEND = "INSERT INTO journal (revision, ns, at, actor, kind, subject, data) VALUES (?, ?, ?, ?, ?, ?, ?)"


class KeyTaken(Exception):
    """There is a record under the key. Never leaves the store."""


class SqliteReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(self, raw: sqlite3.Connection, namespace: str, names: frozenset[str], now: datetime) -> None:
        super().__init__(namespace, names)
        self._raw: sqlite3.Connection | None = raw
        self.now = now

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return executed(self._raw, sql, parameters).fetchall()

    def end(self) -> None:
        """From here on it can do nothing: its connection may belong to another transaction."""
        self._raw = None


class SqliteTx(SqliteReadTx, SqlTx):
    """A write transaction."""

    def __init__(self, raw: sqlite3.Connection, namespace: str, names: frozenset[str], now: datetime) -> None:
        super().__init__(raw, namespace, names, now)
        self.topics: dict[str, None] = {}
        self._revision = 0
        self._appended = 0

    @property
    def revision(self) -> int:
        if not self._revision:
            self._revision = executed(self._raw, schema.LAST_REVISION, ()).fetchone()[0] + 1
        return self._revision

    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        faults.reach("sqlite.write")
        return executed(self._raw, sql, parameters).rowcount

    def insert(self, space: Space[R], key: str, record: R) -> None:
        """Write a record that must be new. Raises KeyTaken when it is not."""
        try:
            self.change(self._table(space).insert, self.row_of(space, key, record, self.revision))
        except sqlite3.IntegrityError:
            raise KeyTaken(key) from None

    def append(self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None) -> int:
        encoded = check_entry(data)
        revision = self.revision + self._appended
        self._appended += 1
        self.change(_APPEND, (revision, self._ns, microseconds(self.now), actor, kind, subject, encoded))
        self.notify(JOURNAL_TOPIC)
        return revision

    def trim(self, *, keep: int, before: datetime) -> int:
        newest = "(SELECT max(revision) FROM journal WHERE ns = ?1)"
        nth = "(SELECT revision FROM journal WHERE ns = ?1 ORDER BY revision DESC LIMIT 1 OFFSET ?2)"
        return self.change(
            f"DELETE FROM journal WHERE ns = ?1 AND revision < {newest} AND (at < ?3 OR revision <= {nth})",
            (self._ns, keep, microseconds(before)),
        )

    def notify(self, topic: str) -> None:
        check_texts(topic)
        self.topics[topic] = None

    def finish(self) -> None:
        """Before the commit: keep a revision that was given but that no journal entry keeps."""
        if self._revision and not self._appended:
            self.change("UPDATE meta SET number = ? WHERE name = 'revision'", (self._revision,))


def executed(raw: sqlite3.Connection | None, sql: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
    """Run a statement. Raises InvalidValue for a parameter that SQLite cannot take, and after the transaction's end."""
    if raw is None:
        raise InvalidValue("this transaction has ended: use `tx` only inside its body")
    try:
        return raw.execute(sql, parameters)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidValue(f"no store can keep this: {error}") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """An instant as the journal's column has it."""
    passed = at - _EPOCH
    return (passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds


def instant(at: int) -> datetime:
    """The same back again."""
    return _EPOCH + timedelta(microseconds=at)
