"""The port's transactions on a SQLite connection, and put_new and delete_if as one statement."""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import LOG_BYTES_MAX
from holdfast.kernel.order import Parts, span_of
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import JOURNAL_TOPIC, Damage, Row
from holdfast.stores.checks import check_texts, has_ended, no_key, out_of_scope, storable
from holdfast.stores.journal import check_entry, microseconds
from holdfast.stores.sql import SqlReadTx, SqlTx, table_of
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database import Connection, Database
from holdfast.stores.sqlite.errors import TablesChanged, busy
from holdfast.stores.sqlite.gate import STRIDE, SharedCounter

UNFIT = (UnicodeEncodeError, OverflowError)
"""What the driver raises for a parameter that it cannot take."""


class KeyTaken(Exception):
    """There is a record under the key. Never leaves the store."""


class SqliteReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, names: frozenset[str]) -> None:
        self._ns = namespace
        self._names = names
        self._execute: Callable[[str, Sequence[Any]], sqlite3.Cursor] = cursor.execute

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._execute(sql, parameters).fetchall()
        except UNFIT as error:
            raise unfit(error) from None

    # The usual reads, each in one step: they make up most of a transaction.

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:  # noqa: ARG002 - costs the same here
        if space.name not in self._names:
            raise out_of_scope(space)
        try:
            sql = table_of(space, schema.DIALECT).get
            found = self._execute(sql, (self._ns, key)).fetchall()
        except UnicodeEncodeError:
            # No record has such a key.
            return None
        if not found:
            return None
        value, revision = found[0]
        return Row(key, space.decode(key, value), revision)

    def find(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        start: Parts | None = None,
        stop: Parts | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        low, high = span_of(match)
        sql = table_of(space, schema.DIALECT).finds.get((index, reverse))
        if (
            sql is None
            or high is None
            or start is not None
            or stop is not None
            or limit is None
            or limit < 0
            or damaged is not None
            or space.name not in self._names
        ):
            return super().find(
                space,
                index,
                match,
                start=start,
                stop=stop,
                reverse=reverse,
                limit=limit,
                damaged=damaged,
            )
        found = self._execute(sql, (self._ns, low, high, limit)).fetchall()
        return [Row(key, space.decode(key, value), revision) for key, value, revision in found]

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        low, high = span_of(match)
        sql = table_of(space, schema.DIALECT).counts.get(index or "")
        if sql is None or high is None or space.name not in self._names:
            return super().count(space, index, match)
        return int(self._execute(sql, (self._ns, low, high)).fetchall()[0][0])

    def end(self) -> None:
        """Refuse every further call: the connection may belong to another transaction by then."""
        self._execute = _ended


class SqliteTx(SqliteReadTx, SqlTx):
    """A write transaction. A file without a `counter` keeps each revision itself.

    It is made before the gate; `now` is set inside.
    """

    _revision = 0
    _given = 0
    _entry = 0
    _at = 0
    _bound = 0
    _new_bound: tuple[int, int] | None = None

    def __init__(
        self,
        cursor: sqlite3.Cursor,
        namespace: str,
        names: frozenset[str],
        counter: SharedCounter | None,
    ) -> None:
        self._ns = namespace
        self._names = names
        self._execute = cursor.execute
        self._counter = counter
        self.topics: dict[str, None] = {}

    @property
    def revision(self) -> int:
        if not self._revision:
            last = self._execute(schema.LAST_REVISION, ()).fetchall()[0][0]
            self._bound = last
            self._revision = last + 1 if self._counter is None else self._counter.next(last)
        return self._revision

    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        if faults.hook is not None:
            faults.reach("sqlite.write")
        try:
            return self._execute(sql, parameters).rowcount
        except UNFIT as error:
            raise unfit(error) from None

    def put(self, space: Space[R], key: str, record: R) -> None:
        if not storable(key):
            raise no_key(key)
        table = self._table(space)
        placed, given = [], []
        for place in space.index_keys(record):
            placed.append(place is not None)
            if place is not None:
                given.append(bytearray(place))
        sql = table.puts.get(tuple(placed)) or table.putting(tuple(placed))
        revision = self._revision or self.revision
        self.change(sql, [self._ns, key, revision, bytearray(space.encode(record)), *given])

    def insert(self, space: Space[R], key: str, record: R) -> None:
        """Write a record that must be new. Raises KeyTaken when it is not."""
        try:
            self.change(self._table(space).insert, self.row_of(space, key, record, self.revision))
        except sqlite3.IntegrityError:
            raise KeyTaken(key) from None

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        encoded = bytearray(check_entry(data))
        revision = self._entry = self.token()
        self._at = at = self._at or microseconds(self.now)
        self.change(schema.APPEND, (revision, self._ns, at, actor, kind, subject, encoded))
        self.topics[JOURNAL_TOPIC] = None
        return revision

    def token(self) -> int:
        revision = (self._revision or self.revision) + self._given
        self._given += 1
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        # Imported here: most transactions do not trim.
        from holdfast.stores.sqlite.trim import trim

        return trim(self, self._ns, keep=keep, before=microseconds(before), least=least)

    def notify(self, topic: str) -> None:
        check_texts(topic)
        self.topics[topic] = None

    def finish(self) -> None:
        """Before the commit: make sure that no revision given here is ever given again."""
        if not self._revision:
            return
        last = self._revision + max(self._given, 1) - 1
        if self._counter is None:
            # A journal entry keeps its revision.
            if self._entry != last:
                self.change(schema.KEEP_REVISION, (last,))
            return
        if last <= self._bound:
            self._counter.give(last)
        else:
            self._new_bound = last, last + STRIDE
            self.change(schema.KEEP_REVISION, (last + STRIDE,))

    def committed(self, _: object) -> None:
        """After the commit, still inside the gate."""
        if self._new_bound is not None and self._counter is not None:
            self._counter.begin(*self._new_bound)


def unfit(error: Exception) -> InvalidValue:
    """The error for a parameter that SQLite cannot take."""
    return InvalidValue(f"no store can keep this: {error}")


def _ended(*_: Any) -> sqlite3.Cursor:
    raise has_ended()


T = TypeVar("T")


class Declined(Exception):
    """Nothing was changed, and a general transaction must do it. Never leaves the store."""


class HotPath:
    """put_new and delete_if on the volatile file, for spaces whose tables exist: one statement that
    checks, changes and commits.

    Locks are taken through it, so it handles the usual case alone, in a straight line. It declines
    every other case: a bound that is reached or was moved (SharedCounter), a database that another
    program has locked, missing tables. Then nothing was changed, and a general transaction does the
    work.
    """

    def __init__(self, database: Database, counter: SharedCounter, namespace: str) -> None:
        self._database = database
        self._counter = counter
        self._namespace = namespace

    def put_new(
        self, space: Space[R], items: Sequence[tuple[str, R]], deadline: float
    ) -> int | None:
        """Insert all items and return their revision, or nothing and None if any key exists. Raises
        Declined.
        """
        parameters: list[Any] = []
        encoded: tuple[Any, ...] = ()
        last: R | None = None
        for key, record in items:
            # A claim on several things is one record under several keys.
            if record is not last:
                encoded, last = (space.encode(record), *space.index_keys(record)), record
            parameters += (key, *encoded)
        sql = schema.put_new(space, len(items))
        connection = self._database.lend(deadline)

        def insert() -> int | None:
            revision, bound = self._counter.take()
            if revision > bound:
                raise Declined
            if faults.hook is not None:
                faults.reach("sqlite.write")
            try:
                connection.cursor.execute(sql, (self._namespace, revision, bound, *parameters))
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
                    raise Declined from None
                return None
            if faults.hook is not None:
                faults.reach("sqlite.commit.after")
            return revision

        return self._in_gate(connection, insert, deadline)

    def delete_if(self, space: Space[Any], keys: Sequence[str], token: int, deadline: float) -> int:
        """Delete those of the keys whose record has the revision `token`; return how many there
        were. Raises Declined.
        """
        sql = schema.delete_if(space, len(keys))
        connection = self._database.lend(deadline)

        def delete() -> int:
            if faults.hook is not None:
                faults.reach("sqlite.write")
            try:
                deleted = connection.cursor.execute(sql, (self._namespace, token, *keys)).rowcount
            except UNFIT as error:
                raise unfit(error) from None
            if faults.hook is not None:
                faults.reach("sqlite.commit.after")
            return deleted

        return self._in_gate(connection, delete, deadline)

    def _in_gate(self, connection: Connection, change: Callable[[], T], deadline: float) -> T:
        """Make the change, which is one statement, inside the gate; and give the connection
        back.
        """
        database = self._database
        try:
            if connection.log.size() > LOG_BYTES_MAX:
                # The general way restarts the log, or refuses the change.
                raise Declined
            if faults.hook is not None:
                faults.reach("sqlite.gate.before")
            result = database.gate.run(change, deadline - monotonic())
            database.checkpoint_if_due(connection)
            return result
        except sqlite3.Error as error:
            if busy(error):
                raise Declined from None
            # The statement was its own commit, so an I/O error leaves its outcome unknown.
            failure = database.discard(connection, error, committing=True)
            raise (Declined if isinstance(failure, TablesChanged) else failure) from None
        finally:
            # Not by `with`: every lock is taken through here, and that costs two calls more.
            database.give_back(connection)
