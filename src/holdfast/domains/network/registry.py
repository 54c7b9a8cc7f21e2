"""The registry: every operation on hosts, routers and neighbours, each one step."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.domains.network.context import Room
from holdfast.domains.network.hosts import CORE, Hosts, new_host, new_hosts
from holdfast.domains.network.leases import (
    Claims,
    Info,
    Leasing,
    Neighbors,
    all_wanted,
    leases_shown,
    wanted,
)
from holdfast.domains.network.routers import Pid, RouterCalls
from holdfast.domains.network.wire import HOST_LEASES, NEIGHBOR_LEASES, write_host
from holdfast.kernel.errors import RegistryCollision
from holdfast.kernel.holder import THIS_PROCESS
from holdfast.kernel.limits import HOLD_LEASE_S
from holdfast.kernel.names import check_id
from holdfast.kernel.store import Damage
from holdfast.primitives.holds import HoldRenewer
from holdfast.primitives.locks import Locks


class Swept(NamedTuple):
    """How many leases were removed whose runs are gone."""

    host_leases: int
    neighbor_leases: int


class Counts(NamedTuple):
    """How much the registry keeps."""

    hosts: int
    host_leases: int
    neighbor_leases: int


class Registry(RouterCalls):
    """Hosts, their leases, routers and neighbour entries on one store. Thread-safe, process-safe
    and safe after fork.

    Promised: each call takes effect whole or not at all, whatever is killed; names, addresses and
    MACs are unique; a count is the number of runs that hold and are not known to be gone; sets of
    routers cannot deadlock. It tracks and coordinates: no interface, route or namespace is touched.

    Every call raises RegistryError when the registry is switched off, RegistryLockTimeout when the
    store's turn did not come in time, RegistryUnavailable and RegistryCorruption when the store
    fails, InvalidName and InvalidValue (both ValueErrors) for wrong arguments. Claims end with the
    process that took them, which is this one unless `pid` names another or is None.
    """

    def __init__(
        self,
        room: Room,
        locks: Locks,
        *,
        logger: logging.Logger | None = None,
        enabled: bool = True,
        after_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(room, locks, logger=logger, enabled=enabled, after_change=after_change)
        self._host_claims = Claims(room, HOST_LEASES, "host_lease")
        self._neighbor_claims = Claims(room, NEIGHBOR_LEASES, "neighbor_lease")
        self._hosts = Hosts(room, self._host_claims)
        self._leasing = Leasing(room, self._host_claims, self._routers)
        self._neighbors = Neighbors(room, self._neighbor_claims)
        self._renewing = HoldRenewer(
            room.store, room.processes, field="leases", topic="network", lease_s=HOLD_LEASE_S
        )

    # --- hosts ---

    def check_and_register_host(
        self,
        host_name: str,
        primary_ip: str,
        connected_to: str,
        mac_address: str,
        additional_info: Mapping[str, Any] | None = None,
    ) -> bool:
        """Register a host if its name, address and MAC are nobody's yet; False when one of them is,
        and nothing changed.
        """
        try:
            self.register_host(host_name, primary_ip, connected_to, mac_address, additional_info)
        except RegistryCollision as collision:
            self._logger.info("host not registered host=%s: %s", host_name, collision.message)
            return False
        return True

    def register_host(
        self,
        host_name: str,
        primary_ip: str,
        connected_to: str,
        mac_address: str,
        additional_info: Mapping[str, Any] | None = None,
    ) -> None:
        """The same, and RegistryCollision instead of False: it names what collides and with whom.

        Addresses are compared without their mask and in one form, MACs too. What `additional_info`
        says is kept beside; a name there that is a core field's is left out.
        """
        self._refuse_if_off()
        new = new_host(host_name, primary_ip, connected_to, mac_address, additional_info)
        if shadowed := [name for name in CORE if name in (additional_info or {})]:
            self._logger.warning(
                "left out of additional_info host=%s: %s", host_name, ", ".join(shadowed)
            )
        self._change(lambda: self._hosts.register([new]))
        self._logger.info(
            "host registered host=%s ip=%s router=%s", host_name, primary_ip, connected_to
        )

    def register_hosts(self, hosts: Iterable[Mapping[str, Any]]) -> int:
        """Register all of these hosts, or none; return how many. Each is an object of
        `register_host`'s arguments.

        Raises RegistryCollision for the first that collides, with another of the batch or one that
        is there.
        """
        self._refuse_if_off()
        new = new_hosts(hosts)
        self._change(lambda: self._hosts.register(new))
        self._logger.info("hosts registered count=%d", len(new))
        return len(new)

    def unregister_host(self, host_name: str, *, force: bool = False) -> bool:
        """Remove a host; False when there is none. Raises RegistryHeld when runs lease it, unless
        `force` ends their leases in the same step.
        """
        there, ended = self._change(lambda: self._hosts.remove(host_name, force=force))
        for run_id in ended:
            self._renewing.leave(HOST_LEASES, host_name, run_id)
        if there:
            self._logger.info(
                "host unregistered host=%s ended_leases=%s", host_name, ",".join(ended) or "-"
            )
        return there

    def get_host_info(self, host_name: str) -> Info | None:
        """What is known of a host, as hosts.json shows it; None when there is none."""
        host = self._look(lambda: self._hosts.get(host_name))
        return None if host is None else write_host(host)

    def list_all_hosts(self, *, damaged: Damage | None = None) -> dict[str, Info]:
        """The same of every host, by its name. A damaged record raises, unless `damaged` is a list
        to tell of it in.
        """
        return {
            name: write_host(host)
            for name, host in self._look(lambda: self._hosts.all(damaged)).items()
        }

    # --- leases on source hosts ---

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
        """Lease a source host for a run, and return how many runs lease it now. Taking it again is
        one lease.

        The run is a job of the routers: while another job holds the router exclusively the lease is
        refused (RegistryHeld), and with `require_router_lock` also when this run does not hold it.
        That is looked at just before the lease is written; only a run that holds the router itself
        is sure that no other took it in between. Raises RegistryNotFound, a ValueError, when the
        host is not registered.
        """
        self._refuse_if_off()
        one = wanted(host_name, job_type, router_name, dscp)
        return self._leased(run_id, [one._asdict()], pid, ttl_s)[host_name]

    def acquire_source_host_leases(
        self,
        run_id: str,
        leases: Iterable[Mapping[str, Any]],
        *,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
    ) -> dict[str, int]:
        """Lease all of these hosts for a run, or none; return the count of each. Each is an object
        of host_name, job_type, router_name and, if wanted, dscp. Raises what
        `acquire_source_host_lease` does.
        """
        return self._leased(run_id, leases, pid, ttl_s)

    def release_source_host_lease(self, run_id: str, host_name: str) -> tuple[int, bool]:
        """End a run's lease; return how many are left, and whether the host may be taken down: True
        when none is.

        Raises RegistryNotFound, a ValueError, when the run has none.
        """
        count = self._change(lambda: self._leasing.drop(run_id, host_name))
        self._renewing.leave(HOST_LEASES, host_name, run_id)
        self._logger.info("host lease released run=%s host=%s count=%d", run_id, host_name, count)
        return count, count == 0

    def get_host_lease_count(self, host_name: str) -> int:
        """How many runs lease a host, but for those known to be gone."""
        return self._look(lambda: self._host_claims.count(check_id(host_name, "host name")))

    def list_host_leases(
        self, host_name: str | None = None, *, damaged: Damage | None = None
    ) -> dict[str, Info]:
        """Leases by host, or those of one host, as host_leases.json shows them; `dead` marks those
        that do not count. For `damaged` see `list_all_hosts`.
        """
        return self._look(lambda: self._shown(self._host_claims, host_name, damaged, "router"))

    # --- neighbours ---

    def acquire_neighbor_lease(
        self,
        run_id: str,
        host_name: str,
        neighbor_ip: str,
        *,
        pid: Pid = THIS_PROCESS,
        ttl_s: float | None = None,
    ) -> int:
        """Lease a neighbour entry of a host for a run, and return how many runs lease it now.
        Taking it again is one lease.
        """
        count, key, holder = self._change(
            lambda: self._neighbors.take(
                run_id, host_name, neighbor_ip, pid=pid, ttl_s=self._ttl(ttl_s)
            )
        )
        self._renewing.keep(
            NEIGHBOR_LEASES, [key], run_id, holder if self._ttl(ttl_s) is None else None
        )
        self._logger.info("neighbour leased run=%s neighbour=%s count=%d", run_id, key, count)
        return count

    def release_neighbor_lease(
        self, run_id: str, host_name: str, neighbor_ip: str
    ) -> tuple[int, bool]:
        """End a run's lease; return how many are left, and whether the entry may be removed: True
        when this was the last.

        (count, False) when the run had none and others have. Raises RegistryNotFound, a ValueError,
        when nobody has one.
        """
        count, held, key = self._change(
            lambda: self._neighbors.drop(run_id, host_name, neighbor_ip)
        )
        self._renewing.leave(NEIGHBOR_LEASES, key, run_id)
        self._logger.info("neighbour released run=%s neighbour=%s count=%d", run_id, key, count)
        return count, held and count == 0

    def list_neighbor_leases(self, *, damaged: Damage | None = None) -> dict[str, Info]:
        """Leases by neighbour entry, as neighbor_leases.json shows them; `dead` marks those that do
        not count. For `damaged` see `list_all_hosts`.
        """
        return self._look(
            lambda: self._shown(self._neighbor_claims, None, damaged, "host_name", "neighbor_ip")
        )

    # --- all of it ---

    def sweep(self) -> Swept:
        """Remove the leases of dead processes and those whose time is over; return how many there
        were. The next change of the same host or neighbour entry does it too. Locks need no
        sweeping: whoever asks next gets a dead job's.
        """
        times = self._settings.lock_timeouts
        swept = Swept(
            self._change(lambda: self._host_claims.sweep(times.host_leases)),
            self._change(lambda: self._neighbor_claims.sweep(times.neighbor_leases)),
        )
        self._logger.info("swept host_leases=%d neighbor_leases=%d", *swept)
        return swept

    def counts(self) -> Counts:
        """How many hosts there are, and how many leases that count. Passes over damaged records."""
        alive = [
            sum(not lease["dead"] for one in shown.values() for lease in one["leases"])
            for shown in (self.list_host_leases(damaged=[]), self.list_neighbor_leases(damaged=[]))
        ]
        return Counts(self._look(self._hosts.count), *alive)

    def close(self) -> None:
        """Stop giving signs of life. Nothing is released."""
        self._renewing.close()

    def _leased(
        self, run_id: str, leases: Iterable[Mapping[str, Any]], pid: Pid, ttl_s: float | None
    ) -> dict[str, int]:
        self._refuse_if_off()
        chosen, limit_s = all_wanted(leases), self._ttl(ttl_s)
        counts, holder = self._change(
            lambda: self._leasing.take(run_id, chosen, pid=pid, ttl_s=limit_s)
        )
        self._renewing.keep(HOST_LEASES, counts, run_id, holder if limit_s is None else None)
        self._logger.info("hosts leased run=%s counts=%s", run_id, counts)
        return counts

    def _shown(
        self, claims: Claims, key: str | None, damaged: Damage | None, *names: str
    ) -> dict[str, Info]:
        rows = claims.all(damaged) if key is None else claims.one(check_id(key, "host name"))
        return leases_shown(claims, rows, claims.verdicts_in(rows), self._room.store.now(), *names)

    def _ttl(self, ttl_s: float | None) -> float | None:
        return self._settings.lease_ttl_s if ttl_s is None else ttl_s
