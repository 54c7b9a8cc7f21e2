"""Counts that cannot leak: a count is the size of a set of holders, and a dead holder leaves it.

    holds.take("host-7", by="run-1")    -> 1
    holds.take("host-7", by="run-2")    -> 2    (and again 2: taking twice is one hold)
    holds.drop("host-7", by="run-1")    -> 1

The rules are functions of a tuple of holds, so that a domain can count by them in its own records
and transactions. `Holds` counts in a space of its own. `HoldRenewer` renews the leases of either,
for observers that cannot see the process, as on another machine.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Plain, Record, json_bytes
from holdfast.kernel.errors import Corrupt, InvalidValue, NotFound
from holdfast.kernel.holder import (
    THIS_PROCESS,
    Holder,
    Liveness,
    ProbedLiveness,
    Processes,
    ThisProcess,
    check_holder,
    probe,
)
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import HOLD_LEASE_S, RECORD_BYTES_MAX
from holdfast.kernel.names import check_label, check_new_label
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Row, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.renewal import Keeper, begin_after_fork
from holdfast.primitives.steady_clock import SteadyClock, steady_clock

# Bytes of a hold beside its name and process. Its times may be longer after a renewal.
_HOLD_BYTES_MAX = 192
_NAMED_MAX = 5
"""How many holders an error names."""


class Hold(Plain, frozen=True, kw_only=True):
    """One holder of a subject. Its lease ends it if its process is unseen, or if it has a TTL."""

    by: str
    lease: Lease
    process: Holder | None = None


class HeldSubject(Record, frozen=True, kw_only=True):
    """A subject and its holders, in the order they came."""

    holds: tuple[Hold, ...] = ()


HOLDS = Space("holds", HeldSubject)

H = TypeVar("H", bound=Hold)


def taken(holds: tuple[H, ...], hold: H) -> tuple[H, ...]:
    """The holders with one more. A holder that is already there keeps its place."""
    if any(other.by == hold.by for other in holds):
        return tuple(hold if other.by == hold.by else other for other in holds)
    return (*holds, hold)


def dropped(holds: tuple[H, ...], by: str) -> tuple[H, ...]:
    """The holders without one."""
    return tuple(other for other in holds if other.by != by)


def living(
    holds: tuple[H, ...], probed: ProbedLiveness, now: datetime, steady: SteadyClock
) -> tuple[H, ...]:
    """The holders that nobody may reclaim. A process that was not probed counts as alive."""

    def liveness(hold: H) -> Liveness:
        if hold.process is None:
            return Liveness.UNKNOWN
        return probed.get(hold.process, Liveness.ALIVE)

    return tuple(hold for hold in holds if not steady.reclaimable(hold.lease, liveness(hold), now))


def probe_all(
    holds: Iterable[Hold], processes: Processes, *, embedded: bool
) -> dict[Holder, Liveness]:
    """Probe the processes of some holders. Does I/O, so it is for outside of transactions."""
    distinct = {hold.process for hold in holds if hold.process is not None}
    return {process: probe(process, processes, embedded=embedded) for process in distinct}


class Holds:
    """Counted holds on subjects of any name, on one store.

    Promised: a count is the number of holders that are not known to be gone, each once. The next
    change of a subject, and `sweep`, remove holders that are gone. Holds survive a restart of the
    machine, except those of its processes, which are gone then.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        *,
        lease_s: float = HOLD_LEASE_S,
        label: str = "",
    ) -> None:
        self._store = store
        self._clock = steady_clock(store)
        self._journal = journal
        self._processes = processes
        self._lease_s = lease_s
        self._label = label
        self._renewer = HoldRenewer(store, processes, field="holds", topic="holds", lease_s=lease_s)

    def take(
        self,
        subject: str,
        *,
        by: str,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        ttl_s: float | None = None,
        detached: bool = False,
    ) -> int:
        """Hold a subject, and return how many hold it now. Taking it again is the same hold, with a
        new lease and process.

        The hold ends with `process`, by default this one, or after `ttl_s`; without a process it
        needs a `ttl_s`. A hold for another process needs one too if other machines use the store
        and the caller may end before the hold (`detached`). Raises InvalidName and InvalidValue.
        """
        check_new_label(subject, "subject")
        check_new_label(by, "holder")
        self._renewer.begin_process()
        if detached:
            leases.check_detached(process, ttl_s, embedded=self._store.embedded)
        if isinstance(process, ThisProcess):
            process = self._processes.current(self._label)
        leases.check_claim_end(process, ttl_s)
        if process is not None:
            check_holder(process)
        lease_s = self._lease_s if ttl_s is None else ttl_s

        def body(tx: Tx, present: tuple[Hold, ...]) -> int:
            lease = leases.grant(tx.now, lease_s, explicit=ttl_s is not None)
            holds = taken(present, Hold(by=by, lease=lease, process=process))
            _check_room(subject, holds)
            self._write(tx, subject, holds)
            data = {"by": by, "count": len(holds)}
            self._journal.append(tx, kind="hold.taken", subject=subject, data=data)
            return len(holds)

        count, _ = self._change(subject, body)
        self._renewer.keep(HOLDS, [subject], by, process if ttl_s is None else None)
        return count

    def drop(self, subject: str, *, by: str) -> int:
        """Release a subject, and return how many still hold it. Raises NotFound."""
        check_label(subject, "subject")
        check_label(by, "holder")
        self._renewer.begin_process()

        def body(tx: Tx, present: tuple[Hold, ...]) -> int:
            rest = dropped(present, by)
            if len(rest) == len(present):
                held = ", ".join(hold.by for hold in present[:_NAMED_MAX])
                if len(present) > _NAMED_MAX:
                    held += f" and {len(present) - _NAMED_MAX} more"
                raise NotFound(
                    f"{by} does not hold {subject}: "
                    + (f"it is held by {held}" if held else "nobody holds it"),
                    subject=subject,
                    by=by,
                    count=len(present),
                )
            self._write(tx, subject, rest)
            data = {"by": by, "count": len(rest)}
            self._journal.append(tx, kind="hold.dropped", subject=subject, data=data)
            return len(rest)

        count, _ = self._change(subject, body)
        self._renewer.leave(HOLDS, subject, by)
        return count

    def count(self, subject: str) -> int:
        """How many hold a subject."""
        return len(self.holders(subject))

    def holders(self, subject: str) -> tuple[Hold, ...]:
        """The holders of a subject that are not gone, in the order they came."""
        row = self._store.get(HOLDS, check_label(subject, "subject"))
        if row is None:
            return ()
        holds = row.record.holds
        return living(holds, self._probe_all(holds), self._store.now(), self._clock)

    def subjects(self) -> dict[str, int]:
        """Every held subject, with its count. Damaged records are left out."""
        rows = self._rows()
        probed = self._probe_all([hold for row in rows for hold in row.record.holds])
        now = self._store.now()
        counts = {row.key: len(living(row.record.holds, probed, now, self._clock)) for row in rows}
        return {subject: count for subject, count in counts.items() if count}

    def sweep(self) -> int:
        """Remove every holder that is gone, and return how many. Skips damaged records."""
        return sum(self._change(row.key, lambda _, rest: len(rest))[1] for row in self._rows())

    def close(self) -> None:
        """Stop renewing in the background. Nothing is dropped."""
        self._renewer.close()

    def _change(self, subject: str, body: Callable[[Tx, tuple[Hold, ...]], int]) -> tuple[int, int]:
        """Change a subject's holders, and remove and count those that are gone."""
        self._clock.compare()
        row = self._store.get(HOLDS, subject)
        probed = {} if row is None else self._probe_all(row.record.holds)

        def change(tx: Tx) -> tuple[int, int]:
            row = tx.get(HOLDS, subject)
            before = () if row is None else row.record.holds
            rest = living(before, probed, tx.now, self._clock)
            left = {hold.by for hold in rest}
            for gone in before:
                if gone.by not in left:
                    data = {"by": gone.by, "count": len(rest)}
                    self._journal.append(tx, kind="hold.swept", subject=subject, data=data)
            if len(rest) < len(before):
                self._write(tx, subject, rest)
            return body(tx, rest), len(before) - len(rest)

        return self._store.transact(change, scope=[HOLDS])

    def _write(self, tx: Tx, subject: str, holds: tuple[Hold, ...]) -> None:
        if holds:
            tx.put(HOLDS, subject, HeldSubject(holds=holds))
        else:
            tx.delete(HOLDS, subject)

    def _rows(self) -> list[Row[HeldSubject]]:
        return self._store.read(lambda tx: tx.range(HOLDS, damaged=[]), scope=[HOLDS])

    def _probe_all(self, holds: Iterable[Hold]) -> dict[Holder, Liveness]:
        return probe_all(holds, self._processes, embedded=self._store.embedded)


def _check_room(subject: str, holds: tuple[Hold, ...]) -> None:
    """Raises InvalidValue if the record could not be written, now or after a renewal."""
    most = RECORD_BYTES_MAX - _HOLD_BYTES_MAX
    size = sum(json_bytes(hold.by) + json_bytes(hold.process) + _HOLD_BYTES_MAX for hold in holds)
    if size > most:
        raise InvalidValue(
            f"the holders of {subject} take {size} bytes as JSON and may take {most}: wait until "
            "others drop it, or use another subject",
            subject=subject,
            bytes=size,
            bytes_max=most,
        )


class KeptHold(NamedTuple):
    """A hold that this process took, for itself or another, and renews."""

    space: Space[Any]
    key: str
    by: str
    process: Holder | None = None
    since_s: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.space.name}\0{self.key}\0{self.by}"

    @property
    def ends_s(self) -> float:
        """Infinite: its holder is not notified of its end."""
        return math.inf

    def lose(self) -> None:
        """Does nothing: the holder learns of it at the next use."""


class HoldRenewer:
    """Renews the holds of this process, in records of any space that keep them in `field`."""

    def __init__(
        self, store: Store, processes: Processes, *, field: str, topic: str, lease_s: float
    ) -> None:
        self._store = store
        self._processes = processes
        self._field = field
        self._topic_prefix = topic
        self._lease_s = lease_s
        self._start_process()
        self._keeper: Keeper[KeptHold] = Keeper(
            store,
            topic=lambda: self._topic,
            renew=self.renew,
            renew_every_s=leases.renew_every_s(lease_s),
        )
        begin_after_fork(self)

    def _start_process(self) -> None:
        self._pid = os.getpid()
        # Only this process listens to it, so that closing wakes no other.
        self._topic = f"{self._topic_prefix}/{os.urandom(6).hex()}"

    def begin_process(self) -> None:
        """In a forked child, start again: its parent renews what it holds."""
        if os.getpid() != self._pid:
            self._start_process()
            self._keeper.begin_process()

    def keep(self, space: Space[Any], keys: Iterable[str], by: str, process: Holder | None) -> None:
        """Renew a hold from now on; one without a process is not renewed."""
        self.begin_process()
        for key in keys:
            kept = KeptHold(space, key, by, process, time.monotonic())
            if process is None:
                self._keeper.discard(kept)
            else:
                self._keeper.add(kept)

    def leave(self, space: Space[Any], key: str, by: str) -> None:
        """Stop renewing a hold."""
        self.begin_process()
        self._keeper.discard(KeptHold(space, key, by))

    def close(self) -> None:
        """Stop renewing. Nothing is dropped."""
        if os.getpid() == self._pid:
            self._keeper.close()

    def renew(self, kept: list[KeptHold]) -> list[KeptHold]:
        """Renew what is due of these; return those that this process does not hold any more."""
        held = {one.process for one in kept if one.process is not None}
        alive = {
            process
            for process in held
            if probe(process, self._processes, embedded=True) is not Liveness.DEAD
        }
        gone: list[KeptHold] = []
        for space in {one.space.name: one.space for one in kept}.values():
            gone += self._renew_in(space, [one for one in kept if one.space is space], alive)
        return gone

    def _renew_in(
        self, space: Space[Any], kept: list[KeptHold], alive: set[Holder]
    ) -> list[KeptHold]:
        def find(tx: ReadTx) -> list[tuple[KeptHold, Any]]:
            return [(one, self._find(tx, one) if one.process in alive else None) for one in kept]

        def renew(tx: Tx) -> None:
            for one, found in find(tx):
                if found is not None and leases.due(found.lease, tx.now, self._lease_s):
                    lease = leases.renew(found.lease, tx.now, self._lease_s)
                    row = tx.get(space, one.key)
                    assert row is not None
                    holds = taken(getattr(row.record, self._field), replace(found, lease=lease))
                    tx.put(space, one.key, replace(row.record, **{self._field: holds}))

        now = self._store.now()
        seen = self._store.read(find, scope=[space])
        # Most of the time nothing is due, and a durable change is a sync.
        if any(
            found is not None and leases.due(found.lease, now, self._lease_s) for _, found in seen
        ):
            self._store.transact(renew, scope=[space])
        return [one for one, found in seen if found is None]

    def _find(self, tx: ReadTx, kept: KeptHold) -> Any:
        """The hold as this process took it, not as another process took it since."""
        try:
            row = tx.get(kept.space, kept.key)
        except Corrupt:
            return None
        for hold in () if row is None else getattr(row.record, self._field):
            if hold.by == kept.by and hold.process == kept.process and not hold.lease.explicit:
                return hold
        return None
