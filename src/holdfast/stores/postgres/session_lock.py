"""A lock of a database session: it ends with its connection, and so with its process, wherever that
ran.

Each contender has a connection of its own, which a forked child does not keep open. Whether the
lock is held is read from the server's table of locks, so asking takes no lock.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from holdfast.kernel import threads
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.stores.listener import readable
from holdfast.stores.postgres.connection import PostgresConnection
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import translated
from holdfast.stores.postgres.latches import session_key

_HELD = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND classid::bigint = {high} AND objid::bigint = {low} "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_NO_IDLE_LIMIT = (
    "SELECT count(set_config(name, '0', false)) FROM pg_settings "
    "WHERE name = 'idle_session_timeout'"
)
"""The session is silent while it holds the lock. Servers before version 14 have no such limit."""

_QUIET_S = 3600.0


class PostgresSessionLock:
    """A lock among all sessions of a database that know its name."""

    def __init__(self, connections: Connections, namespace: str, name: str) -> None:
        self._connections = connections
        self._key = session_key(namespace, name)
        high, low = divmod(self._key % (1 << 64), 1 << 32)
        self._held = _HELD.format(high=high, low=low)
        self.begin_process()

    def begin_process(self) -> None:
        """Start with no connection, also in a forked child: the connection is its parent's, and a
        thread that the child lacks may have the mutex.
        """
        self._mutex = threading.Lock()
        self._asking: PostgresConnection | None = None

    def contender(self) -> "PostgresSessionContender":
        """Open a connection for the lock. Raises StoreUnavailable."""
        return PostgresSessionContender(
            self._connections, self._key, f"{self._held} AND pid = pg_backend_pid()"
        )

    def is_held(self) -> bool:
        """Does any session hold it at this moment? Raises StoreUnavailable."""
        with self._mutex:
            try:
                return bool(_asked(self._connection(), self._held))
            except psycopg.Error:
                # The idle connection was lost. A new one answers, or its error says why not.
                self._asking = None
            try:
                return bool(_asked(self._connection(), self._held))
            except psycopg.Error as error:
                raise translated(self._connections.address, error) from None

    def _connection(self) -> PostgresConnection:
        if self._asking is None:
            self._asking = self._connections.connect()
        return self._asking

    def close(self) -> None:
        """Close the connection that asks."""
        with self._mutex:
            asking, self._asking = self._asking, None
            if asking is not None:
                asking.close()


class PostgresSessionContender:
    """One that wants the lock, and maybe holds it."""

    def __init__(self, connections: Connections, key: int, mine: str) -> None:
        self._connections = connections
        self._take = f"SELECT pg_try_advisory_lock({key})"
        self._free = f"SELECT pg_advisory_unlock({key})"
        self._mine = mine
        self._pid = os.getpid()
        self._taken = False
        self._watching: threading.Thread | None = None
        self._stop_fd = -1
        self._raw = self._connected()

    def try_take(self) -> bool:
        """Take the lock if no other session has it. A waiter that has lost its connection gets a
        new one; a holder has lost the lock with it. Raises StoreUnavailable.
        """
        if not self._taken:
            try:
                _asked(self._raw, "SELECT 1")
            except psycopg.Error:
                self._raw.close()
                self._raw = self._connected()
        try:
            # Taken twice by one session, it would have to be released twice.
            self._taken = (self._taken and bool(_asked(self._raw, self._mine))) or bool(
                _asked(self._raw, self._take)
            )
        except psycopg.Error as error:
            raise translated(self._connections.address, error) from None
        return self._taken

    def _connected(self) -> PostgresConnection:
        raw = self._connections.connect()
        try:
            _asked(raw, _NO_IDLE_LIMIT)
        except psycopg.Error as error:
            raw.close()
            raise translated(self._connections.address, error) from None
        return raw

    def has_it(self) -> bool:
        """Is it still ours? The server is asked: a session that was lost has no lock, whatever this
        process believes.
        """
        if not self._taken or self._pid != os.getpid():
            return False
        try:
            return bool(_asked(self._raw, self._mine))
        except psycopg.Error:
            return False

    def watch(self, lost: Callable[[], None]) -> None:
        """Call back once, from another thread, when the session with the lock has ended. Until
        `close`.
        """
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watching = threading.Thread(
            target=self._watch, args=(self._stop_fd, lost), name="holdfast-session", daemon=True
        )
        threads.start(self._watching)

    def _watch(self, stop_fd: int, lost: Callable[[], None]) -> None:
        # The only thing a silent session hears is its end: from the server, or from the kernel when
        # the server cannot be reached any more.
        with contextlib.suppress(psycopg.Error):
            while not readable([stop_fd, self._raw.fileno()], _QUIET_S) & {stop_fd}:
                if not self.has_it():
                    break
            else:
                return
        lost()

    def close(self) -> None:
        """Release the lock and close its connection."""
        self._unwatch()
        taken, self._taken = self._taken, False
        if self._pid == os.getpid():
            with contextlib.suppress(psycopg.Error):
                if taken:
                    # The server notices a closed connection a moment later, which is too late for a
                    # waiter that is woken now.
                    _asked(self._raw, self._free)
            with contextlib.suppress(psycopg.Error):
                self._raw.close()

    def _unwatch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is None or self._pid != os.getpid():
            return
        os.eventfd_write(self._stop_fd, 1)
        # A thread that an exception kept from starting cannot be joined. It may still start, so its
        # descriptor stays open.
        if watching is not threading.current_thread() and watching.ident is not None:
            watching.join()
            os.close(self._stop_fd)


def _asked(raw: PostgresConnection, question: str) -> Any:
    """One answer, within the time that a transaction may take."""
    raw.patience_until = time.monotonic() + TRANSACT_TIMEOUT_S
    return raw.value(question)
