"""Router locks. A router is a resource of the lock manager under its own name, so
everything that shows locks shows routers.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from typing import TypedDict

from holdfast.domains.network.address import check_job_type
from holdfast.domains.network.context import NetworkContext, Pid
from holdfast.kernel.errors import RegistryHeld, RegistryNotFound
from holdfast.kernel.holder import THIS_PROCESS, ThisProcess
from holdfast.kernel.names import check_label
from holdfast.primitives.locks import Grant, Locks, Mode
from holdfast.primitives.locks.records import within
from holdfast.primitives.locks.request import check_names
from holdfast.primitives.locks.wait import OnWait

_GRANTS_MAX = 1024


class RouterLockOptions(TypedDict, total=False):
    """The options of every call that locks routers."""

    mode: Mode | str
    """Exclusive, unless it is "shared": quick jobs share a router."""
    priority: int | None
    """Higher goes first. The default is that of the `job_type` in `job_priorities`."""
    job_type: str | None
    ttl_s: float | None
    pid: Pid
    """The process whose death ends the lock: this one, unless it names another or is None."""
    on_wait: OnWait | None
    """Called with the jobs ahead when a wait begins."""
    stop_fd: int | None
    """When this descriptor becomes readable, a wait ends as if its time had passed."""
    detached: bool
    """The caller ends, or forgets the lock, before the lock ends: see `Registry`."""


class RouterLocks:
    """The router locks of one registry, found by router and job instead of by grant."""

    def __init__(self, context: NetworkContext, locks: Locks) -> None:
        self._context = context
        self._locks = locks
        self._begin_process()

    def _begin_process(self) -> None:
        # A forked child starts empty: the known grants belong to its parent.
        self._mutex = threading.Lock()
        self._grants: dict[tuple[str, str], Grant] = {}
        self._pid = os.getpid()

    def check_admission(self, run_id: str, names: Iterable[str]) -> None:
        """Check that this run may lease hosts of these routers. Raises RegistryHeld when another
        job holds one exclusively, or when the run does not hold one whose lock is required.

        This is checked before the lease is written. Only a run that holds the router itself is sure
        that no other job acquired it in between.
        """
        for name in dict.fromkeys(names):
            holds = [hold for hold in self._locks.status(name).holds if not hold.reclaimable]
            own = [hold for hold in holds if within(run_id, hold.by)]
            others = [hold.by for hold in holds if hold.mode is Mode.EXCLUSIVE and hold not in own]
            if others:
                raise RegistryHeld(
                    f"router {name} is held exclusively by {others[0]}, so run {run_id} cannot "
                    f"lease its hosts: wait for the router. `holdfast locks explain {name}` says "
                    "more",
                    router=name,
                    run_id=run_id,
                    holder=others[0],
                )
            if self._context.settings.require_router_lock and not own:
                raise RegistryHeld(
                    f"run {run_id} does not hold router {name}, and require_router_lock is set: "
                    "acquire the router's lock with the run's id before you lease its hosts",
                    router=name,
                    run_id=run_id,
                    holder=None,
                )

    def lock(
        self,
        names: Sequence[str],
        job_id: str,
        timeout_s: float,
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        priority: int | None = None,
        job_type: str | None = None,
        ttl_s: float | None = None,
        pid: Pid = THIS_PROCESS,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
        detached: bool = False,
    ) -> Grant:
        """Lock all of the routers. Raises LockTimeout, DeadlockDetected and LeaseLost."""
        if job_type is not None:
            check_job_type(job_type)
        if priority is None:
            priority = self._context.settings.job_priorities.get(job_type or "", 0)
        grant = self._locks.acquire(
            names,
            by=job_id,
            mode=mode,
            timeout_s=timeout_s,
            priority=priority,
            ttl_s=ttl_s,
            process=pid if isinstance(pid, ThisProcess) else self._context.holder(pid, job_id),
            on_wait=on_wait,
            stop_fd=stop_fd,
            detached=detached,
        )
        self._check_process()
        with self._mutex:
            if len(self._grants) > _GRANTS_MAX:
                self._grants = {key: known for key, known in self._grants.items() if not known.gone}
            self._grants |= dict.fromkeys(((grant.by, name) for name in grant.taken), grant)
        return grant

    def release(self, names: Iterable[str], job_id: str) -> tuple[str, ...]:
        """Release what the job holds of these routers; return which. Other jobs' locks stay.

        Raises RegistryNotFound when it holds none of them.
        """
        wanted = check_names(names)
        check_label(job_id, "job")
        self._check_process()
        freed: list[str] = []
        with self._mutex:
            found = [self._grants.pop((job_id, name), None) for name in wanted]
        for grant in {grant.id: grant for grant in found if grant is not None}.values():
            # A grant can only be released whole. A part of one is freed by name, below.
            if set(grant.taken) <= set(wanted) and self._locks.release(grant):
                freed += grant.taken
        if rest := [name for name in wanted if name not in freed]:
            freed += self._locks.free(rest, by=job_id)
        if not freed:
            raise RegistryNotFound(
                f"job {job_id} does not hold {', '.join(wanted)}: `holdfast locks status "
                f"{' '.join(wanted)}` shows the holders",
                names=list(wanted),
            )
        return tuple(freed)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._begin_process()
