"""The registry: every operation on hosts, routers and neighbours, each one transaction."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Unpack

from holdfast.domains.network.address import check_batch, normal_ip
from holdfast.domains.network.context import (
    NetworkContext,
    Pid,
    changes,
    reads,
    registry_errors,
)
from holdfast.domains.network.hosts import Hosts, new_host, new_hosts
from holdfast.domains.network.leases import (
    Info,
    LeaseRequest,
    LeaseTable,
    lease_request,
    no_such_host,
)
from holdfast.domains.network.records import NeighborLeases, neighbor_key
from holdfast.domains.network.routers import RouterLockOptions, RouterLocks
from holdfast.domains.network.wire import (
    CORE_FIELDS,
    HOST_LEASES,
    HOSTS,
    NEIGHBOR_LEASES,
    write_host,
)
from holdfast.kernel.errors import RegistryCollision, RegistryLockTimeout, RegistryNotFound
from holdfast.kernel.holder import THIS_PROCESS, Processes
from holdfast.kernel.lease import check_detached
from holdfast.kernel.limits import HOLD_LEASE_S
from holdfast.kernel.names import check_id, check_label, check_new_label
from holdfast.kernel.settings import NetworkSettings
from holdfast.kernel.store import Damage, Store
from holdfast.primitives.holds import HoldRenewer
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Grant, Locks, Mode
from holdfast.primitives.locks.inspect import LockStatus
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.statistics import LockStatistics, chosen_statistics
from holdfast.primitives.locks.wait import OnWait


class Swept(NamedTuple):
    """How many leases of ended runs were removed."""

    host_leases: int
    neighbor_leases: int


class Counts(NamedTuple):
    """How much the registry keeps."""

    hosts: int
    host_leases: int
    neighbor_leases: int


class Registry:
    """Hosts, their leases, routers and neighbour entries on one store. Thread-safe, process-safe
    and safe after fork.

    Promised: each call takes effect whole or not at all, whatever is killed; names, addresses and
    MACs are unique; a count is the number of runs that hold a lease and are not known to be dead;
    sets of routers cannot deadlock. It only tracks and coordinates: it touches no interface, route
    or namespace.

    Every call raises RegistryError when the registry is switched off, RegistryLockTimeout when the
    store was busy for too long, RegistryUnavailable and RegistryCorruption when the store fails,
    InvalidName and InvalidValue (both ValueErrors) for wrong arguments.

    A claim (a lease or a router lock) ends with its process: this one, unless `pid` names another
    or is None. `detached=True` is for a caller that ends, or forgets the claim, before the claim
    ends. No process renews such a claim, so it needs a `ttl_s` if other machines cannot see its
    process (InvalidValue).
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        locks: Locks,
        settings: NetworkSettings,
        *,
        label: str = "",
        logger: logging.Logger | None = None,
        enabled: bool = True,
        after_change: Callable[[], None] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._logger = logger = logger or logging.getLogger("holdfast.network")
        self._context = context = NetworkContext(
            store, journal, processes, settings, label, logger, enabled, after_change, pause
        )
        self._times = times = settings.lock_timeouts
        self._locks = locks
        self._renewer = renewer = HoldRenewer(
            store, processes, field="leases", topic="network", lease_s=HOLD_LEASE_S
        )
        self._host_leases = LeaseTable(
            context, HOST_LEASES, "host_lease", times.host_leases, renewer, [HOSTS]
        )
        self._neighbor_leases = LeaseTable(
            context, NEIGHBOR_LEASES, "neighbor_lease", times.neighbor_leases, renewer
        )
        self._hosts = Hosts(context, self._host_leases)
        self._routers = RouterLocks(context, locks)

    # --- hosts ---

    def check_and_register_host(
        self,
        host_name: str,
        primary_ip: str,
        connected_to: str,
        mac_address: str,
        additional_info: Mapping[str, Any] | None = None,
    ) -> bool:
        """Register a host; False, and nothing changed, when another host has its name, address or
        MAC.
        """
        try:
            self.register_host(host_name, primary_ip, connected_to, mac_address, additional_info)
        except RegistryCollision as collision:
            self._logger.info("host not registered host=%s: %s", host_name, collision.message)
            return False
        return True

    @changes
    def register_host(
        self,
        host_name: str,
        primary_ip: str,
        connected_to: str,
        mac_address: str,
        additional_info: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a host. Raises RegistryCollision, which names the field and the other host.

        Addresses are compared without their mask and in one form, MACs too. `additional_info` is
        kept with the host; it cannot replace a core field.
        """
        new = new_host(host_name, primary_ip, connected_to, mac_address, additional_info)
        self._hosts.register([new])
        if shadowed := [name for name in CORE_FIELDS if name in (additional_info or {})]:
            self._logger.warning(
                "left out of additional_info host=%s: %s", host_name, ", ".join(shadowed)
            )
        self._logger.info(
            "host registered host=%s ip=%s router=%s", host_name, primary_ip, connected_to
        )

    def register_hosts(self, hosts: Iterable[Mapping[str, Any]]) -> int:
        """Register all of these hosts, or none; return how many. Each is an object of
        `register_host`'s arguments.

        Raises RegistryCollision for the first that collides, also with another of the batch.
        """
        self._context.check_enabled()
        new = new_hosts(hosts)
        self._context.change(lambda: self._hosts.register(new))
        self._logger.info("hosts registered count=%d", len(new))
        return len(new)

    @changes
    def unregister_host(self, host_name: str, *, force: bool = False) -> bool:
        """Remove a host; False when there is none. Raises RegistryHeld when runs lease it, unless
        `force` ends their leases in the same transaction.
        """
        there, ended = self._hosts.remove(host_name, force=force)
        for run_id in ended:
            self._host_leases.stop_renewing(host_name, run_id)
        if there:
            self._logger.info(
                "host unregistered host=%s ended_leases=%s", host_name, ",".join(ended) or "-"
            )
        return there

    def remove_host(self, host_name: str, *, force: bool = False) -> None:
        """`unregister_host`, but raises RegistryNotFound when there is no such host."""
        if not self.unregister_host(host_name, force=force):
            raise no_such_host(host_name)

    @reads
    def get_host_info(self, host_name: str) -> Info | None:
        """A host as hosts.json shows it; None when there is none."""
        host = self._hosts.get(host_name)
        return None if host is None else write_host(host)

    def get_host(self, host_name: str) -> Info:
        """`get_host_info`, but raises RegistryNotFound when there is no such host."""
        info = self.get_host_info(host_name)
        if info is None:
            raise no_such_host(host_name)
        return info

    @reads
    def list_all_hosts(
        self, *, router_name: str | None = None, damaged: Damage | None = None
    ) -> dict[str, Info]:
        """Every host, or those of one router, by name, as hosts.json shows them. A damaged record
        raises, unless `damaged` is a list, to which it is added.
        """
        if router_name is not None:
            check_label(router_name, "router name")
        return {
            name: write_host(host)
            for name, host in self._hosts.all(damaged).items()
            if router_name in (None, host.connected_to)
        }

    # --- leases on source hosts ---

    @changes
    def acquire_source_host_lease(
        self,
        run_id: str,
        host_name: str,
        job_type: str,
        router_name: str,
        dscp: int | None = None,
        *,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
    ) -> int:
        """Lease a source host for a run; return how many runs lease it now. Taking it again is one
        lease.

        The lease is refused (RegistryHeld) while another job than this run holds the router
        exclusively, and with `require_router_lock` also when this run does not hold it. That is
        checked just before the lease is written: only a run that holds the router itself is sure
        that no other job acquired it in between. Raises RegistryNotFound, a ValueError, when the
        host is not registered.
        """
        request = lease_request(host_name, job_type, router_name, dscp)
        return self._lease(run_id, [request], pid, ttl_s)[host_name]

    def acquire_source_host_leases(
        self,
        run_id: str,
        leases: Iterable[Mapping[str, Any]],
        *,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
    ) -> dict[str, int]:
        """Lease all of these hosts for a run, or none; return the count of each. Each is an object
        of host_name, job_type, router_name and optionally dscp. Raises what
        `acquire_source_host_lease` does.
        """
        self._context.check_enabled()
        required = ("host_name", "job_type", "router_name")
        batch = check_batch(leases, "leases", required, "dscp")
        requests = [lease_request(**item) for item in batch]
        return self._context.change(lambda: self._lease(run_id, requests, pid, ttl_s))

    def lease_hosts(
        self,
        run_id: str,
        host_names: Iterable[str],
        job_type: str,
        *,
        router_name: str | None = None,
        dscp: int | None = None,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
        detached: bool = False,
    ) -> dict[str, int]:
        """`acquire_source_host_leases` for hosts that are used alike, each under its own router
        unless one is given.
        """
        self._context.check_enabled()
        if detached:
            self._check_detached(pid, ttl_s)
        requests = []
        for name in dict.fromkeys(_listed(host_names)):
            router = self.get_host(name)["connected_to"] if router_name is None else router_name
            requests.append(lease_request(name, job_type, router, dscp))
        return self._context.change(lambda: self._lease(run_id, requests, pid, ttl_s))

    def _lease(
        self, run_id: str, requests: Sequence[LeaseRequest], pid: Pid, ttl_s: float | None
    ) -> dict[str, int]:
        check_new_label(run_id, "run id")
        self._routers.check_admission(run_id, [request.router for request in requests])
        counts = self._host_leases.take(run_id, requests, pid, ttl_s)
        self._logger.info("hosts leased run=%s counts=%s", run_id, counts)
        return counts

    def _check_detached(self, pid: Pid, ttl_s: float | None) -> None:
        ttl_s = self._context.settings.lease_ttl_s if ttl_s is None else ttl_s
        check_detached(pid, ttl_s, embedded=self._context.store.embedded)

    @changes
    def release_source_host_lease(self, run_id: str, host_name: str) -> tuple[int, bool]:
        """End a run's lease; return how many are left, and True when none is: the host may be taken
        down.

        Raises RegistryNotFound, a ValueError, when the run has no lease on the host.
        """
        check_label(run_id, "run id")
        count, held = self._host_leases.drop(check_id(host_name, "host name"), run_id)
        if not held:
            raise RegistryNotFound(
                f"run {run_id} has no lease on host {host_name}: `holdfast network leases list` "
                "shows the leases",
                run_id=run_id,
                host=host_name,
                count=count,
            )
        self._logger.info("host lease released run=%s host=%s count=%d", run_id, host_name, count)
        return count, count == 0

    @reads
    def get_host_lease_count(self, host_name: str) -> int:
        """How many runs lease a host, without those known to be gone."""
        return self._host_leases.count(check_id(host_name, "host name"))

    @reads
    def list_host_leases(
        self, host_name: str | None = None, *, damaged: Damage | None = None
    ) -> dict[str, Info]:
        """Leases by host, or those of one host, as host_leases.json shows them; `dead` marks those
        that do not count. For `damaged` see `list_all_hosts`.
        """
        key = None if host_name is None else check_id(host_name, "host name")
        return self._host_leases.show(key, damaged, "router")

    # --- neighbours. The host need not be registered: a neighbour may be foreign equipment. ---

    @changes
    def acquire_neighbor_lease(
        self,
        run_id: str,
        host_name: str,
        neighbor_ip: str,
        *,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
        detached: bool = False,
    ) -> int:
        """Lease a neighbour entry of a host for a run; return how many runs lease it now. Taking it
        again is one lease.
        """
        check_new_label(run_id, "run id")
        key, address = _neighbor(host_name, neighbor_ip)
        if detached:
            self._check_detached(pid, ttl_s)
        request = LeaseRequest(key, NeighborLeases(host_name=host_name, neighbor_ip=address))
        count = self._neighbor_leases.take(run_id, [request], pid, ttl_s)[key]
        self._logger.info("neighbour leased run=%s entry=%s count=%d", run_id, key, count)
        return count

    @changes
    def release_neighbor_lease(
        self, run_id: str, host_name: str, neighbor_ip: str
    ) -> tuple[int, bool]:
        """End a run's lease; return how many are left, and True when this was the last: the entry
        may be removed.

        (count, False) when only other runs have a lease. Raises RegistryNotFound, a ValueError,
        when no run has one.
        """
        check_label(run_id, "run id")
        key, _ = _neighbor(host_name, neighbor_ip)
        count, held = self._neighbor_leases.drop(key, run_id)
        if not held and not count:
            raise RegistryNotFound(
                f"no run has a lease on neighbour {neighbor_ip} of host {host_name}: there is "
                "nothing to release",
                run_id=run_id,
                host=host_name,
                neighbor_ip=neighbor_ip,
            )
        self._logger.info("neighbour released run=%s entry=%s count=%d", run_id, key, count)
        return count, held and count == 0

    @reads
    def list_neighbor_leases(self, *, damaged: Damage | None = None) -> dict[str, Info]:
        """Leases by neighbour entry, as neighbor_leases.json shows them; `dead` marks those that do
        not count. For `damaged` see `list_all_hosts`.
        """
        return self._neighbor_leases.show(None, damaged, "host_name", "neighbor_ip")

    # --- routers ---

    def lock_routers(
        self,
        router_names: Sequence[str],
        job_id: str,
        timeout: float | None = None,
        **options: Unpack[RouterLockOptions],
    ) -> Grant:
        """Lock all of the routers, and with them all of their hosts, in one step, or none; return
        the grant. Nothing is held while waiting, so no order of names can deadlock.

        A job that has them already gets its own grant; one release frees it. `timeout` 0 is a
        single try; the default is `lock_timeouts.router_lock` for one router, and
        `router_lock_atomic` for several. For the options see `RouterLockOptions`.

        Raises RegistryLockTimeout, whose fields name the holders; RegistryDeadlock when the wait
        would never end; RegistryLost when the lock was taken away before this process could wake;
        RegistryNotFound when `pid` is not a live process.
        """
        if timeout is None and len(_listed(router_names)) == 1:
            timeout = self._times.router_lock
        return self._lock(router_names, job_id, timeout, **options)

    @changes
    def _lock(
        self,
        names: Sequence[str],
        job_id: str,
        timeout: float | None,
        **options: Unpack[RouterLockOptions],
    ) -> Grant:
        timeout = self._times.router_lock_atomic if timeout is None else timeout
        # Nothing may raise after this call: the grant would be held, and nobody would know of it.
        return self._routers.lock(names, job_id, timeout, **options)

    def acquire_router_lock(
        self,
        router_name: str,
        job_id: str,
        timeout: float | None = None,
        **options: Unpack[RouterLockOptions],
    ) -> bool:
        """Lock a router as `lock_routers` does; False when it could not be acquired in time."""
        timeout = self._times.router_lock if timeout is None else timeout
        return self.acquire_all_router_locks_atomic([router_name], job_id, timeout, **options)

    def acquire_all_router_locks_atomic(
        self,
        router_names: Sequence[str],
        job_id: str,
        timeout: float | None = None,
        **options: Unpack[RouterLockOptions],
    ) -> bool:
        """`acquire_router_lock` for several routers, all or none."""
        try:
            self._lock(router_names, job_id, timeout, **options)
        except RegistryLockTimeout as error:
            # The caller gets a bool, so the log is the place that names the holder.
            self._logger.info("routers not locked job=%s: %s", job_id, error.message)
            return False
        self._logger.info(
            "routers locked job=%s routers=%s", job_id, ",".join(_listed(router_names))
        )
        return True

    def router_lock(
        self,
        router_name: str,
        job_id: str,
        timeout: float | None = None,
        **options: Unpack[RouterLockOptions],
    ) -> AbstractContextManager[Grant]:
        """Lock a router for a `with` block, which gets the grant. Raises what `lock_routers` does,
        and RegistryLost at the end if the lock was taken away. In another block of the same job,
        only the outer block releases it.
        """
        timeout = self._times.router_lock if timeout is None else timeout
        return self.all_router_locks([router_name], job_id, timeout, **options)

    @contextmanager
    def all_router_locks(
        self,
        router_names: Sequence[str],
        job_id: str,
        timeout: float | None = None,
        **options: Unpack[RouterLockOptions],
    ) -> Iterator[Grant]:
        """`router_lock` for several routers, all or none."""
        grant = self._lock(router_names, job_id, timeout, **options)

        def leave(*raised: Any) -> None:
            try:
                with registry_errors():
                    grant.__exit__(*raised)
            finally:
                self._context.after_change()

        with ExitStack() as stack:
            # Not `registry_errors` around the block: what the block raises is the caller's own.
            stack.push(leave)
            yield grant

    def release_router_lock(self, router_name: str, job_id: str) -> bool:
        """Release a router, and hand it to the next in line; False, and nothing changed, when the
        job does not hold it.
        """
        return bool(self.release_all_router_locks([router_name], job_id))

    def release_all_router_locks(self, router_names: Sequence[str], job_id: str) -> int:
        """`unlock_routers`, but returns how many; 0 when the job holds none of them."""
        try:
            return len(self.unlock_routers(router_names, job_id))
        except RegistryNotFound:
            return 0

    @changes
    def unlock_routers(self, router_names: Sequence[str], job_id: str) -> tuple[str, ...]:
        """Release what the job holds of these routers; return which. Raises RegistryNotFound when
        it holds none of them.
        """
        freed = self._routers.release(router_names, job_id)
        self._logger.info("routers unlocked job=%s routers=%s", job_id, ",".join(freed))
        return freed

    @reads
    def is_router_locked(self, router_name: str) -> bool:
        """Whether any job holds the router, in either mode."""
        return any(not hold.reclaimable for hold in self._locks.status(router_name).holds)

    def router_status(self, router_names: Iterable[str] = ()) -> list[LockStatus]:
        """Who holds these routers and who waits for them; without names, of every lock that is held
        or waited for.
        """
        names = _listed(router_names)
        return self._context.read(
            lambda: [self._locks.status(name) for name in names] or self._locks.list_held()
        )

    def wait_for_router(
        self,
        router_name: str,
        timeout: float | None = None,
        *,
        job_id: str | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
    ) -> bool:
        """Wait until the router is free, and take nothing; False when it was not in time. See
        `wait_for_all_routers`.
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

        It sleeps, and never polls. Another job may take them in the next instant. `mode="shared"`
        waits only for exclusive holders. A job that holds routers says so by `job_id`: its own
        locks are not waited for, and a wait that would never end raises RegistryDeadlock.
        """
        try:
            blocked = self.wait_routers_free(
                router_names, timeout, job_id=job_id, mode=mode, on_wait=on_wait
            )
        except RegistryLockTimeout:
            return False
        return blocked is None

    @changes
    def wait_routers_free(
        self,
        router_names: Sequence[str],
        timeout: float | None = None,
        *,
        job_id: str | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> Obstruction | None:
        """`wait_for_all_routers`, but None when the routers were free, otherwise who held them when
        the time was over. `float("inf")` waits without limit; the wait also ends when the
        descriptor `stop_fd` becomes readable. Raises RegistryLockTimeout when the store was busy
        for too long.
        """
        return self._locks.wait_free(
            router_names,
            by=f"wait-{os.getpid()}-{os.urandom(3).hex()}" if job_id is None else job_id,
            mode=mode,
            timeout_s=self._times.router_lock if timeout is None else timeout,
            on_wait=on_wait,
            stop_fd=stop_fd,
        )

    @reads
    def router_statistics(
        self, router_names: Sequence[str] | None = None
    ) -> dict[str, LockStatistics]:
        """The statistics of these routers, or of all that were ever locked: grants, waits,
        timeouts, deaths, deadlocks, and histograms of the times of waits and holds.
        """
        found = self._locks.statistics()
        return found if router_names is None else chosen_statistics(_listed(router_names), found)

    # --- the whole registry ---

    def sweep(self) -> Swept:
        """Remove the leases of dead processes and the expired ones; return how many. The next
        change of the same host or neighbour entry removes them too. Router locks need no sweep: the
        next waiting job gets the lock of a dead job.
        """
        swept = Swept(
            self._context.change(self._host_leases.sweep),
            self._context.change(self._neighbor_leases.sweep),
        )
        self._logger.info("swept host_leases=%d neighbor_leases=%d", *swept)
        return swept

    @reads
    def counts(self) -> Counts:
        """How many hosts there are, and how many leases that count. Skips damaged records."""
        leases, neighbors = self._host_leases, self._neighbor_leases
        return Counts(self._hosts.count(), leases.count(), neighbors.count())

    def close(self) -> None:
        """Stop renewing leases. Nothing is released."""
        self._renewer.close()


def _listed(names: Iterable[str]) -> list[str]:
    """The names. As for locks, a text is one name."""
    return [names] if isinstance(names, str) else list(names)


def _neighbor(host_name: str, neighbor_ip: str) -> tuple[str, str]:
    """The key and the address of a neighbour entry. Raises InvalidName and InvalidValue."""
    address = normal_ip(neighbor_ip, "neighbor_ip")
    return neighbor_key(check_id(host_name, "host name"), address), address
