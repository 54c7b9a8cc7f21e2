"""The one-time link, and the session that it begins in a page.

A link carries a code in its fragment, which a browser sends to nobody. The page exchanges the code,
once, for a session's secret, keeps it in its own storage, and shows it with each request as a
bearer token. There is no cookie: a browser sends a cookie to every port of a host, and another
user's server on this machine could collect it.

A secret is a random name and an end, signed with the bearer token for one port. So a server that
starts again knows its sessions, and a new token ends them all. A secret says nothing of the token
itself. Sessions that were logged out are kept in a file until they would have ended by themselves.

While the server is down, another program may take its port. So a page that has lost its server
shows the secret only to one that proves, with a number that the page chose, to know it already.
"""

import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, post
from litestar.exceptions import NotAuthorizedException
from litestar.params import RawBody

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.limits import (
    HTTP_CODE_BYTES_MAX,
    SERVER_ENDED_MAX,
    SERVER_LINK_S,
    SERVER_LINKS_MAX,
    SERVER_SESSION_S,
)
from holdfast.surfaces.http.access import shown_token
from holdfast.surfaces.http.problems import SECURED, strictly
from holdfast.surfaces.http.server.routes import problems

BEGIN_PATH = "/v1/sessions"
"""Where a page exchanges a code. It needs no token: the code is the secret."""

PROOF_PATH = "/v1/sessions/proof"
"""Where a page asks for a proof. It needs no token: nobody learns a secret from it."""

_SECRET = re.compile(r"([A-Za-z0-9_-]{22})\.([0-9]{1,12})\.([0-9a-f]{64})\Z")


class Link(Plain, frozen=True, kw_only=True):
    """A link for a browser, that can be used once."""

    url: str


class Code(Plain, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of a link."""

    code: str


class Challenge(Plain, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session to prove, by its name and end, and the number that the page chose."""

    session: Annotated[str, msgspec.Meta(max_length=40)]
    nonce: Annotated[str, msgspec.Meta(min_length=16, max_length=100)]


class Sessions:
    """Codes of links, and the sessions that began with one, of the server at a port.

    `ended_file` keeps the sessions that were logged out; without one they are forgotten with the
    process. `now_s` is seconds since 1970.
    """

    def __init__(
        self,
        token: str,
        port: int,
        *,
        ended_file: Path | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._key = token.encode()
        self._port = port
        self._now_s = now_s
        self._codes: dict[str, float] = {}
        self._mutex = threading.Lock()
        self._ended_file = ended_file
        self._ended = {} if ended_file is None else _read_ended(ended_file)

    def new_code(self) -> str:
        """A code that can be used once."""
        while len(self._codes) >= SERVER_LINKS_MAX:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._now_s() + SERVER_LINK_S
        return code

    def begin(self, code: str) -> str | None:
        """Use a code up, and return the secret of a new session; None for a used or old code."""
        end_s = self._codes.pop(code, None)
        if end_s is None or end_s < self._now_s():
            return None
        begun = f"{secrets.token_urlsafe(16)}.{int(self._now_s() + SERVER_SESSION_S)}"
        return f"{begun}.{self._signed(begun)}"

    def lets_in(self, secret: str) -> bool:
        """Is this the secret of a session that has not ended?"""
        found = _SECRET.match(secret)
        if found is None:
            return False
        name, end, signature = found.groups()
        genuine = hmac.compare_digest(signature, self._signed(f"{name}.{end}"))
        return genuine and int(end) >= self._now_s() and name not in self._ended

    def proof(self, begun: str, nonce: str) -> str:
        """The answer to a number that only a server with the secret of this session can give."""
        return hmac.new(self._signed(begun).encode(), f"proof {nonce}".encode(), sha256).hexdigest()

    def end(self, secret: str) -> None:
        """Log a session out, for good.

        Raises InvalidValue for what is no session, StoreUnavailable when the log-out cannot be kept
        for the next server.
        """
        if not self.lets_in(secret):
            raise InvalidValue(
                "this is no session: only a page that came by a link can log out", field="session"
            )
        name, end, _ = secret.split(".")
        with self._mutex:
            now_s = self._now_s()
            left = {**{one: at for one, at in self._ended.items() if at >= now_s}, name: int(end)}
            # Beyond the bound, the one that ends first by itself.
            for one in sorted(left, key=left.__getitem__)[: max(len(left) - SERVER_ENDED_MAX, 0)]:
                del left[one]
            self._ended = left
            if self._ended_file is None:
                return
            try:
                atomic_durable_write(self._ended_file, to_json(left), mode=0o600)
            except OSError as error:
                raise StoreUnavailable(
                    f"this server has ended the session, but {self._ended_file} cannot be written "
                    f"({error.strerror}): delete "
                    "the token file and start the server again to end all sessions",
                    outcome="unknown",
                ) from None

    def _signed(self, begun: str) -> str:
        return hmac.new(
            self._key, f"page session {self._port} {begun}".encode(), sha256
        ).hexdigest()


def link_to(url: str, code: str) -> str:
    """A link for a browser.

    Its code is in the fragment, so that it reaches no log and no other server.
    """
    return f"{url}/#/enter/{code}"


def session_routes(sessions: Sessions, url: str) -> list[Any]:
    """The routes that begin, prove and end a session, and make a link."""
    codes, challenges = msgspec.json.Decoder(Code), msgspec.json.Decoder(Challenge)

    # Without a token: their bodies are read, so they must be small.
    public: dict[str, Any] = {
        "status_code": 200,
        "sync_to_thread": False,
        "include_in_schema": False,
        "request_max_body_size": HTTP_CODE_BYTES_MAX,
    }

    @post(BEGIN_PATH, **public)
    def begin(body: RawBody) -> dict[str, str]:
        secret = sessions.begin(strictly(codes, body).code)
        if secret is None:
            raise NotAuthorizedException(
                "this link was used before, or is too old: `holdfast serve --link` prints another"
            )
        return {"session": secret}

    @post(PROOF_PATH, **public)
    def prove(body: RawBody) -> dict[str, str]:
        challenge = strictly(challenges, body)
        return {"proof": sessions.proof(challenge.session, challenge.nonce)}

    @post(f"{BEGIN_PATH}/end", status_code=204, sync_to_thread=True, include_in_schema=False)
    def end(request: Request[Any, Any, Any]) -> None:
        sessions.end(shown_token(request.headers.get("authorization", "")))

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
        return Link(url=link_to(url, sessions.new_code()))

    return [begin, prove, end, new_link]


def _read_ended(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        # Refused: sessions that were logged out would be valid again.
        raise StoreUnavailable(
            f"{path} cannot be read ({error}): delete it and the token file beside it, which ends "
            "all sessions",
            outcome="none",
        ) from None
