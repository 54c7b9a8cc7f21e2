"""Why a resource is not free, and what can be done about it, for whoever looks at it at three in the morning."""

import shlex
from collections.abc import Iterator

from holdfast.kernel.holder import Holder, Place, Processes, Survivor, named, orphaned, stopped
from holdfast.kernel.store import Store
from holdfast.kernel.wording import counted
from holdfast.primitives.locks import rules
from holdfast.primitives.locks.picture import (
    Alive,
    Blockage,
    Explanation,
    HoldStatus,
    LockStatus,
    WaitStatus,
    holds_of,
    status_of,
)
from holdfast.primitives.locks.table import Table

_CHAIN_MAX = 100


def explain(table: Table, name: str, store: Store, processes: Processes) -> Explanation:
    """A resource's status, the chain of waits behind its holders, and advice."""
    status = status_of(table, name, store, processes)
    blockages = tuple(_blockages(table, status, store, processes))
    left = {
        hold.token: found
        for hold in status.holds
        if hold.process is not None and (found := orphaned(hold.process, processes, embedded=store.embedded))
    }
    advice = _advice(status, blockages, _stopped(status, blockages, processes), left, processes.here())
    return Explanation(status=status, blockages=blockages, advice=tuple(advice))


def _blockages(table: Table, status: LockStatus, store: Store, processes: Processes) -> list[Blockage]:
    """What the holders wait for, and the holders of that, and so on, each once. Where nobody holds, it begins with who is in
    line: they wait for something else of their set."""
    found: list[Blockage] = []
    jobs = [hold.by for hold in status.holds] or [wait.by for wait in status.queue if wait.alive is not Alive.DEAD]
    for by in jobs:
        for request in table.of_job(by):
            against = list(rules.held_against(table, request))
            for name in dict.fromkeys(obstacle.name for obstacle in against):
                # Not all that hold it: a job that shares it itself waits for the others.
                ahead = {obstacle.hold.by for obstacle in against if obstacle.name == name}
                holds = tuple(hold for hold in holds_of(table, name, store, processes, status.now) if hold.by in ahead)
                found.append(Blockage(by=by, waits_for=name, since=request.arrived_at, holds=holds))
                # The list grows while it is gone through; each job comes once.
                jobs += [hold.by for hold in holds if hold.by not in jobs]
        if len(found) >= _CHAIN_MAX:
            break
    return found


def _stopped(status: LockStatus, blockages: tuple[Blockage, ...], processes: Processes) -> dict[str, int]:
    """The jobs whose process is stopped, all along the chain: nothing goes on before they do. Who is to get it next is one of
    them when nobody holds it, or nobody that counts."""
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
    """What to do, the most telling first. `stopped` has the processes, by job, that nothing goes on without, and `left` those,
    by token, that outlived the command of a holder."""
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
            yield f"everything here waits for {hold.by} in the end ({_process(hold.process)}): look there first"
    if kept := [hold for hold in status.holds if not hold.reclaimable]:
        one = " --by JOB" if len(kept) > 1 else ""
        holder = "one of its holders" if one else "its holder"
        name = shlex.quote(status.name)
        yield f'to take it away from {holder}: holdfast locks kick {name}{one} --why "..." (its token is then refused)'


def _on_a_line(status: LockStatus, blockages: tuple[Blockage, ...]) -> str:
    """Of a resource that nobody holds."""
    name = shlex.quote(status.name)
    if not status.queue:
        return f"{name} is free: nothing to do"
    first = _first(status.queue)
    if first is None:
        return f"{name} is free, and those in line for it are dead: the next one that asks for it gets it, nothing to do"
    others = [other for other in first.names if other != status.name]
    awaited = [blockage.waits_for for blockage in blockages if blockage.by == first.by] or others
    if not awaited:
        return f"{name} is free, and {first.by} is about to get it: look again in a moment"
    also = ", ".join(dict.fromkeys(awaited))
    look = f"holdfast locks explain {shlex.quote(awaited[0])}"
    return f"{name} is free, and {first.by}, first in line, wants {also} too and waits for that: {look}"


def _on_a_hold(hold: HoldStatus, status: LockStatus, blockages: tuple[Blockage, ...], stopped: dict[str, int]) -> str:
    name = shlex.quote(status.name)
    if hold.reclaimable:
        first = _first(status.queue)
        who = f"{first.by}, first in line," if first else f"the next one that asks for {name}"
        return f"{hold.by}'s grant is over: {who} gets it" + ("" if first and first.by in stopped else ", nothing to do")
    if hold.alive is Alive.NO_PROCESS:
        end = f"to end it now: holdfast locks release {hold.token}"
        return f"{hold.by} holds {name} by time alone, until its lease ends; {end}"
    if hold.by in stopped or any(blockage.by == hold.by for blockage in blockages):
        return ""
    return f"{hold.by} is alive and waits for nothing here: look at what {_process(hold.process)} is doing"


def _on_the_left(hold: HoldStatus, process: Holder, left: list[Survivor], status: LockStatus) -> str:
    command = process.label or f"process {process.pid}"
    living = counted(len(left), "of its processes lives", "of its processes live")
    end = f'holdfast locks kick {shlex.quote(status.name)} --by {shlex.quote(hold.by)} --end-tree --why "..."'
    return f"{command} of {hold.by} is dead, {living}: {named(left)}. The lock ends with them; to end them: {end}"


def _first(queue: tuple[WaitStatus, ...]) -> WaitStatus | None:
    """The first in line that is not known to be dead, and takes something."""
    return next((wait for wait in queue if wait.alive is not Alive.DEAD and not wait.looks), None)


def _ends(blockages: tuple[Blockage, ...]) -> list[HoldStatus]:
    """Those at the end of the chain, who wait for nothing themselves, each once."""
    waiting = {blockage.by for blockage in blockages}
    ends = [hold for blockage in blockages for hold in blockage.holds if hold.by not in waiting]
    return list({hold.by: hold for hold in ends}.values())


def _on_the_unseen(hold: HoldStatus, process: Holder, status: LockStatus, here: Place) -> str:
    lives = "Alive or not, its time ends it unless somebody renews it" if hold.has_ttl else "While it lives it renews its lease"
    return (
        f"{hold.by}'s process cannot be seen from here: it is process {process.pid} {_where(process, here)}. {lives}; if it is "
        f"dead, the next in line gets {shlex.quote(status.name)} when the lease ends"
    )


def _where(process: Holder, here: Place) -> str:
    """Where to look for it. A machine tells its id itself."""
    if process.host_id != here.host_id:
        return f"on the machine whose `holdfast doctor` shows host {process.host_id}"
    if process.boot_id != here.boot_id:
        return "of another boot id: in a container that has one of its own, or on a machine that has the same host id"
    return "in another container on this machine" if process.pid_ns != here.pid_ns else "of a user whom /proc hides"


def _process(process: Holder | None) -> str:
    return "no process" if process is None else f"process {process.pid}"
