"""One database file: its connections, turns to write, durable commits and checkpoints.

Rules that keep acknowledged changes through a power loss, each of which was seen to lose some when
broken:

- the log's descriptor is opened and closed with its connection (wal.py);
- the database and its -shm file are opened only through SQLite: closing any descriptor of them
  drops its locks;
- a durable transaction syncs even if it only read, since its answer may rest on a commit that is
  not synced yet;
- a failed sync is never retried: the kernel may have dropped the pages. The outcome is unknown, all
  connections are reopened, and nothing is acknowledged until the log is restarted (wal.py);
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
from typing import ParamSpec, TypeVar

from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError, LockTimeout, StoreUnavailable
from holdfast.kernel.limits import LOG_BYTES_KEPT, TRANSACT_TIMEOUT_S
from holdfast.stores.sqlite import handles, schema, wal
from holdfast.stores.sqlite.errors import (
    TablesChanged,
    busy,
    opening_failed,
    tables_changed,
    translated,
)
from holdfast.stores.sqlite.filesystem import check_database, refuse_followed
from holdfast.stores.sqlite.gate import Gate, SharedCounter
from holdfast.stores.sqlite.handles import Handle
from holdfast.stores.sqlite.wal import Log, SharedSync, log_path, refuse_truncated, too_long
from holdfast.system.access import Access
from holdfast.system.folder_walk import Folder, open_folder

P = ParamSpec("P")
T = TypeVar("T")

CHECKPOINT_FRAMES = 3600
"""The log is copied into the database and restarted when it has this many pages (14 MB).

The longer it is, the more often a page is in it that is copied once. But the first part of SQLite's
index of the log has 4062 places, and with a second part each page is looked up in both.
"""

CHECKPOINT_FRAMES_VOLATILE = 400
"""The same for a file that is never synced. There a checkpoint costs little more than two changes,
while in a long log each change of a page has to get past all earlier ones of that page.
"""

_CHECKPOINT_EVERY = 8
"""A connection checks the length of the log with every so many changes."""
_VOLATILE_TRIES = 100
"""A try and a yield take a microsecond, so these outlast one turn, and a thread need not wait."""
_DISCARDED = -1
_BUSY_SLEEP_S = 0.001
_BUSY_SLEEP_MAX_S = 0.05


class Connection:
    """A connection and the log's descriptor that belongs to it. Used by one thread at a time, as
    `with database.lend() as connection`: SQLite's errors leave the block as Holdfast's.

    One that its user could not give back, because of an exception just then, is closed when nothing
    refers to it any more.
    """

    def __init__(
        self,
        database: "Database",
        generation: int,
        handle: Handle,
        raw: sqlite3.Connection,
        log: Log,
    ) -> None:
        self.handle = handle
        self.raw = raw
        self.log = log
        self.generation = generation
        self.siblings = database.open_ones
        self.changes = 0
        # One for all statements whose rows are fetched at once: making a cursor costs as much as a
        # small statement.
        self.cursor = handle.cursor = raw.cursor()
        # None while it is idle: the two must not keep each other from being freed.
        self.database: Database | None = database

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        assert self.database is not None
        if isinstance(error, sqlite3.Error):
            raise self.database.discard(self, error) from None
        self.database.give_back(self)

    def close(self) -> None:
        """Close the descriptor first: it must not survive the connection that pins the log."""
        try:
            self.log.close()
        finally:
            self.handle.close()

    def __del__(self) -> None:
        # It may have no attributes yet, or modules may be gone when the interpreter ends.
        try:  # noqa: SIM105
            self.close()
        except Exception:  # noqa: BLE001 - nobody could catch it
            pass


class Database:
    """A file of a store. `create` fills a new one, inside its first transaction; `failed` is called
    after each error of SQLite. `folder` is the file's folder, and `found` is what lies under its
    name.

    A `deadline` is on the monotonic clock; without one a call has TRANSACT_TIMEOUT_S.
    """

    def __init__(
        self,
        path: Path,
        found: os.stat_result,
        folder: Folder,
        *,
        access: Access,
        synced: bool,
        create: Callable[[sqlite3.Connection], None],
        failed: Callable[[], None],
        deadline: float | None = None,
    ) -> None:
        self.path = path
        self._name = str(path)
        self._file = found.st_dev, found.st_ino
        self._access = access
        self._failed = failed
        self._synced = synced
        self._create = create
        self.begin_process(folder)
        try:
            self.give_back(self._open(deadline or _default_deadline(), folder))
        except BaseException:
            self.gate.close()
            raise

    def begin_process(self, folder: Folder | None = None) -> None:
        """Start with a gate of its own and no connection, also in a forked child."""
        gate = wal.gate_path(self.path)
        # A file that is synced keeps each revision itself.
        self.counter = None if self._synced else SharedCounter(gate, self._access, folder)
        # A turn at a volatile file takes some 50 us; one at a durable file may have a checkpoint in
        # it.
        tries = 1 if self._synced else _VOLATILE_TRIES
        self.gate = Gate(gate, self._access, self.counter, tries=tries, folder=folder)
        self._shared_sync = SharedSync() if self._synced else None
        self._process = getpid()
        self._idle: deque[Connection] = deque()
        self.open_ones: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._generation = 0

    def check_identity(self) -> None:
        """Raise StoreUnavailable when the path names another file than the one that was opened, or
        none. SQLite goes on in a deleted file, and nobody would find there what was acknowledged.
        """
        try:
            found = os.stat(self._name)
            if (found.st_dev, found.st_ino) == self._file:
                return
        except OSError:
            pass
        raise StoreUnavailable(
            f"{self.path} is not the file any more that this process has open: it was moved, "
            "deleted or replaced. Put it back, or stop every program that uses it and run "
            "`holdfast store restore FILE`; nothing was changed",
            path=str(self.path),
            outcome="none",
        )

    def lend(self, deadline: float | None = None) -> Connection:
        """A connection of the current generation, for a `with` block."""
        if self._process != getpid():
            # Forked by a C library, without Python's hooks: gate and connections are the parent's.
            raise handles.refusal()
        try:
            while (connection := self._idle.pop()).generation != self._generation:
                self._close(connection)
        except IndexError:
            return self._open(deadline or _default_deadline())
        connection.handle.owner = get_ident()
        connection.database = self
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take a connection back. One of an older generation, or with an open transaction, is
        closed.
        """
        if connection.siblings is not self.open_ones:
            # This process was forked off inside the block: the connection is its parent's.
            return
        if connection.generation == self._generation and not connection.raw.in_transaction:
            connection.handle.owner = handles.NOBODY
            connection.database = None
            self._idle.append(connection)
        else:
            self._close(connection)

    def discard(
        self, connection: Connection, error: sqlite3.Error, *, committing: bool = False
    ) -> HoldfastError | TablesChanged:
        """Close a connection on which SQLite failed, and return what the error means. For
        `committing` see `translated`.
        """
        connection.generation = _DISCARDED
        self._close(connection)
        self._failed()
        if tables_changed(error):
            return TablesChanged(str(error))
        return translated(self.path, error, committing=committing)

    def run_alone(self, work: Callable[[], T], deadline: float | None = None) -> T:
        """Do the work inside the gate, where no other writer of any process is."""
        if faults.hook is not None:
            faults.reach("sqlite.gate.before")
        return self.gate.run(work, left_s(deadline or _default_deadline()))

    def write(
        self,
        connection: Connection,
        work: Callable[[], T],
        deadline: float | None = None,
        *,
        sleepy: bool = False,
        committed: Callable[[T], object] | None = None,
    ) -> T:
        """Do the work inside the gate and a transaction; commit at its end, roll back if it raises.
        After the commit, still inside the gate, `committed` gets what the work returned. For
        `sleepy` see Gate.run.
        """
        until = deadline or _default_deadline()
        if self._synced:
            self.check_identity()
        raw = connection.raw
        execute = connection.cursor.execute

        # The points of tests are asked for in place: a call for each is a tenth of all the calls
        # of a transaction.
        def transaction() -> T:
            if faults.hook is not None:
                faults.reach("sqlite.gate.after")
            try:
                try:
                    execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    retry(until, execute, "BEGIN IMMEDIATE")
                result = work()
                if faults.hook is not None:
                    faults.reach("sqlite.commit.before")
                try:
                    execute("COMMIT")
                except sqlite3.Error as error:
                    raise translated(self.path, error, committing=True) from None
                if faults.hook is not None:
                    faults.reach("sqlite.commit.after")
                if committed is not None:
                    committed(result)
                return result
            except BaseException:
                if raw.in_transaction and connection.handle.is_ours():
                    try:  # noqa: SIM105 - not deeper in the stack than BEGIN was: there may be no more room
                        execute("ROLLBACK")
                    except sqlite3.Error:
                        # `give_back` closes it.
                        pass
                raise

        try:
            if faults.hook is not None:
                faults.reach("sqlite.gate.before")
            return self.gate.run(transaction, max(until - time.monotonic(), 0.0), sleepy=sleepy)
        except BaseException:
            # A second exception may have come while the first was handled.
            if connection.handle.is_ours() and raw.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    raw.execute("ROLLBACK")
            raise

    def finish_write(self, connection: Connection, *, durable: bool) -> None:
        """After a write whose notices are sent: return once it survives a power loss, if it should.
        Otherwise yield: flock lets in the process that runs next, mostly the one that just left.
        """
        if durable and self._synced:
            self.sync(connection)
        elif self.gate.crowded():
            sched_yield()

    def sync(self, connection: Connection) -> None:
        """Return once everything committed so far survives a power loss. Raises StoreUnavailable
        with the outcome "unknown" when that cannot be known.
        """
        if self._shared_sync is None:
            return
        why = "another process's sync failed"
        try:
            self._shared_sync.sync(connection.log)
            # The kernel reports an error only to descriptors that were open when it happened.
            if not wal.is_marked(self.gate):
                return
        except OSError as error:
            why = os.strerror(error.errno or 0)
        self.close_idle()
        raise StoreUnavailable(
            f"{self.path} could not be synced to disk ({why}); whether the change survives is "
            "unknown: check the disk, and what is stored before you repeat it",
            path=str(self.path),
            outcome="unknown",
        )

    def repair_log(self, deadline: float | None = None) -> None:
        """Before a durable change: if a sync of the log has failed, copy the log into the database
        and restart it. Raises StoreUnavailable where that cannot be done yet; then nothing was
        changed.
        """
        if not self._synced or not wal.is_marked(self.gate):
            return
        until = deadline or _default_deadline()
        # The descriptors of older connections would still report the failure.
        self.close_idle()
        with self.lend(until) as connection:
            self.run_alone(
                lambda: wal.restart_marked_log(self.path, self.gate, connection.raw, until), until
            )

    def restart_log(self, connection: Connection, deadline: float) -> None:
        """Before a change: restart a log that is at its size limit, LOG_BYTES_MAX. Raises
        StoreUnavailable, naming the reader, while a stopped one prevents that.
        """

        def restart() -> bool:
            return not connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

        if not self.run_alone(restart, deadline):
            raise too_long(self.path, connection.log.size())

    def checkpoint_if_due(self, connection: Connection) -> None:
        """After a change: copy a long log into the database. Never fails the change."""
        # At the first change too: a one-shot program makes no second.
        due = connection.changes % _CHECKPOINT_EVERY == 0
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
                # The few frames that came meanwhile: with none left, the next writer restarts the
                # log.
                self.run_alone(checkpoint, time.monotonic() + _BUSY_SLEEP_MAX_S)

    def close_idle(self) -> None:
        """Close every idle connection, and the others once they come back."""
        self._generation += 1
        with contextlib.suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def close(self) -> None:
        """Close the gate and what is idle; what is lent out closes when it comes back."""
        self.close_idle()
        self.gate.close()

    def after_fork(self) -> None:
        """In a forked child: drop the parent's gate, connections and logs."""
        inherited, self.open_ones = list(self.open_ones), weakref.WeakSet()
        self._idle = deque()
        self.gate.abandon()
        for connection in inherited:
            with contextlib.suppress(OSError):
                connection.log.close()

    def _open(self, deadline: float, folder: Folder | None = None) -> Connection:
        handle, around, generation = Handle(), folder, self._generation
        try:
            handle.begin(self.path, left_s(deadline))
            self.check_identity()
            if around is None:
                around = Folder.of(open_folder(self.path.parent))
            refuse_truncated(self.path, check_database(self.path, self._access, around))
            raw = handle.raw = sqlite3.connect(
                self.path,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            refuse_followed(raw, self.path)
            # This reads the schema, so another process that makes, recovers or deletes the log may
            # be in the way.
            if not retry(deadline, self._configured, raw):
                self.gate.run(lambda: self._make(raw, deadline), left_s(deadline))
            connection = Connection(
                self, generation, handle, raw, Log(self.path, self._access, around)
            )
            self.open_ones.add(connection)
            return connection
        except BaseException as error:
            handle.close()
            if isinstance(error, sqlite3.Error):
                raise translated(self.path, error) from None
            # LockTimeout is an OSError too: the gate was taken for too long.
            if isinstance(error, OSError) and not isinstance(error, LockTimeout):
                raise opening_failed(log_path(self.path), error) from None
            raise
        finally:
            if folder is None and around is not None:
                os.close(around.fd)

    def _configured(self, raw: sqlite3.Connection) -> bool:
        """Set a connection up; False when the file has no tables or no log yet."""
        raw.execute(f"PRAGMA synchronous = {'NORMAL' if self._synced else 'OFF'}")
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        # A log that grew while a reader was stopped is cut to this when it is restarted.
        raw.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")
        if schema.layout_of(raw, self.path) != schema.LAYOUT_VERSION:
            return False
        mode: str = raw.execute("PRAGMA journal_mode").fetchone()[0]
        return mode == "wal"

    def _make(self, raw: sqlite3.Connection, deadline: float) -> None:
        """Inside the gate: turn the log on, and fill a new file."""
        retry(deadline, raw.execute, "PRAGMA journal_mode = WAL")
        if retry(deadline, schema.layout_of, raw, self.path) == 0:
            retry(deadline, raw.execute, "BEGIN IMMEDIATE")
            self._create(raw)
            faults.reach("sqlite.create.before")
            raw.execute("COMMIT")
            faults.reach("sqlite.create.after")

    def _close(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        finally:
            self.open_ones.discard(connection)


def retry(deadline: float | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work, again while another program has the database locked, or just recovers or closes
    its log. Our own writers queue at the gate and do not meet here.
    """
    sleep_s = _BUSY_SLEEP_S
    while True:
        try:
            return work(*args, **kwargs)
        except sqlite3.OperationalError as error:
            deadline = deadline or _default_deadline()
            if not busy(error) or time.monotonic() + sleep_s > deadline:
                raise
        # SQLite does not notify anybody when a foreign lock goes.
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _BUSY_SLEEP_MAX_S)


def _default_deadline() -> float:
    return time.monotonic() + TRANSACT_TIMEOUT_S


def left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
