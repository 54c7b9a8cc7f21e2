"""Faults of a lock manager, to be planted into this process: what checks histories must find each
of them.
"""

import random
from collections.abc import Callable
from typing import Any

from holdfast.kernel.holder import Liveness
from holdfast.primitives.locks import policy, transaction
from holdfast.primitives.locks.transaction import Suspect, Turns
from holdfast.primitives.locks.wait import Watch


def blind(draw: random.Random) -> None:
    """Now and then a request does not see who holds what it asks for."""
    real = policy.held_against

    def held_against(*arguments: Any) -> Any:
        return iter(()) if draw.random() < 0.02 else real(*arguments)

    policy.held_against = held_against


def deaf(draw: random.Random) -> None:
    """Who hands over wakes nobody."""
    begin = Turns.__init__

    class Silent:
        def __init__(self, tx: Any) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def notify(self, topic: str) -> None:
            pass

    def silently(self: Turns, tx: Any, *arguments: Any) -> None:
        begin(self, Silent(tx), *arguments)

    Turns.__init__ = silently


def unbounded(draw: random.Random) -> None:
    """A request is passed as often as anybody likes."""
    policy.BACKFILL_MAX = 1_000_000


def unordered(draw: random.Random) -> None:
    """Places in the queue are drawn by lot."""
    real = transaction.rank_of

    def rank_of(*arguments: Any) -> int:
        return real(*arguments) + draw.randint(-300_000, 300_000)

    transaction.rank_of = rank_of


def careless(draw: random.Random) -> None:
    """A cycle is never seen."""
    policy.cycle = lambda *_: []


def hasty(draw: random.Random) -> None:
    """Now and then one that lives is taken for dead."""
    real = Watch.suspects

    def suspects(self: Watch) -> list[Suspect]:
        self._known |= {one.id: Liveness.DEAD for one in self._ahead if draw.random() < 0.02}
        return real(self)

    Watch.suspects = suspects


def stale(draw: random.Random) -> None:
    """Tokens are drawn by lot."""
    real = Turns._tell

    def tell(self: Turns, *arguments: Any, **more: Any) -> int:
        return real(self, *arguments, **more) + draw.randint(0, 1000)

    Turns._tell = tell


_BUGS: dict[str, Callable[[random.Random], None]] = {
    bug.__name__: bug for bug in (blind, deaf, unbounded, unordered, careless, hasty, stale)
}


def plant(name: str, draw: random.Random) -> None:
    """Plant a fault by its name."""
    _BUGS[name](draw)
