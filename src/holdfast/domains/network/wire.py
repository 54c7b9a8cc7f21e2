"""How the registry lies in plain files: `hosts.json`, `host_leases.json`, `neighbor_leases.json`
and a sign for each router.

Times stand as they were found, and members that are nobody's here survive. What the format has no
place for (who exactly a process is, when a lease ends) stands in a member of its own, `holdfast`,
and only where there is something to say.

The registry's spaces, in the order in which a transaction latches them: hosts, leases on hosts,
leases on neighbours.

Routers come between the last two: they are the lock table's. No transaction has both, since locks
are of one boot.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.domains.network.address import normal_ip, normal_mac
from holdfast.domains.network.records import (
    LONG_AGO,
    Host,
    HostLease,
    HostLeases,
    Moment,
    NeighborLeases,
    RunLease,
    lease_until_released,
)
from holdfast.kernel import clock
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, OneFile, Sign, Wire
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space
from holdfast.primitives.locks.records import Lock

FOLDER = "network"
LOCKS_FOLDER = "network_locks"
OURS = "holdfast"
"""The member of a lease in a file that is this program's own."""

L = TypeVar("L", bound=RunLease)

_HOST = ("primary_ip", "connected_to", "mac_address", "created_at", "registered_at_timestamp")


def write_host(host: Host) -> Document:
    """A host as it stands in hosts.json. A time that is not known is left out."""
    known = {name: getattr(host, name) for name in _HOST}
    return {**host.more, **{name: value for name, value in known.items() if value is not None}}


def read_host(_: str, document: Document) -> Host:
    """A host of hosts.json. Raises ValueError for what is none."""
    known, more = _parted(document, _HOST)
    return msgspec.convert({**known, "more": more}, Host)


def write_host_leases(leases: HostLeases) -> Document:
    """A host's leases as they stand in host_leases.json."""
    written = [
        _written(lease, {"job_type": lease.job_type, "dscp": lease.dscp}) for lease in leases.leases
    ]
    return {**leases.more, "router": leases.router, "leases": written}


def read_host_leases(_: str, document: Document) -> HostLeases:
    """A host's leases of host_leases.json. Raises ValueError for what is none."""
    known, more = _parted(document, ("router", "leases"))
    leases = [_read(one, HostLease, ("job_type", "dscp")) for one in known.pop("leases", [])]
    return msgspec.convert({**known, "leases": leases, "more": more}, HostLeases)


def write_neighbor_leases(leases: NeighborLeases) -> Document:
    """A neighbour entry's leases as they stand in neighbor_leases.json."""
    entry = {"host_name": leases.host_name, "neighbor_ip": leases.neighbor_ip}
    return {**leases.more, **entry, "leases": [_written(lease, {}) for lease in leases.leases]}


def read_neighbor_leases(_: str, document: Document) -> NeighborLeases:
    """A neighbour entry's leases of neighbor_leases.json. Raises ValueError for what is none."""
    known, more = _parted(document, ("host_name", "neighbor_ip", "leases"))
    leases = [_read(one, RunLease, ()) for one in known.pop("leases", [])]
    return msgspec.convert({**known, "leases": leases, "more": more}, NeighborLeases)


def show_router(lock: Lock) -> Document | None:
    """Who holds a router, for people; None when nobody does."""
    if not lock.holds:
        return None
    holders = [
        {
            "job_id": hold.by,
            "mode": hold.mode.value,
            "pid": None if hold.process is None else hold.process.pid,
            "since": clock.render(hold.lease.granted_at),
        }
        for hold in lock.holds
    ]
    return {**holders[0], "holders": holders} if len(holders) > 1 else holders[0]


def _written(lease: RunLease, special: Mapping[str, Any]) -> Document:
    document = {
        **lease.more,
        "run_id": lease.by,
        "pid": lease.pid,
        **special,
        "allocated_at": lease.allocated_at,
    }
    ours: Document = {}
    if lease.process is not None:
        ours["process"] = to_plain(lease.process)
    if lease.lease != _plain_lease(lease.allocated_at):
        ours["lease"] = to_plain(lease.lease)
    return {**document, OURS: ours} if ours else document


def _read(document: Any, kind: type[L], special: tuple[str, ...]) -> L:
    if not isinstance(document, dict):
        raise ValueError("a lease is not an object")
    known, more = _parted(document, ("run_id", "pid", *special, "allocated_at", OURS))
    ours = msgspec.convert(known.pop(OURS, {}), _Ours)
    lease = ours.lease or _plain_lease(known.get("allocated_at"))
    # What is not said of the kind of job, is not known.
    stated = {
        name: value
        for name, value in known.items()
        if name != "run_id" and not (name == "job_type" and value is None)
    }
    return msgspec.convert(
        {**stated, "by": known["run_id"], "lease": lease, "process": ours.process, "more": more},
        kind,
    )


class _Ours(msgspec.Struct, frozen=True, kw_only=True):
    process: Holder | None = None
    lease: Lease | None = None


def _plain_lease(allocated_at: Moment) -> Lease:
    """The lease of a claim of which a file says no more than when it began."""
    try:
        began = (
            datetime.fromtimestamp(allocated_at, UTC)
            if isinstance(allocated_at, int | float)
            else LONG_AGO
        )
    except (ValueError, OverflowError, OSError):
        began = LONG_AGO
    return lease_until_released(began)


def _parted(document: Document, names: tuple[str, ...]) -> tuple[Document, Document]:
    """What of a document is known here, and the rest."""
    known = {name: value for name, value in document.items() if name in names}
    return known, {name: value for name, value in document.items() if name not in known}


HOSTS_FILE = OneFile(FOLDER, "hosts.json", Wire(write_host, read_host))
HOST_LEASES_FILE = OneFile(FOLDER, "host_leases.json", Wire(write_host_leases, read_host_leases))
NEIGHBOR_LEASES_FILE = OneFile(
    FOLDER, "neighbor_leases.json", Wire(write_neighbor_leases, read_neighbor_leases)
)
ROUTER_SIGN = Sign(LOCKS_FOLDER, "router_{key}", show_router)
"""Shown for the lock table, whose truth is elsewhere."""


def ip_place(host: Host) -> Parts:
    """Where a host stands by its address. One that another program wrote, and that is no
    address, stands by its text.
    """
    try:
        return (normal_ip(host.primary_ip),)
    except InvalidValue:
        return (host.primary_ip[:LABEL_CHARS_MAX],)


def mac_place(host: Host) -> Parts:
    """The same by its MAC."""
    try:
        return (normal_mac(host.mac_address),)
    except InvalidValue:
        return (host.mac_address[:LABEL_CHARS_MAX],)


HOSTS = Space("hosts", Host, rank=10, indexes={"ip": ip_place, "mac": mac_place}, layout=HOSTS_FILE)
HOST_LEASES = Space("host_leases", HostLeases, rank=20, layout=HOST_LEASES_FILE)
NEIGHBOR_LEASES = Space("neighbor_leases", NeighborLeases, rank=40, layout=NEIGHBOR_LEASES_FILE)
