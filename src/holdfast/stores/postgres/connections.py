"""The connections of a store: a pool, retries within a time limit, and forks.

Work whose connection was lost before anything was committed runs again on another one, within its
time limit.

A connection needs a session of its own: statements are prepared in it, notices arrive in it, and a
session lock lives as long as it. A pooler that lends sessions out by the transaction, or by the
statement, would lose all of this now and then, silently. So such a pooler is refused.
"""

import contextlib
import ctypes
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.stores.checks import closed
from holdfast.stores.postgres.address import DatabaseUrl
from holdfast.stores.postgres.connection import Again, CallDeadline, PostgresConnection, ServerClock
from holdfast.stores.postgres.errors import is_lost, is_transient, out_of_time, translated

T = TypeVar("T")

CONNECTIONS_MAX = 16
"""Most connections of one store in one process, beside the one that listens."""

WAIT_S = TRANSACT_TIMEOUT_S
"""How long a session waits for a lock unless the transaction sets another limit."""

_GRACE_S = 0.25
"""How much later the client gives up than the server, which knows the same limit and says more."""

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25
_IDLE_S_MAX = 300.0
_RECONNECT_S = 1.0
"""How long the pool tries to connect before its pauses, which grow without bound, start again."""

_CLOSE_TIMEOUT_S = 5.0
_AT_HAND_S = 60.0
_IDLE_IN_TRANSACTION_S = 5.0
"""How long the server keeps an idle transaction open: less than others wait for its latches."""

_SESSION_LIMITS = "SELECT pg_backend_pid(), " + ", ".join(
    f"set_config('{name}', '{value}', false)"
    for name, value in {
        "idle_in_transaction_session_timeout": int(_IDLE_IN_TRANSACTION_S * 1000),
        "lock_timeout": int(WAIT_S * 1000),
        # A message without BEGIN is a transaction too. Databases and roles may have other defaults.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        # One that ended the wait for a standby would confirm a commit that is not safe.
        "statement_timeout": 0,
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }.items()
)
"""With these the server notices in seconds, not hours, that a client is stopped or was cut off.
Until then everybody waits for what that client has latched.
"""

_POOLER_TRIES = 8

# Every outage is reported by our own errors; what the pool logs of each connection is for those who
# ask for it.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Connections:
    """The connections of one store in this process. `join` gets each one before it is used."""

    def __init__(self, address: DatabaseUrl, join: Callable[[PostgresConnection], None]) -> None:
        self.address = address
        self._join = join
        self.clock = ServerClock()
        self._begin_process()

    def _begin_process(self) -> None:
        self._mutex = threading.Lock()
        self._open_ones: weakref.WeakSet[PostgresConnection] = weakref.WeakSet()
        self._pool: ConnectionPool[PostgresConnection] | None = None
        self._at_hand: PostgresConnection | None = None
        self._asking = 0
        self._closed = False
        self._failures = 0
        """How many connections could not be made until the last that was."""
        self._failure: psycopg.Error | None = None
        """Why the last of them could not."""
        self._keeps_sessions = False

    def connect(self) -> PostgresConnection:
        """A connection beside the pool, for the caller to close. Raises errors of Holdfast."""
        try:
            raw = PostgresConnection.connect(self.address.conninfo, autocommit=True)
            self._open_ones.add(raw)
            try:
                self._limit_session(raw)
            except BaseException:
                raw.close()
                raise
        except psycopg.Error as error:
            raise translated(self.address, error) from None
        return raw

    def run(
        self, work: Callable[[PostgresConnection], T], deadline: CallDeadline | None = None
    ) -> T:
        """Do the work on a connection, again when it was lost before it could take effect."""
        deadline = deadline or CallDeadline.after(TRANSACT_TIMEOUT_S)
        pause_s, losses = _PAUSE_S, 0
        while True:
            try:
                with Lent(self, deadline) as raw:
                    return work(raw)
            except Again:
                if deadline.passed():
                    raise out_of_time() from None
            except psycopg.Error as error:
                if not is_transient(error) or deadline.passed():
                    raise translated(self.address, error) from None
                losses += is_lost(error)
                if 0 < losses <= CONNECTIONS_MAX:
                    # All connections that were idle when the server went away are lost. Each fails
                    # once, at its next use.
                    continue
            # A growing pause, so that a server that comes back is not overrun.
            time.sleep(min(pause_s, deadline.left_s()))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def close(self) -> None:
        """Close what is idle; what is lent out closes when it comes back."""
        self._closed = True
        with self._mutex:
            raw, self._at_hand = self._at_hand, None
        if self._pool is not None:
            if raw is not None:
                self._pool.putconn(raw)
            self._pool.close(_CLOSE_TIMEOUT_S)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections to the parent, and start with none.

        Closing one politely would end the parent's session. Their descriptors are replaced, or the
        server would not notice the parent's death while this child lives. The objects become
        immortal, because the pool's finaliser would wait for threads that are not here.
        """
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for raw in list(self._open_ones):
            with contextlib.suppress(psycopg.Error, OSError):
                os.dup2(nowhere, raw.fileno(), inheritable=False)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))
        os.close(nowhere)
        if self._pool is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))
        was_closed = self._closed
        self._begin_process()
        self._closed = was_closed

    def lend(
        self, deadline: CallDeadline
    ) -> tuple[ConnectionPool[PostgresConnection], PostgresConnection]:
        """A connection that gives up a moment after the deadline, and the pool it belongs to."""
        if self._closed:
            raise closed()
        if (pool := self._pool) is None:
            with self._mutex:
                if self._pool is None:
                    self._pool = self._open_pool()
                pool = self._pool
        with self._mutex:
            raw, self._at_hand = self._at_hand, None
            self._asking += raw is None
        if raw is None:
            try:
                raw = self._from_pool(pool, deadline)
                raw.at_hand_until = time.monotonic() + _AT_HAND_S
            finally:
                with self._mutex:
                    self._asking -= 1
        raw.patience_until = deadline.at + _GRACE_S
        return pool, raw

    def give_back(self, pool: ConnectionPool[PostgresConnection], raw: PostgresConnection) -> None:
        """Take a connection back.

        One stays at hand, because the way through the pool costs as much as a message. But not for
        long, as the pool checks connections that come back, and not while a thread waits for the
        pool.
        """
        try:
            _end_transaction(raw)
            raw.patience_until = math.inf
            fit = not raw.closed and time.monotonic() < raw.at_hand_until
            with self._mutex:
                # A connection of another pool was lent before this process was forked off.
                if (
                    fit
                    and self._at_hand is None
                    and not self._asking
                    and not self._closed
                    and pool is self._pool
                ):
                    self._at_hand = raw
                    return
            pool.putconn(raw)
        except BaseException:
            # Its transaction may be open: end the session, and let the pool make another.
            raw.close()
            with self._mutex:
                if self._at_hand is raw:
                    self._at_hand = None
            with contextlib.suppress(ValueError):
                # The pool may have it back already.
                pool.putconn(raw)
            raise

    def _from_pool(
        self, pool: ConnectionPool[PostgresConnection], deadline: CallDeadline
    ) -> PostgresConnection:
        # In short requests: each makes a pool that gave up try again.
        while True:
            try:
                return pool.getconn(min(deadline.left_s(), _RECONNECT_S))
            except PoolTimeout:
                if not deadline.passed():
                    continue
            if _failures(pool) <= self._failures:
                raise out_of_time()
            raise translated(
                self.address, self._failure or psycopg.OperationalError("no connection")
            )

    def _open_pool(self) -> ConnectionPool[PostgresConnection]:
        return ConnectionPool(
            self.address.conninfo,
            connection_class=PostgresConnection,
            # The driver's own way of preparing would at times make the session forget what
            # `exchange` has prepared.
            kwargs={"autocommit": True, "prepare_threshold": None, "failed": self._note_failure},
            configure=self._configure,
            min_size=1,
            max_size=CONNECTIONS_MAX,
            max_idle=_IDLE_S_MAX,
            reconnect_timeout=_RECONNECT_S,
            num_workers=2,
            open=True,
        )

    def _note_failure(self, error: psycopg.Error) -> None:
        self._failure = error

    def _configure(self, raw: PostgresConnection) -> None:
        self._open_ones.add(raw)
        self._limit_session(raw)
        self._join(raw)
        if self._pool is not None:
            # The server answers. Until a new failure, no free connection means that all are in use.
            self._failures = _failures(self._pool)

    def _limit_session(self, raw: PostgresConnection) -> None:
        served_by = raw.value(_SESSION_LIMITS)
        # A server gives its process number when it is connected to; a pooler gives one of its own.
        if served_by != raw.info.backend_pid and not self._keeps_sessions:
            refuse_shared_sessions(self.address, raw)
            self._keeps_sessions = True


class Lent:
    """A connection for the block of a `with`. A class, since every call uses it."""

    __slots__ = ("_connections", "_deadline", "_pool", "_raw")

    def __init__(self, connections: Connections, deadline: CallDeadline) -> None:
        self._connections = connections
        self._deadline = deadline

    def __enter__(self) -> PostgresConnection:
        self._pool, self._raw = self._connections.lend(self._deadline)
        return self._raw

    def __exit__(self, *_: object) -> None:
        self._connections.give_back(self._pool, self._raw)


def _failures(pool: ConnectionPool[PostgresConnection]) -> int:
    return pool.get_stats().get("connections_errors", 0)


def _end_transaction(raw: PostgresConnection) -> None:
    """Leave no transaction open, whatever ended the work."""
    status = raw.pgconn.transaction_status
    if raw.pgconn.pipeline_status != PipelineStatus.OFF:
        # Interrupted in the middle of a message.
        raw.close()
        return
    if status == TransactionStatus.IDLE:
        return
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with contextlib.suppress(psycopg.Error):
            raw.execute("ROLLBACK")
            return
    raw.close()


def refuse_shared_sessions(address: DatabaseUrl, raw: psycopg.Connection[Any]) -> None:
    """Raise StoreUnavailable if a connection through a pooler loses its session to others.

    Another connection takes any free session and keeps it in a transaction; if that was this one's,
    this one gets another. Tried several times, for poolers that do not lend the last one out first.
    """
    shared = StoreUnavailable(
        f"{address} is a pooler that lends out sessions by the transaction, and Holdfast needs one "
        "for as long as it is connected: give the URL of the server itself, or of a pool in "
        "session mode (PgBouncer: pool_mode = session)",
        outcome="none",
        pooler=True,
    )
    mine = _session_of(raw)
    with psycopg.connect(address.conninfo, autocommit=True) as other:
        for _ in range(_POOLER_TRIES):
            try:
                other.execute("BEGIN")
                taken = _session_of(other)
            except psycopg.Error:
                # A pooler of single statements knows no transactions.
                raise shared from None
            if taken == mine or _session_of(raw) != mine:
                raise shared
            other.execute("ROLLBACK")


def _session_of(raw: psycopg.Connection[Any]) -> int:
    return int(raw.execute("SELECT pg_backend_pid()").fetchall()[0][0])
