"""The port's verbs on a connection, sent in as few messages as their answers allow.

A write is kept back until an answer is needed or the commit comes, and then travels in the same
message; the beginning of a transaction waits for its first statement. With what is latched there
comes a revision, in case it is wanted. So a claim is two messages: begin, take a record and a
revision; write, commit and notify.
"""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg

from holdfast.kernel import faults
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Rows, Space
from holdfast.kernel.store import JOURNAL_TOPIC, Damage, Row
from holdfast.stores.checks import ENDED, check_entry, check_key, plan_of, storable
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.clock import ServerClock, passing_s
from holdfast.stores.postgres.connections import Again, Connection, Deadline
from holdfast.stores.postgres.listener import SOMEBODY, notices
from holdfast.stores.postgres.messages import Answer, Statement, bound, exchange
from holdfast.stores.sql import SqlReadTx, SqlTx, Table

_APPEND = (
    "INSERT INTO holdfast.journal (revision, life, ns, at, actor, kind, subject, data) VALUES "
    "(%s, %s, %s, %s, %s, %s, %s, %s)"
)
_PLACE = "(life, xid, revision)"
_ENDS = (
    "(SELECT life, xid, revision FROM holdfast.journal WHERE ns = %s ORDER BY life DESC, xid "
    "DESC, revision DESC LIMIT 1"
)
_TRIM = (
    f"DELETE FROM holdfast.journal WHERE ns = %s AND {_PLACE} < {_ENDS}) "
    f"AND (at < %s AND {_PLACE} <= {_ENDS} OFFSET %s) OR {_PLACE} <= {_ENDS} OFFSET %s))"
)
_TAKE = f"SELECT {schema.NEXT_REVISION}, {schema.THIS_TRANSACTION}"
_XID_IF_ANY = bound(f"SELECT {schema.THIS_TRANSACTION_IF_ANY}")
_COMMIT, _ROLLBACK = bound("COMMIT"), bound("ROLLBACK")
_GIVEN = "SELECT last_value FROM holdfast.revision"
_MORE = f"SELECT {schema.NEXT_REVISION} FROM generate_series(1, %s)"
_KEPT_BACK_MAX = 256
_NOT_YET = datetime.min.replace(tzinfo=UTC)
_TOLD_S_MAX = 0.05
_REVISIONS_AT_ONCE_MAX = 256


class LateLatch(Again):
    """A key without a row was latched after the revision was taken, so that another transaction may
    have put and removed it with a greater one in between. Raised at the end, when all of them are
    known: the next run latches these stripes first.
    """

    def __init__(self, stripes: set[int]) -> None:
        self.stripes = stripes


class PostgresReadTx(SqlReadTx):
    """A snapshot."""

    dialect = schema.DIALECT

    def __init__(
        self, raw: Connection, namespace: str, names: frozenset[str], now: datetime
    ) -> None:
        super().__init__(namespace, names)
        self._raw = raw
        self.now = now

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return exchange(self._raw, [bound(sql, parameters)])[0].rows

    def end(self) -> None:
        """From here on it can do nothing: its connection may belong to another transaction."""
        self._names = self._raw = ENDED


class PostgresTx(PostgresReadTx, SqlTx):
    """A write transaction, begun by `begin`."""

    xid: str | None = None
    """The server's name for the transaction, known before anything of it can be committed."""

    def __init__(
        self,
        raw: Connection,
        namespace: str,
        scope: tuple[Space[Any] | Rows, ...],
        deadline: Deadline,
        stripes: set[int],
        clock: ServerClock,
    ) -> None:
        names = plan_of(scope).names
        self._scope = scope
        self._by_row = names.difference(space.name for space in scope if isinstance(space, Space))
        self._deadline = deadline
        self._clock = clock
        self._begun = False
        self._wrote = False
        self._pending: list[Statement] = []
        self._topics: dict[str, None] = {}
        self._stripes = stripes
        self._late = False
        self._latched: set[tuple[str, str]] = set()
        self._there: set[tuple[str, str]] = set()
        self._listened = True
        self._new: dict[tuple[str, str], _New] = {}
        self._told_at = time.monotonic()
        self._asked_s = 0.0
        self._limit_ms = 0
        self._revision = 0
        self._in_hand = 0
        self._taken = 0
        self._spare: list[int] = []
        self._appended = 0
        self._failure: psycopg.Error | None = None
        super().__init__(raw, namespace, names, _NOT_YET)

    def begin(self, *, durable: bool) -> None:
        """Begin and take the latches in their global order, with the first message."""
        self._pending = [bound(*one) for one in latches.begin(self._deadline, durable=durable)]
        self._limit_ms = latches.limit_ms(self._deadline)
        if self._scope:
            self._pending.append(bound(*latches.of_scope(self._ns, self._scope, self._limit_ms)))
        if self._stripes:
            self._pending.append(bound(*latches.exclusive(self._stripes, self._limit_ms)))

    @property
    def now(self) -> datetime:
        if not self._begun:
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
            if not self._begun and not self._by_row:
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
            # Nothing there to lock: latch the key itself, and only then look, for what came in
            # between.
            found = self._latch(space, key)
        self._latched.add((space.name, key))
        if not found:
            return None
        self._there.add((space.name, key))
        return Row(key, space.decode(key, found[0][0]), found[0][1])

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        known = space.name not in self._by_row or (space.name, key) in self._latched
        if not known and self._revision:
            self._latch(space, key)
            self._latched.add((space.name, key))
        elif not known:
            # All of them are latched at once, when the first is needed, and then there is a
            # revision that is theirs.
            table = self._table(space)
            self._new[space.name, key] = _New(table, key, self.row_of(space, key, record, 0))
            return
        if (space.name, key) in self._there:
            # Its row is locked, so that it is there still; to look for it and a place for a new one
            # costs twice as much.
            ns, name, *values = self.row_of(space, key, record, self.revision)
            self.write(self._table(space).update, [*values, ns, name])
            return
        super().put(space, key, record)

    def delete(self, space: Space[Any], key: str) -> bool:
        self._there.discard((space.name, key))
        return super().delete(space, key)

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        row = super().take_first(space, index, match, but_for=but_for, damaged=damaged)
        if row is not None and space.name in self._by_row:
            self._refuse_younger(row.revision)
            self._latched.add((space.name, row.key))
            self._there.add((space.name, row.key))
        return row

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        encoded = check_entry(data).decode()
        revision = self._entry_revision()
        self.write(
            _APPEND, (revision, self._raw.life, self._ns, self.now, actor, kind, subject, encoded)
        )
        self._appended += 1
        self.notify(JOURNAL_TOPIC)
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        return self.change(_TRIM, (self._ns, self._ns, before, self._ns, least, self._ns, keep))

    def notify(self, topic: str) -> None:
        self._topics[topic] = None

    def prepare(self) -> None:
        """Make the transaction ready for its commit. Raises what kept it from that: nothing was
        changed.
        """
        if self._failure is not None:
            raise self._failure
        self._place_new()
        if self._late:
            raise LateLatch(self._stripes)

    def commit(self) -> None:
        """Send what was kept back, commit and notify. A driver's error leaves the outcome open if
        the connection is lost, or if no transaction is open behind it.
        """
        ending = []
        if self._wrote or self._revision:
            ending.append(_COMMIT)
        elif self._begun:
            ending.append(_ROLLBACK)
        else:
            self._pending.clear()
            self._begun = True
        if self._topics and self._listened:
            ending.append(bound(*notices(self._ns, list(self._topics))))
        if not ending:
            return
        faults.reach("postgres.commit.before")
        self._send(*ending)
        faults.reach("postgres.commit.after")

    def _entry_revision(self) -> int:
        """The transaction's own for the first entry; more from the sequence, some at a time, for
        the rest.
        """
        if not self._appended:
            return self.revision
        if not self._spare:
            number = min(2 * self._appended, _REVISIONS_AT_ONCE_MAX)
            self._keep([row[0] for row in self._send(bound(_MORE, (number,)))[0].rows])
        return self._spare.pop()

    def _locked(self, space: Space[Any], key: str) -> list[tuple[Any, ...]]:
        """Lock a row, and take a revision if there is one to lock and none is used yet."""
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
        """Latch a key that has no row, and look for one that came meanwhile."""
        stripe = latches.stripe_key(self._ns, self._table(space).name, key)
        if fresh := stripe not in self._stripes:
            self._stripes.add(stripe)
            self._pending.append(bound(*latches.exclusive([stripe])))
        look = bound(self._table(space).get_locked, (self._ns, key))
        if not self._revision:
            found = self._send_and_take(look)[0]
        else:
            found, given = self._send(look, bound(_GIVEN))
            # Whoever took the revisions since may have put the key with one of them, and removed
            # it.
            self._late |= fresh and given.rows[0][0] > self._taken
        if found.rows:
            self._refuse_younger(found.rows[0][1])
        return found.rows

    def _place_new(self) -> None:
        """Latch what was put without a look at it, take a revision, and write it: one message."""
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
        """A revision that was taken after everything latched so far, and maybe another. It counts
        once it is used.
        """
        revision, self.xid, *more = row
        self._taken = self._in_hand = min((revision, *more))
        self._keep([number for number in (revision, *more) if number != self._in_hand])

    def _keep(self, numbers: list[int]) -> None:
        """Have these for further entries. They count as the last that were given only up to one
        that is somebody else's.
        """
        self._spare = sorted(numbers, reverse=True)
        for number in reversed(self._spare):
            if number != self._taken + 1:
                break
            self._taken = number

    def _with_revision(self, found: list[tuple[Any, ...]], taken: int = 2) -> list[tuple[Any, ...]]:
        """The rows of a statement made by `_taking`, without what was taken with them."""
        if found:
            self._take(found[0][-taken:])
        return [row[:-taken] for row in found]

    def locking_rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        # First of all: one that is taken beside a revision in use would hide those that others took
        # in between.
        self._place_new()
        if self._revision or not self._by_row:
            return self.rows(sql, parameters)
        return self._first_locked(sql, "key, value, rev", parameters)

    def _first_locked(
        self, sql: str, columns: str, parameters: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement that locks them, and with them a revision; at the beginning of
        the transaction what that has to know, too.
        """
        if self._begun and self._in_hand:
            # What changes two records mostly tells two things.
            return self._with_revision(self.rows(_taking(sql, columns, more=True), parameters), 3)
        if self._begun:
            return self._with_revision(self.rows(_taking(sql, columns), parameters))
        first = bound(_taking(sql, columns, _beginning(latches.NOW, self._ns)), parameters)
        row = self._send(first, opens=True)[0].rows[0]
        self._begun = True
        self._opened(row[-2:])
        return self._with_revision([row[:-2]] if row[-3] is not None else [])

    def _refuse_younger(self, revision: int) -> None:
        if self._revision and revision > self._revision:
            # It was put after this transaction took its own revision; with that one it would go
            # back.
            raise Again

    def _send(self, *statements: Statement, opens: bool = False) -> list[Answer]:
        """Send what was kept back and these, in one message; return the answers to these. `opens`:
        they ask themselves what has to be known at the beginning.
        """
        self._place_new()
        opening = (
            []
            if self._begun or opens
            else [bound(_look(_beginning(latches.NOW, self._ns), taking=not self._by_row))]
        )
        message = [*self._pending, *statements, *opening]
        if self._by_row and time.monotonic() > self._told_at + _TOLD_S_MAX:
            # Locks of rows are waited for one by one, and all of them together have what is left of
            # the time.
            message.insert(0 if self._begun else 1, bound(*latches.limit(self._deadline)))
            self._told_at = time.monotonic()
        self._pending = []
        self._asked_s = passing_s()
        try:
            answers = exchange(self._raw, message)
        except psycopg.Error as error:
            # A body that swallows it must not have its transaction taken for committed.
            self._failure = error
            raise
        if opening:
            self._begun = True
            self._opened(answers.pop().rows[0])
        return answers[len(answers) - len(statements) :]

    def _send_and_take(self, *statements: Statement) -> list[Answer]:
        """The same, and take a revision after all of them."""
        if self._begun:
            *answers, taken = self._send(*statements, bound(_TAKE))
            self._take(taken.rows[0])
            return answers
        *answers, first = self._send(
            *statements, bound(_look(_beginning(latches.NOW, self._ns), taking=True)), opens=True
        )
        self._begun = True
        self._opened(first.rows[0])
        return answers

    def _opened(self, row: Sequence[Any]) -> None:
        self.now = self._clock.saw(schema.instant(row[0]), self._asked_s)
        self._listened = row[1]
        if row[2:]:
            # Whole spaces were latched before it, and there is nothing else to latch.
            self._take(row[2:])


class _New(NamedTuple):
    """A record that was put under a key of which nothing is known yet; its revision is still to
    come.
    """

    table: Table
    key: str
    row: list[Any]


_LOCK_ALL = "SELECT 1 FROM {} WHERE ns = %s AND key = ANY(%s) ORDER BY key FOR UPDATE"


@lru_cache(maxsize=256)
def _look(beginning: str, *, taking: bool) -> str:
    """What a transaction has to know at its beginning; it may take a revision too."""
    return f"SELECT {beginning}" + (_TAKE.replace("SELECT", ",") if taking else "")


@lru_cache(maxsize=1024)
def _taking(sql: str, columns: str, beginning: str = "", *, more: bool = False) -> str:
    """A statement that locks rows, and that takes a revision once it has, or one more; none where
    it found nothing to lock. With what a transaction has to know at its beginning there is one row
    in any case, which ends with that.
    """
    revision = f"{schema.NEXT_REVISION}, {schema.THIS_TRANSACTION}" + (
        f", {schema.NEXT_REVISION}" if more else ""
    )
    locking = f"WITH locked AS MATERIALIZED ({sql}) SELECT {columns}, "
    if not beginning:
        return f"{locking}{revision} FROM locked"
    each = ", ".join(
        f"CASE WHEN rev IS NULL THEN NULL ELSE {call} END" for call in revision.split(", ")
    )
    return f"{locking}{each}, {beginning} FROM (SELECT) AS one LEFT JOIN locked ON true"


@lru_cache(maxsize=256)
def _beginning(now: str, namespace: str) -> str:
    """What has to be known at the beginning: the time, and whether anybody listens."""
    # In a statement with parameters a per cent sign is written twice.
    return f"{now}, {SOMEBODY.format(latches.listeners_class(namespace)).replace('%', '%%')}"
