"""The registry in plain files: `hosts.json`, `host_leases.json`, `neighbor_leases.json` and one
file a router that shows who holds it; and the spaces of the first three.

Times are kept as they were written, and so are members of other programs. What the format has no
place for (the exact process, the end of a lease) is in a member of its own, `holdfast`.
"""

from collections.abc import Callable
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
OWN_MEMBER = "holdfast"

CORE_FIELDS = ("primary_ip", "connected_to", "mac_address", "created_at", "registered_at_timestamp")
"""The fields of a host that its additional information never overwrites."""

L = TypeVar("L", bound=RunLease)


# Each `read_` function raises KeyError, TypeError or ValueError for a document of another form.


def write_host(host: Host) -> Document:
    """A host as hosts.json has it. An unknown time is left out."""
    known = {name: getattr(host, name) for name in CORE_FIELDS}
    return {**host.more, **{name: value for name, value in known.items() if value is not None}}


def read_host(_: str, document: Document) -> Host:
    known, more = _split(document, CORE_FIELDS)
    return msgspec.convert({**known, "more": more}, Host)


def write_host_leases(leases: HostLeases) -> Document:
    written = [_write_lease(lease) for lease in leases.leases]
    return {**leases.more, "router": leases.router, "leases": written}


def read_host_leases(_: str, document: Document) -> HostLeases:
    known, more = _split(document, ("router", "leases"))
    leases = [_read_lease(one, HostLease, ("job_type", "dscp")) for one in known.pop("leases", [])]
    return msgspec.convert({**known, "leases": leases, "more": more}, HostLeases)


def write_neighbor_leases(leases: NeighborLeases) -> Document:
    entry = {"host_name": leases.host_name, "neighbor_ip": leases.neighbor_ip}
    return {**leases.more, **entry, "leases": [_write_lease(lease) for lease in leases.leases]}


def read_neighbor_leases(_: str, document: Document) -> NeighborLeases:
    known, more = _split(document, ("host_name", "neighbor_ip", "leases"))
    leases = [_read_lease(one, RunLease, ()) for one in known.pop("leases", [])]
    return msgspec.convert({**known, "leases": leases, "more": more}, NeighborLeases)


def show_router(lock: Lock) -> Document | None:
    """Who holds a router, for people to read; None when it is free."""
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


class _OwnMember(msgspec.Struct, frozen=True, kw_only=True):
    process: Holder | None = None
    lease: Lease | None = None


def lease_document(lease: RunLease) -> Document:
    """A lease as the file has it, without the member `holdfast`."""
    use = {"job_type": lease.job_type, "dscp": lease.dscp} if isinstance(lease, HostLease) else {}
    return {
        **lease.more,
        "run_id": lease.by,
        "pid": lease.pid,
        **use,
        "allocated_at": lease.allocated_at,
    }


def _write_lease(lease: RunLease) -> Document:
    own: Document = {}
    if lease.process is not None:
        own["process"] = to_plain(lease.process)
    if lease.lease != _plain_lease(lease.allocated_at):
        own["lease"] = to_plain(lease.lease)
    return {**lease_document(lease), **({OWN_MEMBER: own} if own else {})}


def _read_lease(document: Any, kind: type[L], use: tuple[str, ...]) -> L:
    if not isinstance(document, dict):
        raise ValueError("a lease is not an object")
    known, more = _split(document, ("run_id", "pid", *use, "allocated_at", OWN_MEMBER))
    own = msgspec.convert(known.pop(OWN_MEMBER, {}), _OwnMember)
    lease = own.lease or _plain_lease(known.get("allocated_at"))
    run_id = known.pop("run_id")
    if known.get("job_type", "") is None:
        # Another program may write null for an unknown job type.
        del known["job_type"]
    return msgspec.convert(
        {**known, "by": run_id, "lease": lease, "process": own.process, "more": more}, kind
    )


def _plain_lease(allocated_at: Moment) -> Lease:
    """The lease of a claim when the file says only when it began."""
    try:
        if isinstance(allocated_at, int | float):
            return lease_until_released(datetime.fromtimestamp(allocated_at, UTC))
    except (ValueError, OverflowError, OSError):
        pass
    return lease_until_released(LONG_AGO)


def _split(document: Document, names: tuple[str, ...]) -> tuple[Document, Document]:
    """The members of these names, and the others."""
    known = {name: value for name, value in document.items() if name in names}
    return known, {name: value for name, value in document.items() if name not in known}


HOSTS_FILE = OneFile(FOLDER, "hosts.json", Wire(write_host, read_host))
HOST_LEASES_FILE = OneFile(FOLDER, "host_leases.json", Wire(write_host_leases, read_host_leases))
NEIGHBOR_LEASES_FILE = OneFile(
    FOLDER, "neighbor_leases.json", Wire(write_neighbor_leases, read_neighbor_leases)
)
ROUTER_SIGN = Sign(LOCKS_FOLDER, "router_{key}", show_router)
"""Written for readers only: the lock table decides."""


def _address_place(normal: Callable[[str], str], address: str) -> Parts:
    """The index key of an address. An invalid one, which another program wrote, is indexed by its
    text.
    """
    try:
        return (normal(address),)
    except InvalidValue:
        return (address[:LABEL_CHARS_MAX],)


# A transaction latches spaces in the order of their ranks. The lock table of the routers is between
# the last two; no transaction has both, since locks are of one boot.
HOSTS = Space(
    "hosts",
    Host,
    rank=10,
    indexes={
        "ip": lambda host: _address_place(normal_ip, host.primary_ip),
        "mac": lambda host: _address_place(normal_mac, host.mac_address),
    },
    layout=HOSTS_FILE,
)
HOST_LEASES = Space("host_leases", HostLeases, rank=20, layout=HOST_LEASES_FILE)
NEIGHBOR_LEASES = Space("neighbor_leases", NeighborLeases, rank=40, layout=NEIGHBOR_LEASES_FILE)
