"""A claim that an agent waits for and gives up."""

import threading
from collections.abc import Iterator

import pytest

from holdfast.kernel.errors import LeaseLost, StoreUnavailable
from holdfast.surfaces.mcp.claims import Notice
from holdfast.surfaces.mcp.offer import Offer
from tests.harness.timeouts import PATIENCE_S


class SlowOffer(Offer[str]):
    """One whose store answers when it is let."""

    what = "grant"
    ready = "held"
    refused = "lock_refused"

    def __init__(self, store_is_back: threading.Event) -> None:
        super().__init__("lock:1")
        self._store_is_back = store_is_back
        self.given_back: list[str] = []

    def seek(self, stop_fd: int) -> str:
        assert self._store_is_back.wait(PATIENCE_S)
        return "grant"

    def verify(self, found: str) -> None: ...

    def give_back(self, found: str) -> bool:
        self.given_back.append(found)
        return True

    def over(self) -> LeaseLost:
        return LeaseLost("it was given up")

    def granted(self, found: str, *, first: bool) -> Iterator[Notice]:
        yield from ()


def test_what_cannot_be_given_up_in_time_is_not_called_given_up() -> None:
    """It was: the agent asked for the same lock again, entered the grant that was still being
    withdrawn, and lost it with that.
    """
    store_is_back, ended = threading.Event(), threading.Event()
    offer = SlowOffer(store_is_back)
    offer.begin(ended.set)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="release it again"):
            offer.release(0.0)
    assert not offer.done and offer.given_back == []
    store_is_back.set()
    assert offer.release(PATIENCE_S)
    assert (offer.found, offer.given_back) == (None, ["grant"])
    assert ended.wait(PATIENCE_S)
