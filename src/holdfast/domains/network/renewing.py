"""Signs of life for leases: where a lease's process cannot be seen, as from another machine, its lease is what it lives by."""

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.network.record import RunLease
from holdfast.domains.network.room import Room
from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt, HoldfastError
from holdfast.kernel.holder import Holder, Liveness, probe
from holdfast.kernel.limits import HOLD_LEASE_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Tx
from holdfast.primitives.holds import taken
from holdfast.primitives.keeper import Keeper


class Mine(NamedTuple):
    """A lease that this process took, for itself or another, and keeps fresh."""

    space: Space[Any]
    key: str
    by: str
    process: Holder | None = None
    since_s: float = 0.0

    @property
    def id(self) -> str:
        """What it is known by."""
        return f"{self.space.name}\0{self.key}\0{self.by}"

    def lose(self) -> None:
        """Whoever holds learns of it at the next use."""


class Renewing:
    """The leases of this process."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pid = os.getpid()
        self._topic = _new_topic()
        self._keeper: Keeper[Mine] = Keeper(
            room.store, topic=lambda: self._topic, renew=self._renew, renew_every_s=HOLD_LEASE_S / 3
        )

    def keep(self, space: Space[Any], keys: Iterable[str], by: str, process: Holder | None) -> None:
        """Give signs of life for a lease from now on; for one that no process has, there are none to give."""
        self._begin()
        for key in keys:
            mine = Mine(space, key, by, process, time.monotonic())
            (self._keeper.discard if process is None else self._keeper.add)(mine)

    def leave(self, space: Space[Any], key: str, by: str) -> None:
        """Stop it."""
        self._begin()
        self._keeper.discard(Mine(space, key, by))

    def close(self) -> None:
        """Stop everything. Nothing is released."""
        if os.getpid() == self._pid:
            with contextlib.suppress(HoldfastError):
                self._keeper.close(lambda topic: self._room.store.transact(lambda tx: tx.notify(topic), scope=[]))

    def _renew(self, mine: list[Mine]) -> list[Mine]:
        """Renew what is due; return what is gone."""
        held = {one.process for one in mine if one.process is not None}
        alive = {process for process in held if probe(process, self._room.processes, embedded=True) is not Liveness.DEAD}
        gone: list[Mine] = []
        for space in {one.space.name: one.space for one in mine}.values():
            gone += self._renew_in(space, [one for one in mine if one.space is space], alive)
        return gone

    def _renew_in(self, space: Space[Any], mine: list[Mine], alive: set[Holder]) -> list[Mine]:
        def look(tx: ReadTx) -> list[tuple[Mine, RunLease | None]]:
            return [(one, _own(tx, one) if one.process in alive else None) for one in mine]

        def renew(tx: Tx) -> None:
            for one, found in look(tx):
                if found is not None and leases.due(found.lease, tx.now, HOLD_LEASE_S):
                    record = tx.get(space, one.key)
                    assert record is not None
                    fresh = replace(found, lease=leases.renew(found.lease, tx.now, HOLD_LEASE_S))
                    tx.put(space, one.key, replace(record.record, leases=taken(record.record.leases, fresh)))

        now = self._room.store.now()
        seen = self._room.store.read(look, scope=[space])
        # Mostly nothing is due, and a durable change is a sync.
        if any(found is not None and leases.due(found.lease, now, HOLD_LEASE_S) for _, found in seen):
            self._room.store.transact(renew, scope=[space])
        return [one for one, found in seen if found is None]

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            self._pid, self._topic = os.getpid(), _new_topic()
            self._keeper.begin_process()


def _new_topic() -> str:
    """What only this process listens to, so that closing wakes no other."""
    return f"network/{os.urandom(6).hex()}"


def _own(tx: ReadTx, mine: Mine) -> RunLease | None:
    """A lease as this process took it: not one that another process took since for the same run, nor one with a time to live.
    A damaged record is nobody's to renew."""
    try:
        row = tx.get(mine.space, mine.key)
    except Corrupt:
        return None
    found: tuple[RunLease, ...] = () if row is None else row.record.leases
    return next((one for one in found if one.by == mine.by and one.process == mine.process and not one.lease.explicit), None)
