"""Connections: a pool of them, time limits that hold even if the server falls silent, and forks.

Work that was lost with its connection before anything was committed runs again on another, within
its time limit.

A pooler in front of the server: one that gives each transaction another session takes away what a
session keeps.

Statements are prepared in a session, wake-ups are listened for in one, and the lock of a swap lives
as long as one. A pooler that lends sessions out by the transaction, or by the statement, would lose
them all, at times and in silence.
"""

import contextlib
import ctypes
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.waiting import Ready, Wait
from psycopg_pool import ConnectionPool, PoolTimeout

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.errors import NoAnswer, closed, lost, out_of_time, passing, translated

_WHO = "SELECT pg_backend_pid()"
_TRIES = 8


def refuse_shared_sessions(address: Address, raw: psycopg.Connection[Any]) -> None:
    """Raise StoreUnavailable unless a connection through a pooler keeps its session while others
    come and go.

    Another connection takes whichever session is free and keeps it in a transaction; if that was
    this one's, this one is given another. Tried several times, for poolers that do not lend the
    last one out first.
    """
    mine = _who(raw)
    with psycopg.connect(address.conninfo, autocommit=True) as other:
        for _ in range(_TRIES):
            try:
                other.execute("BEGIN")
                taken = _who(other)
            except psycopg.Error:
                # A pooler of single statements knows no transactions.
                raise _shared(address) from None
            if taken == mine or _who(raw) != mine:
                raise _shared(address)
            other.execute("ROLLBACK")


def _who(raw: psycopg.Connection[Any]) -> int:
    return int(raw.execute(_WHO).fetchall()[0][0])


def _shared(address: Address) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} is a pooler that lends out sessions by the transaction, and Holdfast needs "
        "one for as long as it is "
        "connected: give the URL of the server itself, or of a pool in session mode (PgBouncer: "
        "pool_mode = session)",
        outcome="none",
        pooler=True,
    )


T = TypeVar("T")

CONNECTIONS_MAX = 16
"""Most connections of one store in one process, beside the one that listens."""

_GRACE_S = 0.25
"""How much later than the server, which knows the same limit and says more, the client gives up by
itself.
"""

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25
_IDLE_S_MAX = 300.0
_RECONNECT_S = 1.0
"""How long the pool goes on trying to connect before its pauses, which have no bound of their own,
begin from the start.
"""

_CLOSE_TIMEOUT_S = 5.0
_AT_HAND_S = 60.0


WAIT_S = TRANSACT_TIMEOUT_S
"""How long a session waits for a lock unless it is told otherwise."""

_LEFT_OPEN_S = 5.0
"""How long the server keeps a transaction open in which nothing is said: less than others wait for
its latches.
"""

_VIGILANCE = "SELECT pg_backend_pid(), " + ", ".join(
    f"set_config('{name}', '{value}', false)"
    for name, value in {
        "idle_in_transaction_session_timeout": int(_LEFT_OPEN_S * 1000),
        "lock_timeout": int(WAIT_S * 1000),
        # One that ends the wait for a standby makes a commit look confirmed that is not.
        "statement_timeout": 0,
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }.items()
)
"""What makes the server notice in seconds, and not in hours, that a client stands still or was cut
off: what that one had latched would be latched for everybody.
"""

# Every outage is told by our own errors; what the pool says of each connection is for those who ask
# for a log.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Deadline(NamedTuple):
    """The end of a call's time limit, on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """What is left, and a little when nothing is: a driver takes 0 for no limit at all."""
        return max(self.at - time.monotonic(), 0.001)

    def passed(self) -> bool:
        return time.monotonic() >= self.at


class Again(Exception):
    """Nothing was committed and the work should run again."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that stops waiting for a server that says nothing."""

    patience_until: float = math.inf
    at_hand_until: float = 0.0
    life: int = 0
    """The life of the server (life.py) that this connection is in."""
    journal: int = 0
    """The number by which the journal of the store knows its own cursors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared: dict[str, bytes] = {}
        """The statements that this session has prepared (messages.py), by their names."""
        self.reader = Transformer(self)
        """What makes values of the server's answers."""

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        failed: Callable[[psycopg.Error], None] | None = None,
        **kwargs: Any,
    ) -> "Connection":
        """As the driver does. `failed` is told why it could not: a pool keeps that to itself."""
        try:
            return super().connect(conninfo, **kwargs)
        except psycopg.Error as error:
            if failed is not None:
                failed(error)
            raise

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self), *args, **kwargs)

    def hear(self, gen: Generator[Wait, Ready | int, T]) -> T:
        """Wait as a generator asks that looks at the limit itself, by `check_patience` when a
        moment passed in silence.
        """
        return super().wait(gen)

    def check_patience(self) -> None:
        """Raises NoAnswer when the limit has passed."""
        if time.monotonic() > self.patience_until:
            raise NoAnswer("no answer within the time limit")


def _bounded(gen: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """The driver's own waiting, ended at the connection's limit. The driver sends 0 each time a
    moment passed in silence.
    """
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                connection.check_patience()
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


class Connections:
    """The connections of one store in this process."""

    def __init__(self, address: Address, join: Callable[[Connection], None]) -> None:
        """`join` is told of each connection before it is used."""
        self.address = address
        self._join = join
        self.clock = ServerClock()
        self._begin_process()

    def _begin_process(self) -> None:
        self._mutex = threading.Lock()
        self._open_ones: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._pool: ConnectionPool[Connection] | None = None
        self._at_hand: Connection | None = None
        self._asking = 0
        self._closed = False
        self._failures = 0
        """How many connections could not be made until the last that was."""
        self._failure: psycopg.Error | None = None
        """Why the last of them could not."""
        self._keeps_sessions = False

    def connect(self) -> Connection:
        """A connection beside the pool, for the caller to close. Raises errors of the tree."""
        try:
            raw = Connection.connect(self.address.conninfo, autocommit=True)
            self._open_ones.add(raw)
            try:
                self._be_vigilant(raw)
            except BaseException:
                raw.close()
                raise
        except psycopg.Error as error:
            raise translated(self.address, error) from None
        return raw

    def persist(self, work: Callable[[Connection], T], deadline: Deadline) -> T:
        """Do the work on a connection, and again when it was lost before it could take effect."""
        pause_s, losses = _PAUSE_S, 0
        while True:
            try:
                with self._lent(deadline) as raw:
                    return work(raw)
            except Again:
                if deadline.passed():
                    raise out_of_time() from None
            except psycopg.Error as error:
                if not passing(error) or deadline.passed():
                    raise translated(self.address, error) from None
                losses += lost(error)
                if 0 < losses <= CONNECTIONS_MAX:
                    # All that were idle when the server went are lost, and each is found so but
                    # once.
                    continue
            # A pause that grows, so that a server that comes back is not run over.
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
        """In a forked child: leave the parent's connections to the parent, and begin with none.

        Closing one politely would end the parent's session. Their descriptors are replaced, or the
        server would not notice the parent's death while this child lives; and the objects are made
        immortal, as the pool's finaliser would wait for threads that are not here.
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

    def _lent(self, deadline: Deadline) -> "_Lent":
        return _Lent(self, deadline)

    def lend(self, deadline: Deadline) -> tuple[ConnectionPool[Connection], Connection]:
        """A connection that gives up a moment after the deadline, and the pool that it is of."""
        pool = self._opened()
        with self._mutex:
            raw, self._at_hand = self._at_hand, None
            self._asking += raw is None
        if raw is None:
            try:
                raw = self._from(pool, deadline)
                raw.at_hand_until = time.monotonic() + _AT_HAND_S
            finally:
                with self._mutex:
                    self._asking -= 1
        raw.patience_until = deadline.at + _GRACE_S
        return pool, raw

    def give_back(self, pool: ConnectionPool[Connection], raw: Connection) -> None:
        """Take a connection back. One stays at hand, since the pool's way costs as much as a
        message; but not for long, as the pool looks after its connections when they come back, nor
        while anybody waits for the pool.
        """
        try:
            _settle(raw)
            raw.patience_until = math.inf
            fit = not raw.closed and time.monotonic() < raw.at_hand_until
            with self._mutex:
                # Of another pool is what was lent before this process was forked off.
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
            self._drop(pool, raw)
            raise

    def _drop(self, pool: ConnectionPool[Connection], raw: Connection) -> None:
        """After an exception on its way back: end the session, whose transaction may be open, and
        let the pool make another.
        """
        raw.close()
        with self._mutex:
            if self._at_hand is raw:
                self._at_hand = None
        with contextlib.suppress(ValueError):
            # The pool may have had it back already.
            pool.putconn(raw)

    def _from(self, pool: ConnectionPool[Connection], deadline: Deadline) -> Connection:
        """A connection of the pool. Asked for again and again, as each asking makes a pool that
        gave up try anew.
        """
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

    def _opened(self) -> ConnectionPool[Connection]:
        if self._closed:
            raise closed()
        if self._pool is None:
            with self._mutex:
                if self._pool is None:
                    self._pool = self._open_pool()
        return self._pool

    def _open_pool(self) -> ConnectionPool[Connection]:
        return ConnectionPool(
            self.address.conninfo,
            connection_class=Connection,
            # The driver's own way of preparing would at times make the session forget what
            # messages.py has prepared.
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

    def _configure(self, raw: Connection) -> None:
        self._open_ones.add(raw)
        self._be_vigilant(raw)
        self._join(raw)
        if self._pool is not None:
            # The server answers, whatever was before. Until it does not, a connection that is not
            # to be had is in use.
            self._failures = _failures(self._pool)

    def _be_vigilant(self, raw: Connection) -> None:
        served_by = raw.execute(_VIGILANCE).fetchall()[0][0]
        # A server tells its number when it is connected to; a pooler in between tells one of its
        # own.
        if served_by != raw.info.backend_pid and not self._keeps_sessions:
            refuse_shared_sessions(self.address, raw)
            self._keeps_sessions = True


class _Lent:
    """A connection for the block of a `with`. A class of its own, since this is on the way of every
    single call.
    """

    __slots__ = ("_connections", "_deadline", "_pool", "_raw")

    def __init__(self, connections: Connections, deadline: Deadline) -> None:
        self._connections = connections
        self._deadline = deadline

    def __enter__(self) -> Connection:
        self._pool, self._raw = self._connections.lend(self._deadline)
        return self._raw

    def __exit__(self, *_: object) -> None:
        self._connections.give_back(self._pool, self._raw)


def _failures(pool: ConnectionPool[Connection]) -> int:
    return pool.get_stats().get("connections_errors", 0)


def _settle(raw: Connection) -> None:
    """Leave no transaction open behind whatever ended the work."""
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
