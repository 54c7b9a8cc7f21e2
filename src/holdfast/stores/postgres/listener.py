"""Wake-ups: one channel, one connection that listens for this process, one thread that reads it.

A notice is a hint to read again, so a lost connection costs one read: when it is back, every
listener is woken.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from hashlib import blake2b

import psycopg

from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.stores.checks import closed
from holdfast.stores.listener import FdListener, Switchboard, readable
from holdfast.stores.postgres import latches
from holdfast.stores.postgres.connection import PostgresConnection
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import unreachable

_CHANNEL = "holdfast"
_TOPIC_CHARS_MAX = 256
"""A longer topic is sent as its digest: a notice may have 8000 bytes."""

_NOTIFY = (
    f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{_CHANNEL}', topic) "
    "FROM unnest(%s::text[]) AS topic WHERE NOT pg_try_advisory_xact_lock(%s::integer, "
    f"pg_backend_pid() %% {latches.LISTENER_LOCKS})"
)
SOMEBODY = f"NOT pg_try_advisory_xact_lock({{}}, pg_backend_pid() % {latches.LISTENER_LOCKS})"
"""Does anybody listen? Asked in a transaction, the answer stays true until its commit: a new
listener waits for that.
"""
_SIGN = "SELECT pg_advisory_lock_shared(%s::integer, number) FROM generate_series(0, %s) AS number"
_PAUSE_S = 0.05
_PAUSE_MAX_S = 5.0
_QUIET_S = 3600.0


def notices(namespace: str, topics: Sequence[str]) -> latches.Sql:
    """The statement that notifies the topics.

    It is a transaction of its own, after the commit: the server takes one lock for all who notify,
    and would keep it while the commit is written to disk. Nor does it wait for the disk itself, as
    there is nothing to keep. Where nobody listens it notifies nobody; a later listener finds the
    change by reading.
    """
    return _NOTIFY, [
        [f"{namespace}\n{_folded(topic)}" for topic in topics],
        latches.listeners_class(namespace),
    ]


class Listening:
    """The listeners of a store in this process. The connection and its thread start with the first
    one.
    """

    def __init__(self, connections: Connections, namespace: str) -> None:
        self._connections = connections
        self._prefix = f"{namespace}\n"
        self._class = latches.listeners_class(namespace)
        self._begin_process()

    def _begin_process(self) -> None:
        # Unique among all processes of all machines: the addresses made with it are stored for
        # others to find.
        self._own = f"{secrets.token_hex(8)}."
        self._board = Switchboard()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_fd = -1
        self._connected = threading.Event()
        self._closed = False

    def listen(self, topics: Sequence[str]) -> FdListener:
        """A listener for the topics. Returns once the server knows, so that nothing sent from now
        on is missed.
        """
        with self._mutex:
            if self._closed:
                raise closed()
            if self._thread is None:
                raw = self._connect()
                self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._connected.set()
                self._thread = threading.Thread(
                    target=self._run, args=(raw,), name="holdfast-listen", daemon=True
                )
                threads.start(self._thread)
        if not self._connected.wait(TRANSACT_TIMEOUT_S):
            raise unreachable(self._connections.address, "the connection that listens is lost")
        return self._board.listen([_folded(topic) for topic in topics], address=self._own)

    def close(self) -> None:
        with self._mutex:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is not None:
            os.eventfd_write(self._stop_fd, 1)
            thread.join()
            os.close(self._stop_fd)

    def after_fork(self) -> None:
        """In a forked child: the thread is not here, and the connection is the parent's."""
        was_closed, stop_fd = self._closed, self._stop_fd if self._thread else -1
        self._begin_process()
        self._closed = was_closed
        if stop_fd >= 0:
            os.close(stop_fd)

    def _connect(self) -> PostgresConnection:
        raw = self._connections.connect()
        try:
            # Held as long as the session: the sign that somebody listens.
            raw.execute(_SIGN, (self._class, latches.LISTENER_LOCKS - 1))
            raw.execute(f"LISTEN {_CHANNEL}".encode())
        except psycopg.Error as error:
            raw.close()
            address = self._connections.address
            raise unreachable(address, address.redacted(str(error))) from None
        return raw

    def _run(self, raw: PostgresConnection) -> None:
        connected: PostgresConnection | None = raw
        while connected is not None:
            try:
                while not readable([self._stop_fd, connected.fileno()], _QUIET_S) & {self._stop_fd}:
                    self._dispatch(connected)
                connected.close()
                return
            except (psycopg.Error, MemoryError):
                # Notices may be missed: every listener is woken when another connection listens.
                self._connected.clear()
                connected.close()
            connected = self._reconnect()

    def _dispatch(self, raw: PostgresConnection) -> None:
        raw.pgconn.consume_input()
        while (notice := raw.pgconn.notifies()) is not None:
            payload = notice.extra.decode()
            if payload.startswith(self._prefix):
                self._board.notify(payload.removeprefix(self._prefix))

    def _reconnect(self) -> PostgresConnection | None:
        """A new connection, or None when the store was closed meanwhile."""
        pause_s = _PAUSE_S
        while not readable([self._stop_fd], pause_s):
            with contextlib.suppress(HoldfastError, MemoryError):
                raw = self._connect()
                self._connected.set()
                self._board.notify_all()
                return raw
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return None


def _folded(topic: str) -> str:
    if len(topic) <= _TOPIC_CHARS_MAX and topic.isprintable():
        return topic
    return "#" + blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
