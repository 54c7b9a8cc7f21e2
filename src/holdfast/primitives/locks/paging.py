"""The lock table for a page that shows a part of it at a time: some names, and who waits, however many there are."""

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.holder import Processes
from holdfast.kernel.store import ReadTx, Store
from holdfast.primitives.locks import rules
from holdfast.primitives.locks.picture import Edge, Graph, HoldStatus, alive_of, holds_of
from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.table import Table

_QUEUE_MAX = 1000
"""How far into a queue is looked for the place of a request."""


class LockCounts(Value, frozen=True, kw_only=True):
    """How many resources are held or waited for, and how many requests wait."""

    resources: int
    waiting: int


class LockLine(Value, frozen=True, kw_only=True):
    """How a resource stands, in a line: who holds it, and how many wait."""

    name: str
    holds: tuple[HoldStatus, ...]
    waiting: int
    waited_since: Instant | None
    """When the first in line came."""


def counts_in(tx: ReadTx) -> LockCounts:
    """Count, without reading what is counted."""
    return LockCounts(resources=tx.count(LOCKS), waiting=tx.count(LOCK_WAITS, "job"))


def page_of(tx: ReadTx, store: Store, processes: Processes, *, after: str, limit: int) -> list[LockLine]:
    """How the resources stand whose names come behind `after`, in the order of names."""
    # One more, as a range begins with the name it is given.
    found = tx.range(LOCKS, start=after or None, limit=limit + 1, damaged=[])
    table = Table(tx)
    names = [row.key for row in found if row.key != after][:limit]
    return [_line(tx, table, name, store, processes) for name in names]


def contention_of(tx: ReadTx, store: Store, processes: Processes, *, limit: int) -> Graph:
    """The wait-for graph of the first `limit` requests that wait, by job: what they wait for, and who holds that.

    Of what nobody waits for it shows nothing.
    """
    table = Table(tx)
    waiting = [row.record for row in tx.find(LOCK_WAITS, "job", limit=limit, damaged=[])]
    edges: list[Edge] = []
    for name in dict.fromkeys(name for request in waiting for name in request.names):
        edges += _edges(table, name, {request.id for request in waiting}, store, processes)
    cycles = {rules.described(steps) for request in waiting if (steps := rules.cycle(table, request))}
    return Graph(edges=tuple(edges), deadlocks=tuple(sorted(cycles)))


def _line(tx: ReadTx, table: Table, name: str, store: Store, processes: Processes) -> LockLine:
    waited = table.lock(name).waited
    first = next(table.queue(name), None) if waited else None
    return LockLine(
        name=name,
        holds=holds_of(table, name, store, processes, tx.now),
        waiting=tx.count(LOCK_WAITS, "queue", (name,)) if waited else 0,
        waited_since=None if first is None else first.arrived_at,
    )


def _edges(table: Table, name: str, wanted: set[str], store: Store, processes: Processes) -> list[Edge]:
    edges = [
        Edge(job=hold.by, resource=name, mode=hold.mode, alive=alive_of(hold.process, store, processes))
        for hold in table.lock(name).holds
    ]
    for position, request in enumerate(table.queue(name), 1):
        if position > _QUEUE_MAX:
            break
        if request.id in wanted:
            alive = alive_of(request.process, store, processes)
            edges.append(Edge(job=request.by, resource=name, mode=request.mode, position=position, alive=alive))
    return edges
