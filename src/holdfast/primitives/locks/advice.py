"""Advice on a resource that is not free: what an operator can do, the most important first."""

import shlex
from collections.abc import Iterator

from holdfast.kernel.holder import Holder, Place, Survivor, survivors_named
from holdfast.kernel.text import counted
from holdfast.primitives.locks.inspect import Alive, Blockage, LockStatus, first_living


def advise(
    status: LockStatus,
    blockages: tuple[Blockage, ...],
    stopped_pids: dict[str, int],
    survivors: dict[int, list[Survivor]],
    here: Place,
) -> Iterator[str]:
    """What to do, the most important first. `survivors` of a holder's command go by its token."""
    name = shlex.quote(status.name)
    for by, pid in stopped_pids.items():
        yield f"process {pid} of {by} is stopped (Ctrl-Z, SIGSTOP): kill -CONT {pid} continues it"
    if not status.holds:
        yield _advice_on_queue(status, blockages)
    waiting = {blockage.by for blockage in blockages}
    for hold in status.holds:
        process = hold.process
        if hold.alive is Alive.UNKNOWN and process is not None and not hold.reclaimable:
            renewal = (
                "Alive or not, its time to live ends it unless it is renewed"
                if hold.has_ttl
                else "While it lives it renews its lease"
            )
            yield (
                f"{hold.by}'s process cannot be seen from here: it is process {process.pid} "
                f"{_where(process, here)}. {renewal}; if it is dead, the next in the queue gets "
                f"{name} when the lease ends"
            )
        elif process is not None and (left := survivors.get(hold.token)):
            command = process.label or f"process {process.pid}"
            living = counted(len(left), "of its processes lives", "of its processes live")
            yield (
                f"{command} of {hold.by} is dead, {living}: {survivors_named(left)}. The lock ends "
                f"with them; to end them: holdfast locks kick {name} --by {shlex.quote(hold.by)} "
                '--end-tree --why "..."'
            )
        elif hold.reclaimable:
            first = first_living(status)
            who = f"{first.by}, first in the queue," if first else f"the next request for {name}"
            done = "" if first and first.by in stopped_pids else ", nothing to do"
            yield f"{hold.by}'s grant is over: {who} gets it{done}"
        elif hold.alive is Alive.NO_PROCESS:
            yield (
                f"{hold.by} holds {name} without a process, until its lease ends; to end it now: "
                f"holdfast locks release {hold.token}"
            )
        elif hold.by not in stopped_pids and hold.by not in waiting:
            yield (
                f"{hold.by} is alive and waits for nothing here: look at what {_process(process)} "
                "is doing"
            )
    # The holders at the end of the chain, each once: they wait for nothing themselves.
    ends = {
        hold.by: hold for blockage in blockages for hold in blockage.holds if hold.by not in waiting
    }
    for hold in ends.values():
        if not hold.reclaimable:
            process_text = _process(hold.process)
            yield f"all of this waits for {hold.by} in the end ({process_text}): look there first"
    if kept := [hold for hold in status.holds if not hold.reclaimable]:
        one = " --by JOB" if len(kept) > 1 else ""
        holder = "one of its holders" if one else "its holder"
        kick = f'holdfast locks kick {name}{one} --why "..."'
        yield f"to take it away from {holder}: {kick} (its token is then refused)"


def _advice_on_queue(status: LockStatus, blockages: tuple[Blockage, ...]) -> str:
    """For a resource that nobody holds."""
    name = shlex.quote(status.name)
    if not status.queue:
        return f"{name} is free: nothing to do"
    first = first_living(status)
    if first is None:
        return f"{name} is free, and its waiters are dead: the next request gets it, nothing to do"
    others = [other for other in first.names if other != status.name]
    awaited = [blockage.waits_for for blockage in blockages if blockage.by == first.by] or others
    if not awaited:
        return f"{name} is free, and {first.by} is about to get it: look again in a moment"
    return (
        f"{name} is free, and {first.by}, first in the queue, also waits for "
        f"{', '.join(dict.fromkeys(awaited))}: holdfast locks explain {shlex.quote(awaited[0])}"
    )


def _where(process: Holder, here: Place) -> str:
    """Where a process runs. A machine shows its id by `holdfast doctor`."""
    if process.host_id != here.host_id:
        return f"on the machine whose `holdfast doctor` shows host {process.host_id}"
    if process.boot_id != here.boot_id:
        return (
            "of another boot id: in a container that has its own, or on a machine with the same "
            "host id"
        )
    if process.pid_ns != here.pid_ns:
        return "in another container on this machine"
    return "of a user whom /proc hides"


def _process(process: Holder | None) -> str:
    return "no process" if process is None else f"process {process.pid}"
