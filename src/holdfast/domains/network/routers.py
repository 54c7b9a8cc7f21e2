"""Routers: each is a resource of the lock manager under its own name, so whatever is asked of locks
can be asked of it.

The calls on routers. Each is a lock of the lock manager on the resource of the router's name.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from holdfast.domains.network.address import check_job_type
from holdfast.domains.network.context import Calls, Room, told_as_registry
from holdfast.kernel.errors import LockTimeout, RegistryHeld, RegistryLockTimeout
from holdfast.kernel.holder import THIS_PROCESS, ThisProcess
from holdfast.kernel.names import check_label
from holdfast.primitives.locks import Grant, Locks, Mode
from holdfast.primitives.locks.records import within
from holdfast.primitives.locks.request import check_names
from holdfast.primitives.locks.statistics import LockStatistics
from holdfast.primitives.locks.wait import OnWait

_KNOWN_MAX = 1024


class Routers:
    """The router locks of one registry: those of the lock manager, known by router and job instead
    of by grant.
    """

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
        """May this run lease hosts of these routers? Raises RegistryHeld when another job holds one
        exclusively, or, where the lock is required, when the run holds one not at all.

        Promised: it was so at a moment just before the lease is written. Not promised: that nobody
        takes the router between that moment and the write, unless the run holds it itself, in
        either mode; then nobody can.
        """
        for name in dict.fromkeys(names):
            holds = [hold for hold in self._locks.status(name).holds if not hold.reclaimable]
            own = any(within(run_id, hold.by) for hold in holds)
            alone = [
                hold.by
                for hold in holds
                if hold.mode is Mode.EXCLUSIVE and not within(run_id, hold.by)
            ]
            if alone:
                raise RegistryHeld(
                    f"router {name} is held exclusively by {alone[0]}, so run {run_id} cannot "
                    "lease its hosts: wait for the "
                    f"router. `holdfast locks explain {name}` tells more",
                    router=name,
                    run_id=run_id,
                    holder=alone[0],
                )
            if self._room.settings.require_router_lock and not own:
                raise RegistryHeld(
                    f"run {run_id} does not hold router {name}, which require_router_lock asks "
                    "for before its hosts are "
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
            names,
            by=job_id,
            mode=mode,
            timeout_s=timeout_s,
            priority=priority,
            ttl_s=ttl_s,
            process=process,
            on_wait=on_wait,
        )
        self._know(grant)
        return grant

    def release(self, names: str | Iterable[str], job_id: str) -> tuple[str, ...]:
        """Let go of what the job holds of these routers; return which those were. What another
        holds is left alone.
        """
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
        """Wait until all of them are free at once, and take nothing; False when they were not in
        time.
        """
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
            known = {
                grant.id: grant
                for name in names
                if (grant := self._grants.pop((job_id, name), None)) is not None
            }
        return [grant for grant in known.values() if set(grant.taken) <= set(names)]

    def _begin(self) -> None:
        if self._pid != os.getpid():
            self._begin_process()


Pid = int | ThisProcess | None
"""Whose death ends a claim: this process, another, or none."""


class RouterCalls(Calls):
    """The part of `Registry` that knows routers alone."""

    def __init__(
        self,
        room: Room,
        locks: Locks,
        *,
        logger: logging.Logger | None,
        enabled: bool,
        after_change: Callable[[], None],
    ) -> None:
        super().__init__(room, logger=logger, enabled=enabled, after_change=after_change)
        self._locks = locks
        self._routers = Routers(room, locks)

    def acquire_router_lock(
        self,
        router_name: str,
        job_id: str,
        timeout: float | None = None,
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        priority: int | None = None,
        job_type: str | None = None,
        ttl_s: float | None = None,
        pid: Pid = THIS_PROCESS,
        on_wait: OnWait | None = None,
    ) -> bool:
        """Lock a router, and with it all of its hosts; False when it could not be acquired in time.

        A job that has it already has it: True, and one release frees it. `timeout` 0 is a single
        try; without one it is `lock_timeouts.router_lock`. Quick jobs share it by `mode="shared"`.
        A higher `priority` goes first; without one it is that of the `job_type` in
        `job_priorities`. `on_wait` is told who is just ahead when it has to wait. Raises
        RegistryDeadlock when waiting would never end.
        """
        limit_s = self._settings.lock_timeouts.router_lock if timeout is None else timeout
        return self._locked(
            [router_name],
            job_id,
            limit_s,
            mode,
            self._priority(priority, job_type),
            ttl_s,
            pid,
            on_wait,
        )

    def acquire_all_router_locks_atomic(
        self,
        router_names: Sequence[str],
        job_id: str,
        timeout: float | None = None,
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        priority: int | None = None,
        job_type: str | None = None,
        ttl_s: float | None = None,
        pid: Pid = THIS_PROCESS,
        on_wait: OnWait | None = None,
    ) -> bool:
        """Lock all of the routers in one step, or none; False when they could not be acquired in
        time. Nothing is held while waiting, so no order of names can deadlock. Otherwise as
        `acquire_router_lock`.
        """
        limit_s = self._settings.lock_timeouts.router_lock_atomic if timeout is None else timeout
        return self._locked(
            router_names,
            job_id,
            limit_s,
            mode,
            self._priority(priority, job_type),
            ttl_s,
            pid,
            on_wait,
        )

    def release_router_lock(self, router_name: str, job_id: str) -> bool:
        """Unlock a router, and hand it to whoever is next; False, and nothing changed, when the job
        does not hold it.
        """
        return bool(self.release_all_router_locks([router_name], job_id))

    def release_all_router_locks(self, router_names: Sequence[str], job_id: str) -> int:
        """Unlock what the job holds of these routers; return how many those were."""
        freed = self._change(lambda: self._routers.release(router_names, job_id))
        self._logger.info("routers unlocked job=%s routers=%s", job_id, ",".join(freed) or "-")
        return len(freed)

    def is_router_locked(self, router_name: str) -> bool:
        """Does any job hold the router, in either mode?"""
        return self._look(lambda: self._routers.locked(router_name))

    @contextmanager
    def router_lock(
        self,
        router_name: str,
        job_id: str,
        timeout: float | None = None,
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        priority: int | None = None,
        job_type: str | None = None,
        ttl_s: float | None = None,
    ) -> Iterator[Grant]:
        """Lock a router for a `with` block, which gets the grant. Raises RegistryLockTimeout when
        it was not acquired in time, and RegistryLost at the end if it was taken away. Within
        another block of the same job, only the outer one frees it.
        """
        limit_s = self._settings.lock_timeouts.router_lock if timeout is None else timeout
        with self._granted(
            [router_name], job_id, limit_s, mode, self._priority(priority, job_type), ttl_s
        ) as grant:
            yield grant

    @contextmanager
    def all_router_locks(
        self,
        router_names: Sequence[str],
        job_id: str,
        timeout: float | None = None,
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        priority: int | None = None,
        job_type: str | None = None,
        ttl_s: float | None = None,
    ) -> Iterator[Grant]:
        """The same for several routers, all or none."""
        limit_s = self._settings.lock_timeouts.router_lock_atomic if timeout is None else timeout
        with self._granted(
            router_names, job_id, limit_s, mode, self._priority(priority, job_type), ttl_s
        ) as grant:
            yield grant

    def wait_for_router(
        self,
        router_name: str,
        timeout: float | None = None,
        *,
        job_id: str | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
    ) -> bool:
        """Wait until nobody holds the router, and take nothing; False when that was not so in time.
        See `wait_for_all_routers`.
        """
        return self.wait_for_all_routers([router_name], timeout, job_id=job_id, mode=mode)

    def wait_for_all_routers(
        self,
        router_names: Sequence[str],
        timeout: float | None = None,
        *,
        job_id: str | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
        on_wait: OnWait | None = None,
    ) -> bool:
        """Wait until all of the routers are free at one moment, and take nothing; False when they
        were not in time.

        Sleeps, and never polls. Not promised: that they still are. `mode="shared"` waits only for
        exclusive holders. A job that holds routers says so by `job_id`: what it holds itself is not
        waited for, and a wait that would never end raises RegistryDeadlock.
        """
        limit_s = self._settings.lock_timeouts.router_lock if timeout is None else timeout
        return self._change(
            lambda: self._routers.wait(
                router_names, limit_s, job_id=job_id, mode=mode, on_wait=on_wait
            )
        )

    def router_statistics(
        self, router_names: Sequence[str] | None = None
    ) -> dict[str, LockStatistics]:
        """What these routers, or all that were ever locked, have been through: grants, waits,
        timeouts, deaths, deadlocks, and histograms of how long waits and holds took.
        """
        found = self._look(self._locks.statistics)
        return (
            found
            if router_names is None
            else {name: found.get(name, LockStatistics()) for name in router_names}
        )

    def _locked(
        self,
        names: Sequence[str],
        job_id: str,
        timeout_s: float,
        mode: Mode | str,
        priority: int,
        ttl_s: float | None,
        pid: Pid,
        on_wait: OnWait | None,
    ) -> bool:
        try:
            self._change(
                lambda: self._routers.acquire(
                    names,
                    job_id,
                    timeout_s,
                    mode=mode,
                    priority=priority,
                    ttl_s=ttl_s,
                    pid=pid,
                    on_wait=on_wait,
                )
            )
        except RegistryLockTimeout as error:
            # Its callers get a bool, so the log is where they read who was in the way.
            self._logger.info(
                "routers not locked job=%s routers=%s: %s", job_id, ",".join(names), error.message
            )
            return False
        self._logger.info("routers locked job=%s routers=%s", job_id, ",".join(names))
        return True

    @contextmanager
    def _granted(
        self,
        names: Sequence[str],
        job_id: str,
        timeout_s: float,
        mode: Mode | str,
        priority: int,
        ttl_s: float | None,
    ) -> Iterator[Grant]:
        grant = self._change(
            lambda: self._routers.acquire(
                names,
                job_id,
                timeout_s,
                mode=mode,
                priority=priority,
                ttl_s=ttl_s,
                pid=THIS_PROCESS,
            )
        )

        def leave(*raised: Any) -> None:
            try:
                with told_as_registry():
                    grant.__exit__(*raised)
            finally:
                self._after_change()

        with ExitStack() as leaving:
            # Not around the block: what is raised there is the caller's own.
            leaving.push(leave)
            yield grant

    def _priority(self, priority: int | None, job_type: str | None) -> int:
        self._refuse_if_off()
        if job_type is not None:
            check_job_type(job_type)
        return (
            self._settings.job_priorities.get(job_type or "", 0) if priority is None else priority
        )
