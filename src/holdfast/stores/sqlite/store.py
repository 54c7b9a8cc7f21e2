"""The store port on SQLite: a durable file, and beside it a volatile one for the state of one
boot.
"""

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Any, TypeVar

from holdfast.kernel import faults, token
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import HoldfastError, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.names import check_id
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Administration, Batch, Cursor, Row, SessionLock
from holdfast.stores.checks import closed, storable
from holdfast.stores.listener import FdListener
from holdfast.stores.port import EmbeddedStore, Plan, plan_of
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite import handles, schema
from holdfast.stores.sqlite.database import Connection, Database, left_s, retry
from holdfast.stores.sqlite.errors import TablesChanged, busy, opening_failed
from holdfast.stores.sqlite.fifos import Fifos
from holdfast.stores.sqlite.filesystem import make_database, refuse_network
from holdfast.stores.sqlite.transaction import (
    Declined,
    HotPath,
    KeyTaken,
    SqliteReadTx,
    SqliteTx,
)
from holdfast.stores.sqlite.users import (
    Users,
    close_inherited,
    create_volatile,
    join_volatile,
    volatile_path,
)
from holdfast.system.access import PRIVATE, Access, access_of, open_made_folder
from holdfast.system.folder_walk import Folder, open_folder, resolve

T = TypeVar("T")

_TRIES = 2
"""How often work is tried: another process may restore older tables in place of the known ones."""


class SqliteStore(EmbeddedStore):
    """A store in SQLite files on one machine.

    Promised: the port, for every process of this machine that opens the same path, also in
    containers that share the folder and have a boot id of their own. Volatile spaces live in
    `<name>.locks-<boot_id>.sqlite` beside the durable file and end with the boot. A child that was
    forked while SQLite was in use is refused (handles.py). Not promised: network file systems,
    which are refused; and a time limit on a disk that does not answer a sync.
    """

    kind = "sqlite"
    ephemeral = False

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        namespace: str = "default",
        clock: Clock | None = None,
        access: Access = PRIVATE,
    ) -> None:
        super().__init__(namespace, clock)
        # SQLite keeps the log beside the target of a link, so everything else must lie there too.
        self.path = self.anchor = Path(resolve(path))
        self._boot_id = check_id(boot_id, "boot id")
        self._begin_process()
        with contextlib.ExitStack() as opening, contextlib.ExitStack() as undone:
            try:
                # One walk for all files: each is opened in this folder.
                folder = Folder.of(open_made_folder(self.path.parent, access))
                opening.callback(os.close, folder.fd)
                refuse_network(self.path.parent)
                found = make_database(self.path, access, folder)
                # An existing store keeps its owner and group.
                self.access = access_of(found)
                schema.refuse_foreign(self.path, self.access)
            except OSError as error:
                raise opening_failed(self.path, error) from None
            # Before the first connection: from here on nobody replaces the files.
            self._users = Users(self.path, self.access, self._boot_id, folder)
            undone.callback(self._users.close)
            self.durable = Database(
                self.path,
                found,
                folder,
                access=self.access,
                synced=True,
                create=self._create_durable,
                failed=self._forget_tables,
            )
            undone.callback(self.durable.close)
            current = join_volatile(self.durable, self._users, boot_id, self._clock)
            self.volatile_path = volatile_path(self.path, current)
            """That of this boot, unless a process with another boot id was first."""
            undone.pop_all()
        self._fifos = Fifos(self.side_folder("wake"), namespace, self.access)
        _stores.add(self)

    def _begin_process(self) -> None:
        self._mutex = threading.Lock()
        self._volatile: Database | None = None
        self._declared: set[Space[Any]] = set()
        self._hot: HotPath | None = None
        self._closed = False

    def side_folder(self, purpose: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{purpose}")

    def may_have_records(self, space: Space[Any]) -> bool:
        return not space.volatile or os.path.exists(self.volatile_path)

    def session_lock(self, name: str) -> SessionLock:
        from holdfast.system.flock import FlockLock

        return FlockLock(self.side_folder(f"{name}-{self.namespace}.lock"), self.access)

    @property
    def administration(self) -> Administration:
        from holdfast.stores.sqlite.maintenance import SqliteAdministration

        return SqliteAdministration(self)

    def _transact(
        self, body: Callable[[SqliteTx], T], plan: Plan, deadline: float, durable: bool = True
    ) -> T:
        for _ in range(_TRIES):
            try:
                database = self._volatile if plan.volatile else self.durable
                if database is None or self._closed:
                    database = self._database(plan.volatile, deadline)
                if durable:
                    database.repair_log(deadline)
                connection = database.lend(deadline)
                try:
                    return self._write(database, connection, body, plan, deadline, durable)
                except sqlite3.Error as error:
                    raise database.discard(connection, error) from None
                finally:
                    # Not by `with`: every call comes through here, and that costs two calls more.
                    database.give_back(connection)
            except TablesChanged:
                continue
        raise self._always_restored()

    def _write(
        self,
        database: Database,
        connection: Connection,
        body: Callable[[SqliteTx], T],
        plan: Plan,
        deadline: float,
        durable: bool,
    ) -> T:
        if connection.log.size() > LOG_BYTES_MAX:
            database.restart_log(connection, deadline)
        if not self._declared.issuperset(plan.spaces):
            self._declare(database, connection, plan.spaces, deadline)
        counter = database.counter
        tx = SqliteTx(connection.cursor, self.namespace, plan.names, counter)

        def run() -> T:
            tx.now = self._clock.now()
            try:
                result = body(tx)
                tx.finish()
                if not connection.handle.is_ours():
                    # The body has forked, and this is the child: only its parent may commit.
                    raise handles.refusal()
            finally:
                tx.end()
            return result

        committed = None if counter is None else tx.committed
        result = database.write(connection, run, deadline, sleepy=True, committed=committed)
        if faults.hook is not None:
            faults.reach("sqlite.notify.before")
        if tx.topics:
            self._fifos.notify(*tx.topics)
        if faults.hook is not None:
            faults.reach("sqlite.notify.after")
        database.finish_write(connection, durable=durable)
        database.checkpoint_if_due(connection)
        return result

    def _read(self, body: Callable[[SqliteReadTx], T], plan: Plan, deadline: float) -> T:
        def snapshot(cursor: sqlite3.Cursor) -> T:
            cursor.execute("BEGIN")
            tx = SqliteReadTx(cursor, self.namespace, plan.names)
            tx.now = self._clock.now()
            try:
                return body(tx)
            finally:
                tx.end()
                cursor.execute("ROLLBACK")

        return self._on_tables(plan, deadline, snapshot)

    def _get(self, space: Space[R], key: str, deadline: float) -> Row[R] | None:
        sql = table_of(space, schema.DIALECT).get

        def fetch(cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
            return cursor.execute(sql, (self.namespace, key)).fetchall() if storable(key) else []

        found = self._on_tables(plan_of((space,)), deadline, fetch)
        return Row(key, space.decode(key, found[0][0]), found[0][1]) if found else None

    def _on_tables(self, plan: Plan, deadline: float, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Read from the tables of a plan, which are made if they do not exist."""
        for _ in range(_TRIES):
            try:
                database = self._volatile if plan.volatile else self.durable
                if database is None or self._closed:
                    database = self._database(plan.volatile, deadline)
                connection = database.lend(deadline)
                try:
                    if not self._declared.issuperset(plan.spaces):
                        self._declare(database, connection, plan.spaces, deadline)
                    try:
                        return work(connection.cursor)
                    except sqlite3.OperationalError as error:
                        if not busy(error):
                            raise
                        return retry(deadline, work, connection.cursor)
                except sqlite3.Error as error:
                    raise database.discard(connection, error) from None
                finally:
                    database.give_back(connection)
            except TablesChanged:
                continue
        raise self._always_restored()

    def _put_new(
        self, space: Space[R], items: Sequence[tuple[str, R]], deadline: float
    ) -> int | None:
        if (hot := self._hot_path(space, deadline)) is not None:
            try:
                return hot.put_new(space, items, deadline)
            except Declined:
                pass

        def insert(tx: SqliteTx) -> int:
            for key, record in items:
                tx.insert(space, key, record)
            return tx.revision

        try:
            return self._transact(insert, plan_of((space,)), deadline)
        except KeyTaken:
            return None

    def _hot_path(self, space: Space[Any], deadline: float) -> HotPath | None:
        if space.volatile and (self._hot is None or space not in self._declared):
            # The first change: a read of nothing opens the file and makes the table.
            self._on_tables(plan_of((space,)), deadline, lambda _: None)
        return self._hot if space.volatile else None

    def _delete_if(
        self, space: Space[Any], keys: Sequence[str], token: int, deadline: float
    ) -> int:
        if (hot := self._hot_path(space, deadline)) is not None:
            try:
                return hot.delete_if(space, keys, token, deadline)
            except Declined:
                pass
        sql = schema.delete_if(space, len(keys))

        def delete(tx: SqliteTx) -> int:
            return tx.change(sql, (self.namespace, token, *keys))

        return self._transact(delete, plan_of((space,)), deadline)

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        if self._closed:
            raise self._no_more()
        return self._fifos.listen(topics, self._users.keep)

    def _journal(self, cursor: Cursor, limit: int, reverse: bool) -> Batch:
        """The entries of both files, merged by time; the cursor is a place in each."""
        # A command that only changes something does not need it.
        from holdfast.stores.sqlite.journal import read

        if self._closed:
            raise self._no_more()
        files = [self.durable]
        if os.path.exists(self.volatile_path):
            files.append(self._database(True, time.monotonic() + TRANSACT_TIMEOUT_S))
        return read(files, self.namespace, cursor, limit, reverse=reverse)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._hot = None
        self.durable.close()
        if self._volatile is not None:
            self._volatile.close()
        self._fifos.close()
        self._users.close()

    def after_fork(self) -> None:
        """In a forked child: start without the parent's connections, descriptors and locks. A store
        for which that fails is closed.
        """
        was_closed, volatile, users = self._closed, self._volatile, self._users
        files = [self.durable] if volatile is None else [self.durable, volatile]
        self._begin_process()
        self._closed = True
        # The program may have closed all descriptors, as daemons do.
        for file in files:
            with contextlib.suppress(Exception):
                file.after_fork()
        with contextlib.suppress(Exception):
            self._fifos.close(forked=True)
        try:
            if was_closed:
                return
            self._users = Users(self.path, self.access, self._boot_id)
            # The parent's locks are closed last: without any, another boot could begin a volatile
            # file of its own.
            self._users.share_volatile()
        finally:
            users.close()
        for file in files:
            file.begin_process()
        self._volatile = volatile
        self._closed = False

    def before_fork(self) -> None:
        """Before this process forks: close every idle connection, since none may be open then."""
        self.durable.close_idle()
        if self._volatile is not None:
            self._volatile.close_idle()

    def boot_in_use(self, boot_id: str) -> bool:
        return self._users.has_boot(boot_id)

    def _always_restored(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} is being restored again and again: try later", outcome="none"
        )

    def _database(self, volatile: bool, deadline: float) -> Database:
        if self._closed:
            raise self._no_more()
        if not volatile:
            return self.durable
        if self._volatile is None:
            self._open_volatile(deadline)
        assert self._volatile is not None
        return self._volatile

    def _open_volatile(self, deadline: float) -> None:
        if not self._mutex.acquire(timeout=left_s(deadline)):
            raise LockTimeout(
                "the volatile file could not be opened in time: another thread is at it",
                outcome="none",
            )
        try:
            if self._volatile is None:
                path = self.volatile_path
                folder = Folder.of(open_folder(path.parent))
                try:
                    found = make_database(path, self.access, folder)
                    self.durable.repair_log(deadline)
                    # Lent before: `create` may run in the gate's thread, which cannot open a
                    # connection while this thread opens one.
                    with self.durable.lend(deadline) as connection:
                        self._volatile = Database(
                            path,
                            found,
                            folder,
                            access=self.access,
                            synced=False,
                            create=lambda raw: create_volatile(
                                raw, path, self.durable, connection, self._clock, deadline
                            ),
                            failed=self._forget_tables,
                            deadline=deadline,
                        )
                finally:
                    os.close(folder.fd)
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            raise opening_failed(self.volatile_path, error) from None
        finally:
            self._mutex.release()

    def _declare(
        self,
        database: Database,
        connection: Connection,
        spaces: Sequence[Space[Any]],
        deadline: float,
    ) -> None:
        unknown = list(filterfalse(self._declared.__contains__, spaces))
        for space in retry(deadline, schema.outdated, connection.raw, unknown):
            declare = partial(_declare_if_needed, connection.raw, space)
            database.write(connection, declare, deadline)
        self._declared.update(unknown)
        if self._hot is None and database.counter is not None:
            self._hot = HotPath(database, database.counter, self.namespace)

    def _forget_tables(self) -> None:
        """After an error of SQLite: another process may have restored other tables."""
        self._declared.clear()

    def _create_durable(self, raw: sqlite3.Connection) -> None:
        schema.create(raw, token.next_era(0, self._clock.now()))
        schema.begin_boot(raw, self._boot_id, self._clock)

    def _no_more(self) -> StoreUnavailable:
        """The error of a closed store. In a child that was forked while SQLite was in use, raises
        what tells it so.
        """
        handles.check()
        return closed()


def _declare_if_needed(raw: sqlite3.Connection, space: Space[Any]) -> None:
    if schema.outdated(raw, [space]):
        schema.declare(raw, space)


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _before_fork() -> None:
    handles.begin_fork(_close_idle)


def _close_idle() -> None:
    for store in _all_stores():
        store.before_fork()


def _all_stores() -> list[SqliteStore]:
    while True:
        try:
            return list(_stores)
        except RuntimeError:
            # Another thread has just opened one.
            continue


def _after_fork() -> None:
    for store in _all_stores():
        # A store that fails, in whatever way, must not leave the next one with its parent's
        # connections.
        with contextlib.suppress(Exception):
            store.after_fork()
    close_inherited()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
