"""Faults of a lock manager, to be planted into this process: what checks histories must find each
of them.
"""

import random
from collections.abc import Callable
from typing import Any

from holdfast.kernel.holder import Liveness
from holdfast.primitives.locks import policy, transaction
from holdfast.primitives.locks.transaction import LockTransaction, Suspect
from holdfast.primitives.locks.wait import AheadWatch


def blind(draw: random.Random) -> None:
    """Now and then a request does not see who holds what it asks for."""
    real = policy.blocking_holds

    def blocking_holds(*arguments: Any) -> Any:
        return iter(()) if draw.random() < 0.02 else real(*arguments)

    policy.blocking_holds = blocking_holds


def deaf(draw: random.Random) -> None:
    """Who hands over wakes nobody."""
    begin = LockTransaction.__init__

    class Silent:
        def __init__(self, tx: Any) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def notify(self, topic: str) -> None:
            pass

    def silently(self: LockTransaction, tx: Any, *arguments: Any) -> None:
        begin(self, Silent(tx), *arguments)

    LockTransaction.__init__ = silently


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
    policy.find_cycle = lambda *_: []


def hasty(draw: random.Random) -> None:
    """Now and then one that lives is taken for dead."""
    real = AheadWatch.suspects

    def suspects(self: AheadWatch) -> list[Suspect]:
        self._liveness |= {one.id: Liveness.DEAD for one in self._ahead if draw.random() < 0.02}
        return real(self)

    AheadWatch.suspects = suspects


def stale(draw: random.Random) -> None:
    """Tokens are drawn by lot."""
    real = LockTransaction._append

    def tell(self: LockTransaction, *arguments: Any, **more: Any) -> int:
        return real(self, *arguments, **more) + draw.randint(0, 1000)

    LockTransaction._append = tell


_BUGS: dict[str, Callable[[random.Random], None]] = {
    bug.__name__: bug for bug in (blind, deaf, unbounded, unordered, careless, hasty, stale)
}


def plant(name: str, draw: random.Random) -> None:
    """Plant a fault by its name."""
    _BUGS[name](draw)
