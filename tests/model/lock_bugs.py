"""Faults of a lock manager, to be planted into this process: what checks histories must find each
of them.
"""

import random
from collections.abc import Callable
from typing import Any

from holdfast.kernel.holder import Liveness
from holdfast.primitives.locks import policy, records, transaction
from holdfast.primitives.locks.transaction import LockTransaction, Suspect
from holdfast.primitives.locks.wait import AheadWatch


def replace(owner: object, name: str, new: object) -> None:
    """Put something else in the place of a part of the program, in this process."""
    setattr(owner, name, new)


def blind(draw: random.Random) -> None:
    """Now and then a request does not see who holds what it asks for."""
    real = policy.blocking_holds

    def blocking_holds(*arguments: Any) -> Any:
        return iter(()) if draw.random() < 0.02 else real(*arguments)

    replace(policy, "blocking_holds", blocking_holds)


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

    replace(LockTransaction, "__init__", silently)


def unbounded(draw: random.Random) -> None:
    """A request is passed as often as anybody likes."""
    replace(policy, "BACKFILL_MAX", 1_000_000)


def unordered(draw: random.Random) -> None:
    """Places in the queue are drawn by lot."""

    def rank_of(*arguments: Any) -> int:
        return records.rank_of(*arguments) + draw.randint(-300_000, 300_000)

    replace(transaction, "rank_of", rank_of)


def careless(draw: random.Random) -> None:
    """A cycle is never seen."""
    replace(policy, "find_cycle", lambda *_: [])


def hasty(draw: random.Random) -> None:
    """Now and then one that lives is taken for dead."""
    real = AheadWatch.suspects

    def suspects(self: AheadWatch) -> list[Suspect]:
        self._liveness |= {one.id: Liveness.DEAD for one in self._ahead if draw.random() < 0.02}
        return real(self)

    replace(AheadWatch, "suspects", suspects)


def stale(draw: random.Random) -> None:
    """Tokens are drawn by lot."""
    real = LockTransaction._append

    def tell(self: LockTransaction, *arguments: Any, **more: Any) -> int:
        return real(self, *arguments, **more) + draw.randint(0, 1000)

    replace(LockTransaction, "_append", tell)


_BUGS: dict[str, Callable[[random.Random], None]] = {
    bug.__name__: bug for bug in (blind, deaf, unbounded, unordered, careless, hasty, stale)
}


def plant(name: str, draw: random.Random) -> None:
    """Plant a fault by its name."""
    _BUGS[name](draw)
