"""Leases on source hosts: who uses a host, counted by its holders, under the rule of its router's lock."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.domains.network.address import a_batch, check_dscp, check_job_type
from holdfast.domains.network.claims import Claims
from holdfast.domains.network.record import HostLease, HostLeases, lease_begun
from holdfast.domains.network.room import Room
from holdfast.domains.network.routers import Routers
from holdfast.domains.network.spaces import HOST_LEASES, HOSTS
from holdfast.kernel.errors import InvalidValue, RegistryNotFound
from holdfast.kernel.holder import Holder, ThisProcess
from holdfast.kernel.names import check_id, check_label, check_new_label
from holdfast.kernel.store import Tx

_NEEDED = frozenset({"host_name", "job_type", "router_name"})


class Wanted(NamedTuple):
    """A lease to be taken, once it is known to be possible."""

    host_name: str
    job_type: str
    router_name: str
    dscp: int | None = None


def wanted(host_name: str, job_type: str, router_name: str, dscp: int | None = None) -> Wanted:
    """Check what a caller gave. Raises InvalidName and InvalidValue."""
    check_id(host_name, "host name")
    check_label(router_name, "router name")
    return Wanted(host_name, check_job_type(job_type), router_name, check_dscp(dscp))


def all_wanted(items: Iterable[Mapping[str, Any]]) -> list[Wanted]:
    """The same for many, each by the names of the arguments. Raises InvalidValue for unknown and missing ones."""
    batch = a_batch(items, "leases")
    for item in batch:
        if not isinstance(item, Mapping) or set(item) - _NEEDED - {"dscp"} or _NEEDED - set(item):
            raise InvalidValue(
                "each lease of a batch is an object of host_name, job_type, router_name and, if wanted, dscp: "
                f"{ascii(item)[:60]} is not",
                field="leases",
            )
    return [wanted(**item) for item in batch]


class Leasing:
    """The leases on the hosts of one registry."""

    def __init__(self, room: Room, claims: Claims, routers: Routers) -> None:
        self._room = room
        self._claims = claims
        self._routers = routers
        self._timeout_s = room.settings.lock_timeouts.host_leases

    def take(
        self, run_id: str, leases: Sequence[Wanted], *, pid: int | ThisProcess | None, ttl_s: float | None
    ) -> tuple[dict[str, int], Holder | None]:
        """Lease all of these hosts for a run, or none; return the counts and who holds.

        Raises RegistryNotFound for a host that is not registered, InvalidValue for one of another router, and RegistryHeld
        when another job has a router exclusively. The last is seen just before the step that leases: see `Routers.admit`.
        """
        check_new_label(run_id, "run id")
        holder = self._room.holder(pid)
        if not leases:
            return {}, holder
        self._routers.admit(run_id, [one.router_name for one in leases])
        verdicts = self._claims.verdicts(dict.fromkeys(one.host_name for one in leases))

        def body(tx: Tx) -> dict[str, int]:
            counts = {}
            for one in leases:
                _refuse_stranger(tx, one)
                lease = HostLease(
                    by=run_id,
                    lease=lease_begun(tx.now, holder, ttl_s),
                    process=holder,
                    pid=None if holder is None else holder.pid,
                    allocated_at=tx.now.timestamp(),
                    job_type=one.job_type,
                    dscp=one.dscp,
                )
                anew = HostLeases(router=one.router_name)
                counts[one.host_name] = self._claims.take(tx, one.host_name, anew, lease, verdicts)
            return counts

        return self._room.store.transact(body, scope=[HOSTS, HOST_LEASES], timeout_s=self._timeout_s), holder

    def drop(self, run_id: str, host_name: str) -> int:
        """End a run's lease on a host; return the count that is left. Raises RegistryNotFound when it has none."""
        check_label(run_id, "run id")
        verdicts = self._claims.verdicts([check_id(host_name, "host name")])

        def body(tx: Tx) -> tuple[int, bool]:
            return self._claims.drop(tx, host_name, run_id, verdicts)

        count, held = self._room.store.transact(body, scope=[HOST_LEASES], timeout_s=self._timeout_s)
        if not held:
            raise RegistryNotFound(
                f"run {run_id} has no lease on host {host_name}: `holdfast network leases list` shows those there are",
                run_id=run_id,
                host=host_name,
                count=count,
            )
        return count


def _refuse_stranger(tx: Tx, one: Wanted) -> None:
    row = tx.get(HOSTS, one.host_name)
    if row is None:
        raise RegistryNotFound(
            f"there is no host {one.host_name}: register it first; `holdfast network hosts list` shows those there are",
            host=one.host_name,
        )
    if row.record.connected_to != one.router_name:
        raise InvalidValue(
            f"host {one.host_name} is connected to {row.record.connected_to}, not to {one.router_name}: lease it under its own "
            "router, whose lock guards it",
            host=one.host_name,
            router=row.record.connected_to,
            field="router_name",
        )
