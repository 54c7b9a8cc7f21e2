"""Pictures of the lock table for people: who holds, and who waits. They change nothing.

Why a resource is not free, and what can be done about it, for whoever looks at it at three in the
morning.

The lock table for a page that shows a part of it at a time: some names, and who waits, however many
there are.
"""

import enum
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.holder import (
    Holder,
    Liveness,
    Place,
    Processes,
    Survivor,
    orphaned,
    probe,
    stopped,
    survivors_named,
)
from holdfast.kernel.lease import Lease
from holdfast.kernel.store import ReadTx, Store
from holdfast.kernel.text import counted
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS, Mode, Request
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
    """It ends at `expires_at` whoever holds it; otherwise that only bounds how long an unknown
    process is believed.
    """
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
    """Why a holder itself, or who is in line for what nobody holds, does not get on: it waits for
    what others hold.
    """

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
    """Who is between a job that holds and its process, where that is known: `worker tmux:claude-a`,
    `agent gpu`.
    """


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
    """Cycles that stand at this moment, in words. There are none but for an instant, as they are
    ended when they begin.
    """


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
    return (
        Alive.NO_PROCESS
        if process is None
        else Alive(probe(process, processes, embedded=store.embedded).value)
    )


def status_of(table: Table, name: str, store: Store, processes: Processes) -> LockStatus:
    """Who holds a resource and who waits for it, in order."""
    seen = _Seen(store, processes, store.now())
    return LockStatus(
        name=name,
        now=seen.now,
        holds=_holds(table, name, seen),
        queue=_queue(table.queue(name), seen),
    )


def holds_of(
    table: Table, name: str, store: Store, processes: Processes, now: datetime
) -> tuple[HoldStatus, ...]:
    """Who holds a resource."""
    return _holds(table, name, _Seen(store, processes, now))


def graph_of(tx: ReadTx, store: Store, processes: Processes) -> Graph:
    """Every hold and every wait of the table."""
    table, seen = Table(tx), _Seen(store, processes, tx.now)
    edges: list[Edge] = []
    waiting: dict[str, Request] = {}
    for row in tx.range(LOCKS, damaged=[]):
        for hold in table.lock(row.key).holds:
            edges.append(
                Edge(job=hold.by, resource=row.key, mode=hold.mode, alive=seen.alive(hold.process))
            )
        for position, request in enumerate(table.queue(row.key), 1):
            waiting[request.id] = request
            alive = seen.alive(request.process)
            edges.append(
                Edge(
                    job=request.by,
                    resource=row.key,
                    mode=request.mode,
                    position=position,
                    alive=alive,
                )
            )
    cycles = {
        policy.described(steps)
        for request in waiting.values()
        if (steps := policy.cycle(table, request))
    }
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


_CHAIN_MAX = 100


def explain(table: Table, name: str, store: Store, processes: Processes) -> Explanation:
    """A resource's status, the chain of waits behind its holders, and advice."""
    status = status_of(table, name, store, processes)
    blockages = tuple(_blockages(table, status, store, processes))
    left = {
        hold.token: found
        for hold in status.holds
        if hold.process is not None
        and (found := orphaned(hold.process, processes, embedded=store.embedded))
    }
    advice = _advice(
        status, blockages, _stopped(status, blockages, processes), left, processes.here()
    )
    return Explanation(status=status, blockages=blockages, advice=tuple(advice))


def _blockages(
    table: Table, status: LockStatus, store: Store, processes: Processes
) -> list[Blockage]:
    """What the holders wait for, and the holders of that, and so on, each once. Where nobody holds,
    it begins with who is in line: they wait for something else of their set.
    """
    found: list[Blockage] = []
    jobs = [hold.by for hold in status.holds] or [
        wait.by for wait in status.queue if wait.alive is not Alive.DEAD
    ]
    for by in jobs:
        for request in table.of_job(by):
            against = list(policy.held_against(table, request))
            for name in dict.fromkeys(obstacle.name for obstacle in against):
                # Not all that hold it: a job that shares it itself waits for the others.
                ahead = {obstacle.hold.by for obstacle in against if obstacle.name == name}
                holds = tuple(
                    hold
                    for hold in holds_of(table, name, store, processes, status.now)
                    if hold.by in ahead
                )
                found.append(Blockage(by=by, waits_for=name, since=request.arrived_at, holds=holds))
                # The list grows while it is gone through; each job comes once.
                jobs += [hold.by for hold in holds if hold.by not in jobs]
        if len(found) >= _CHAIN_MAX:
            break
    return found


def _stopped(
    status: LockStatus, blockages: tuple[Blockage, ...], processes: Processes
) -> dict[str, int]:
    """The jobs whose process is stopped, all along the chain: nothing goes on before they do. Who
    is to get it next is one of them when nobody holds it, or nobody that counts.
    """
    holds = [*status.holds, *(hold for blockage in blockages for hold in blockage.holds)]
    first = _first(status.queue) if all(hold.reclaimable for hold in status.holds) else None
    return {
        one.by: one.process.pid
        for one in (*holds, *((first,) if first else ()))
        if one.process is not None and stopped(one.process, processes)
    }


def _advice(
    status: LockStatus,
    blockages: tuple[Blockage, ...],
    stopped: dict[str, int],
    left: dict[int, list[Survivor]],
    here: Place,
) -> Iterator[str]:
    """What to do, the most telling first. `stopped` has the processes, by job, that nothing goes on
    without, and `left` those, by token, that outlived the command of a holder.
    """
    for by, pid in stopped.items():
        yield f"process {pid} of {by} is stopped (Ctrl-Z, SIGSTOP): kill -CONT {pid} lets it go on"
    if not status.holds:
        yield _on_a_line(status, blockages)
    for hold in status.holds:
        if hold.alive is Alive.UNKNOWN and hold.process is not None and not hold.reclaimable:
            yield _on_the_unseen(hold, hold.process, status, here)
        elif hold.token in left and hold.process is not None:
            yield _on_the_left(hold, hold.process, left[hold.token], status)
        elif told := _on_a_hold(hold, status, blockages, stopped):
            yield told
    for hold in _ends(blockages):
        if not hold.reclaimable:
            process = _process(hold.process)
            yield f"everything here waits for {hold.by} in the end ({process}): look there first"
    if kept := [hold for hold in status.holds if not hold.reclaimable]:
        one = " --by JOB" if len(kept) > 1 else ""
        holder = "one of its holders" if one else "its holder"
        name = shlex.quote(status.name)
        kick = f'holdfast locks kick {name}{one} --why "..."'
        yield f"to take it away from {holder}: {kick} (its token is then refused)"


def _on_a_line(status: LockStatus, blockages: tuple[Blockage, ...]) -> str:
    """Of a resource that nobody holds."""
    name = shlex.quote(status.name)
    if not status.queue:
        return f"{name} is free: nothing to do"
    first = _first(status.queue)
    if first is None:
        return (
            f"{name} is free, and those in line for it are dead: the next one that asks for it "
            "gets it, nothing to do"
        )
    others = [other for other in first.names if other != status.name]
    awaited = [blockage.waits_for for blockage in blockages if blockage.by == first.by] or others
    if not awaited:
        return f"{name} is free, and {first.by} is about to get it: look again in a moment"
    also = ", ".join(dict.fromkeys(awaited))
    look = f"holdfast locks explain {shlex.quote(awaited[0])}"
    return (
        f"{name} is free, and {first.by}, first in line, wants {also} too and waits for that: "
        f"{look}"
    )


def _on_a_hold(
    hold: HoldStatus, status: LockStatus, blockages: tuple[Blockage, ...], stopped: dict[str, int]
) -> str:
    name = shlex.quote(status.name)
    if hold.reclaimable:
        first = _first(status.queue)
        who = f"{first.by}, first in line," if first else f"the next one that asks for {name}"
        return f"{hold.by}'s grant is over: {who} gets it" + (
            "" if first and first.by in stopped else ", nothing to do"
        )
    if hold.alive is Alive.NO_PROCESS:
        end = f"to end it now: holdfast locks release {hold.token}"
        return f"{hold.by} holds {name} by time alone, until its lease ends; {end}"
    if hold.by in stopped or any(blockage.by == hold.by for blockage in blockages):
        return ""
    return (
        f"{hold.by} is alive and waits for nothing here: look at what {_process(hold.process)} is "
        "doing"
    )


def _on_the_left(
    hold: HoldStatus, process: Holder, left: list[Survivor], status: LockStatus
) -> str:
    command = process.label or f"process {process.pid}"
    living = counted(len(left), "of its processes lives", "of its processes live")
    end = (
        f"holdfast locks kick {shlex.quote(status.name)} --by {shlex.quote(hold.by)} --end-tree "
        '--why "..."'
    )
    return (
        f"{command} of {hold.by} is dead, {living}: {survivors_named(left)}. The lock ends with "
        f"them; to end them: {end}"
    )


def _first(queue: tuple[WaitStatus, ...]) -> WaitStatus | None:
    """The first in line that is not known to be dead, and takes something."""
    return next((wait for wait in queue if wait.alive is not Alive.DEAD and not wait.looks), None)


def _ends(blockages: tuple[Blockage, ...]) -> list[HoldStatus]:
    """Those at the end of the chain, who wait for nothing themselves, each once."""
    waiting = {blockage.by for blockage in blockages}
    ends = [hold for blockage in blockages for hold in blockage.holds if hold.by not in waiting]
    return list({hold.by: hold for hold in ends}.values())


def _on_the_unseen(hold: HoldStatus, process: Holder, status: LockStatus, here: Place) -> str:
    lives = (
        "Alive or not, its time ends it unless somebody renews it"
        if hold.has_ttl
        else "While it lives it renews its lease"
    )
    return (
        f"{hold.by}'s process cannot be seen from here: it is process {process.pid} "
        f"{_where(process, here)}. {lives}; if it is "
        f"dead, the next in line gets {shlex.quote(status.name)} when the lease ends"
    )


def _where(process: Holder, here: Place) -> str:
    """Where to look for it. A machine tells its id itself."""
    if process.host_id != here.host_id:
        return f"on the machine whose `holdfast doctor` shows host {process.host_id}"
    if process.boot_id != here.boot_id:
        return (
            "of another boot id: in a container that has one of its own, or on a machine that has "
            "the same host id"
        )
    return (
        "in another container on this machine"
        if process.pid_ns != here.pid_ns
        else "of a user whom /proc hides"
    )


def _process(process: Holder | None) -> str:
    return "no process" if process is None else f"process {process.pid}"


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


def page_of(
    tx: ReadTx, store: Store, processes: Processes, *, after: str, limit: int
) -> list[LockLine]:
    """How the resources stand whose names come behind `after`, in the order of names."""
    # One more, as a range begins with the name it is given.
    found = tx.range(LOCKS, start=after or None, limit=limit + 1, damaged=[])
    table = Table(tx)
    names = [row.key for row in found if row.key != after][:limit]
    return [_line(tx, table, name, store, processes) for name in names]


def contention_of(tx: ReadTx, store: Store, processes: Processes, *, limit: int) -> Graph:
    """The wait-for graph of the first `limit` requests that wait, by job: what they wait for, and
    who holds that.

    Of what nobody waits for it shows nothing.
    """
    table = Table(tx)
    waiting = [row.record for row in tx.find(LOCK_WAITS, "job", limit=limit, damaged=[])]
    edges: list[Edge] = []
    for name in dict.fromkeys(name for request in waiting for name in request.names):
        edges += _edges(table, name, {request.id for request in waiting}, store, processes)
    cycles = {
        policy.described(steps) for request in waiting if (steps := policy.cycle(table, request))
    }
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


def _edges(
    table: Table, name: str, wanted: set[str], store: Store, processes: Processes
) -> list[Edge]:
    edges = [
        Edge(
            job=hold.by,
            resource=name,
            mode=hold.mode,
            alive=alive_of(hold.process, store, processes),
        )
        for hold in table.lock(name).holds
    ]
    for position, request in enumerate(table.queue(name), 1):
        if position > _QUEUE_MAX:
            break
        if request.id in wanted:
            alive = alive_of(request.process, store, processes)
            edges.append(
                Edge(
                    job=request.by, resource=name, mode=request.mode, position=position, alive=alive
                )
            )
    return edges
