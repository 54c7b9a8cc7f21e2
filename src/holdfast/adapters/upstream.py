"""HTTP to an agent's server: with time limits, without a proxy on loopback, and never a retry.

Every failure says whether the server may have acted. A connection that was never made and a refusal
(4xx) mean that it did not; a lost answer and a server's own failure (5xx) mean that nobody knows.
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

T = TypeVar("T")

_DETAIL_CHARS_MAX = 500
ASK_EVERY_S = 0.2
AWAY_MAX_S = 30.0


class Upstream:
    """A server at a base URL. Raises InvalidValue for a text that is no URL, and Unavailable when
    httpx is not installed.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        try:
            import httpx
        except ImportError:
            raise Unavailable(
                f"this adapter needs httpx: {installing('server')}", outcome="none"
            ) from None
        parts = http_url(base_url)
        if parts is None:
            raise InvalidValue(
                f"{base_url.rpartition('@')[2][:100]!a} is no URL of a server: write it like "
                "http://127.0.0.1:9889",
                field="url",
            )
        # Without the user's name and password: it is shown in errors, status and journal.
        self.base_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        account = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._httpx = httpx
        # Without a transport of its own, httpx makes no retries: a delivery must not happen twice.
        self._client = httpx.Client(
            auth=account if any(account) else None,
            timeout=timeout_s,
            trust_env=not on_loopback(parts.hostname or ""),
            transport=None,
            follow_redirects=False,
        )

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON at a path. Raises NotFound for a 404, and UpstreamUnavailable."""
        return self._ask("GET", path, params, None)

    def post(self, path: str, params: Mapping[str, str] | None = None, body: Any = None) -> Any:
        """Post once, and return the JSON of the answer. Raises NotFound for a 404, and
        UpstreamUnavailable, whose `outcome` says whether the post may have taken effect.
        """
        return self._ask("POST", path, params, body)

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, params: Mapping[str, str] | None, body: Any) -> Any:
        where = f"{method} {self.base_url}{path}"
        unanswered = "unknown" if method == "POST" else "none"
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
            raise UpstreamUnavailable(
                f"{where}: no answer ({type(error).__name__}: {error})", outcome=unanswered
            ) from None
        if not answer.is_success:
            text = " ".join(answer.text.split())[:_DETAIL_CHARS_MAX]
            if answer.status_code == 404:
                raise NotFound(f"{where}: not found: {text}", outcome="none")
            raise UpstreamUnavailable(
                f"{where}: status {answer.status_code}: {text}",
                outcome=unanswered if answer.status_code >= 500 else "none",
                status=answer.status_code,
            )
        try:
            return answer.json()
        except ValueError:
            raise UpstreamUnavailable(
                f"{where}: the answer is no JSON", outcome=unanswered
            ) from None


def http_url(text: str) -> SplitResult | None:
    """The parts of an HTTP URL with a host; None for any other text."""
    try:
        parts = urlsplit(text)
        # An invalid port, and a host without an encoding, raise ValueError only when they are used.
        is_url = parts.scheme in ("http", "https") and parts.port != 0
        return parts if is_url and (parts.hostname or "").encode("idna") else None
    except ValueError:
        return None


def on_loopback(host: str) -> bool:
    """Is it this machine? Then no proxy is used."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def poll_answer(
    ask: Callable[[], T],
    judge: Callable[[T], Answer | None],
    stop: threading.Event,
    *,
    timeout_s: float,
) -> Answer:
    """Ask until `judge` finds the answer, and return it; or how the wait ended.

    A server that is away is asked again for a while. A 404 ends the wait: the agent is gone.
    """
    started_s = heard_s = time.monotonic()
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
        if time.monotonic() - started_s > timeout_s:
            return Answer(
                code="timeout",
                detail=f"it was delivered, and there was no answer within {timeout_s:g} s",
            )
