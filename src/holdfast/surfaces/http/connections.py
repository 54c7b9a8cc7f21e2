"""Connections within bounds: one that does not say in time what it wants is closed, and too many are never open.

A client that sends its request a byte at a time, or nothing at all, or does not read its answer, costs a descriptor and no
more, and not for long. When all that may be open are, the longest that asks for nothing makes room; one whose request is being
answered never does.
"""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from holdfast.kernel.limits import HTTP_BODY_S, HTTP_CONNECTIONS_MAX, HTTP_HEAD_S, HTTP_READ_S


class BoundedConnection(H11Protocol):
    """One connection."""

    head_s = HTTP_HEAD_S
    body_s = HTTP_BODY_S
    read_s = HTTP_READ_S
    connections_max = HTTP_CONNECTIONS_MAX

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
        self._idle_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is room."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.connections_max:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._lose_patience_no_more()
        self._read_on()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Go on with what has come; the time for a head ends with it, and that for a body begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not before:
            self._lose_patience_no_more()
            if self.cycle.more_body:
                self._patience = self.loop.call_later(self.body_s, self._give_up)
        elif self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._lose_patience_no_more()

    def on_response_complete(self) -> None:
        """The answer is given: the next head may come."""
        self._lose_patience_no_more()
        if not self.transport.is_closing():
            self._await_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        self._unread = self.loop.call_later(self.read_s, self._give_up)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._read_on()
        super().resume_writing()

    @property
    def answering(self) -> bool:
        """Is a whole request being answered?"""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _await_head(self) -> None:
        self._idle_since_s = self.loop.time()
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
        if not self.transport.is_closing():
            self.transport.abort()

    def _make_room(self) -> None:
        others = [cast(BoundedConnection, one) for one in self.connections]
        idle = [one for one in others if not one.answering and not one.transport.is_closing()]
        # This one is among them, and mostly the youngest.
        min(idle, key=lambda one: one._idle_since_s, default=self)._give_up()
