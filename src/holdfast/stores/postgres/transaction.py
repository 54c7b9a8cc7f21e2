"""The port's verbs on a connection, sent in as few messages as their answers allow.

A write is kept back until an answer is needed or the commit comes, and then travels in the same message. So a claim is four
messages: begin and latch, look, take a revision, write and commit.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import ClientCursor

from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import JOURNAL_TOPIC, Damage, Row, Scope, spaces_of
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connections import Again, Connection, Deadline
from holdfast.stores.postgres.listening import notices
from holdfast.stores.scoping import check_entry, check_key, storable
from holdfast.stores.sql import SqlReadTx, SqlTx

_APPEND = "INSERT INTO holdfast.journal (revision, ns, at, actor, kind, subject, data) VALUES (%s, %s, %s, %s, %s, %s, %s)"
_ENDS = "(SELECT xid, revision FROM holdfast.journal WHERE ns = %s ORDER BY xid DESC, revision DESC LIMIT 1"
_TRIM = (
    f"DELETE FROM holdfast.journal WHERE ns = %s AND (xid, revision) < {_ENDS}) "
    f"AND (at < %s OR (xid, revision) <= {_ENDS} OFFSET %s))"
)
_KEPT_BACK_MAX = 256
_NOT_YET = datetime.min.replace(tzinfo=UTC)
_TOLD_S_MAX = 0.05
_REVISIONS_AT_ONCE_MAX = 256


class LateLatch(Again):
    """A key without a row was latched after the revision was taken, so that another transaction may have put and removed it
    with a greater one in between. Raised at the end, when all of them are known: the next run latches these stripes first."""

    def __init__(self, stripes: set[int]) -> None:
        self.stripes = stripes


class PostgresReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(self, raw: Connection, namespace: str, names: frozenset[str], now: datetime) -> None:
        super().__init__(namespace, names)
        self._raw = raw
        self.now = now

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._raw.execute(sql.encode(), parameters).fetchall()
        except UnicodeEncodeError:
            raise _unfit() from None


class PostgresTx(PostgresReadTx, SqlTx):
    """A write transaction, begun by `begin`."""

    xid: str | None = None
    """The server's name for the transaction, known before anything of it can be committed; None while it wrote nothing."""

    def __init__(self, raw: Connection, namespace: str, scope: Scope, deadline: Deadline, stripes: set[int]) -> None:
        whole = {space.name for space in scope if isinstance(space, Space)}
        names = frozenset(space.name for space in spaces_of(scope))
        self._scope = scope
        self._by_row = names - whole
        self._deadline = deadline
        self._cursor = ClientCursor(raw)
        self._pending: list[str] = []
        self._topics: dict[str, None] = {}
        self._stripes = stripes
        self._late = False
        self._latched: set[tuple[str, str]] = set()
        self._told_at = time.monotonic()
        self._revision = 0
        self._spare: list[int] = []
        self._appended = 0
        self._failure: psycopg.Error | None = None
        super().__init__(raw, namespace, names, _NOT_YET)

    def begin(self, *, durable: bool) -> None:
        """Begin, take the latches in their global order, then look at the clock: one message."""
        self._pending = latches.begin(self._deadline, durable=durable)
        if self._scope:
            self._pending.append(latches.of_scope(self._ns, self._scope))
        if self._stripes:
            self._pending.append(latches.exclusive(self._stripes))
        self.now = schema.instant(self._send(f"SELECT {latches.NOW}")[0].rows[0][0])

    @property
    def revision(self) -> int:
        if not self._revision:
            self._revision, self.xid = self._send(f"SELECT {schema.NEXT_REVISION}, {schema.THIS_TRANSACTION}")[0].rows[0]
        return self._revision

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        # Alone, a statement goes as one that the server prepares; behind others it is text as they are.
        if self._pending or self._by_row:
            return self._send(self._bound(sql, parameters))[0].rows
        with self._remembering_failure():
            return super().rows(sql, parameters)

    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        faults.reach("postgres.write")
        answer, xid = self._send(self._bound(sql, parameters), f"SELECT {schema.THIS_TRANSACTION_IF_ANY}")
        self.xid = self.xid or xid.rows[0][0]
        return answer.changed

    def write(self, sql: str, parameters: Sequence[Any]) -> None:
        faults.reach("postgres.write")
        self._pending.append(self._bound(sql, parameters))
        if len(self._pending) > _KEPT_BACK_MAX:
            self._send()

    def get(self, space: Space[R], key: str) -> Row[R] | None:
        if space.name not in self._by_row or not storable(key):
            return super().get(space, key)
        found = self._locked(space, key)
        if not found and (space.name, key) not in self._latched:
            # Nothing there to lock: latch the key itself, then look again for what came in between.
            self._latch(space, key)
            found = self._locked(space, key)
        self._latched.add((space.name, key))
        return Row(key, space.decode(key, found[0][0]), found[0][1]) if found else None

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        if space.name in self._by_row and (space.name, key) not in self._latched:
            self._latch(space, key)
            self._locked(space, key)
            self._latched.add((space.name, key))
        super().put(space, key, record)

    def take_first(self, space: Space[R], index: str, match: Parts = (), *, damaged: Damage | None = None) -> Row[R] | None:
        row = super().take_first(space, index, match, damaged=damaged)
        if row is not None and space.name in self._by_row:
            self._refuse_younger(row.revision)
            self._latched.add((space.name, row.key))
        return row

    def append(self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None) -> int:
        encoded = check_entry(data).decode()
        revision = self._entry_revision()
        self.write(_APPEND, (revision, self._ns, self.now, actor, kind, subject, encoded))
        self._appended += 1
        self.notify(JOURNAL_TOPIC)
        return revision

    def trim(self, *, keep: int, before: datetime) -> int:
        return self.change(_TRIM, (self._ns, self._ns, before, self._ns, keep))

    def notify(self, topic: str) -> None:
        self._topics[topic] = None

    def commit(self) -> None:
        """Send what was kept back and commit. A driver's error that means a lost connection leaves the outcome open if `xid`
        is set; any other, and any before the commit was sent, means that nothing was changed."""
        if self._failure is not None:
            raise self._failure
        if self._late:
            raise LateLatch(self._stripes)
        if self.xid is None and not self._topics:
            self._send("ROLLBACK")
            return
        if self._topics:
            self._pending.append(self._bound(*notices(self._ns, list(self._topics))))
        faults.reach("postgres.commit.before")
        self._send("COMMIT")
        faults.reach("postgres.commit.after")

    def _entry_revision(self) -> int:
        """The transaction's own for the first entry; more from the sequence, some at a time, for the rest."""
        if not self._appended:
            return self.revision
        if not self._spare:
            number = min(2 * self._appended, _REVISIONS_AT_ONCE_MAX)
            more = self._send(f"SELECT {schema.NEXT_REVISION} FROM generate_series(1, {number})")[0].rows
            self._spare = sorted((row[0] for row in more), reverse=True)
        return self._spare.pop()

    def _locked(self, space: Space[Any], key: str) -> list[tuple[Any, ...]]:
        found = self.rows(self._table(space).get_locked, (self._ns, key))
        if found:
            self._refuse_younger(found[0][1])
        return found

    def _latch(self, space: Space[Any], key: str) -> None:
        stripe = latches.stripe_key(self._ns, self._table(space).name, key)
        if stripe in self._stripes:
            return
        self._stripes.add(stripe)
        self._late = self._late or self._revision > 0
        self._pending.append(latches.exclusive([stripe]))

    def _refuse_younger(self, revision: int) -> None:
        if self._revision and revision > self._revision:
            # It was put after this transaction took its own revision; with that one it would go back.
            raise Again

    def _bound(self, sql: str, parameters: Sequence[Any]) -> str:
        try:
            return self._cursor.mogrify(sql.encode(), parameters)
        except UnicodeEncodeError:
            raise _unfit() from None

    def _send(self, *statements: str) -> list["_Answer"]:
        """Send what was kept back and these, in one message; return the answers to these."""
        texts = [*self._pending, *statements]
        if self._by_row and time.monotonic() > self._told_at + _TOLD_S_MAX:
            # Locks of rows are waited for one by one, and all of them together have what is left of the time.
            texts.insert(0, latches.limit(self._deadline))
            self._told_at = time.monotonic()
        self._pending = []
        answers = []
        with self._remembering_failure():
            self._cursor.execute("; ".join(texts).encode())
            while True:
                rows = self._cursor.fetchall() if self._cursor.description else []
                answers.append(_Answer(rows, self._cursor.rowcount))
                if not self._cursor.nextset():
                    return answers[len(answers) - len(statements) :]

    @contextmanager
    def _remembering_failure(self) -> Iterator[None]:
        """A body that swallows a failure must not have its transaction taken for committed."""
        try:
            yield
        except psycopg.Error as error:
            self._failure = error
            raise


class _Answer(NamedTuple):
    rows: list[tuple[Any, ...]]
    changed: int


def _unfit() -> InvalidValue:
    return InvalidValue("a lone surrogate is no character and cannot be stored: encode such text first")
