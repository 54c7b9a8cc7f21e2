"""Who is let in.

Before any route: the host and origin that are served, the token or a session, and how much is
announced.

A page in a browser can be made to send requests to loopback, by a name that leads there or from its
own origin. So a request whose Host is not one that is served is refused, and so is one whose Origin
is another; neither needs to know the token. What comes without being announced is counted by the
application as it reads.

A page that came by a one-time link shows the secret of its session in the token's place. No cookie
is looked at: a browser sends one by itself, and to every port of this host.

A connection on which somebody was let in is told so, and is kept when others make room
(connections.py).
"""

import asyncio
from collections.abc import Callable, Iterable

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.kernel.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEADER_BYTES_MAX,
    HTTP_REFUSED_BYTES_MAX,
    HTTP_REFUSED_S,
)
from holdfast.surfaces.http.bearer import same_token, shown_token
from holdfast.surfaces.http.connections import keep_connection
from holdfast.surfaces.http.problems import refusal

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80


def served_hosts(host: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """The values of Host that are served: the bound address, the names of loopback, and what an
    operator adds.
    """
    bound = f"[{host}]" if ":" in host else host
    names = {bound.lower(), *_LOOPBACK}
    # Clients leave the port out that is HTTP's own.
    bare = names if port == _HTTP_PORT else set()
    return frozenset({f"{name}:{port}" for name in names} | bare | {name.lower() for name in more})


class AccessGate:
    """An ASGI application in front of another.

    `public` paths need no token, and neither does what begins with one of `public_below`.
    `in_session` knows the secrets of sessions, which are as good as the token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str],
        public: frozenset[str] = frozenset(),
        public_below: tuple[str, ...] = (),
        in_session: Callable[[str], bool] = lambda _: False,
        body_bytes_max: int = HTTP_BODY_BYTES_MAX,
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._origins = frozenset(
            f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")
        )
        self._public = public
        self._public_below = public_below
        self._in_session = in_session
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != ScopeType.HTTP:
            # Lifespan; there are no web sockets.
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refused = self._foreign(headers)
        if refused is None:
            if self._is_known(headers):
                keep_connection(scope)
            elif not self._is_public(scope["path"]):
                refused = refusal(
                    401, "the bearer token is missing or wrong: it is in the server's token file"
                )
        refused = refused or _long_head(scope) or self._oversized(headers)
        if refused is not None:
            await _answer(send, receive, *refused)
            return
        await self._app(scope, receive, send)

    def _foreign(self, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._hosts:
            return refusal(
                403,
                "this server is not served under that Host: use the address it prints, or begin it "
                "with --allow-host",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() not in self._origins:
            return refusal(403, "a page of another origin may not use this server")
        return None

    def _is_known(self, headers: dict[bytes, bytes]) -> bool:
        given = shown_token(headers.get(b"authorization", b"").decode("latin-1"))
        return same_token(given, self._token) or self._in_session(given)

    def _oversized(self, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes_max:
            most = self._body_bytes_max
            words = f"the body may have {most} bytes: put long text into a file and name it"
            return refusal(413, words)
        return None

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(self._public_below)


def _long_head(scope: Scope) -> tuple[int, bytes] | None:
    """One that came whole at once: the protocol counts only what it has to wait for the rest of."""
    head = (
        len(scope["raw_path"])
        + len(scope["query_string"])
        + sum(len(name) + len(value) for name, value in scope["headers"])
    )
    if head > HTTP_HEADER_BYTES_MAX:
        return refusal(
            413, f"the head may have {HTTP_HEADER_BYTES_MAX} bytes: send fewer or shorter headers"
        )
    return None


async def _answer(send: Send, receive: Receive, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _hear_out(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hear_out(receive: Receive) -> None:
    """Read what a refused client goes on to send, within bounds: closed under it, its connection
    breaks before it has seen the answer, and many look for that only when all is sent.
    """
    left = HTTP_REFUSED_BYTES_MAX
    while left > 0:
        try:
            async with asyncio.timeout(HTTP_REFUSED_S):
                message = await receive()
        except TimeoutError:
            return
        if message["type"] != "http.request" or not message["more_body"]:
            return
        left -= len(message["body"])
