"""The port's transactions, sent in as few messages as their answers allow.

A write is kept back until an answer is needed or the commit comes, and then goes in the same
message. The beginning of a transaction waits for its first statement. A statement that latches also
takes a revision, in case one is wanted. So a claim is two messages: begin, take a record and a
revision; write, commit and notify.
"""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg

from holdfast.kernel import faults
from holdfast.kernel.limits import JOURNAL_TRIM_MAX
from holdfast.kernel.order import Parts, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import JOURNAL_TOPIC, Damage, Row
from holdfast.stores.checks import ENDED, check_key, storable
from holdfast.stores.journal import check_entry, instant
from holdfast.stores.port import Plan
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connection import (
    COMMIT,
    ROLLBACK,
    Again,
    CallDeadline,
    PostgresConnection,
    ServerClock,
    Statement,
    StatementResult,
    bound,
    exchange,
    passing_s,
)
from holdfast.stores.postgres.listener import SOMEBODY, notices
from holdfast.stores.query import Query
from holdfast.stores.sql import SqlReadTx, SqlTx, Table

_ENTRY_COLUMNS = 8
_ENTRIES_AT_ONCE = 8
"""Most journal entries of one statement."""
_APPEND = [
    "INSERT INTO holdfast.journal (revision, life, ns, at, actor, kind, subject, data) VALUES "
    + ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * entries)
    for entries in range(_ENTRIES_AT_ONCE + 1)
]
_PLACE = "(life, xid, revision)"
_ENDS = (
    "(SELECT life, xid, revision FROM holdfast.journal WHERE ns = %s "
    "ORDER BY life DESC, xid DESC, revision DESC LIMIT 1"
)
_TRIM = (
    "DELETE FROM holdfast.journal WHERE revision IN (SELECT revision FROM (SELECT life, xid, "
    "revision, at FROM holdfast.journal WHERE ns = %s ORDER BY life, xid, revision LIMIT "
    f"{JOURNAL_TRIM_MAX}) AS oldest WHERE {_PLACE} < {_ENDS}) "
    f"AND (at < %s AND {_PLACE} <= {_ENDS} OFFSET %s) OR {_PLACE} <= {_ENDS} OFFSET %s)))"
)
_TAKE = f"SELECT {schema.NEXT_REVISION}, {schema.THIS_TRANSACTION}"
_XID_IF_ANY = bound(f"SELECT {schema.THIS_TRANSACTION_IF_ANY}")
_LAST_GIVEN = "SELECT last_value FROM holdfast.revision"
_MORE = f"SELECT {schema.NEXT_REVISION} FROM generate_series(1, %s)"
_LOCK_ALL = "SELECT 1 FROM {} WHERE ns = %s AND key = ANY(%s) ORDER BY key FOR UPDATE"
_COLUMNS = "key, value, rev"
"""The columns of a query."""
_KEPT_BACK_MAX = 256
_NOT_YET = datetime.min.replace(tzinfo=UTC)
_LIMIT_KNOWN_S = 0.05
_REVISIONS_AT_ONCE_MAX = 256


class LateLatch(Again):
    """A key without a row was latched after the revision was taken, so another transaction may have
    put and removed it with a greater one in between. Raised at the end, when all such keys are
    known: the next run latches their stripes first.
    """

    def __init__(self, stripes: set[int]) -> None:
        self.stripes = stripes


class PostgresReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(
        self, raw: PostgresConnection, namespace: str, names: frozenset[str], now: datetime
    ) -> None:
        self._ns = namespace
        self._names = names
        self._raw = raw
        self.now = now

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return exchange(self._raw, [bound(sql, parameters)])[0].rows

    def end(self) -> None:
        """Refuse every further call: the connection may belong to another transaction by then."""
        self._names = self._raw = ENDED


class PostgresTx(PostgresReadTx, SqlTx):
    """A write transaction, begun by `begin`."""

    xid: str | None = None
    """The server's name for the transaction, known before anything of it can be committed."""

    def __init__(
        self,
        raw: PostgresConnection,
        namespace: str,
        plan: Plan,
        deadline: CallDeadline,
        stripes: set[int],
        clock: ServerClock,
    ) -> None:
        self._scope = plan.scope
        self._deadline = deadline
        self._clock = clock
        self._by_row = plan.names.difference(
            space.name for space in plan.scope if isinstance(space, Space)
        )
        """The spaces of which only single rows are latched."""
        self._stripes = stripes
        self._latched: set[tuple[str, str]] = set()
        """The keys of those spaces that are latched, with or without a row."""
        self._row_locked: set[tuple[str, str]] = set()
        """Those of them that have a row."""
        self._absent: set[tuple[str, str]] = set()
        """Those of them that have none and were not put yet."""
        self._new: dict[tuple[str, str], _New] = {}
        """Records put under keys that are not latched yet."""
        self._late = False
        self._started = False
        self._wrote = False
        self._pending: list[Statement] = []
        self._locks: list[latches.Lock] = []
        """What the first message latches, all in one statement, before anything that is pending."""
        self._entries: list[Any] = []
        """The values of journal entries that were not sent yet."""
        self._announced: Statement | None = None
        """A statement that will follow, and is sent with the one before it."""
        self._answered: tuple[Statement | None, list[tuple[Any, ...]]] = None, []
        """The same once it was sent, and its rows."""
        self._topics: dict[str, None] = {}
        self._listened = True
        self._limit_ms = 0
        self._limit_sent_at = time.monotonic()
        self._asked_s = 0.0
        self._revision = 0
        """The transaction's revision, once it is used."""
        self._in_hand = 0
        """A revision that was taken after everything latched so far."""
        self._taken = 0
        """From the first revision taken up to this one, all are this transaction's."""
        self._spare: list[int] = []
        self._given = 0
        self._failure: psycopg.Error | None = None
        super().__init__(raw, namespace, plan.names, _NOT_YET)

    def begin(self, *, durable: bool) -> None:
        """Begin, and take the latches in their global order, with the first message."""
        self._beginning = [bound(*one) for one in latches.begin(self._deadline, durable=durable)]
        self._limit_ms = latches.limit_ms(self._deadline)
        self._locks = [*latches.of_scope(self._ns, self._scope), *latches.whole(self._stripes)]

    @property
    def now(self) -> datetime:
        if not self._started:
            self._send()
        return self._now

    @now.setter
    def now(self, at: datetime) -> None:
        self._now = at

    @property
    def revision(self) -> int:
        if not self._revision:
            self._place_new()
        if not self._revision:
            if not self._started and not self._by_row:
                self._send()
            if not self._in_hand:
                self._send_and_take()
            self._revision = self._in_hand
        return self._revision

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._send(bound(sql, parameters))[0].rows

    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        faults.reach("postgres.write")
        self._wrote = True
        answer, xid = self._send(bound(sql, parameters), _XID_IF_ANY)
        self.xid = self.xid or xid.rows[0][0]
        return answer.changed

    def write(self, sql: str, parameters: Sequence[Any]) -> None:
        faults.reach("postgres.write")
        self._wrote = True
        self._pending.append(bound(sql, parameters))
        if len(self._pending) > _KEPT_BACK_MAX:
            self._send()

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        if (
            space.name not in self._by_row
            or not storable(key)
            or (space.name, key) in self._latched
        ):
            return super().get(space, key)
        found = self._locked(space, key) if expected else []
        if not found:
            # No row to lock: latch the key itself, and only then read again, for a row that came in
            # between.
            found = self._latch(space, key)
        self._latched.add((space.name, key))
        if not found:
            self._absent.add((space.name, key))
            return None
        self._row_locked.add((space.name, key))
        return Row(key, space.decode(key, found[0][0]), found[0][1])

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        known = space.name not in self._by_row or (space.name, key) in self._latched
        if not known and self._revision:
            self._latch(space, key)
            self._latched.add((space.name, key))
        elif not known:
            # All such keys are latched at once, when the first is needed, together with a revision.
            table = self._table(space)
            self._new[space.name, key] = _New(table, key, self.row_of(space, key, record, 0))
            return
        if (space.name, key) in self._row_locked:
            # The locked row still exists, and an update costs half of an upsert.
            ns, name, *values = self.row_of(space, key, record, self.revision)
            self.write(self._table(space).update, [*values, ns, name])
            return
        if (space.name, key) in self._absent:
            # Nobody else can put it, and an insert costs less than an upsert.
            self._absent.remove((space.name, key))
            self.write(self._table(space).insert, self.row_of(space, key, record, self.revision))
            return
        super().put(space, key, record)

    def delete(self, space: Space[Any], key: str) -> bool:
        self._row_locked.discard((space.name, key))
        return super().delete(space, key)

    def will_take(self, space: Space[Any], index: str, match: Parts = ()) -> None:
        if space.name in self._by_row:
            query = Query(index, *span(match), limit=1)
            sql, parameters = self.statement(space, query, suffix=self.dialect.skip_locked)
            self._announced = _bound_with_more(sql, _COLUMNS, parameters)

    def _take_first(
        self, space: Space[R], query: Query, but_for: Collection[str], damaged: Damage | None
    ) -> Row[R] | None:
        row = super()._take_first(space, query, but_for, damaged)
        if row is not None and space.name in self._by_row:
            self._refuse_younger(row.revision)
            self._latched.add((space.name, row.key))
            self._row_locked.add((space.name, row.key))
        return row

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        encoded = check_entry(data).decode()
        revision = self.token()
        faults.reach("postgres.write")
        self._wrote = True
        self._entries += (
            *(revision, self._raw.incarnation, self._ns, self.now),
            *(actor, kind, subject, encoded),
        )
        if len(self._entries) >= _ENTRIES_AT_ONCE * _ENTRY_COLUMNS:
            self._place_entries()
        self.notify(JOURNAL_TOPIC)
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        return self.change(_TRIM, (self._ns, self._ns, before, self._ns, least, self._ns, keep))

    def notify(self, topic: str) -> None:
        self._topics[topic] = None

    def prepare(self) -> None:
        """Get ready for the commit. Raises what prevents it; then nothing was changed."""
        if self._failure is not None:
            raise self._failure
        self._place_new()
        if self._late:
            raise LateLatch(self._stripes)

    def commit(self) -> None:
        """Send what was kept back, commit and notify. A driver's error leaves the outcome unknown
        if the connection is lost, or if no transaction is open after it.
        """
        ending = []
        if self._wrote or self._revision:
            ending.append(COMMIT)
        elif self._started:
            ending.append(ROLLBACK)
        else:
            self._pending.clear()
            self._started = True
        if self._topics and self._listened:
            ending.append(bound(*notices(self._ns, list(self._topics))))
        if not ending:
            return
        faults.reach("postgres.commit.before")
        self._send(*ending)
        faults.reach("postgres.commit.after")

    def token(self) -> int:
        """The transaction's own revision first; then more from the sequence, several at a time."""
        self._given += 1
        if self._given == 1:
            return self.revision
        if not self._spare:
            number = min(2 * (self._given - 1), _REVISIONS_AT_ONCE_MAX)
            self._keep([row[0] for row in self._send(bound(_MORE, (number,)))[0].rows])
        return self._spare.pop()

    def _locked(self, space: Space[Any], key: str) -> list[tuple[Any, ...]]:
        """Lock a row; if it exists and no revision is used yet, take one too."""
        self._place_new()
        sql = self._table(space).get_locked
        found = (
            self.rows(sql, (self._ns, key))
            if self._revision
            else self._first_locked(sql, "value, rev", (self._ns, key))
        )
        if found:
            self._refuse_younger(found[0][1])
        return found

    def _latch(self, space: Space[Any], key: str) -> list[tuple[Any, ...]]:
        """Latch a key that has no row, and read one that came meanwhile."""
        stripe = latches.stripe_key(self._ns, self._table(space).name, key)
        fresh = stripe not in self._stripes
        self._stripes.add(stripe)
        sql = self._table(space).get_locked
        if not self._started and not self._pending:
            if fresh:
                self._locks += latches.whole([stripe])
            beginning = _beginning(latches.NOW, self._ns)
            read = bound(_taking(sql, "value, rev", beginning, always=True), (self._ns, key))
            row = self._send(read, opens=True)[0].rows[0]
            self._opened([*row[4:], *row[2:4]])
            return [] if row[1] is None else [row[:2]]
        if fresh:
            self._pending.append(bound(*latches.exclusive([stripe])))
        read = bound(sql, (self._ns, key))
        if not self._revision:
            found = self._send_and_take(read)[0]
        else:
            found, given = self._send(read, bound(_LAST_GIVEN))
            # Another transaction that took a revision since may have put the key with it, and
            # removed it.
            self._late |= fresh and given.rows[0][0] > self._taken
        if found.rows:
            self._refuse_younger(found.rows[0][1])
        return found.rows

    def _place_new(self) -> None:
        """Latch the keys of new records, take a revision, and write the records: one message."""
        if not self._new:
            return
        new, self._new = self._new, {}
        self._latched.update(new)
        stripes = {
            latches.stripe_key(self._ns, one.table.name, one.key) for one in new.values()
        } - self._stripes
        if stripes:
            self._stripes |= stripes
            self._pending.append(bound(*latches.exclusive(stripes, self._limit_ms)))
        locking = []
        for table in dict.fromkeys(one.table for one in new.values()):
            keys = sorted(one.key for one in new.values() if one.table is table)
            locking.append(bound(_LOCK_ALL.format(table.name), (self._ns, keys)))
        self._send_and_take(*locking)
        self._revision = self._in_hand
        for one in new.values():
            one.row[2] = self._revision
            self.write(one.table.put, one.row)

    def _take(self, row: Sequence[Any]) -> None:
        """Note a revision that was taken after everything latched so far, and maybe another one."""
        revision, self.xid, *more = row
        self._taken = self._in_hand = min((revision, *more))
        self._keep([number for number in (revision, *more) if number != self._in_hand])

    def _keep(self, numbers: list[int]) -> None:
        """Keep these revisions for further entries. Up to the first gap, which is another
        transaction's, they count as taken without a break.
        """
        self._spare = sorted(numbers, reverse=True)
        for number in reversed(self._spare):
            if number != self._taken + 1:
                break
            self._taken = number

    def _with_revision(self, found: list[tuple[Any, ...]], taken: int = 2) -> list[tuple[Any, ...]]:
        """The rows of a statement of `_taking`, without the revisions taken with them."""
        if found:
            self._take(found[0][-taken:])
        return [row[:-taken] for row in found]

    def locking_rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        # First: a revision taken beside one in use would hide those that others took in between.
        self._place_new()
        if self._revision or not self._by_row:
            return self.rows(sql, parameters)
        return self._first_locked(sql, _COLUMNS, parameters)

    def _first_locked(
        self, sql: str, columns: str, parameters: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Lock the rows of a statement and take a revision with them; at the beginning of the
        transaction also ask what it has to know then.
        """
        if self._started and self._in_hand:
            wanted, (known, found) = _bound_with_more(sql, columns, parameters), self._answered
            if known != wanted or self._wrote:
                found = self._send(wanted)[0].rows
            return self._with_revision(found, 3)
        if self._started:
            return self._with_revision(self.rows(_taking(sql, columns), parameters))
        first = bound(_taking(sql, columns, _beginning(latches.NOW, self._ns)), parameters)
        if self._announced is None:
            answer = self._send(first, opens=True)[0]
        else:
            answer, ahead = self._send(first, self._announced, opens=True)
            self._answered = self._announced, ahead.rows
        row = answer.rows[0]
        self._opened(row[-2:])
        return self._with_revision([row[:-2]] if row[-3] is not None else [])

    def _refuse_younger(self, revision: int) -> None:
        if self._revision and revision > self._revision:
            # The record was put after this transaction took its revision, which would be a step
            # back.
            raise Again

    def _send(self, *statements: Statement, opens: bool = False) -> list[StatementResult]:
        """Send what was kept back and these statements in one message; return the answers to these.
        With `opens` they ask themselves what a transaction has to know at its beginning.
        """
        self._place_new()
        opening = (
            []
            if self._started or opens
            else [bound(_look(_beginning(latches.NOW, self._ns), taking=not self._by_row))]
        )
        self._place_entries()
        message = [*self._pending, *statements, *opening]
        if not self._started:
            latching = [bound(*latches.taking(self._locks, self._limit_ms))] if self._locks else []
            message[:0] = [*self._beginning, *latching]
        if self._by_row and time.monotonic() > self._limit_sent_at + _LIMIT_KNOWN_S:
            # Row locks are waited for one by one, and all waits together have what is left of the
            # time.
            message.insert(0 if self._started else 1, bound(*latches.limit(self._deadline)))
            self._limit_sent_at = time.monotonic()
        self._pending = []
        self._asked_s = passing_s()
        try:
            answers = exchange(self._raw, message)
        except psycopg.Error as error:
            # If the body swallows it, the transaction must still not count as committed.
            self._failure = error
            raise
        if opening:
            self._opened(answers.pop().rows[0])
        return answers[len(answers) - len(statements) :]

    def _send_and_take(self, *statements: Statement) -> list[StatementResult]:
        """The same, and take a revision after all statements."""
        if self._started:
            *answers, taken = self._send(*statements, bound(_TAKE))
            self._take(taken.rows[0])
            return answers
        *answers, first = self._send(
            *statements, bound(_look(_beginning(latches.NOW, self._ns), taking=True)), opens=True
        )
        self._opened(first.rows[0])
        return answers

    def _place_entries(self) -> None:
        """Keep back the journal entries as one statement."""
        if self._entries:
            sql = _APPEND[len(self._entries) // _ENTRY_COLUMNS]
            self._pending.append(bound(sql, self._entries))
            self._entries = []

    def _opened(self, row: Sequence[Any]) -> None:
        self._started = True
        self.now = self._clock.saw(instant(row[0]), self._asked_s)
        self._listened = row[1]
        if row[2:]:
            # Taken after everything was latched.
            self._take(row[2:])


class _New(NamedTuple):
    """A record put under a key that is not latched yet, without its revision."""

    table: Table
    key: str
    row: list[Any]


@lru_cache(maxsize=256)
def _look(beginning: str, *, taking: bool) -> str:
    """Ask what a transaction has to know at its beginning; maybe take a revision too."""
    return f"SELECT {beginning}" + (_TAKE.replace("SELECT", ",") if taking else "")


@lru_cache(maxsize=1024)
def _taking(
    sql: str, columns: str, beginning: str = "", *, more: bool = False, always: bool = False
) -> str:
    """A statement that locks rows and then takes a revision, or two with `more`; none if it found
    no rows, unless `always`. With `beginning` it returns one row in any case, which ends with what
    a transaction has to know at its beginning.
    """
    revision = f"{schema.NEXT_REVISION}, {schema.THIS_TRANSACTION}" + (
        f", {schema.NEXT_REVISION}" if more else ""
    )
    locking = f"WITH locked AS MATERIALIZED ({sql}) SELECT {columns}, "
    if not beginning:
        return f"{locking}{revision} FROM locked"
    each = (
        revision
        if always
        else ", ".join(
            f"CASE WHEN rev IS NULL THEN NULL ELSE {call} END" for call in revision.split(", ")
        )
    )
    return f"{locking}{each}, {beginning} FROM (SELECT) AS one LEFT JOIN locked ON true"


def _bound_with_more(sql: str, columns: str, parameters: Sequence[Any]) -> Statement:
    # A transaction that changes two records mostly appends two entries.
    return bound(_taking(sql, columns, more=True), parameters)


@lru_cache(maxsize=256)
def _beginning(now: str, namespace: str) -> str:
    """What a transaction has to know at its beginning: the time, and whether anybody listens."""
    # In a statement with parameters, % is written twice.
    return f"{now}, {SOMEBODY.format(latches.listeners_class(namespace)).replace('%', '%%')}"
