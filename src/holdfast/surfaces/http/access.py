"""Who may use a server: the bearer token in its file, and the gate before every route.

A web page can make a browser send requests to loopback, by a name that resolves there or from the
page's own origin. So the gate refuses a request whose Host is not served here, and one whose Origin
is another, before it compares tokens.

A page that came by a one-time link shows the secret of its session in place of the token. Cookies
are ignored: a browser sends them unasked, and to every port of this host.
"""

import asyncio
import contextlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.adapters.durable_write import make_whole
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEADER_BYTES_MAX,
    HTTP_REFUSED_BYTES_MAX,
    HTTP_REFUSED_S,
)
from holdfast.surfaces.http.http_server import in_url, keep_connection
from holdfast.surfaces.http.problems import BODY_TOO_LARGE, refusal
from holdfast.system.access import in_folder, make_private_folder, open_file

_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}\Z")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT = 80


def bearer_token(path: Path) -> str:
    """The token in a file, which is made if it does not exist.

    Raises StoreUnavailable when the file cannot be made, others can read it, or it holds no token.
    """
    try:
        with contextlib.suppress(FileExistsError):
            make_private_folder(path.parent)
            # Several servers may start at once: the first one's token wins.
            token = secrets.token_urlsafe(_BYTES).encode() + b"\n"
            in_folder(
                path, lambda folder, name: make_whole(name, token, folder_fd=folder), private=True
            )
        return _read_token(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None


def _read_token(path: Path) -> str:
    fd = open_file(path, os.O_RDONLY, make=False, private=True)
    with open(fd, encoding="ascii", errors="replace") as file:
        if os.fstat(fd).st_mode & 0o077:
            raise _unusable(path, "others may read it: chmod 600, or delete it for a new one")
        token = file.read(512).strip()
    if not _TOKEN.match(token):
        raise _unusable(path, "it holds no token: delete it for a new one")
    return token


def _unusable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(f"the token file {path} cannot be used: {why}", outcome="none")


def shown_token(authorization: str) -> str:
    """The bearer token in an Authorization header; empty when there is none."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def same_token(given: str, token: str) -> bool:
    """Compare in a time that does not depend on how much of the two is the same."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def served_hosts(host: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """The values of Host that are served: the bound address, the names of loopback, and what an
    operator adds.
    """
    names = {in_url(host).lower(), *_LOOPBACK}
    # Clients leave out the default port of HTTP.
    bare = names if port == _HTTP_PORT else set()
    return frozenset({f"{name}:{port}" for name in names} | bare | {name.lower() for name in more})


class AccessGate:
    """An ASGI application in front of another. It checks host, origin, token and announced sizes.

    `public` paths need no token, nor do paths that begin with one of `public_below`. `in_session`
    says whether a text is the secret of a session, which is as good as the token. The application
    behind counts the bytes of bodies that announce no length.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str],
        public: frozenset[str],
        public_below: tuple[str, ...] = (),
        in_session: Callable[[str], bool] = lambda _: False,
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        # Other scopes are the lifespan: there are no web sockets.
        if scope["type"] == ScopeType.HTTP and (refused := self._refusal(scope)) is not None:
            await _answer(send, receive, *refused)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._hosts:
            return 403, (
                "this server is not served under that Host: use the address it prints, or begin it "
                "with --allow-host"
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() not in self._origins:
            return 403, "a page of another origin may not use this server"
        given = shown_token(headers.get(b"authorization", b"").decode("latin-1"))
        if same_token(given, self._token) or self._in_session(given):
            keep_connection(scope)
        elif scope["path"] not in self._public and not scope["path"].startswith(self._public_below):
            return 401, "the bearer token is missing or wrong: it is in the server's token file"
        # h11 bounds a head that comes in parts; one that came whole has no bound yet.
        head_bytes = sum(map(len, chain.from_iterable(scope["headers"])))
        head_bytes += len(scope["raw_path"]) + len(scope["query_string"])
        if head_bytes > HTTP_HEADER_BYTES_MAX:
            most = HTTP_HEADER_BYTES_MAX
            return 413, f"the head may have {most} bytes: send fewer or shorter headers"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > HTTP_BODY_BYTES_MAX:
            return 413, BODY_TOO_LARGE
        return None


async def _answer(send: Send, receive: Receive, status: int, message: str) -> None:
    body = refusal(status, message)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    """Read what a refused client still sends, within bounds. Many clients read the response only
    when they have sent everything, and a connection that is closed before breaks instead.
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
