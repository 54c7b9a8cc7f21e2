"""uvicorn within bounds, from its start to its graceful stop.

A client that sends its request a byte at a time, or nothing, or does not read its response, costs
one descriptor for a limited time. When as many connections are open as may be, a stranger makes
room: the oldest of the connections on which nobody has shown the token. So a flood of connections
pushes out itself, and clients with a token are served. Without a stranger, the known connection
that has been idle longest makes room; a known one that waits for its response never does.

SIGTERM, SIGINT or `stop` stop a server: it accepts no new connection, ends all waits, sends the
responses it owes, and returns. The caller then closes what is behind it.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from litestar.types import ASGIApp, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_BODY_S,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEAD_S,
    HTTP_HEADER_BYTES_MAX,
    HTTP_READ_S,
    HTTP_STOP_S,
)

_ACCEPTED_AT_ONCE = 64
"""How many connections are accepted before the loop reads what came on them.

Many fewer than may be open: in a flood, a client that shows a token with its first bytes is read
before enough others have come to push it out.
"""
_BACKLOG = 512
_TICK_S = 1.0
_CONNECTION = "holdfast.connection"
"""The key of a request's connection in the state of its scope."""


class Crowd:
    """The open connections of one server, in the order in which they make room.

    Each step takes the same time, however many are open: a dictionary keeps the order in which its
    keys were added.
    """

    def __init__(self) -> None:
        self._strangers: dict[BoundedConnection, None] = {}
        self._idle: dict[BoundedConnection, None] = {}
        self._busy: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._idle) + len(self._busy)

    def add_stranger(self, one: "BoundedConnection") -> None:
        """A connection was opened, and has shown no token yet."""
        self._strangers[one] = None

    def add_busy(self, one: "BoundedConnection") -> None:
        """A known connection waits for its response."""
        self.remove(one)
        self._busy[one] = None

    def add_idle(self, one: "BoundedConnection") -> None:
        """A known connection has its response, and may send another request."""
        self.remove(one)
        self._idle[one] = None

    def remove(self, one: "BoundedConnection") -> None:
        """A connection is closed."""
        self._strangers.pop(one, None)
        self._idle.pop(one, None)
        self._busy.pop(one, None)

    def first_to_go(self) -> "BoundedConnection | None":
        """The connection that makes room; None when all are known and busy."""
        return next(iter(self._strangers), None) or next(iter(self._idle), None)


class BoundedConnection(H11Protocol):
    """One connection. Each server has a subclass with its own crowd."""

    head_s = HTTP_HEAD_S
    body_s = HTTP_BODY_S
    read_s = HTTP_READ_S
    connections_max = HTTP_CONNECTIONS_MAX
    crowd: Crowd

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)
        self._arrival: asyncio.TimerHandle | None = None
        self._departure: asyncio.TimerHandle | None = None
        self._known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head, and make room for this connection."""
        super().connection_made(transport)
        self._expect_within(self.head_s)
        self.crowd.add_stranger(self)
        if len(self.crowd) > self.connections_max:
            # This connection is the youngest stranger: it goes only when all others are busy.
            (self.crowd.first_to_go() or self)._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its timers."""
        self.crowd.remove(self)
        self._expect_within(None)
        self._cancel_departure()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has come: the time limit of a head ends, and that of a body begins."""
        before = self.cycle
        super().handle_events()
        cycle = self.cycle
        if cycle is not None and cycle is not before:
            self._expect_within(self.body_s if cycle.more_body else None)
            if self._known:
                self.crowd.add_busy(self)
        elif cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._expect_within(None)

    def keep(self) -> None:
        """The client has shown the token: from now on strangers make room before this one."""
        if not self.transport.is_closing():
            self._known = True
            self.crowd.add_busy(self)

    def on_response_complete(self) -> None:
        """The response is sent: wait for the next head."""
        closing = self.transport.is_closing()
        self._expect_within(None if closing else self.head_s)
        if self._known and not closing:
            self.crowd.add_idle(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read its response."""
        self._departure = self.loop.call_later(self.read_s, self._abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._cancel_departure()
        super().resume_writing()

    def _expect_within(self, limit_s: float | None) -> None:
        """Abort unless the next part of a request has come within the limit."""
        if self._arrival is not None:
            self._arrival.cancel()
        self._arrival = None if limit_s is None else self.loop.call_later(limit_s, self._abort)

    def _cancel_departure(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None

    def _abort(self) -> None:
        # Removed now, and not when the loop reports the loss: until then, others would be aborted
        # to make room for it.
        self.crowd.remove(self)
        if not self.transport.is_closing():
            self.transport.abort()


def keep_connection(scope: Scope) -> None:
    """The request of this scope showed a token: keep its connection when others make room."""
    connection = scope["state"].get(_CONNECTION)
    if isinstance(connection, BoundedConnection):
        connection.keep()


def in_url(host: str) -> str:
    """A host as a URL and a Host header have it."""
    return f"[{host}]" if ":" in host else host


def bound(host: str, port: int) -> socket.socket:
    """A listening socket, on a free port for 0.

    Raises StoreUnavailable when the address is in use or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, as asyncio sets TCP_NODELAY only then. Without it a small response
    # waits for the acknowledgement of the last one, which takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # With SO_REUSEADDR another program may bind the same port until one of both listens.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise StoreUnavailable(
            f"cannot listen on {host} port {port} ({error.strerror}): choose another, or 0 for a "
            "free one",
            outcome="none",
            in_use=error.errno == errno.EADDRINUSE,
        ) from None
    return listening


class HttpServer(uvicorn.Server):
    """uvicorn, which calls `on_begun` when it serves and `on_stop` when it begins to stop."""

    def __init__(
        self, app: ASGIApp, *, on_begun: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        class ServerConnection(BoundedConnection):
            crowd = Crowd()

        config = uvicorn.Config(
            app,
            http=ServerConnection,
            backlog=_ACCEPTED_AT_ONCE,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=int(HTTP_STOP_S),
            h11_max_incomplete_event_size=HTTP_HEADER_BYTES_MAX,
        )
        super().__init__(config)
        self._on_begun = on_begun
        self._on_stop = on_stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        for listening in sockets or ():
            # The loop has set the backlog to what it accepts at once.
            listening.listen(_BACKLOG)
        if self.started:
            self._on_begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all waits, which would delay the stop, and stop."""
        self._on_stop()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Serve until stopped. uvicorn itself looks ten times a second whether it is stopped, which
        costs a process with many servers more than their work.
        """
        self._loop = asyncio.get_running_loop()
        # It updates the header with the date, too.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop on a signal."""
        super().handle_exit(sig, frame)
        self._wake()

    def stop(self) -> None:
        """Begin to stop, from any thread."""
        self.should_exit = True
        self._wake()

    def _wake(self) -> None:
        # A loop that is closed serves nobody.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)


def serve(server: HttpServer, listening: socket.socket) -> None:
    """Serve until stopped. Returns when the last response is sent."""
    # Clients that disconnect are no trouble of the operator's.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # At its end uvicorn raises the signals again that stopped it, which would kill the caller.
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve_alone(server: HttpServer, listening: socket.socket) -> None:
    """Serve until stopped, as the only work of this process."""
    # What is loaded by now stays loaded: the garbage collector need not check it again.
    gc.freeze()
    serve(server, listening)
