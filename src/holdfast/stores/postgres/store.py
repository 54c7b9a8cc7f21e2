"""The store port on PostgreSQL.

The journal is read so that nothing is skipped and nothing is read twice. Transactions do not commit
in the order of their revisions. So entries are read in the order of the transactions that wrote
them, and only those below the oldest transaction still running: nothing can appear before them any
more. A server that lost its last transactions gives their numbers again, so the order begins with
the server's incarnation (schema.py). A cursor is the place of an entry in that order.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from holdfast.kernel.clock import MonotonicTime, since_boot
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.names import check_id
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import (
    BEGINNING,
    Administration,
    Batch,
    Cursor,
    ReadTx,
    Row,
    Tx,
)
from holdfast.stores.checks import closed, storable
from holdfast.stores.journal import cursor_at, instant, no_cursor, places_of, stored_entry
from holdfast.stores.listener import FdListener
from holdfast.stores.port import BaseStore, Plan
from holdfast.stores.postgres import attempt, calls, latches, schema
from holdfast.stores.postgres.address import DatabaseUrl
from holdfast.stores.postgres.connection import (
    CallDeadline,
    PostgresConnection,
    bound,
    exchange,
    passing_s,
)
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import translated
from holdfast.stores.postgres.listener import Listening
from holdfast.stores.postgres.session_lock import PostgresSessionLock
from holdfast.stores.postgres.transaction import PostgresReadTx
from holdfast.stores.sql import table_of

# Nothing of an earlier incarnation can still be running.
_SELECT = (
    "SELECT j.life, j.xid::text, revision, (extract(epoch FROM at) * 1000000)::bigint, actor, "
    "kind, subject, data FROM holdfast.journal AS j "
    "WHERE ns = %s AND (j.life < %s OR j.xid < pg_snapshot_xmin(pg_current_snapshot()))"
)
# A bare `xid` in ORDER BY would mean the text that is selected, in which 999 comes after 1000.
_FORWARD = (
    f"{_SELECT} AND (j.life, j.xid, revision) > (%s, %s::xid8, %s) "
    "ORDER BY j.life, j.xid, revision LIMIT %s"
)
_BACKWARD = f"{_SELECT} ORDER BY j.life DESC, j.xid DESC, revision DESC LIMIT %s"


T = TypeVar("T")


class PostgresStore(BaseStore):
    """A store in a PostgreSQL database, for any number of machines.

    Promised: the port, for every process that opens the same database and namespace. Its clock is
    the database's. All spaces are durable, volatile ones too; a crash of the server may take back
    only a transaction with `durable=False`. A commit whose connection was lost is looked up, not
    guessed. A call ends a moment after its time limit even if the server falls silent.

    Not promised: that a reader of the journal sees an entry at once. It does not while any older
    writing transaction of the same server is open, of any program. Nor that a standby that took
    over has the last commits, unless the server replicates synchronously. A URL through a pooler
    must give each client a session of its own.

    Raises StoreUnavailable when the server cannot be reached or used, InvalidValue for a bad URL,
    SchemaTooNew.
    """

    kind = "postgres"
    embedded = False
    ephemeral = False
    anchor = None

    def __init__(self, url: str, *, namespace: str = "default") -> None:
        self.namespace = check_id(namespace, "namespace")
        self.connections = Connections(DatabaseUrl(url), schema.join_incarnation)
        self._listening = Listening(self.connections, namespace)
        self._declared: set[Space[Any]] = set()
        self._session_locks: list[PostgresSessionLock] = []
        self._closed = False
        # On a connection of its own, whose error says best what is wrong with the URL.
        raw = self.connections.connect()
        try:
            schema.migrate(raw)
        except psycopg.Error as error:
            raise translated(self.connections.address, error) from None
        finally:
            raw.close()
        _stores.add(self)

    def now(self) -> datetime:
        return self.connections.clock.now(self._ask_now)

    def boot_in_use(self, boot_id: str) -> bool:  # noqa: ARG002 - connections do not say it
        return True

    def monotonic(self) -> MonotonicTime:
        return since_boot()

    def side_folder(self, purpose: str) -> Path | None:  # noqa: ARG002 - it lies on another machine
        return None

    def may_have_records(self, space: Space[Any]) -> bool:  # noqa: ARG002 - a read makes nothing
        return True

    @property
    def administration(self) -> Administration:
        from holdfast.stores.postgres.maintenance import PostgresAdministration

        return PostgresAdministration(self)

    def _transact(
        self, body: Callable[[Tx], T], plan: Plan, deadline: float, durable: bool = True
    ) -> T:
        limit = CallDeadline(deadline)
        self._declare(plan.spaces, limit)
        return attempt.transact(self.connections, self.namespace, body, plan, limit, durable)

    def _read(self, body: Callable[[ReadTx], T], plan: Plan, deadline: float) -> T:
        def snapshot(raw: PostgresConnection) -> T:
            asked_s = passing_s()
            cursor = raw.execute(
                f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {latches.NOW}"
            )
            cursor.nextset()
            now = self.connections.clock.saw(instant(cursor.fetchall()[0][0]), asked_s)
            tx = PostgresReadTx(raw, self.namespace, plan.names, now)
            try:
                return body(tx)
            finally:
                tx.end()

        self._declare(plan.spaces, CallDeadline(deadline))
        return self.connections.run(snapshot, CallDeadline(deadline))

    def _get(self, space: Space[R], key: str, deadline: float) -> Row[R] | None:
        self._declare([space], CallDeadline(deadline))
        if not storable(key):
            return None
        sql = table_of(space, schema.DIALECT).get

        def fetch(raw: PostgresConnection) -> list[tuple[Any, ...]]:
            return exchange(raw, [bound(sql, (self.namespace, key))])[0].rows

        found = self.connections.run(fetch, CallDeadline(deadline))
        return Row(key, space.decode(key, found[0][0]), found[0][1]) if found else None

    def _put_new(
        self, space: Space[R], items: Sequence[tuple[str, R]], deadline: float
    ) -> int | None:
        limit = CallDeadline(deadline)
        self._declare([space], limit)
        return calls.put_new(self.connections, self.namespace, space, items, limit)

    def _delete_if(
        self, space: Space[Any], keys: Sequence[str], token: int, deadline: float
    ) -> int:
        limit = CallDeadline(deadline)
        self._declare([space], limit)
        return calls.delete_if(self.connections, self.namespace, space, keys, token, limit)

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        return self._listening.listen(topics)

    def _journal(self, cursor: Cursor, limit: int, reverse: bool) -> Batch:
        def fetch(raw: PostgresConnection) -> Batch:
            places = places_of(cursor, 3, raw.journal)
            if places[0] > raw.incarnation:
                # That incarnation began on another server, with a copy of this one's files or dump.
                raise no_cursor(cursor)
            here = (self.namespace, raw.incarnation)
            if reverse:
                rows = raw.execute(_BACKWARD, (*here, limit)).fetchall()
                end = cursor_at(raw.journal, rows[0][:3]) if rows else BEGINNING
            else:
                incarnation, xid, revision = places
                after = (incarnation, str(xid), revision)
                rows = raw.execute(_FORWARD, (*here, *after, limit)).fetchall()
                end = cursor_at(raw.journal, rows[-1][:3] if rows else places)
            return Batch([stored_entry(*row[2:]) for row in rows], end)

        return self.connections.run(fetch)

    def session_lock(self, name: str) -> PostgresSessionLock:
        lock = PostgresSessionLock(self.connections, self.namespace, name)
        self._session_locks.append(lock)
        return lock

    def declare(self, spaces: Sequence[Space[Any]]) -> None:
        """Make the tables of these spaces, or bring them up to date."""
        self._declare(spaces, CallDeadline.after(TRANSACT_TIMEOUT_S))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for lock in self._session_locks:
                lock.close()
            self._listening.close()
            self.connections.close()

    def after_fork(self) -> None:
        """In a forked child: start without the parent's connections, threads and locks."""
        self.connections.after_fork()
        self._listening.after_fork()
        for lock in self._session_locks:
            lock.begin_process()

    def _ask_now(self) -> datetime:
        return instant(self.connections.run(lambda raw: raw.value(f"SELECT {latches.NOW}")))

    def _declare(self, spaces: Sequence[Space[Any]], deadline: CallDeadline) -> None:
        if self._closed:
            raise closed()
        if self._declared.issuperset(spaces):
            return
        for space in spaces:
            self.connections.run(lambda raw, s=space: _declare(raw, s, deadline), deadline)  # type: ignore[misc]
            self._declared.add(space)


def _declare(raw: PostgresConnection, space: Space[Any], deadline: CallDeadline) -> None:
    if schema.is_current(raw, space):
        return
    latch = latches.exclusive([latches.migration_key()])
    exchange(raw, [bound(*one) for one in (*latches.begin(deadline), latch)])
    if not schema.is_current(raw, space):
        schema.declare(raw, space)
    raw.execute("COMMIT")


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
