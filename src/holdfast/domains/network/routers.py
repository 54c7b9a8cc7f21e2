"""Routers: each is a resource of the lock manager under its own name, so whatever is asked of locks can be asked of it."""

import os
import threading
from collections.abc import Iterable, Sequence

from holdfast.domains.network.room import Room
from holdfast.kernel.errors import LockTimeout, RegistryHeld
from holdfast.kernel.holder import ThisProcess
from holdfast.kernel.names import check_label
from holdfast.primitives.locks import Grant, Locks, Mode
from holdfast.primitives.locks.record import within
from holdfast.primitives.locks.waiting import OnWait
from holdfast.primitives.locks.wish import check_names

_KNOWN_MAX = 1024


class Routers:
    """The router locks of one registry: those of the lock manager, known by router and job instead of by grant."""

    def __init__(self, room: Room, locks: Locks) -> None:
        self._room = room
        self._locks = locks
        self._begin_process()

    def _begin_process(self) -> None:
        """Begin with nothing, as in a forked child: the grants that are known are its parent's."""
        self._mutex = threading.Lock()
        self._grants: dict[tuple[str, str], Grant] = {}
        self._pid = os.getpid()

    def admit(self, run_id: str, names: Iterable[str]) -> None:
        """May this run lease hosts of these routers? Raises RegistryHeld when another job holds one exclusively, or, where
        the lock is required, when the run holds one not at all.

        Promised: it was so at a moment just before the lease is written. Not promised: that nobody takes the router between
        that moment and the write, unless the run holds it itself, in either mode; then nobody can.
        """
        for name in dict.fromkeys(names):
            holds = [hold for hold in self._locks.status(name).holds if not hold.reclaimable]
            own = any(within(run_id, hold.by) for hold in holds)
            alone = [hold.by for hold in holds if hold.mode is Mode.EXCLUSIVE and not within(run_id, hold.by)]
            if alone:
                raise RegistryHeld(
                    f"router {name} is held exclusively by {alone[0]}, so run {run_id} cannot lease its hosts: wait for the "
                    f"router. `holdfast locks explain {name}` tells more",
                    router=name,
                    run_id=run_id,
                    holder=alone[0],
                )
            if self._room.settings.require_router_lock and not own:
                raise RegistryHeld(
                    f"run {run_id} does not hold router {name}, which require_router_lock asks for before its hosts are "
                    "leased: acquire the router's lock with the run's id first",
                    router=name,
                    run_id=run_id,
                    holder=None,
                )

    def acquire(
        self,
        names: Sequence[str],
        job_id: str,
        timeout_s: float,
        *,
        mode: Mode | str,
        priority: int,
        ttl_s: float | None,
        pid: int | ThisProcess | None,
        on_wait: OnWait | None = None,
    ) -> Grant:
        """All of the routers. Raises LockTimeout, DeadlockDetected and LeaseLost."""
        self._begin()
        process = pid if isinstance(pid, ThisProcess) else self._room.holder(pid)
        grant = self._locks.acquire(
            names, by=job_id, mode=mode, timeout_s=timeout_s, priority=priority, ttl_s=ttl_s, process=process, on_wait=on_wait
        )
        self._know(grant)
        return grant

    def release(self, names: str | Iterable[str], job_id: str) -> tuple[str, ...]:
        """Let go of what the job holds of these routers; return which those were. What another holds is left alone."""
        wanted = check_names(names)
        check_label(job_id, "job")
        self._begin()
        freed: list[str] = []
        for grant in self._forget(wanted, job_id):
            freed += grant.taken if self._locks.release(grant) else ()
        rest = [name for name in wanted if name not in freed]
        return (*freed, *self._locks.free(rest, by=job_id)) if rest else tuple(freed)

    def locked(self, name: str) -> bool:
        """Does any job hold it whose grant is not over?"""
        return any(not hold.reclaimable for hold in self._locks.status(name).holds)

    def wait(
        self,
        names: Sequence[str],
        timeout_s: float,
        *,
        job_id: str | None,
        mode: Mode | str,
        on_wait: OnWait | None = None,
    ) -> bool:
        """Wait until all of them are free at once, and take nothing; False when they were not in time."""
        by = f"wait-{os.getpid()}-{os.urandom(3).hex()}" if job_id is None else job_id
        try:
            return self._locks.wait(names, by=by, mode=mode, timeout_s=timeout_s, on_wait=on_wait)
        except LockTimeout:
            return False

    def _know(self, grant: Grant) -> None:
        with self._mutex:
            if len(self._grants) > _KNOWN_MAX:
                self._grants = {key: known for key, known in self._grants.items() if not known.gone}
            self._grants |= dict.fromkeys(((grant.by, name) for name in grant.taken), grant)

    def _forget(self, names: tuple[str, ...], job_id: str) -> list[Grant]:
        """The grants of this process that are released whole by releasing these names."""
        with self._mutex:
            known = {grant.id: grant for name in names if (grant := self._grants.pop((job_id, name), None)) is not None}
        return [grant for grant in known.values() if set(grant.taken) <= set(names)]

    def _begin(self) -> None:
        if self._pid != os.getpid():
            self._begin_process()
