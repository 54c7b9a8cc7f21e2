"""Leases on neighbour entries: which runs need an entry of a host's neighbour table."""

from holdfast.domains.network.address import normal_ip
from holdfast.domains.network.claims import Claims
from holdfast.domains.network.record import NeighborLeases, RunLease, lease_begun, neighbor_key
from holdfast.domains.network.room import Room
from holdfast.domains.network.spaces import NEIGHBOR_LEASES
from holdfast.kernel.errors import RegistryNotFound
from holdfast.kernel.holder import Holder, ThisProcess
from holdfast.kernel.names import check_id, check_label, check_new_label
from holdfast.kernel.store import Tx


class Neighbors:
    """The neighbour entries of one registry. A host need not be registered for it: neighbours are also what is not ours."""

    def __init__(self, room: Room, claims: Claims) -> None:
        self._room = room
        self._claims = claims
        self._timeout_s = room.settings.lock_timeouts.neighbor_leases

    def take(
        self, run_id: str, host_name: str, neighbor_ip: str, *, pid: int | ThisProcess | None, ttl_s: float | None
    ) -> tuple[int, str, Holder | None]:
        """Lease an entry for a run; return the count, the entry's key and who holds."""
        check_new_label(run_id, "run id")
        address = normal_ip(neighbor_ip, "neighbor_ip")
        key = neighbor_key(check_id(host_name, "host name"), address)
        holder = self._room.holder(pid)
        verdicts = self._claims.verdicts([key])

        def body(tx: Tx) -> int:
            lease = RunLease(
                by=run_id,
                lease=lease_begun(tx.now, holder, ttl_s),
                process=holder,
                pid=None if holder is None else holder.pid,
                allocated_at=tx.now.timestamp(),
            )
            anew = NeighborLeases(host_name=host_name, neighbor_ip=address)
            return self._claims.take(tx, key, anew, lease, verdicts)

        count = self._room.store.transact(body, scope=[NEIGHBOR_LEASES], timeout_s=self._timeout_s)
        return count, key, holder

    def drop(self, run_id: str, host_name: str, neighbor_ip: str) -> tuple[int, bool, str]:
        """End a run's lease on an entry; return the count that is left, whether the run had one, and the entry's key.

        Raises RegistryNotFound when nobody has one.
        """
        check_label(run_id, "run id")
        key = neighbor_key(check_id(host_name, "host name"), normal_ip(neighbor_ip, "neighbor_ip"))
        verdicts = self._claims.verdicts([key])
        count, held = self._room.store.transact(
            lambda tx: self._claims.drop(tx, key, run_id, verdicts), scope=[NEIGHBOR_LEASES], timeout_s=self._timeout_s
        )
        if not held and not count:
            raise RegistryNotFound(
                f"nobody has a lease on neighbour {neighbor_ip} of host {host_name}: there is nothing to release",
                run_id=run_id,
                host=host_name,
                neighbor_ip=neighbor_ip,
            )
        return count, held, key
