"""Which grants somebody was told of, and which were given back because nobody was: never both.

A client that hangs up and asks again at once, as the same job, enters the grant that its first
request has just been given. Were that then given back, it would work under a lock that is free.
"""

import threading
from collections.abc import Iterable

from holdfast.kernel.limits import SERVER_TOLD_MAX


class Told:
    """Remembers the last of each by their tokens: what is to be kept apart is milliseconds apart.
    Safe in threads.
    """

    def __init__(self, *, most: int = SERVER_TOLD_MAX) -> None:
        self._most = most
        self._mutex = threading.Lock()
        self._told: dict[int, None] = {}
        self._given_back: dict[int, None] = {}

    def tell(self, tokens: Iterable[int]) -> set[int]:
        """Somebody is about to be told of these grants, which it did not take itself. Returns those
        that are being given back; if there are any, none may be told.
        """
        wanted = set(tokens)
        with self._mutex:
            gone = wanted & self._given_back.keys()
            if not gone:
                self._remember(self._told, wanted)
            return gone

    def take_back(self, token: int) -> bool:
        """May this grant be given back? Then it will never be told; False when it was."""
        with self._mutex:
            if token in self._told:
                return False
            self._remember(self._given_back, (token,))
            return True

    def _remember(self, tokens: dict[int, None], more: Iterable[int]) -> None:
        tokens |= dict.fromkeys(more)
        while len(tokens) > self._most:
            del tokens[next(iter(tokens))]
