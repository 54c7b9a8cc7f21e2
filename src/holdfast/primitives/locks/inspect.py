"""The lock table for people: who holds, who waits, why, and what to do. Changes nothing."""

import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder, Liveness, orphaned, probe, stopped
from holdfast.kernel.names import check_label
from holdfast.kernel.store import ReadTx
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS, Mode, Waiter, lock_in
from holdfast.primitives.locks.request import LockRequest, make_draft
from holdfast.primitives.locks.table import LockTable

T = TypeVar("T")

_CHAIN_MAX = 100
_QUEUE_MAX = 1000
"""How far into a queue `Inspector.contention` searches for the position of a waiter."""


class Alive(enum.StrEnum):
    """What is known of the process that holds or waits."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    NO_PROCESS = "no process"
    """Only the lease ends it."""


def describe_process(process: Holder | None, alive: Alive) -> str:
    """A holder and its state: `process 4242 "make", alive`, or `tree of process 4242 ...`."""
    if process is None:
        return "no process"
    label = f' "{process.label}"' if process.label else ""
    # Where the command is dead, other processes of its tree live.
    what = "tree of process" if process.tree else "process"
    state = alive.value
    if alive is Alive.UNKNOWN:
        state = f"cannot be seen from here, host {process.host_id[:12]}"
    return f"{what} {process.pid}{label}, {state}"


class HoldStatus(Value, frozen=True, kw_only=True):
    """One holder of a resource."""

    by: str
    mode: Mode
    token: int
    since: Instant
    expires_at: Instant
    has_ttl: bool
    """It ends at `expires_at`; otherwise that bounds how long an unknown process counts as alive.
    """
    alive: Alive
    reclaimable: bool
    """It is over: the next in the queue gets the resource, or else the next request."""
    process: Holder | None
    names: tuple[str, ...]


class WaitStatus(Value, frozen=True, kw_only=True):
    """One waiter for a resource."""

    position: int
    by: str
    mode: Mode
    since: Instant
    priority: int
    alive: Alive
    process: Holder | None
    names: tuple[str, ...]
    looks: bool
    """It takes nothing, and waits only until the resource is free."""


class LockStatus(Value, frozen=True, kw_only=True):
    """The holders and waiters of a resource."""

    name: str
    now: Instant
    holds: tuple[HoldStatus, ...]
    queue: tuple[WaitStatus, ...]


class Blockage(Value, frozen=True, kw_only=True):
    """A job that blocks others waits itself, for what these hold."""

    by: str
    waits_for: str
    since: Instant
    holds: tuple[HoldStatus, ...]


class Explanation(Value, frozen=True, kw_only=True):
    """The status of a resource, what its holders wait for in turn, and what can be done."""

    status: LockStatus
    blockages: tuple[Blockage, ...]
    advice: tuple[str, ...]
    behind: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """What a job's process runs for, where that is known: `worker tmux:claude-a`, `agent gpu`."""


class Edge(Value, frozen=True, kw_only=True):
    """A job holds a resource, or waits for it at a position in its queue."""

    job: str
    resource: str
    mode: Mode
    position: int | None = None
    """None: it holds it."""
    alive: Alive = Alive.ALIVE


class Graph(Value, frozen=True, kw_only=True):
    """The wait-for graph: a job waits for a resource, which another job holds."""

    edges: tuple[Edge, ...]
    deadlocks: tuple[str, ...]
    """Cycles of this moment, as text. A cycle is ended as soon as it begins."""


class LockCounts(Value, frozen=True, kw_only=True):
    """How many resources are held or waited for, and how many requests wait."""

    resources: int
    waiting: int


class LockLine(Value, frozen=True, kw_only=True):
    """A resource in one line: its holders, and how many wait."""

    name: str
    holds: tuple[HoldStatus, ...]
    waiting: int
    waited_since: Instant | None
    """When the first in the queue arrived."""


Purpose = Callable[[str], tuple[str, ...]]
"""What a job's process runs for, as other parts of the store know: see `Explanation.behind`."""


class _View(LockTable):
    """The table as one call reads it. Each process in it is probed once, as many rows name it."""

    def __init__(self, tx: ReadTx, probe: Callable[[Holder | None], Alive]) -> None:
        super().__init__(tx)
        self.alive = cache(probe)

    def names(self, *, start: str | None = None, limit: int | None = None) -> list[str]:
        """What is held or waited for, by name. The rows need not be read again."""
        rows = self.tx.range(LOCKS, start=start, limit=limit, damaged=[])
        self._locks |= {row.key: lock_in(row) for row in rows}
        return [row.key for row in rows]


class Inspector:
    """Reads the lock table, and probes the processes in it from this process."""

    def __init__(self, context: LockContext, behind: Purpose) -> None:
        self._context = context
        self._store = context.store
        self._processes = context.processes
        self._behind = behind

    def status(self, name: str) -> LockStatus:
        check_label(name, "resource")
        return self._read(lambda table: self._status(table, name))

    def list_held(self) -> list[LockStatus]:
        def statuses(table: _View) -> list[LockStatus]:
            return [self._status(table, name) for name in table.names()]

        return self._read(statuses)

    def counts(self) -> LockCounts:
        def counts(table: _View) -> LockCounts:
            waiting = table.tx.count(LOCK_WAITS, "job")
            return LockCounts(resources=table.tx.count(LOCKS), waiting=waiting)

        return self._read(counts)

    def page(self, *, after: str, limit: int) -> list[LockLine]:
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")

        def lines(table: _View) -> list[LockLine]:
            # One more, as a range begins with the name it is given.
            found = table.names(start=after or None, limit=limit + 1)
            names = [name for name in found if name != after][:limit]
            return [self._line(table, name) for name in names]

        return self._read(lines)

    def explain(self, name: str) -> Explanation:
        check_label(name, "resource")
        found = self._read(lambda table: self._explanation(table, name))
        holds = [*found.status.holds]
        holds += [hold for blockage in found.blockages for hold in blockage.holds]
        known = {by: self._behind(by) for by in dict.fromkeys(hold.by for hold in holds)}
        return replace(found, behind={by: links for by, links in known.items() if links})

    def obstruction(self, request: LockRequest) -> Obstruction:
        context = self._context
        context.begin_process()
        context.lasting.restore()
        if not request.names:
            now = self._store.now()
            return Obstruction(at=now, holders=(), holders_count=0, ahead=(), position=1)
        draft = make_draft(context, request, context.new_id())
        # Behind all waiters, as it is not in the queue itself.
        new = replace(draft, rank=sys.maxsize, arrival=sys.maxsize)
        wanted = (request.by, request.names, request.mode)

        def obstruction(table: LockTable) -> Obstruction:
            waits = table.waits_of_job(request.by)
            own = (one for one in waits if (one.by, one.names, one.mode) == wanted)
            return policy.obstruction_of(table, next(own, new), self._store.now())

        return context.read(obstruction)

    def graph(self) -> Graph:
        def graph(table: _View) -> Graph:
            names = table.names()
            waiters = {waiter.id: waiter for name in names for waiter in table.queue(name)}
            return self._graph(table, names, waiters)

        return self._read(graph)

    def contention(self, *, limit: int) -> Graph:
        """The graph of the first `limit` waiters, by job: what they wait for, and who holds it."""

        def graph(table: _View) -> Graph:
            rows = table.tx.find(LOCK_WAITS, "job", limit=limit, damaged=[])
            waiters = {row.record.id: row.record for row in rows}
            names = dict.fromkeys(name for one in waiters.values() for name in one.names)
            return self._graph(table, names, waiters, queue_max=_QUEUE_MAX)

        return self._read(graph)

    def _status(self, table: _View, name: str) -> LockStatus:
        now = self._store.now()
        queue = tuple(
            WaitStatus(
                position=position,
                by=waiter.by,
                mode=waiter.mode,
                since=waiter.arrived_at,
                priority=waiter.priority,
                alive=table.alive(waiter.process),
                process=waiter.process,
                names=waiter.names,
                looks=waiter.wait_only,
            )
            for position, waiter in enumerate(table.queue(name), 1)
        )
        return LockStatus(name=name, now=now, holds=self._holds(table, name, now), queue=queue)

    def _line(self, table: _View, name: str) -> LockLine:
        waited = table.lock(name).waited
        first = next(table.queue(name), None) if waited else None
        return LockLine(
            name=name,
            holds=self._holds(table, name, table.tx.now),
            waiting=table.tx.count(LOCK_WAITS, "queue", (name,)) if waited else 0,
            waited_since=None if first is None else first.arrived_at,
        )

    def _explanation(self, table: _View, name: str) -> Explanation:
        status = self._status(table, name)
        blockages = tuple(self._blockages(table, status))
        survivors = {
            hold.token: found
            for hold in status.holds
            if hold.process is not None
            and (found := orphaned(hold.process, self._processes, embedded=self._store.embedded))
        }
        # Imported here: only `explain` needs it.
        from holdfast.primitives.locks.advice import advise

        stopped_pids = self._stopped(status, blockages)
        here = self._processes.here()
        advice = tuple(advise(status, blockages, stopped_pids, survivors, here))
        return Explanation(status=status, blockages=blockages, advice=advice)

    def _graph(
        self,
        table: _View,
        names: Iterable[str],
        waiters: Mapping[str, Waiter],
        *,
        queue_max: int | None = None,
    ) -> Graph:
        """The holds of these names, and the waits of these waiters."""
        edges: list[Edge] = []
        for name in names:
            for hold in table.lock(name).holds:
                alive = table.alive(hold.process)
                edges.append(Edge(job=hold.by, resource=name, mode=hold.mode, alive=alive))
            for position, waiter in enumerate(islice(table.queue(name), queue_max), 1):
                if waiter.id in waiters:
                    edges.append(
                        Edge(
                            job=waiter.by,
                            resource=name,
                            mode=waiter.mode,
                            position=position,
                            alive=table.alive(waiter.process),
                        )
                    )
        cycles = (policy.find_cycle(table, waiter) for waiter in waiters.values())
        texts = {policy.describe_cycle(steps) for steps in cycles if steps}
        return Graph(edges=tuple(edges), deadlocks=tuple(sorted(texts)))

    def _holds(self, table: _View, name: str, now: datetime) -> tuple[HoldStatus, ...]:
        found = []
        for hold in table.lock(name).holds:
            alive = table.alive(hold.process)
            liveness = Liveness.UNKNOWN if alive is Alive.NO_PROCESS else Liveness(alive.value)
            found.append(
                HoldStatus(
                    by=hold.by,
                    mode=hold.mode,
                    token=hold.token,
                    since=hold.lease.granted_at,
                    expires_at=hold.lease.expires_at,
                    has_ttl=hold.lease.explicit,
                    alive=alive,
                    reclaimable=self._context.clock.reclaimable(hold.lease, liveness, now),
                    process=hold.process,
                    names=hold.names,
                )
            )
        return tuple(found)

    def _probe(self, process: Holder | None) -> Alive:
        if process is None:
            return Alive.NO_PROCESS
        return Alive(probe(process, self._processes, embedded=self._store.embedded).value)

    def _read(self, body: Callable[[_View], T]) -> T:
        return self._context.read(lambda table: body(_View(table.tx, self._probe)))

    def _blockages(self, table: _View, status: LockStatus) -> list[Blockage]:
        """What the holders wait for, and the holders of that, and so on, each once."""
        found: list[Blockage] = []
        # Where nobody holds, the waiters wait for something else of their sets.
        jobs = [hold.by for hold in status.holds] or [
            wait.by for wait in status.queue if wait.alive is not Alive.DEAD
        ]
        # The list grows while it is gone through; each job comes once.
        for by in jobs:
            for waiter in table.waits_of_job(by):
                blocking = list(policy.blocking_holds(table, waiter))
                for name in dict.fromkeys(one.name for one in blocking):
                    # Not all holders: a job that shares the resource waits for the others.
                    blockers = {one.hold.by for one in blocking if one.name == name}
                    holds = tuple(
                        hold for hold in self._holds(table, name, status.now) if hold.by in blockers
                    )
                    since = waiter.arrived_at
                    found.append(Blockage(by=by, waits_for=name, since=since, holds=holds))
                    jobs += [hold.by for hold in holds if hold.by not in jobs]
            if len(found) >= _CHAIN_MAX:
                break
        return found

    def _stopped(self, status: LockStatus, blockages: tuple[Blockage, ...]) -> dict[str, int]:
        """By job, the stopped processes of the whole chain: nothing goes on before they do."""
        chain: list[HoldStatus | WaitStatus] = [*status.holds]
        chain += [hold for blockage in blockages for hold in blockage.holds]
        # When no holder counts any more, the first in the queue is one of the chain.
        if all(hold.reclaimable for hold in status.holds) and (first := first_living(status)):
            chain.append(first)
        return {
            one.by: one.process.pid
            for one in chain
            if one.process is not None and stopped(one.process, self._processes)
        }


def first_living(status: LockStatus) -> WaitStatus | None:
    """The first waiter that will take the resource and is not known to be dead."""
    living = (wait for wait in status.queue if wait.alive is not Alive.DEAD and not wait.looks)
    return next(living, None)
