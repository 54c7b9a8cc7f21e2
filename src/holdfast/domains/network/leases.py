"""Leases counted by their holders: which runs use a source host or need a neighbour entry."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from holdfast.domains.network.address import check_dscp, check_job_type
from holdfast.domains.network.context import NetworkContext, Pid
from holdfast.domains.network.records import (
    HostLease,
    HostLeases,
    NeighborLeases,
    RunLease,
    lease_within,
    new_lease,
)
from holdfast.domains.network.wire import HOSTS, lease_document
from holdfast.kernel import clock
from holdfast.kernel.errors import InvalidValue, RegistryError, RegistryNotFound
from holdfast.kernel.holder import ProbedLiveness
from holdfast.kernel.limits import LEASES_PER_HOST_MAX
from holdfast.kernel.names import check_id, check_label
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, Row, Tx
from holdfast.primitives.holds import HoldRenewer, dropped, living, probe_all, taken
from holdfast.primitives.steady_clock import steady_clock

Info = dict[str, Any]
"""A host or a lease as its file shows it."""

Leases = HostLeases | NeighborLeases
T = TypeVar("T")


class LeaseRequest(NamedTuple):
    """A lease to take on `key`."""

    key: str
    new_record: Leases
    """The record to write if the key has none yet."""
    use: Mapping[str, Any] = {}
    """What a lease on a host has beside the fields of every lease."""

    @property
    def router(self) -> str:
        return cast("HostLeases", self.new_record).router


def lease_request(
    host_name: str, job_type: str, router_name: str, dscp: int | None = None
) -> LeaseRequest:
    """Check a caller's arguments. Raises InvalidName and InvalidValue."""
    check_id(host_name, "host name")
    check_label(router_name, "router name")
    use = {"job_type": check_job_type(job_type), "dscp": check_dscp(dscp)}
    return LeaseRequest(host_name, HostLeases(router=router_name), use)


def _check_host(tx: Tx, name: str, router_name: str) -> None:
    row = tx.get(HOSTS, name)
    if row is None:
        raise no_such_host(name)
    router = row.record.connected_to
    if router != router_name:
        raise InvalidValue(
            f"host {name} is connected to {router}, not to {router_name}: lease it under its own "
            "router, whose lock guards it",
            host=name,
            router=router,
            field="router_name",
        )


def no_such_host(name: str) -> RegistryNotFound:
    return RegistryNotFound(
        f"there is no host {name}: `holdfast network hosts list` shows the registered ones",
        host=name,
    )


class LeaseTable:
    """The leases of one space, one record a key. `kind` begins the names of its journal entries.

    Processes are probed before a transaction. Each change of a record also removes its ended
    leases.
    """

    def __init__(
        self,
        context: NetworkContext,
        space: Space[Any],
        kind: str,
        timeout_s: float,
        renewer: HoldRenewer,
        also: Sequence[Space[Any]] = (),
    ) -> None:
        self._context = context
        self._store = context.store
        self._clock = steady_clock(context.store)
        self._space = space
        self._kind = kind
        self._timeout_s = timeout_s
        self._renewer = renewer
        self._scope = [*also, space]

    def probe(self, keys: Iterable[str]) -> ProbedLiveness:
        """Probe the processes that have leases on these keys."""
        self._clock.compare()
        return self._probe(
            row for key in keys if (row := self._store.get(self._space, key)) is not None
        )

    def _probe(self, rows: Iterable[Row[Any]]) -> ProbedLiveness:
        found = [lease for row in rows for lease in row.record.leases]
        return probe_all(found, self._context.processes, embedded=self._store.embedded)

    def take(
        self, run_id: str, requests: Sequence[LeaseRequest], pid: Pid, ttl_s: float | None
    ) -> dict[str, int]:
        """Take all of the leases for a run, or none; return the count of each key. Taking a lease
        again renews it.

        Raises RegistryNotFound for a process that is dead or a host that is not registered,
        InvalidValue for a host of another router, RegistryError for too many leases on a key.
        """
        holder = self._context.holder(pid)
        ttl_s = self._context.settings.lease_ttl_s if ttl_s is None else ttl_s
        if not requests:
            return {}
        probed = self.probe(dict.fromkeys(request.key for request in requests))

        def body(tx: Tx) -> dict[str, int]:
            counts = {}
            for key, new_record, use in requests:
                lease_type = RunLease
                if isinstance(new_record, HostLeases):
                    _check_host(tx, key, new_record.router)
                    lease_type = HostLease
                lease = lease_type(
                    by=run_id,
                    lease=new_lease(tx.now, holder, ttl_s),
                    process=holder,
                    pid=None if holder is None else holder.pid,
                    allocated_at=tx.now.timestamp(),
                    **use,
                )
                record = self._swept(tx, key, probed) or new_record
                counts[key] = self._add(tx, key, record, lease)
            return counts

        counts = self._transact(body, self._scope)
        self._renewer.keep(self._space, counts, run_id, holder if ttl_s is None else None)
        return counts

    def _transact(self, body: Callable[[Tx], T], scope: Sequence[Space[Any]] | None = None) -> T:
        scope = [self._space] if scope is None else scope
        return self._store.transact(body, scope=scope, timeout_s=self._timeout_s)

    def _add(self, tx: Tx, key: str, record: Leases, lease: RunLease) -> int:
        before = next((one for one in record.leases if one.by == lease.by), None)
        if before is not None:
            # A renewal is the same hold: it keeps its beginning.
            lease = replace(lease, allocated_at=before.allocated_at, more=before.more)
        leases = taken(record.leases, lease)
        if len(leases) > LEASES_PER_HOST_MAX:
            raise RegistryError(
                f"{key} has {LEASES_PER_HOST_MAX} leases, the most there may be: release some of "
                "them",
                key=key,
            )
        tx.put(self._space, key, replace(record, leases=leases))
        self._log(tx, "taken", key, run_id=lease.by, count=len(leases))
        return len(leases)

    def drop(self, key: str, run_id: str) -> tuple[int, bool]:
        """End a run's lease; return the count that is left, and whether the run had a lease. A run
        may drop its own lease though its process is dead.
        """
        probed = self.probe([key])

        def body(tx: Tx) -> tuple[int, bool]:
            row = tx.get(self._space, key)
            held = row is not None and any(lease.by == run_id for lease in row.record.leases)
            if held and row is not None:
                self._write(tx, key, replace(row.record, leases=dropped(_leases(row), run_id)))
            count = len(self.holders(tx, key, probed))
            if held:
                self._log(tx, "dropped", key, run_id=run_id, count=count)
            return count, held

        count, held = self._transact(body)
        self.stop_renewing(key, run_id)
        return count, held

    def stop_renewing(self, key: str, run_id: str) -> None:
        self._renewer.leave(self._space, key, run_id)

    def holders(self, tx: Tx, key: str, probed: ProbedLiveness) -> tuple[str, ...]:
        """The runs that hold a key, after the ended leases were removed."""
        record = self._swept(tx, key, probed)
        return () if record is None else tuple(lease.by for lease in record.leases)

    def remove(self, tx: Tx, key: str) -> None:
        row = tx.get(self._space, key)
        if row is not None:
            tx.delete(self._space, key)
            left = len(row.record.leases)
            for lease in row.record.leases:
                left -= 1
                self._log(tx, "dropped", key, run_id=lease.by, count=left, forced=True)

    def count(self, key: str | None = None) -> int:
        """How many leases count, on one key or in all; damaged records of others are skipped."""
        looked, _ = self._look(key, damaged=[])
        return sum(len(counting) for _, counting in looked)

    def sweep(self) -> int:
        """Remove every lease that has ended; return how many. Skips damaged records."""
        self._clock.compare()
        looked, probed = self._look(None, damaged=[])
        due = [row.key for row, counting in looked if len(counting) < len(row.record.leases)]

        def body(tx: Tx) -> int:
            swept = 0
            for key in due:
                row = tx.get(self._space, key)
                before = 0 if row is None else len(row.record.leases)
                swept += before - len(self.holders(tx, key, probed))
            return swept

        return self._transact(body) if due else 0

    def show(self, key: str | None, damaged: Damage | None, *fields: str) -> dict[str, Info]:
        """Leases by key, with these fields of their record; those of one key, or all.

        `dead` marks a lease that no longer counts (its process is dead or its time is over); the
        next change of its record removes it. A damaged record raises, or is added to `damaged`.
        """
        found = {}
        for row, counting in self._look(key, damaged)[0]:
            shown = []
            for lease in _leases(row):
                limited = self._limited(lease).lease
                expires_at = clock.render(limited.expires_at) if limited.explicit else None
                dead = lease not in counting
                shown.append({**lease_document(lease), "expires_at": expires_at, "dead": dead})
            record = {name: getattr(row.record, name) for name in fields}
            found[row.key] = {**row.record.more, **record, "leases": shown}
        return found

    def _look(
        self, key: str | None, damaged: Damage | None
    ) -> tuple[list[tuple[Row[Any], tuple[RunLease, ...]]], ProbedLiveness]:
        """The records of one key, or all, each with the leases that count; and the liveness of
        their processes.
        """
        if key is not None:
            # One key alone: damaged records of others do not matter.
            row = self._store.get(self._space, key)
            rows = [] if row is None else [row]
        else:
            rows = self._store.read(
                lambda tx: tx.range(self._space, damaged=damaged), scope=[self._space]
            )
        probed = self._probe(rows)
        now = self._store.now()
        return [(row, self._living(_leases(row), probed, now)) for row in rows], probed

    def _limited(self, lease: RunLease) -> RunLease:
        """The lease with the end that `lease_ttl_s` gives it."""
        limit_s = self._context.settings.lease_ttl_s
        return replace(lease, lease=lease_within(lease.lease, limit_s))

    def _living(
        self, held: tuple[RunLease, ...], probed: ProbedLiveness, now: datetime
    ) -> tuple[RunLease, ...]:
        """The leases that count, unchanged."""
        return tuple(
            lease for lease in held if living((self._limited(lease),), probed, now, self._clock)
        )

    def _swept(self, tx: Tx, key: str, probed: ProbedLiveness) -> Leases | None:
        """The record without its ended leases; None when no lease is left."""
        row = tx.get(self._space, key)
        if row is None:
            return None
        record: Leases = row.record
        rest = self._living(_leases(row), probed, tx.now)
        if len(rest) == len(record.leases):
            return record
        left = {lease.by for lease in rest}
        for lease in record.leases:
            if lease.by not in left:
                self._log(tx, "swept", key, run_id=lease.by, count=len(rest))
        record = replace(record, leases=rest)
        self._write(tx, key, record)
        return record if rest else None

    def _write(self, tx: Tx, key: str, record: Leases) -> None:
        if record.leases:
            tx.put(self._space, key, record)
        else:
            tx.delete(self._space, key)

    def _log(self, tx: Tx, step: str, key: str, **data: object) -> None:
        self._context.journal.append(tx, kind=f"{self._kind}.{step}", subject=key, data=data)


def _leases(row: Row[Any]) -> tuple[RunLease, ...]:
    return cast("tuple[RunLease, ...]", row.record.leases)
