"""What the registry keeps: hosts, leases on hosts, and leases on neighbour entries.

The leases on one host are one record, as are those on one neighbour entry, so that a count is
always read together with its holders. `more` has the fields of other programs and of the caller.
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
"""A time as the file has it: seconds since 1970, or a text. It is kept, but no rule reads it."""

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a lease that only its release ends."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""The beginning of a lease whose beginning is not known."""


class Host(Record, frozen=True, kw_only=True):
    """One registered host. Its address and MAC are kept as they were written."""

    primary_ip: str
    connected_to: str
    mac_address: str
    created_at: Moment = None
    registered_at_timestamp: Moment = None
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class RunLease(Hold, frozen=True, kw_only=True):
    """The lease of one run, `by`."""

    pid: int | None = None
    """The process as a number, as files show it. Only `process` proves anything."""
    allocated_at: Moment = None
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class HostLease(RunLease, frozen=True, kw_only=True):
    """A lease on a source host."""

    job_type: str = ""
    dscp: int | None = None


class HostLeases(Record, frozen=True, kw_only=True):
    """The leases on a source host, oldest first."""

    router: str
    leases: tuple[HostLease, ...] = ()
    more: dict[str, Any] = msgspec.field(default_factory=dict)


class NeighborLeases(Record, frozen=True, kw_only=True):
    """The leases on an entry of a host's neighbour table, oldest first."""

    host_name: str
    neighbor_ip: str
    leases: tuple[RunLease, ...] = ()
    more: dict[str, Any] = msgspec.field(default_factory=dict)


def new_lease(now: datetime, process: Holder | None, ttl_s: float | None) -> Lease:
    """A lease from now on. It ends after its time to live, else with its process, else only by its
    release.
    """
    if ttl_s is not None:
        return leases.grant(now, ttl_s, explicit=True)
    return lease_until_released(now) if process is None else leases.grant(now, HOLD_LEASE_S)


def lease_until_released(granted_at: datetime) -> Lease:
    return Lease(granted_at=granted_at, expires_at=NEVER)


def lease_within(lease: Lease, limit_s: float | None) -> Lease:
    """The lease under the setting `lease_ttl_s`. A lease without an end, as other programs write
    it, ends that long after its beginning. If its beginning is not known, it has no end.
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
