"""Who is let in. Before any route: the host and origin that are served, the token or a session, and how much is announced.

A page in a browser can be made to send requests to loopback, by a name that leads there or from its own origin. So a request
whose Host is not one that is served is refused, and so is one whose Origin is another; neither needs to know the token. What
comes without being announced is counted by the application as it reads.

A browser that came by a one-time link has a session instead of the token. A browser sends its cookie by itself, so whoever
changes something by a session must also say by its Origin that it is a page of this server.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX, HTTP_HEADER_BYTES_MAX, HTTP_REFUSED_BYTES_MAX, HTTP_REFUSED_S
from holdfast.surfaces.http.bearer import same_token
from holdfast.surfaces.http.problems import refusal

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80


def served_hosts(host: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """The values of Host that are served: the bound address, the names of loopback, and what an operator adds."""
    bound = f"[{host}]" if ":" in host else host
    names = {bound.lower(), *_LOOPBACK}
    # Clients leave the port out that is HTTP's own.
    bare = names if port == _HTTP_PORT else set()
    return frozenset({f"{name}:{port}" for name in names} | bare | {name.lower() for name in more})


_LOOKING = ("GET", "HEAD")


class Sessions(NamedTuple):
    """How browsers are let in: the cookie's name, who is known by it, and the page that the others get at `/`."""

    cookie: str
    lets_in: Callable[[str], bool]
    without: bytes


class Doorman:
    """An ASGI application in front of another. `public` paths need no token, but everything else; one that ends with a slash
    stands for all that begin with it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str],
        public: frozenset[str] = frozenset(),
        sessions: Sessions | None = None,
        body_bytes_max: int = HTTP_BODY_BYTES_MAX,
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._origins = frozenset(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))
        self._public = public
        self._public_parts = tuple(path for path in public if path.endswith("/"))
        self._sessions = sessions
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != ScopeType.HTTP:
            # Lifespan; there are no web sockets.
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refused = self._foreign(headers)
        if refused is None and not self._is_public(scope["path"]):
            refused = self._stranger(scope["method"], headers)
            if refused is not None and self._sessions is not None and (scope["method"], scope["path"]) == ("GET", "/"):
                await _answer(send, 401, self._sessions.without, b"text/html; charset=utf-8")
                return
        refused = refused or _long_head(scope) or self._oversized(headers)
        if refused is not None:
            await _answer(send, *refused, receive=receive)
            return
        await self._app(scope, receive, send)

    def _foreign(self, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._hosts:
            return refusal(
                403, "this server is not served under that Host: use the address it prints, or begin it with --allow-host"
            )
        if not self._own_origin(headers, absent=True):
            return refusal(403, "a page of another origin may not use this server")
        return None

    def _stranger(self, method: str, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        if self._has_token(headers.get(b"authorization", b"").decode("latin-1")):
            return None
        if not self._has_session(headers.get(b"cookie", b"").decode("latin-1")):
            return refusal(401, "the bearer token is missing or wrong: it is in the server's token file")
        if method not in _LOOKING and not self._own_origin(headers, absent=False):
            return refusal(403, "who changes something by a session must say its Origin: use the token otherwise")
        return None

    def _oversized(self, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes_max:
            words = f"the body may have {self._body_bytes_max} bytes: put long text into a file and name it"
            return refusal(413, words)
        return None

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(self._public_parts)

    def _own_origin(self, headers: dict[bytes, bytes], *, absent: bool) -> bool:
        origin = headers.get(b"origin")
        return absent if origin is None else origin.decode("latin-1").lower() in self._origins

    def _has_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return same_token(given.strip(), self._token) and scheme.lower() == "bearer"

    def _has_session(self, cookies: str) -> bool:
        if self._sessions is None:
            return False
        # By hand: one odd cookie of another program on this machine would make a parser give up on all of them.
        pairs = (part.strip().partition("=") for part in cookies.split(";"))
        return any(name == self._sessions.cookie and self._sessions.lets_in(value) for name, _, value in pairs)


def _long_head(scope: Scope) -> tuple[int, bytes] | None:
    """One that came whole at once: the protocol counts only what it has to wait for the rest of."""
    head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
    if head > HTTP_HEADER_BYTES_MAX:
        return refusal(413, f"the head may have {HTTP_HEADER_BYTES_MAX} bytes: send fewer or shorter headers")
    return None


async def _answer(
    send: Send, status: int, body: bytes, media_type: bytes = b"application/json", receive: Receive | None = None
) -> None:
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        await _hear_out(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hear_out(receive: Receive) -> None:
    """Read what a refused client goes on to send, within bounds: closed under it, its connection breaks before it has seen the
    answer, and many look for that only when all is sent."""
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
