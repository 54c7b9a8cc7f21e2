"""Signs of life for counted holds: a holder whose process cannot be seen, as from another machine, lives by its lease.

For records of any space that keep their holders in one field, as `Holds` does and every domain that counts by its rules.
"""

import contextlib
import math
import os
import time
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.primitives.keeper import Keeper


class Mine(NamedTuple):
    """A hold that this process took, for itself or another, and keeps fresh."""

    space: Space[Any]
    key: str
    by: str
    process: Holder | None = None
    since_s: float = 0.0

    @property
    def id(self) -> str:
        """What it is known by."""
        return f"{self.space.name}\0{self.key}\0{self.by}"

    @property
    def ends_s(self) -> float:
        """Of its end nobody is told: that would have to be asked for."""
        return math.inf

    def lose(self) -> None:
        """Whoever holds learns of it at the next use."""


class Renewing:
    """The holds of this process. `field` is where a record keeps its holders; `topic` begins the name of what wakes it."""

    def __init__(self, store: Store, processes: Processes, *, field: str, topic: str, lease_s: float) -> None:
        self._store = store
        self._processes = processes
        self._field = field
        self._named = topic
        self._lease_s = lease_s
        self._begin_process()
        self._keeper: Keeper[Mine] = Keeper(store, topic=lambda: self._topic, renew=self.renew, renew_every_s=lease_s / 3)
        _all.add(self)

    def keep(self, space: Space[Any], keys: Iterable[str], by: str, process: Holder | None) -> None:
        """Give signs of life for a hold from now on; for one that no process has, there are none to give."""
        self.begin()
        for key in keys:
            mine = Mine(space, key, by, process, time.monotonic())
            (self._keeper.discard if process is None else self._keeper.add)(mine)

    def leave(self, space: Space[Any], key: str, by: str) -> None:
        """Stop it."""
        self.begin()
        self._keeper.discard(Mine(space, key, by))

    def begin(self) -> None:
        """In a forked child, begin anew: what its parent holds is its parent's to renew."""
        if os.getpid() != self._pid:
            self._begin_process()
            self._keeper.begin_process()

    def close(self) -> None:
        """Stop everything. Nothing is dropped."""
        if os.getpid() == self._pid:
            self._keeper.close()

    def renew(self, mine: list[Mine]) -> list[Mine]:
        """Renew what is due, of what this process took and still holds; return the rest."""
        held = {one.process for one in mine if one.process is not None}
        alive = {process for process in held if probe(process, self._processes, embedded=True) is not Liveness.DEAD}
        gone: list[Mine] = []
        for space in {one.space.name: one.space for one in mine}.values():
            gone += self._renew_in(space, [one for one in mine if one.space is space], alive)
        return gone

    def _renew_in(self, space: Space[Any], mine: list[Mine], alive: set[Holder]) -> list[Mine]:
        def look(tx: ReadTx) -> list[tuple[Mine, Any]]:
            return [(one, self._own(tx, one) if one.process in alive else None) for one in mine]

        def renew(tx: Tx) -> None:
            for one, found in look(tx):
                if found is not None and leases.due(found.lease, tx.now, self._lease_s):
                    self._put(tx, one, replace(found, lease=leases.renew(found.lease, tx.now, self._lease_s)))

        now = self._store.now()
        seen = self._store.read(look, scope=[space])
        # Mostly nothing is due, and a durable change is a sync.
        if any(found is not None and leases.due(found.lease, now, self._lease_s) for _, found in seen):
            self._store.transact(renew, scope=[space])
        return [one for one, found in seen if found is None]

    def _put(self, tx: Tx, mine: Mine, fresh: Any) -> None:
        row = tx.get(mine.space, mine.key)
        assert row is not None
        holds = tuple(fresh if hold.by == fresh.by else hold for hold in getattr(row.record, self._field))
        tx.put(mine.space, mine.key, replace(row.record, **{self._field: holds}))

    def _own(self, tx: ReadTx, mine: Mine) -> Any:
        """A hold as this process took it: not one that another process took since by the same name, nor one with a time to
        live. A damaged record is nobody's to renew."""
        try:
            row = tx.get(mine.space, mine.key)
        except Corrupt:
            return None
        holds = () if row is None else getattr(row.record, self._field)
        return next((h for h in holds if h.by == mine.by and h.process == mine.process and not h.lease.explicit), None)

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        # What only this process listens to, so that closing wakes no other.
        self._topic = f"{self._named}/{os.urandom(6).hex()}"


_all: weakref.WeakSet[Renewing] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, while it has one thread: of several that came later, one would clear away what another has taken."""
    for renewing in list(_all):
        with contextlib.suppress(Exception):
            renewing.begin()


os.register_at_fork(after_in_child=_after_fork)
