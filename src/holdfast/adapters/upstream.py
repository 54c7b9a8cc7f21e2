"""HTTP to an agent's server: with time limits, past any proxy on loopback, and never twice.

Every failure says whether the server may have acted: a connection that was never made and a refusal
(4xx) mean that it did not; a lost answer and a server's own failure (5xx) mean that nobody knows.

Asking a server again and again for how far it is, for as long as that makes sense.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.domains.gateway.adapter import Answer
from holdfast.kernel.errors import InvalidValue, NotFound, Unavailable, UpstreamUnavailable
from holdfast.kernel.text import installing

_DETAIL_CHARS_MAX = 500


class Upstream:
    """A server at a base URL. Raises InvalidValue for what is no URL, and Unavailable when httpx is
    not installed.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        try:
            import httpx
        except ImportError:
            raise Unavailable(
                f"this adapter needs httpx: {installing('server')}", outcome="none"
            ) from None
        parts = _parts(base_url)
        assert parts.hostname is not None
        # Without the name and password in it: this goes into errors, the status and the journal.
        self.base_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        account = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._httpx = httpx
        # Retries are off by default; they are named here because they must stay off.
        self._client = httpx.Client(
            auth=account if any(account) else None,
            timeout=timeout_s,
            trust_env=not on_loopback(parts.hostname),
            transport=None,
            follow_redirects=False,
        )

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON at a path. Raises NotFound for a 404, and UpstreamUnavailable."""
        return self._asked("GET", path, params, None, changes=False)

    def post(self, path: str, params: Mapping[str, str] | None = None, body: Any = None) -> Any:
        """Post once, and return the JSON of the answer. Raises NotFound for a 404, and
        UpstreamUnavailable whose `outcome` says whether it may have taken effect.
        """
        return self._asked("POST", path, params, body, changes=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _asked(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, *, changes: bool
    ) -> Any:
        where = f"{method} {self.base_url}{path}"
        httpx = self._httpx
        try:
            answer = self._client.request(method, self.base_url + path, params=params, json=body)
        except (
            httpx.ConnectError,
            httpx.ConnectTimeout,
            httpx.PoolTimeout,
            httpx.UnsupportedProtocol,
        ) as error:
            raise UpstreamUnavailable(
                f"{where}: cannot connect ({error})", outcome="none"
            ) from None
        except httpx.HTTPError as error:
            outcome = "unknown" if changes else "none"
            raise UpstreamUnavailable(
                f"{where}: no answer ({type(error).__name__}: {error})", outcome=outcome
            ) from None
        if answer.status_code == 404:
            raise NotFound(f"{where}: not found: {_said(answer.text)}", outcome="none")
        if not answer.is_success:
            outcome = "unknown" if changes and answer.status_code >= 500 else "none"
            raise UpstreamUnavailable(
                f"{where}: status {answer.status_code}: {_said(answer.text)}",
                outcome=outcome,
                status=answer.status_code,
            )
        try:
            return answer.json()
        except ValueError:
            raise UpstreamUnavailable(
                f"{where}: the answer is no JSON", outcome="unknown" if changes else "none"
            ) from None


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # Only asking for it shows that a port is none.
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise InvalidValue(
            f"{url.rpartition('@')[2][:100]!a} is no URL of a server: write it like http://127.0.0.1:9889",
            field="url",
        )
    return parts


def on_loopback(host: str) -> bool:
    """Is this this machine, so that no proxy can be meant?"""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _said(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_CHARS_MAX]


T = TypeVar("T")

ASK_EVERY_S = 0.2
AWAY_MAX_S = 30.0


def asked_until(
    ask: Callable[[], T],
    judge: Callable[[T], Answer | None],
    stop: threading.Event,
    *,
    timeout_s: float,
) -> Answer:
    """Ask until there is an answer, and return it; or how the wait for it ended.

    A server that is away for a moment is waited for; one that says that the agent is gone is
    believed.
    """
    begun_s = heard_s = time.monotonic()
    while True:
        try:
            answer = judge(ask())
            heard_s = time.monotonic()
            if answer is not None:
                return answer
        except NotFound as error:
            return Answer(
                code="upstream_unavailable",
                detail=f"it was delivered, and then the agent went: {error.message}",
            )
        except UpstreamUnavailable as error:
            if time.monotonic() - heard_s > AWAY_MAX_S:
                return Answer(
                    code=error.code,
                    detail=f"it was delivered, and then the server went: {error.message}",
                )
        if stop.wait(ASK_EVERY_S):
            return Answer(known=False, code="stopped", detail="the gateway was stopped")
        if time.monotonic() - begun_s > timeout_s:
            return Answer(
                code="timeout",
                detail=f"it was delivered, and there was no answer within {timeout_s:g} s",
            )
