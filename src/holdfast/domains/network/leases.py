"""Leases on source hosts: who uses a host, counted by its holders, under the rule of its router's
lock.

Leases counted by their holders: what a source host and a neighbour entry have in common.

Used inside the caller's transaction, so that a batch is one step. What is known of processes is
found out before.

Leases on neighbour entries: which runs need an entry of a host's neighbour table.

The registry as its callers see it: plain dicts, in the form of its files, with the dead marked.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from holdfast.domains.network.address import a_batch, check_dscp, check_job_type, normal_ip
from holdfast.domains.network.context import Room
from holdfast.domains.network.records import (
    HostLease,
    HostLeases,
    Leased,
    NeighborLeases,
    RunLease,
    lease_begun,
    lease_within,
    neighbor_key,
)
from holdfast.domains.network.routers import Routers
from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
from holdfast.kernel import clock
from holdfast.kernel.errors import InvalidValue, RegistryError, RegistryNotFound
from holdfast.kernel.holder import Holder, ThisProcess
from holdfast.kernel.limits import LEASES_PER_HOST_MAX
from holdfast.kernel.names import check_id, check_label, check_new_label
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, ReadTx, Row, Tx
from holdfast.primitives.holds import Verdicts, dropped, living, taken, verdicts_on
from holdfast.primitives.steady_clock import steady_clock


class Claims:
    """The leases of one space. `kind` begins the names of its journal entries."""

    def __init__(self, room: Room, space: Space[Any], kind: str) -> None:
        self._room = room
        self._steady = steady_clock(room.store)
        self._space = space
        self._kind = kind

    def verdicts(self, keys: Iterable[str]) -> Verdicts:
        """Look at the processes that have leases under these keys. Does I/O, so it is for outside
        of transactions.
        """
        self._steady.look()
        rows = [row for key in keys if (row := self._room.store.get(self._space, key)) is not None]
        return self.verdicts_in(rows)

    def verdicts_in(self, rows: Iterable[Row[Any]]) -> Verdicts:
        """The same for records at hand."""
        found = [lease for row in rows for lease in row.record.leases]
        return verdicts_on(found, self._room.processes, embedded=self._room.store.embedded)

    def all(self, damaged: Damage | None = None) -> list[Row[Any]]:
        """Every record. A damaged one raises, or is put into `damaged`."""
        return self._room.store.read(
            lambda tx: tx.range(self._space, damaged=damaged), scope=[self._space]
        )

    def one(self, key: str) -> list[Row[Any]]:
        """The record under a key, if there is one. Damaged others do not matter."""
        row = self._room.store.get(self._space, key)
        return [] if row is None else [row]

    def ends(self, lease: RunLease) -> RunLease:
        """The lease as it ends by `lease_ttl_s`, if that is what ends it."""
        return replace(lease, lease=lease_within(lease.lease, self._room.settings.lease_ttl_s))

    def living(
        self, held: tuple[RunLease, ...], verdicts: Verdicts, now: datetime
    ) -> tuple[RunLease, ...]:
        """Those that count, as they are written: their process is not known to be dead, and their
        time is not over.
        """
        return tuple(
            lease for lease in held if living((self.ends(lease),), verdicts, now, self._steady)
        )

    def count(self, key: str) -> int:
        """How many hold it that are not known to be gone."""
        row = self._room.store.get(self._space, key)
        if row is None:
            return 0
        return len(self.living(_leases(row), self.verdicts_in([row]), self._room.store.now()))

    def take(self, tx: Tx, key: str, anew: Leased, lease: RunLease, verdicts: Verdicts) -> int:
        """One more holder, or one that renews; return the count. `anew` is the record if there is
        none. Raises RegistryError when there are too many.
        """
        record = self._swept(tx, key, verdicts) or anew
        held: tuple[RunLease, ...] = record.leases
        before = next((one for one in held if one.by == lease.by), None)
        if before is not None:
            # It is the same hold, and began when it began.
            lease = replace(lease, allocated_at=before.allocated_at, more=before.more)
        leases = taken(held, lease)
        if len(leases) > LEASES_PER_HOST_MAX:
            raise RegistryError(
                f"{key} has {LEASES_PER_HOST_MAX} leases, the most there may be: release some of "
                "them",
                key=key,
            )
        tx.put(self._space, key, replace(record, leases=leases))
        self.tell(tx, "taken", key, run_id=lease.by, count=len(leases))
        return len(leases)

    def drop(self, tx: Tx, key: str, by: str, verdicts: Verdicts) -> tuple[int, bool]:
        """One holder fewer; return the count, and whether it was one. Its own lease it may drop
        though its process is dead.
        """
        row = tx.get(self._space, key)
        held = row is not None and any(lease.by == by for lease in row.record.leases)
        if held and row is not None:
            self._write(tx, key, replace(row.record, leases=dropped(_leases(row), by)))
        record = self._swept(tx, key, verdicts)
        count = 0 if record is None else len(record.leases)
        if held:
            self.tell(tx, "dropped", key, run_id=by, count=count)
        return count, held

    def remaining(self, tx: Tx, key: str, verdicts: Verdicts) -> tuple[str, ...]:
        """Who holds it, once those that are gone have left."""
        record = self._swept(tx, key, verdicts)
        return () if record is None else tuple(lease.by for lease in record.leases)

    def remove(self, tx: Tx, key: str) -> None:
        """End every lease at once."""
        row = tx.get(self._space, key)
        if row is not None:
            tx.delete(self._space, key)
            for at, lease in enumerate(row.record.leases, 1):
                self.tell(
                    tx,
                    "dropped",
                    key,
                    run_id=lease.by,
                    count=len(row.record.leases) - at,
                    forced=True,
                )

    def sweep(self, timeout_s: float) -> int:
        """Let those that are gone leave everywhere; return how many there were. Passes over damaged
        records.
        """
        self._steady.look()
        rows = self.all(damaged=[])
        verdicts = self.verdicts_in(rows)
        now = self._room.store.now()
        due = [
            row.key
            for row in rows
            if len(self.living(_leases(row), verdicts, now)) < len(row.record.leases)
        ]

        def body(tx: Tx) -> int:
            return sum(
                self._number(tx, key) - len(self.remaining(tx, key, verdicts)) for key in due
            )

        return (
            self._room.store.transact(body, scope=[self._space], timeout_s=timeout_s) if due else 0
        )

    def tell(self, tx: Tx, what: str, key: str, **data: object) -> None:
        """Write it into the journal."""
        self._room.journal.append(tx, kind=f"{self._kind}.{what}", subject=key, data=data)

    def _swept(self, tx: Tx, key: str, verdicts: Verdicts) -> Leased | None:
        """The record without those that are gone, which are told of; None when nobody is left."""
        row = tx.get(self._space, key)
        if row is None:
            return None
        rest = self.living(_leases(row), verdicts, tx.now)
        record: Leased = row.record
        if len(rest) == len(record.leases):
            return record
        left = {lease.by for lease in rest}
        for gone in record.leases:
            if gone.by not in left:
                self.tell(tx, "swept", key, run_id=gone.by, count=len(rest))
        record = replace(record, leases=rest)
        self._write(tx, key, record)
        return record if rest else None

    def _write(self, tx: Tx, key: str, record: Leased) -> None:
        if record.leases:
            tx.put(self._space, key, record)
        else:
            tx.delete(self._space, key)

    def _number(self, tx: ReadTx, key: str) -> int:
        row = tx.get(self._space, key)
        return 0 if row is None else len(row.record.leases)


def _leases(row: Row[Any]) -> tuple[RunLease, ...]:
    return cast("tuple[RunLease, ...]", row.record.leases)


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
    """The same for many, each by the names of the arguments. Raises InvalidValue for unknown and
    missing ones.
    """
    batch = a_batch(items, "leases")
    for item in batch:
        if not isinstance(item, Mapping) or set(item) - _NEEDED - {"dscp"} or _NEEDED - set(item):
            raise InvalidValue(
                "each lease of a batch is an object of host_name, job_type, router_name and, if "
                "wanted, dscp: "
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
        self,
        run_id: str,
        leases: Sequence[Wanted],
        *,
        pid: int | ThisProcess | None,
        ttl_s: float | None,
    ) -> tuple[dict[str, int], Holder | None]:
        """Lease all of these hosts for a run, or none; return the counts and who holds.

        Raises RegistryNotFound for a host that is not registered, InvalidValue for one of another
        router, and RegistryHeld when another job has a router exclusively. The last is seen just
        before the step that leases: see `Routers.admit`.
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

        return self._room.store.transact(
            body, scope=[HOSTS, HOST_LEASES], timeout_s=self._timeout_s
        ), holder

    def drop(self, run_id: str, host_name: str) -> int:
        """End a run's lease on a host; return the count that is left. Raises RegistryNotFound when
        it has none.
        """
        check_label(run_id, "run id")
        verdicts = self._claims.verdicts([check_id(host_name, "host name")])

        def body(tx: Tx) -> tuple[int, bool]:
            return self._claims.drop(tx, host_name, run_id, verdicts)

        count, held = self._room.store.transact(
            body, scope=[HOST_LEASES], timeout_s=self._timeout_s
        )
        if not held:
            raise RegistryNotFound(
                f"run {run_id} has no lease on host {host_name}: `holdfast network leases list` "
                "shows those there are",
                run_id=run_id,
                host=host_name,
                count=count,
            )
        return count


def _refuse_stranger(tx: Tx, one: Wanted) -> None:
    row = tx.get(HOSTS, one.host_name)
    if row is None:
        raise RegistryNotFound(
            f"there is no host {one.host_name}: register it first; `holdfast network hosts list` "
            "shows those there are",
            host=one.host_name,
        )
    if row.record.connected_to != one.router_name:
        raise InvalidValue(
            f"host {one.host_name} is connected to {row.record.connected_to}, not to "
            f"{one.router_name}: lease it under its own "
            "router, whose lock guards it",
            host=one.host_name,
            router=row.record.connected_to,
            field="router_name",
        )


class Neighbors:
    """The neighbour entries of one registry. A host need not be registered for it: neighbours are
    also what is not ours.
    """

    def __init__(self, room: Room, claims: Claims) -> None:
        self._room = room
        self._claims = claims
        self._timeout_s = room.settings.lock_timeouts.neighbor_leases

    def take(
        self,
        run_id: str,
        host_name: str,
        neighbor_ip: str,
        *,
        pid: int | ThisProcess | None,
        ttl_s: float | None,
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
        """End a run's lease on an entry; return the count that is left, whether the run had one,
        and the entry's key.

        Raises RegistryNotFound when nobody has one.
        """
        check_label(run_id, "run id")
        key = neighbor_key(check_id(host_name, "host name"), normal_ip(neighbor_ip, "neighbor_ip"))
        verdicts = self._claims.verdicts([key])
        count, held = self._room.store.transact(
            lambda tx: self._claims.drop(tx, key, run_id, verdicts),
            scope=[NEIGHBOR_LEASES],
            timeout_s=self._timeout_s,
        )
        if not held and not count:
            raise RegistryNotFound(
                f"nobody has a lease on neighbour {neighbor_ip} of host {host_name}: there is "
                "nothing to release",
                run_id=run_id,
                host=host_name,
                neighbor_ip=neighbor_ip,
            )
        return count, held, key


Info = dict[str, Any]


def leases_shown(
    claims: Claims, rows: Iterable[Row[Any]], verdicts: Verdicts, now: datetime, *names: str
) -> dict[str, Info]:
    """Leases by their key, with these fields of their record. `dead` marks one that does not
    count any more, and that the next change of the same record sweeps: its process is dead, or
    its time is over.
    """
    found = {}
    for row in rows:
        counted = {lease.by for lease in claims.living(row.record.leases, verdicts, now)}
        shown = [
            {**_shown(claims.ends(lease)), "dead": lease.by not in counted}
            for lease in row.record.leases
        ]
        found[row.key] = {
            **row.record.more,
            **{name: getattr(row.record, name) for name in names},
            "leases": shown,
        }
    return found


def _shown(lease: RunLease) -> Info:
    special = (
        {"job_type": lease.job_type, "dscp": lease.dscp} if isinstance(lease, HostLease) else {}
    )
    ends = clock.render(lease.lease.expires_at) if lease.lease.explicit else None
    facts = {
        "run_id": lease.by,
        "pid": lease.pid,
        **special,
        "allocated_at": lease.allocated_at,
        "expires_at": ends,
    }
    return {**lease.more, **facts}
