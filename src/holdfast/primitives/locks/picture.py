"""Pictures of the lock table for people: who holds, and who waits. They change nothing."""

import enum
from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.lease import Lease
from holdfast.kernel.store import ReadTx, Store
from holdfast.primitives.locks import rules
from holdfast.primitives.locks.record import LOCKS, Mode, Request
from holdfast.primitives.locks.table import Table
from holdfast.primitives.steady_clock import steady_clock


class Alive(enum.StrEnum):
    """What is known of who holds or waits."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    NO_PROCESS = "no process"
    """It lives by its lease alone."""


class HoldStatus(Value, frozen=True, kw_only=True):
    """One holder of a resource."""

    by: str
    mode: Mode
    token: int
    since: Instant
    expires_at: Instant
    has_ttl: bool
    """It ends at `expires_at` whoever holds it; otherwise that only bounds how long an unknown process is believed."""
    alive: Alive
    reclaimable: bool
    """It is over: the next in line gets it, or else the next one that asks."""
    process: Holder | None
    names: tuple[str, ...]


class WaitStatus(Value, frozen=True, kw_only=True):
    """One request in line for a resource."""

    position: int
    by: str
    mode: Mode
    since: Instant
    priority: int
    alive: Alive
    process: Holder | None
    names: tuple[str, ...]
    looks: bool
    """It takes nothing, and waits only for it to be free."""


class LockStatus(Value, frozen=True, kw_only=True):
    """How a resource stands."""

    name: str
    now: Instant
    holds: tuple[HoldStatus, ...]
    queue: tuple[WaitStatus, ...]


class Blockage(Value, frozen=True, kw_only=True):
    """Why a holder itself, or who is in line for what nobody holds, does not get on: it waits for what others hold."""

    by: str
    waits_for: str
    since: Instant
    holds: tuple[HoldStatus, ...]


class Explanation(Value, frozen=True, kw_only=True):
    """How a resource stands, what its holders wait for in turn, and what can be done."""

    status: LockStatus
    blockages: tuple[Blockage, ...]
    advice: tuple[str, ...]
    behind: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Who is between a job that holds and its process, where that is known: `worker tmux:claude-a`, `agent gpu`."""


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
    """Cycles that stand at this moment, in words. There are none but for an instant, as they are ended when they begin."""


class _Seen:
    """The eyes of this process."""

    def __init__(self, store: Store, processes: Processes, now: datetime) -> None:
        self._store = store
        self._processes = processes
        self.now = now

    def alive(self, process: Holder | None) -> Alive:
        return alive_of(process, self._store, self._processes)

    def reclaimable(self, lease: Lease, alive: Alive) -> bool:
        liveness = Liveness.UNKNOWN if alive is Alive.NO_PROCESS else Liveness(alive.value)
        return steady_clock(self._store).reclaimable(lease, liveness, self.now)


def alive_of(process: Holder | None, store: Store, processes: Processes) -> Alive:
    """What is known of a process, as seen from here."""
    return Alive.NO_PROCESS if process is None else Alive(probe(process, processes, embedded=store.embedded).value)


def status_of(table: Table, name: str, store: Store, processes: Processes) -> LockStatus:
    """Who holds a resource and who waits for it, in order."""
    seen = _Seen(store, processes, store.now())
    return LockStatus(name=name, now=seen.now, holds=_holds(table, name, seen), queue=_queue(table.queue(name), seen))


def holds_of(table: Table, name: str, store: Store, processes: Processes, now: datetime) -> tuple[HoldStatus, ...]:
    """Who holds a resource."""
    return _holds(table, name, _Seen(store, processes, now))


def graph_of(tx: ReadTx, store: Store, processes: Processes) -> Graph:
    """Every hold and every wait of the table."""
    table, seen = Table(tx), _Seen(store, processes, tx.now)
    edges: list[Edge] = []
    waiting: dict[str, Request] = {}
    for row in tx.range(LOCKS, damaged=[]):
        for hold in table.lock(row.key).holds:
            edges.append(Edge(job=hold.by, resource=row.key, mode=hold.mode, alive=seen.alive(hold.process)))
        for position, request in enumerate(table.queue(row.key), 1):
            waiting[request.id] = request
            alive = seen.alive(request.process)
            edges.append(Edge(job=request.by, resource=row.key, mode=request.mode, position=position, alive=alive))
    cycles = {rules.described(steps) for request in waiting.values() if (steps := rules.cycle(table, request))}
    return Graph(edges=tuple(edges), deadlocks=tuple(sorted(cycles)))


def _holds(table: Table, name: str, seen: _Seen) -> tuple[HoldStatus, ...]:
    found = []
    for hold in table.lock(name).holds:
        alive = seen.alive(hold.process)
        found.append(
            HoldStatus(
                by=hold.by,
                mode=hold.mode,
                token=hold.token,
                since=hold.lease.granted_at,
                expires_at=hold.lease.expires_at,
                has_ttl=hold.lease.explicit,
                alive=alive,
                reclaimable=seen.reclaimable(hold.lease, alive),
                process=hold.process,
                names=hold.names,
            )
        )
    return tuple(found)


def _queue(requests: Iterable[Request], seen: _Seen) -> tuple[WaitStatus, ...]:
    return tuple(
        WaitStatus(
            position=position,
            by=request.by,
            mode=request.mode,
            since=request.arrived_at,
            priority=request.priority,
            alive=seen.alive(request.process),
            process=request.process,
            names=request.names,
            looks=request.look,
        )
        for position, request in enumerate(requests, 1)
    )
