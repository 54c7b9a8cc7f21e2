"""A server from its first moment to its graceful end.

It is stopped by SIGTERM, SIGINT or `stop`: it takes no new connection, ends what only waits, gives
the answers it owes, and returns. The caller then closes what is behind it.
"""

import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from litestar.types import ASGIApp

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import HTTP_HEADER_BYTES_MAX, HTTP_STOP_S
from holdfast.surfaces.http.connections import BoundedConnection, Crowd

_ACCEPTED_AT_ONCE = 64
"""How many connections are accepted before the loop reads what came on them.

Many fewer than may be open: in a flood, whoever shows a token with its first bytes is read before
enough others have come to push it out.
"""

_QUEUE = 512
"""How many connections the kernel keeps until they are accepted."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens, on a free port for 0.

    Raises StoreUnavailable when the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: of a connection whose protocol is 0, asyncio does not know that
    # small answers must not wait for the client's acknowledgement of the last one, which costs 40
    # ms each.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Only now can nobody else have the port.
        listening.listen(_QUEUE)
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
    """uvicorn, told when it begins to stop."""

    def __init__(
        self, app: ASGIApp, *, on_begun: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        class Connection(BoundedConnection):
            crowd = Crowd()

        config = uvicorn.Config(
            app,
            http=Connection,
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        for listening in sockets or ():
            # The loop has set the queue to what it accepts at once.
            listening.listen(_QUEUE)
        if self.started:
            self._on_begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; first of all what only waits, which would hold it up."""
        self._on_stop()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Begin to stop, from any thread."""
        self.should_exit = True


def serve(server: HttpServer, listening: socket.socket) -> None:
    """Serve until told to stop. Returns when the last answer is given."""
    # What these say of clients that hang up is nobody's concern.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with _surviving_signals():
        server.run(sockets=[listening])


@contextmanager
def _surviving_signals() -> Iterator[None]:
    """uvicorn raises again, at its end, the signals that stopped it; by then they have done what
    they should.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
