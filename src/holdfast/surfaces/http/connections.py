"""Connections within bounds: one that does not say in time what it wants is closed, and too many
are never open.

A client that sends its request a byte at a time, or nothing at all, or does not read its answer,
costs a descriptor and no more, and not for long. When all that may be open are, a stranger makes
room: the one that has been open longest of those on which nobody has shown the token. So a flood of
connections pushes out itself, and those with a token are served. Without a stranger, the known
connection that has been idle longest makes room; a known one that is being answered never does.
"""

import asyncio
from typing import Any

from litestar.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from holdfast.kernel.limits import HTTP_BODY_S, HTTP_CONNECTIONS_MAX, HTTP_HEAD_S, HTTP_READ_S

_CONNECTION = "holdfast.connection"
"""Where the scope of a request has its connection."""


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
        """A connection was opened. Nobody knows whose it is."""
        self._strangers[one] = None

    def add_busy(self, one: "BoundedConnection") -> None:
        """A known connection is being answered."""
        self.remove(one)
        self._busy[one] = None

    def add_idle(self, one: "BoundedConnection") -> None:
        """A known connection has its answer, and may ask again."""
        self.remove(one)
        self._idle[one] = None

    def remove(self, one: "BoundedConnection") -> None:
        """A connection is closed."""
        for part in (self._strangers, self._idle, self._busy):
            part.pop(one, None)

    def first_to_go(self) -> "BoundedConnection | None":
        """The connection that makes room; None when all are known and being answered."""
        return next(iter(self._strangers), None) or next(iter(self._idle), None)


class BoundedConnection(H11Protocol):
    """One connection. Each server has a subclass of its own, with its own crowd."""

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
        super().__init__(config, server_state, app_state, _loop)
        self._patience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._known = False
        served = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[_CONNECTION] = self
            await served(scope, receive, send)

        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and make room if there is none."""
        super().connection_made(transport)
        self._await_head()
        self.crowd.add_stranger(self)
        if len(self.crowd) > self.connections_max:
            # This one is the youngest of the strangers, and goes only when all others are being
            # answered.
            (self.crowd.first_to_go() or self)._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.crowd.remove(self)
        self._lose_patience_no_more()
        self._read_on()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Go on with what has come: the time for a head ends, and that for a body begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not before:
            self._lose_patience_no_more()
            if self._known:
                self.crowd.add_busy(self)
            if self.cycle.more_body:
                self._patience = self.loop.call_later(self.body_s, self._give_up)
        elif (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        ):
            self._lose_patience_no_more()

    def keep(self) -> None:
        """Somebody who is known asks here: from now on strangers make room before this one."""
        if not self.transport.is_closing():
            self._known = True
            self.crowd.add_busy(self)

    def on_response_complete(self) -> None:
        """The answer is given: the next head may come."""
        self._lose_patience_no_more()
        if not self.transport.is_closing():
            self._await_head()
            if self._known:
                self.crowd.add_idle(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        self._unread = self.loop.call_later(self.read_s, self._give_up)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._read_on()
        super().resume_writing()

    def _await_head(self) -> None:
        self._patience = self.loop.call_later(self.head_s, self._give_up)

    def _lose_patience_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _read_on(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        # At once, and not only when the loop tells that it is lost: until then others would make
        # room for it too.
        self.crowd.remove(self)
        if not self.transport.is_closing():
            self.transport.abort()


def keep_connection(scope: Scope) -> None:
    """The request of this scope showed a token: its connection is known from now on."""
    connection = scope.get(_CONNECTION)
    if isinstance(connection, BoundedConnection):
        connection.keep()
