"""Who is let in. Before any route: the host and origin that are served, the token, and how much is announced.

A page in a browser can be made to send requests to loopback, by a name that leads there or from its own origin. So a request
whose Host is not one that is served is refused, and so is one whose Origin is another; neither needs to know the token. What
comes without being announced is counted by the application as it reads.
"""

from collections.abc import Iterable

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX
from holdfast.surfaces.http.bearer import same_token
from holdfast.surfaces.http.problems import refusal

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def served_hosts(host: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """The values of Host that are served: the bound address, the names of loopback, and what an operator adds."""
    bound = f"[{host}]" if ":" in host else host
    names = {bound.lower(), *_LOOPBACK}
    return frozenset({f"{name}:{port}" for name in names} | {name.lower() for name in more})


class Doorman:
    """An ASGI application in front of another. `public` paths need no token, but everything else."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str],
        public: frozenset[str] = frozenset(),
        body_bytes_max: int = HTTP_BODY_BYTES_MAX,
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._origins = frozenset(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))
        self._public = public
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != ScopeType.HTTP:
            # Lifespan; there are no web sockets.
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refused = self._refused(scope["path"], headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        await self._app(scope, receive, send)

    def _refused(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._hosts:
            return refusal(403, "this server is not served under that Host: use the address it prints")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() not in self._origins:
            return refusal(403, "a page of another origin may not use this server")
        if path not in self._public and not self._let_in(headers.get(b"authorization", b"").decode("latin-1")):
            return refusal(401, "the bearer token is missing or wrong: it is in the server's token file")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes_max:
            words = f"the body may have {self._body_bytes_max} bytes: put long text into a file and name it"
            return refusal(413, words)
        return None

    def _let_in(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return same_token(given.strip(), self._token) and scheme.lower() == "bearer"


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
