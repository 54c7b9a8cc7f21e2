"""What the registry keeps: hosts, leases on hosts, and leases on neighbour entries.

A host's leases are one record, as are a neighbour entry's, so that a count is always read with its
holders. A lease is a hold (primitives/holds.py) that knows a little more. `more` has what other
programs, or the caller, keep beside.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Record
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import HOLD_LEASE_S
from holdfast.primitives.holds import Hold

Moment = int | float | str | None
"""A time as it stands in the file it came from: seconds since 1970, or a text. Kept as it is,
and decided by nowhere.
"""

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""When a lease ends that nothing but its release does."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""When a lease began of which that is not known."""


class Host(Record, frozen=True, kw_only=True):
    """One registered host. Its address and MAC are kept as they were written."""

    primary_ip: str
    connected_to: str
    mac_address: str
    created_at: Moment = None
    registered_at_timestamp: Moment = None
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class RunLease(Hold, frozen=True, kw_only=True):
    """One run's lease on something; `by` is the run."""

    pid: int | None = None
    """The process as a number, as files show it. Only `process` proves anything."""
    allocated_at: Moment = None
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class HostLease(RunLease, frozen=True, kw_only=True):
    """A lease on a source host."""

    job_type: str = ""
    dscp: int | None = None


class HostLeases(Record, frozen=True, kw_only=True):
    """A source host and who leases it, in the order they came."""

    router: str
    leases: tuple[HostLease, ...] = ()
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class NeighborLeases(Record, frozen=True, kw_only=True):
    """An entry in a host's neighbour table and who needs it, in the order they came."""

    host_name: str
    neighbor_ip: str
    leases: tuple[RunLease, ...] = ()
    more: dict[str, Any] = msgspec.field(default_factory=dict)


Leased = HostLeases | NeighborLeases


def lease_begun(now: datetime, process: Holder | None, ttl_s: float | None) -> Lease:
    """The lease of a claim that begins now: by its time to live, by its process, or until it is
    released.
    """
    if ttl_s is not None:
        return leases.grant(now, ttl_s, explicit=True)
    return lease_until_released(now) if process is None else leases.grant(now, HOLD_LEASE_S)


def lease_until_released(granted_at: datetime) -> Lease:
    """A lease that no time ends."""
    return Lease(granted_at=granted_at, expires_at=NEVER)


def lease_within(lease: Lease, limit_s: float | None) -> Lease:
    """The lease under a limit for all of them: one that nothing but its release ends, as another
    program wrote it, ends so long after it began. Where that is not known, it goes on.
    """
    if limit_s is None or lease.expires_at != NEVER or lease.granted_at == LONG_AGO:
        return lease
    try:
        return leases.grant(lease.granted_at, limit_s, explicit=True)
    except InvalidValue:
        # It would end beyond the calendar.
        return lease


def neighbor_key(host_name: str, neighbor_ip: str) -> str:
    """The key of a neighbour entry. A host's name has no colon, so no two entries share one."""
    return f"{host_name}:{neighbor_ip}"
