"""Counts that cannot leak: a count is the size of a set of holders, and a dead holder leaves the
set.

    holds.take("host-7", by="run-1")    -> 1
    holds.take("host-7", by="run-2")    -> 2
    holds.take("host-7", by="run-2")    -> 2    (taking twice is one hold)
    holds.drop("host-7", by="run-1")    -> 1

The rules are plain functions on a tuple of holds, so that a domain with records of its own can
count by them inside its own transactions; `Holds` is the same on a space of its own.

Signs of life for counted holds: a holder whose process cannot be seen, as from another machine,
lives by its lease.

For records of any space that keep their holders in one field, as `Holds` does and every domain that
counts by its rules.
"""

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
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
from holdfast.primitives.renewal import Keeper
from holdfast.primitives.steady_clock import SteadyClock, steady_clock


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
    """The holds of this process. `field` is where a record keeps its holders; `topic` begins the
    name of what wakes it.
    """

    def __init__(
        self, store: Store, processes: Processes, *, field: str, topic: str, lease_s: float
    ) -> None:
        self._store = store
        self._processes = processes
        self._field = field
        self._named = topic
        self._lease_s = lease_s
        self._begin_process()
        self._keeper: Keeper[Mine] = Keeper(
            store, topic=lambda: self._topic, renew=self.renew, renew_every_s=lease_s / 3
        )
        _all.add(self)

    def keep(self, space: Space[Any], keys: Iterable[str], by: str, process: Holder | None) -> None:
        """Give signs of life for a hold from now on; for one that no process has, there are none to
        give.
        """
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
        alive = {
            process
            for process in held
            if probe(process, self._processes, embedded=True) is not Liveness.DEAD
        }
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
                    self._put(
                        tx,
                        one,
                        replace(found, lease=leases.renew(found.lease, tx.now, self._lease_s)),
                    )

        now = self._store.now()
        seen = self._store.read(look, scope=[space])
        # Mostly nothing is due, and a durable change is a sync.
        if any(
            found is not None and leases.due(found.lease, now, self._lease_s) for _, found in seen
        ):
            self._store.transact(renew, scope=[space])
        return [one for one, found in seen if found is None]

    def _put(self, tx: Tx, mine: Mine, fresh: Any) -> None:
        row = tx.get(mine.space, mine.key)
        assert row is not None
        holds = tuple(
            fresh if hold.by == fresh.by else hold for hold in getattr(row.record, self._field)
        )
        tx.put(mine.space, mine.key, replace(row.record, **{self._field: holds}))

    def _own(self, tx: ReadTx, mine: Mine) -> Any:
        """A hold as this process took it: not one that another process took since by the same name,
        nor one with a time to live. A damaged record is nobody's to renew.
        """
        try:
            row = tx.get(mine.space, mine.key)
        except Corrupt:
            return None
        holds = () if row is None else getattr(row.record, self._field)
        return next(
            (
                h
                for h in holds
                if h.by == mine.by and h.process == mine.process and not h.lease.explicit
            ),
            None,
        )

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        # What only this process listens to, so that closing wakes no other.
        self._topic = f"{self._named}/{os.urandom(6).hex()}"


_all: weakref.WeakSet[Renewing] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, while it has one thread: of several that came later, one would clear away
    what another has taken.
    """
    for renewing in list(_all):
        with contextlib.suppress(Exception):
            renewing.begin()


os.register_at_fork(after_in_child=_after_fork)


class Hold(Plain, frozen=True, kw_only=True):
    """One holder of a subject. Its lease ends it if its process cannot be seen, or if a time to
    live was asked for.
    """

    by: str
    lease: Lease
    process: Holder | None = None


class Held(Record, frozen=True, kw_only=True):
    """A subject and its holders, in the order they came."""

    holds: tuple[Hold, ...] = ()


HOLDS = Space("holds", Held)

H = TypeVar("H", bound=Hold)

Verdicts = Mapping[Holder, Liveness]
"""What is known of processes, found out before the transaction that decides by it."""


def taken(holds: tuple[H, ...], hold: H) -> tuple[H, ...]:
    """The holders with one more; one that holds already keeps its place, with its new lease and
    process.
    """
    if any(other.by == hold.by for other in holds):
        return tuple(hold if other.by == hold.by else other for other in holds)
    return (*holds, hold)


def dropped(holds: tuple[H, ...], by: str) -> tuple[H, ...]:
    """The holders without one."""
    return tuple(other for other in holds if other.by != by)


def living(
    holds: tuple[H, ...], verdicts: Verdicts, now: datetime, steady: SteadyClock
) -> tuple[H, ...]:
    """The holders that count: those that nobody may reclaim. A process of which nothing is known
    counts as alive.
    """
    return tuple(
        hold for hold in holds if not steady.reclaimable(hold.lease, _liveness(hold, verdicts), now)
    )


def verdicts_on(
    holds: Iterable[Hold], processes: Processes, *, embedded: bool
) -> dict[Holder, Liveness]:
    """Look at the processes of some holders. Does I/O, so it is for outside of transactions."""
    distinct = {hold.process for hold in holds if hold.process is not None}
    return {process: probe(process, processes, embedded=embedded) for process in distinct}


def _liveness(hold: Hold, verdicts: Verdicts) -> Liveness:
    return Liveness.UNKNOWN if hold.process is None else verdicts.get(hold.process, Liveness.ALIVE)


class Holds:
    """Counted holds on subjects of any name, on one store.

    Promised: a count is the number of holders that are not known to be gone; it never goes below
    nothing and never counts one holder twice. Holders that are gone are swept by the next change of
    the same subject, and by `sweep`. Holds survive a restart of the machine; those of its processes
    do not, as the processes are gone.
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
        self._steady = steady_clock(store)
        self._journal = journal
        self._processes = processes
        self._lease_s = lease_s
        self._label = label
        self._renewing = Renewing(store, processes, field="holds", topic="holds", lease_s=lease_s)

    def take(
        self,
        subject: str,
        *,
        by: str,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        ttl_s: float | None = None,
    ) -> int:
        """Hold a subject, and return how many hold it now. Taking it again is one hold, with a new
        lease.

        The hold ends with `process`, which is this one unless told, or after `ttl_s`; without a
        process it needs a `ttl_s`. Raises InvalidName and InvalidValue.
        """
        check_new_label(subject, "subject")
        check_new_label(by, "holder")
        self._renewing.begin()
        holder = (
            self._processes.current(self._label) if isinstance(process, ThisProcess) else process
        )
        if holder is not None:
            check_holder(holder)
        if holder is None and ttl_s is None:
            raise InvalidValue(
                "a hold that no process has needs a ttl_s, or nothing would ever end it: give "
                "one, or the process that has it",
                field="ttl_s",
            )

        def body(tx: Tx, living_ones: tuple[Hold, ...]) -> int:
            lease = leases.grant(
                tx.now, self._lease_s if ttl_s is None else ttl_s, explicit=ttl_s is not None
            )
            holds = taken(living_ones, Hold(by=by, lease=lease, process=holder))
            _check_room(subject, holds)
            self._write(tx, subject, holds)
            self._journal.append(
                tx, kind="hold.taken", subject=subject, data={"by": by, "count": len(holds)}
            )
            return len(holds)

        count, _ = self._change(subject, body)
        self._renewing.keep(HOLDS, [subject], by, holder if ttl_s is None else None)
        return count

    def drop(self, subject: str, *, by: str) -> int:
        """Let go of a subject, and return how many hold it still. Raises NotFound when `by` does
        not hold it.
        """
        check_label(subject, "subject")
        check_label(by, "holder")
        self._renewing.begin()

        def body(tx: Tx, living_ones: tuple[Hold, ...]) -> int:
            rest = dropped(living_ones, by)
            self._write(tx, subject, rest)
            if len(rest) == len(living_ones):
                raise NotFound(
                    f"{by} does not hold {subject}: {_listed(living_ones)}",
                    subject=subject,
                    by=by,
                    count=len(living_ones),
                )
            self._journal.append(
                tx, kind="hold.dropped", subject=subject, data={"by": by, "count": len(rest)}
            )
            return len(rest)

        count, _ = self._change(subject, body)
        self._renewing.leave(HOLDS, subject, by)
        return count

    def count(self, subject: str) -> int:
        """How many hold a subject."""
        return len(self.holders(subject))

    def holders(self, subject: str) -> tuple[Hold, ...]:
        """Who holds a subject, in the order they came, but for those that are gone."""
        row = self._store.get(HOLDS, check_label(subject, "subject"))
        if row is None:
            return ()
        return living(
            row.record.holds, self._look_at(row.record.holds), self._store.now(), self._steady
        )

    def subjects(self) -> dict[str, int]:
        """Every subject that is held, and how many hold it. A damaged record hides no other;
        `holdfast store check` tells of it.
        """
        rows = self._rows()
        verdicts = self._look_at([hold for row in rows for hold in row.record.holds])
        now = self._store.now()
        counts = {
            row.key: len(living(row.record.holds, verdicts, now, self._steady)) for row in rows
        }
        return {subject: count for subject, count in counts.items() if count}

    def sweep(self) -> int:
        """Remove every holder that is gone, and return how many there were. Passes over damaged
        records.
        """
        return sum(self._change(row.key, lambda _, rest: len(rest))[1] for row in self._rows())

    def close(self) -> None:
        """Stop renewing in the background. Nothing is dropped."""
        self._renewing.close()

    def _change(self, subject: str, body: Callable[[Tx, tuple[Hold, ...]], int]) -> tuple[int, int]:
        """Change one subject's holders in one step, in which those that are gone leave too; return
        what the body does, and how many were gone.
        """
        self._steady.look()
        row = self._store.get(HOLDS, subject)
        verdicts = {} if row is None else self._look_at(row.record.holds)

        def change(tx: Tx) -> tuple[int, int]:
            before = _holds_in(tx, subject)
            rest = living(before, verdicts, tx.now, self._steady)
            left = {hold.by for hold in rest}
            for gone in before:
                if gone.by not in left:
                    self._journal.append(
                        tx,
                        kind="hold.swept",
                        subject=subject,
                        data={"by": gone.by, "count": len(rest)},
                    )
            if len(rest) < len(before):
                self._write(tx, subject, rest)
            return body(tx, rest), len(before) - len(rest)

        return self._store.transact(change, scope=[HOLDS])

    def _write(self, tx: Tx, subject: str, holds: tuple[Hold, ...]) -> None:
        if holds:
            tx.put(HOLDS, subject, Held(holds=holds))
        else:
            tx.delete(HOLDS, subject)

    def _rows(self) -> list[Row[Held]]:
        return self._store.read(lambda tx: tx.range(HOLDS, damaged=[]), scope=[HOLDS])

    def _look_at(self, holds: Iterable[Hold]) -> dict[Holder, Liveness]:
        return verdicts_on(holds, self._processes, embedded=self._store.embedded)


def _check_room(subject: str, holds: tuple[Hold, ...]) -> None:
    """Raises InvalidValue for holders whose record could not be written, now or when they are
    renewed.
    """
    most = RECORD_BYTES_MAX - _HOLD_BYTES_MAX
    size = sum(json_bytes(hold.by) + json_bytes(hold.process) + _HOLD_BYTES_MAX for hold in holds)
    if size > most:
        raise InvalidValue(
            f"the holders of {subject} take {size} bytes as JSON and may take {most}: let others "
            "drop it first, or use another "
            "subject",
            subject=subject,
            bytes=size,
            bytes_max=most,
        )


_HOLD_BYTES_MAX = 192
"""Most that a hold takes beside its name and its process. Its times are not measured: those of a
renewal may be longer, as a whole second has no fraction.
"""


def _holds_in(tx: ReadTx, subject: str) -> tuple[Hold, ...]:
    row = tx.get(HOLDS, subject)
    return () if row is None else row.record.holds


def _listed(holds: tuple[Hold, ...]) -> str:
    return f"it is held by {', '.join(hold.by for hold in holds)}" if holds else "nobody holds it"
