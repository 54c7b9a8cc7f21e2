"""The one-time link, and the session that it begins in a browser.

A link has a code that can be used once and not for long. Whoever opens it gets a cookie: a random name and an end, signed with
the bearer token, so that a server that begins again knows it, and a new token ends them all. The cookie says nothing of the
token itself.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from litestar import MediaType, Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath

from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import SERVER_LINK_S, SERVER_LINKS_MAX, SERVER_SESSION_S
from holdfast.surfaces.http.server.routing import SECURED, problems

_COOKIE = re.compile(r"([A-Za-z0-9_-]{22})\.([0-9]{1,12})\.([0-9a-f]{64})\Z")

NO_SESSION = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Holdfast</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}
:root{color-scheme:light dark}code{font-size:1.1em}</style></head>
<body><h1>Holdfast</h1>
<p>This browser is not let in. On the machine that serves, run</p>
<p><code>holdfast serve --link</code></p>
<p>and open the link that it prints. It can be used once.</p></body></html>
"""


def cookie_name(port: int) -> str:
    """The name of the cookie of a server. A browser keeps one set of cookies for all ports of a host, and servers of two stores
    must not put each other's sessions out."""
    return f"holdfast_session_{port}"


class Link(Plain, frozen=True, kw_only=True):
    """A link for a browser, that can be used once."""

    url: str


class Sessions:
    """Codes of links, and the sessions that began with one. `now_s` is seconds since 1970."""

    def __init__(self, token: str, *, now_s: Callable[[], float] = time.time) -> None:
        self._key = token.encode()
        self._now_s = now_s
        self._codes: dict[str, float] = {}

    def new_code(self) -> str:
        """A code that can be used once."""
        while len(self._codes) >= SERVER_LINKS_MAX:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._now_s() + SERVER_LINK_S
        return code

    def begin(self, code: str) -> str | None:
        """Use a code up, and return the cookie of a new session; None for a code that cannot be used."""
        end_s = self._codes.pop(code, None)
        if end_s is None or end_s < self._now_s():
            return None
        begun = f"{secrets.token_urlsafe(16)}.{int(self._now_s() + SERVER_SESSION_S)}"
        return f"{begun}.{self._signed(begun)}"

    def lets_in(self, cookie: str) -> bool:
        """Is this the cookie of a session that has not ended?"""
        found = _COOKIE.match(cookie)
        if found is None:
            return False
        name, end, signature = found.groups()
        return hmac.compare_digest(signature, self._signed(f"{name}.{end}")) and int(end) >= self._now_s()

    def _signed(self, begun: str) -> str:
        return hmac.new(self._key, b"session " + begun.encode(), sha256).hexdigest()


def entrance(sessions: Sessions, url: str, cookie_name: str) -> list[Any]:
    """The routes by which a browser comes in."""

    @get("/enter/{code:str}", sync_to_thread=False, include_in_schema=False)
    def enter(code: FromPath[str]) -> Response[Any]:
        """Use a one-time link."""
        cookie = sessions.begin(code)
        if cookie is None:
            return Response(NO_SESSION, status_code=410, media_type=MediaType.HTML, headers={"Cache-Control": "no-store"})
        kept = Cookie(key=cookie_name, value=cookie, path="/", httponly=True, samesite="strict", max_age=int(SERVER_SESSION_S))
        headers = {"Location": "/", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return Response(None, status_code=303, headers=headers, cookies=[kept])

    @post(
        "/v1/links",
        status_code=200,
        sync_to_thread=False,
        responses=problems(),
        security=SECURED,
        operation_id="links.new",
        tags=["links"],
    )
    def new_link() -> Link:
        """Make a link for a browser, that can be used once."""
        return Link(url=f"{url}/enter/{sessions.new_code()}")

    return [enter, new_link]
