"""One database file: its connections, turns to write, durable commits and checkpoints.

Rules that keep acknowledged changes through a power loss, each of which was seen to lose some when
broken:

- the log's descriptor is opened and closed with its connection (wal.py);
- the database and its -shm file are never opened but through SQLite: closing any descriptor of them
  drops its locks;
- a durable transaction syncs even if it only read, since its answer may rest on a commit that is
  not synced yet;
- a failed sync is never retried: the kernel may have dropped the pages. The outcome is unknown, all
  connections are opened anew, and nobody is acknowledged anything until the log is begun anew
  (doubt.py);
- the folder is synced once for each connection, as its log may be new.
"""

import contextlib
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable
from os import getpid, sched_yield
from pathlib import Path
from threading import get_ident
from typing import TypeVar

from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_KEPT, LOG_BYTES_MAX, TRANSACT_TIMEOUT_S
from holdfast.stores.sqlite import handles, schema, wal
from holdfast.stores.sqlite.counter import SharedCounter
from holdfast.stores.sqlite.errors import (
    TablesChanged,
    busy,
    opening_failed,
    tables_changed,
    translated,
)
from holdfast.stores.sqlite.filesystem import Place, check_database, refuse_followed
from holdfast.stores.sqlite.gate import Gate
from holdfast.stores.sqlite.handles import Handle
from holdfast.stores.sqlite.wal import Log, SharedSync, log_path, refuse_truncated, too_long
from holdfast.system.access import Access

T = TypeVar("T")

CHECKPOINT_FRAMES = 3600
"""The log is copied into the database and begun anew when it has this many pages (14 MB).

The more it has, the more often a page is in it that is copied once. But the first part of SQLite's
index of the log has 4062 places, and with a second part each page has to be looked for in both.
"""

CHECKPOINT_FRAMES_VOLATILE = 400
"""The same of a file that is never synced, where a checkpoint costs little more than two changes,
while in a long log each change of a page has to find its way past all earlier ones of it.
"""

_TIDY_EVERY = 8
_VOLATILE_TRIES = 10
_BUSY_SLEEP_S = 0.001
_BUSY_SLEEP_MAX_S = 0.05


class Connection:
    """One connection and the log's descriptor that belongs to it. Used by one thread at a time.

    One that its user could not give back, since an exception came just then, is closed when nothing
    refers to it any more.
    """

    def __init__(
        self,
        handle: Handle,
        raw: sqlite3.Connection,
        log: Log,
        generation: int,
        siblings: "weakref.WeakSet[Connection]",
    ) -> None:
        self.handle = handle
        self.raw = raw
        self.generation = generation
        self.siblings = siblings
        self.log = log
        self.changes = 0
        # One for all statements whose rows are fetched at once, since making a cursor costs as much
        # as a small statement.
        self.cursor = handle.cursor = raw.cursor()

    def close(self) -> None:
        """Close the descriptor first: it must not outlive the connection that pins the log."""
        try:
            self.log.close()
        finally:
            self.handle.close()

    def __del__(self) -> None:
        # It may not even have anything to close yet. Modules may be gone already when the
        # interpreter ends.
        try:  # noqa: SIM105
            self.close()
        except Exception:  # noqa: BLE001 - nobody could hear of it
            pass


class Lent:
    """A connection for the block of a `with`. A class of its own, since this is on the way of every
    single call.
    """

    __slots__ = ("_connection", "_database", "_timeout_s")

    def __init__(self, database: "Database", timeout_s: float) -> None:
        self._database = database
        self._timeout_s = timeout_s

    def __enter__(self) -> Connection:
        self._connection = self._database.lend(self._timeout_s)
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise self._database.failed(self._connection, error) from None
        self._database.give_back(self._connection)


class Database:
    """A file of a store. `create` fills a new one, inside its first transaction; `forget` is told
    of SQLite's errors.
    """

    def __init__(
        self,
        path: Path,
        *,
        access: Access,
        synced: bool,
        create: Callable[[sqlite3.Connection], None],
        forget: Callable[[], None],
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> None:
        self.path = path
        self.place = Place(path)
        self._access = access
        self._forget = forget
        self._synced = synced
        self._create = create
        self._begin_process()
        try:
            with self.connection(timeout_s):
                pass
        except BaseException:
            self.gate.close()
            raise

    def _begin_process(self) -> None:
        gate = wal.gate_path(self.path)
        # A file that is synced keeps each revision itself.
        self.counter = None if self._synced else SharedCounter(gate, self._access)
        # A turn at a volatile file takes some 50 us; one at a durable file may have a checkpoint in
        # it.
        self.gate = Gate(
            gate, self._access, self.counter, tries=1 if self._synced else _VOLATILE_TRIES
        )
        self._shared = SharedSync()
        self._process = getpid()
        self._idle: deque[Connection] = deque()
        self._open_ones: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._generation = 0

    def connection(self, timeout_s: float) -> Lent:
        """Lend a connection for a `with` block. SQLite's errors leave it as errors of the tree."""
        return Lent(self, timeout_s)

    def lend(self, timeout_s: float) -> Connection:
        """A connection of the current generation, for the caller to give back."""
        return self.lend_idle() or self._open(timeout_s)

    def lend_idle(self) -> Connection | None:
        """One that is open already and not in use."""
        if self._process != getpid():
            # Forked by a C library, without Python's hooks: gate and connections are the parent's.
            raise handles.refusal()
        try:
            while (connection := self._idle.pop()).generation != self._generation:
                self._close(connection)
            connection.handle.owner = get_ident()
            return connection
        except IndexError:
            return None

    def alone(self, work: Callable[[], T], timeout_s: float, *, sleepy: bool = False) -> T:
        """Do the work inside the gate: no other writer of any process is. For `sleepy` see
        Gate.run.
        """
        faults.reach("sqlite.gate.before")
        return self.gate.run(work, timeout_s, sleepy=sleepy)

    def write(
        self,
        connection: Connection,
        work: Callable[[], T],
        timeout_s: float,
        *,
        sleepy: bool = False,
        committed: Callable[[T], None] | None = None,
    ) -> T:
        """Do the work inside the gate and a transaction; commit at its end, roll back if it raises.
        After the commit, still inside the gate, `committed` gets what the work returned.
        """
        deadline = time.monotonic() + timeout_s
        if self._synced:
            self.place.check()
        raw = connection.raw
        execute = connection.cursor.execute

        def transaction() -> T:
            faults.reach("sqlite.gate.after")
            try:
                try:
                    execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    # Mostly nobody is in the way.
                    self._persist(lambda: execute("BEGIN IMMEDIATE"), deadline)
                result = work()
                faults.reach("sqlite.commit.before")
                try:
                    execute("COMMIT")
                except sqlite3.Error as error:
                    raise translated(self.path, error, committing=True) from None
                faults.reach("sqlite.commit.after")
                if committed is not None:
                    committed(result)
                return result
            except BaseException:
                if raw.in_transaction and connection.handle.is_ours():
                    try:  # noqa: SIM105 - not deeper in the stack than BEGIN was: there may be no more room
                        execute("ROLLBACK")
                    except sqlite3.Error:
                        # Whoever takes the connection back closes it.
                        pass
                raise

        try:
            faults.reach("sqlite.gate.before")
            return self.gate.run(transaction, timeout_s, sleepy=sleepy)
        except BaseException:
            # Another exception may have come just where the first was dealt with.
            if connection.handle.is_ours() and raw.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    raw.execute("ROLLBACK")
            raise

    def end_turn(self, connection: Connection, *, durable: bool) -> None:
        """After a write whose notices are sent: return once it survives a power loss, if it should.
        Otherwise give way: flock lets in whoever runs next, which would mostly be the one that just
        left.
        """
        if durable and self._synced:
            self.settle(connection)
        elif self.gate.crowded():
            sched_yield()

    def settle(self, connection: Connection) -> None:
        """Return once everything committed so far survives a power loss."""
        if not self._synced:
            return
        why = "another process's sync failed"
        try:
            self._shared.sync(connection.log)
            # A descriptor that was opened after another one was told of an error is not told of it.
            if not wal.is_marked(self.gate):
                return
        except OSError as error:
            why = os.strerror(error.errno or 0)
        self._renew()
        raise StoreUnavailable(
            f"{self.path} could not be synced to disk ({why}); whether the change survives is "
            "unknown: check the disk, then "
            "look before you repeat it",
            path=str(self.path),
            outcome="unknown",
        )

    def certain(self, timeout_s: float) -> None:
        """Before a durable change: if a sync of the log has failed, copy what it holds into the
        database, and begin it anew. Raises StoreUnavailable where that cannot be done yet; then
        nothing was changed.
        """
        if not self._synced or not wal.is_marked(self.gate):
            return
        deadline = time.monotonic() + timeout_s
        # The descriptors of older connections would still tell of the failure.
        self._renew()
        with self.connection(timeout_s) as connection:
            self.alone(
                lambda: wal.empty_log(self.path, self.gate, connection.raw, deadline), timeout_s
            )

    def _renew(self) -> None:
        """Let every connection be opened anew."""
        self._generation += 1
        with contextlib.suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def tidy(self, connection: Connection) -> None:
        """Checkpoint the log when it has grown to its bound. Never fails the transaction it comes
        after.
        """
        # At the first change too: a one-shot program makes no second.
        due = connection.changes % _TIDY_EVERY == 0
        connection.changes += 1
        if not due:
            return
        raw = connection.raw

        def checkpoint() -> bool:
            return not raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0]

        with contextlib.suppress(sqlite3.Error, OSError, HoldfastError):
            if not connection.log.reaches(
                CHECKPOINT_FRAMES if self._synced else CHECKPOINT_FRAMES_VOLATILE
            ):
                return
            # Most of the work happens outside the gate, while others go on writing.
            if checkpoint():
                faults.reach("sqlite.checkpoint.between")
                # The few frames that came meanwhile: with none left, the next writer begins the log
                # anew.
                self.alone(checkpoint, _BUSY_SLEEP_MAX_S)

    def bound_log(self, connection: Connection, timeout_s: float) -> None:
        """Before a change: begin a log anew that has reached its bound, as far as a stopped reader
        is not in the way any more. Raises StoreUnavailable, naming the reader, while one is.
        """
        if connection.log.size() <= LOG_BYTES_MAX:
            return

        def begin_anew() -> bool:
            return not connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

        if not self.alone(begin_anew, timeout_s):
            raise too_long(self.path, connection.log.size())

    def reading(
        self, connection: Connection, work: Callable[[sqlite3.Connection], T], timeout_s: float
    ) -> T:
        """Run one read, again if another connection was just recovering or closing the log."""
        return self._persist(lambda: work(connection.raw), time.monotonic() + timeout_s)

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; one of an older generation, or one in doubt, is closed."""
        if connection.siblings is not self._open_ones:
            # This process was forked off inside the block: the connection is its parent's.
            return
        if connection.generation == self._generation and not connection.raw.in_transaction:
            connection.handle.owner = handles.NOBODY
            self._idle.append(connection)
        else:
            self._close(connection)

    def failed(
        self, connection: Connection, error: sqlite3.Error, *, committing: bool = False
    ) -> HoldfastError | TablesChanged:
        """Take a connection back that SQLite failed on, and say what that means. For `committing`
        see `translated`.
        """
        self._close(connection)
        self._forget()
        return (
            TablesChanged(str(error))
            if tables_changed(error)
            else translated(self.path, error, committing=committing)
        )

    def close(self) -> None:
        """Close what is idle and the gate; what is lent out closes when it comes back."""
        self._renew()
        self.gate.close()

    def close_idle(self) -> None:
        """Before this process forks: close every connection that nobody uses, and the others once
        they come back.
        """
        self._renew()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's gate, connections and logs."""
        inherited, self._open_ones = list(self._open_ones), weakref.WeakSet()
        self._idle = deque()
        self.gate.abandon()
        for connection in inherited:
            with contextlib.suppress(OSError):
                connection.log.close()

    def begin_process(self) -> None:
        """In a forked child, after that: begin with a gate of its own and no connection."""
        self._begin_process()

    def _open(self, timeout_s: float) -> Connection:
        deadline = time.monotonic() + timeout_s
        handle = Handle()
        generation = self._generation
        try:
            handle.begin(self.path, timeout_s)
            self.place.check()
            check_database(self.path, self._access)
            refuse_truncated(self.path)
            raw = handle.raw = sqlite3.connect(
                self.path,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            refuse_followed(raw, self.path)
            self._configure(raw, deadline)
            connection = Connection(
                handle, raw, Log(self.path, self._access), generation, self._open_ones
            )
            self._open_ones.add(connection)
            return connection
        except sqlite3.Error as error:
            handle.close()
            raise translated(self.path, error) from None
        except OSError as error:
            handle.close()
            if isinstance(error, LockTimeout):
                # An OSError too, but not one of the log's: the gate was taken for too long.
                raise
            raise opening_failed(log_path(self.path), error) from None
        except BaseException:
            handle.close()
            raise

    def _configure(self, raw: sqlite3.Connection, deadline: float) -> None:
        # This reads the schema, so it too meets whoever is just making, recovering or deleting the
        # log.
        self._persist(
            lambda: raw.execute(f"PRAGMA synchronous = {'NORMAL' if self._synced else 'OFF'}"),
            deadline,
        )
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        # A log that grew while a reader was stopped is cut to this when it is begun anew.
        raw.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")
        layout = self._persist(lambda: schema.layout_of(raw, self.path), deadline)
        if layout == schema.LAYOUT_VERSION:
            mode = self._persist(lambda: raw.execute("PRAGMA journal_mode").fetchone()[0], deadline)
            if mode == "wal":
                return
        self.gate.run(lambda: self._make(raw, deadline), max(deadline - time.monotonic(), 0))

    def _make(self, raw: sqlite3.Connection, deadline: float) -> None:
        """Inside the gate: turn the log on, and fill a new file."""
        self._persist(lambda: raw.execute("PRAGMA journal_mode = WAL"), deadline)
        if self._persist(lambda: schema.layout_of(raw, self.path), deadline) == 0:
            self._persist(lambda: raw.execute("BEGIN IMMEDIATE"), deadline)
            self._create(raw)
            faults.reach("sqlite.create.before")
            raw.execute("COMMIT")
            faults.reach("sqlite.create.after")

    def _persist(self, work: Callable[[], T], deadline: float) -> T:
        """Do it, again while another program is in the way. Our own writers queue at the gate and
        do not meet here.
        """
        sleep_s = _BUSY_SLEEP_S
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not busy(error) or time.monotonic() + sleep_s > deadline:
                    raise
            # SQLite tells nobody when a foreign lock goes.
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _BUSY_SLEEP_MAX_S)

    def _close(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        finally:
            self._open_ones.discard(connection)
