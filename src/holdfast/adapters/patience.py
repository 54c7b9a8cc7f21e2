"""Asking a server again and again for how far it is, for as long as that makes sense."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.domains.gateway.adapter import Answer
from holdfast.kernel.errors import NotFound, UpstreamUnavailable

T = TypeVar("T")

ASK_EVERY_S = 0.2
AWAY_MAX_S = 30.0


def asked_until(
    ask: Callable[[], T], judge: Callable[[T], Answer | None], stop: threading.Event, *, timeout_s: float
) -> Answer:
    """Ask until there is an answer, and return it; or how the wait for it ended.

    A server that is away for a moment is waited for; one that says that the agent is gone is believed.
    """
    begun_s = heard_s = time.monotonic()
    while True:
        try:
            answer = judge(ask())
            heard_s = time.monotonic()
            if answer is not None:
                return answer
        except NotFound as error:
            return Answer(code="upstream_unavailable", detail=f"it was delivered, and then the agent went: {error.message}")
        except UpstreamUnavailable as error:
            if time.monotonic() - heard_s > AWAY_MAX_S:
                return Answer(code=error.code, detail=f"it was delivered, and then the server went: {error.message}")
        if stop.wait(ASK_EVERY_S):
            return Answer(known=False, code="stopped", detail="the gateway was stopped")
        if time.monotonic() - begun_s > timeout_s:
            return Answer(code="timeout", detail=f"it was delivered, and there was no answer within {timeout_s:g} s")
