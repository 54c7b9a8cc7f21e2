"""Slashes inside of a name.

A lock may be called /dev/ttyUSB0; in a path its slashes are written as %2F, which a server decodes
before anything is routed. Here they are kept apart from those between the parts of a path, until
the route has its name.
"""

from urllib.parse import unquote

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

_STAND_IN = "\x1f"
"""No name has it: control characters are refused."""
_NO_NAME = "\x00"


class PathNames:
    """An ASGI application in front of another, which gets paths whose parts may hold a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with its path taken apart rightly."""
        raw = scope.get("raw_path")
        if scope["type"] == ScopeType.HTTP and isinstance(raw, bytes):
            scope["path"] = "/".join(
                _inner(part) for part in raw.partition(b"?")[0].decode("latin-1").split("/")
            )
        await self._app(scope, receive, send)


def name_in(segment: str) -> str:
    """The name that a part of a path stands for."""
    return segment.replace(_STAND_IN, "/")


def _inner(part: str) -> str:
    return unquote(part).replace(_STAND_IN, _NO_NAME).replace("/", _STAND_IN)
