"""The store port on PostgreSQL."""

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from holdfast.kernel.clock import Passing, since_boot
from holdfast.kernel.limits import JOURNAL_READ_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.names import check_id
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import BEGINNING, Batch, Cursor, ReadTx, Row, Scope, Tx
from holdfast.stores.postgres import attempt, hotpath, journal, latches, life, schema
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.clock import passing_s
from holdfast.stores.postgres.connections import Connection, Connections, Deadline
from holdfast.stores.postgres.listening import Listening
from holdfast.stores.postgres.messages import bound, exchange
from holdfast.stores.postgres.session_lock import SessionLock
from holdfast.stores.postgres.transaction import PostgresReadTx
from holdfast.stores.postgres.translate import closed, translated
from holdfast.stores.scoping import check_keys, plan_of, storable
from holdfast.stores.sql import table_of
from holdfast.stores.waking import FdListener

T = TypeVar("T")


class PostgresStore:
    """A store in a PostgreSQL database, for any number of machines.

    Promised: the port, for every process that opens the same database and namespace. Its clock is the database's. All
    spaces are durable, volatile ones too; only a transaction that asks for `durable=False` may be taken back by a crash of
    the server. A commit whose connection was lost is looked up, not guessed. A call ends a moment after its time limit even
    if the server falls silent.

    Not promised: that a reader of the journal sees an entry at once. It does not while any older writing transaction of the
    same server is open, of whatever program. Nor that a standby that took over knows the last commits, unless the server
    was set to replicate synchronously. A URL through a pooler must give each client a session of its own.

    Raises StoreUnavailable when the server cannot be reached or used, InvalidValue for a bad URL, SchemaTooNew.
    """

    kind = "postgres"
    embedded = False

    def __init__(self, url: str, *, namespace: str = "default") -> None:
        self.namespace = check_id(namespace, "namespace")
        self.connections = Connections(Address(url), life.join)
        self._listening = Listening(self.connections, namespace)
        self._declared: set[Space[Any]] = set()
        self._session_locks: list[SessionLock] = []
        self._closed = False
        self._migrate()
        _stores.add(self)

    def now(self) -> datetime:
        return self.connections.clock.now(self._ask_now)

    def boot_in_use(self, boot_id: str) -> bool:  # noqa: ARG002 - who is connected does not tell
        return True

    def passing(self) -> Passing:
        return since_boot()

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        deadline = Deadline.after(timeout_s)
        self._declare(plan_of(tuple(scope)).spaces, deadline)
        return attempt.transact(self.connections, self.namespace, body, scope, deadline, durable)

    def read(self, body: Callable[[ReadTx], T], *, scope: Scope, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        deadline = Deadline.after(timeout_s)
        spaces, names, _ = plan_of(tuple(scope))
        self._declare(spaces, deadline)

        def snapshot(raw: Connection) -> T:
            asked_s = passing_s()
            cursor = raw.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {latches.NOW}")
            cursor.nextset()
            now = self.connections.clock.saw(schema.instant(cursor.fetchall()[0][0]), asked_s)
            tx = PostgresReadTx(raw, self.namespace, names, now)
            try:
                return body(tx)
            finally:
                tx.end()

        return self.connections.persist(snapshot, deadline)

    def get(self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S) -> Row[R] | None:
        deadline = Deadline.after(timeout_s)
        self._declare([space], deadline)
        if not storable(key):
            return None
        sql = table_of(space, schema.DIALECT).get

        def look(raw: Connection) -> list[tuple[Any, ...]]:
            return exchange(raw, [bound(sql, (self.namespace, key))])[0].rows

        found = self.connections.persist(look, deadline)
        return Row(key, space.decode(key, found[0][0]), found[0][1]) if found else None

    def put_new(self, space: Space[R], items: Sequence[tuple[str, R]], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> int | None:
        check_keys([key for key, _ in items], distinct=True)
        deadline = Deadline.after(timeout_s)
        self._declare([space], deadline)
        return attempt.certain(
            self.connections, lambda raw: hotpath.put_new(raw, self.namespace, space, items, deadline), deadline
        )

    def delete_if(self, space: Space[Any], keys: Sequence[str], token: int, *, timeout_s: float = TRANSACT_TIMEOUT_S) -> int:
        check_keys(keys)
        deadline = Deadline.after(timeout_s)
        self._declare([space], deadline)
        return attempt.certain(
            self.connections, lambda raw: hotpath.delete_if(raw, self.namespace, space, keys, token, deadline), deadline
        )

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        return self._listening.listen(topics)

    def journal(self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False) -> Batch:
        return self.connections.persist(
            lambda raw: journal.read(raw, self.namespace, cursor, limit, reverse=reverse), Deadline.after(TRANSACT_TIMEOUT_S)
        )

    def session_lock(self, name: str) -> SessionLock:
        """A lock that ends with the connection of whoever has it."""
        lock = SessionLock(self.connections, self.namespace, name)
        self._session_locks.append(lock)
        return lock

    def declare(self, spaces: Sequence[Space[Any]]) -> None:
        """Make the tables of these spaces, or bring them up to date."""
        self._declare(spaces, Deadline.after(TRANSACT_TIMEOUT_S))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for lock in self._session_locks:
                lock.close()
            self._listening.close()
            self.connections.close()

    def after_fork(self) -> None:
        """In a forked child: begin with no connection, thread or lock of the parent's."""
        self.connections.after_fork()
        self._listening.after_fork()
        for lock in self._session_locks:
            lock.begin_process()

    def _ask_now(self) -> datetime:
        asked = f"SELECT {latches.NOW}"
        return schema.instant(
            self.connections.persist(lambda raw: raw.execute(asked).fetchall()[0][0], Deadline.after(TRANSACT_TIMEOUT_S))
        )

    def _migrate(self) -> None:
        """Make or upgrade the tables, over a connection of its own: its error says best what is wrong with the URL."""
        raw = self.connections.connect()
        try:
            schema.migrate(raw)
        except psycopg.Error as error:
            raise translated(self.connections.address, error) from None
        finally:
            raw.close()

    def _declare(self, spaces: Sequence[Space[Any]], deadline: Deadline) -> None:
        if self._closed:
            raise closed()
        if self._declared.issuperset(spaces):
            return
        for space in spaces:
            self.connections.persist(lambda raw, s=space: _declare(raw, s, deadline), deadline)  # type: ignore[misc]
            self._declared.add(space)


def _declare(raw: Connection, space: Space[Any], deadline: Deadline) -> None:
    if schema.is_current(raw, space):
        return
    exchange(raw, [bound(*one) for one in (*latches.begin(deadline), latches.exclusive([latches.migration_key()]))])
    if not schema.is_current(raw, space):
        schema.declare(raw, space)
    raw.execute("COMMIT")


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
