"""Hosts, leases, routers and neighbours of a network. A router is a lock of its own name."""

import math
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import (
    RegistryCollision,
    RegistryDeadlock,
    RegistryHeld,
    RegistryNotFound,
)
from holdfast.kernel.limits import BATCH_MAX, DSCP_MAX, SERVER_WAIT_MAX_S
from holdfast.kernel.store import Damage
from holdfast.operations import locks
from holdfast.operations.claims import ClaimPid
from holdfast.operations.fields import (
    By,
    Id,
    Priority,
    Resource,
    Ttl,
    WaitSeconds,
    at_least_zero,
    described,
    items,
)
from holdfast.operations.lock_flags import timeout_flag
from holdfast.operations.operation import Flag, Positional, Request, Wait, operation
from holdfast.primitives.locks.policy import Obstruction
from holdfast.runtime.connection import Holdfast

HostInfo = dict[str, Any]
"""What is known of a host: its core fields, and what else was registered with it."""

_Ip = Annotated[
    str, described("An IP address, with or without a mask.", examples=["10.1.1.100/24"])
]
_Mac = Annotated[str, described("A MAC address.", examples=["02:00:0a:01:01:64"])]
_JobType = Literal["quick", "detailed"]
_DSCP = "The code point that a quick job marks its packets with."
_Dscp = Annotated[int, at_least_zero(_DSCP, DSCP_MAX)]
_Run = Annotated[
    By,
    Flag("--by", metavar="JOB", help="The run that holds it; routers know it as a job."),
]
_LeaseTtl = Annotated[
    Ttl | None,
    Flag(
        "--ttl",
        help="It ends after this long, unless taken again.  [network.lease_ttl_s; never]",
    ),
]


class AddHost(Request, frozen=True, kw_only=True):
    """A host: no other has its name, address or MAC."""

    name: Annotated[Id, Positional()]
    primary_ip: Annotated[
        _Ip, Flag("--ip", metavar="ADDRESS", help="Its address, with or without a mask.")
    ]
    connected_to: Annotated[
        Resource, Flag("--router", metavar="NAME", help="The router that it is connected to.")
    ]
    mac_address: Annotated[_Mac, Flag("--mac", metavar="MAC", help="Its MAC address.")]
    info: Annotated[
        dict[str, str],
        Flag("--info", metavar="KEY=VALUE", help="Something else to keep with it; repeatable."),
    ] = msgspec.field(default_factory=dict)


class AddHosts(Request, frozen=True, kw_only=True):
    """Hosts, all or none."""

    hosts: Annotated[list[AddHost], Meta(max_length=BATCH_MAX)]


class HostName(Request, frozen=True, kw_only=True):
    """A host."""

    host: Annotated[Id, Positional("NAME")]


class RemoveHost(HostName, frozen=True, kw_only=True):
    """A host, and whether the leases on it are to end too."""

    force: Annotated[bool, Flag("--force", help="End the leases on it too.")] = False


class ListHosts(Request, frozen=True, kw_only=True):
    """Which hosts: those of a router, or all."""

    router: Annotated[
        Resource | None, Flag("--router", metavar="NAME", help="Only those connected to it.")
    ] = None


class TakeLeases(Request, frozen=True, kw_only=True):
    """Hosts to lease for a run, all or none; with each host's own router unless one is named."""

    hosts: Annotated[list[str], items("The hosts' names.", Id, BATCH_MAX, 1), Positional("NAME...")]
    by: _Run
    job_type: Annotated[_JobType, Flag("--type", help="What the run does with it.")]
    router: Annotated[
        Resource | None,
        Flag(
            "--router", metavar="NAME", help="The router of the hosts.  [default: each host's own]"
        ),
    ] = None
    dscp: Annotated[_Dscp | None, Flag("--dscp", help=_DSCP)] = None
    pid: ClaimPid = None
    ttl_s: _LeaseTtl = None


class DropLease(HostName, frozen=True, kw_only=True):
    """A run's lease on a host."""

    by: _Run


class ListLeases(Request, frozen=True, kw_only=True):
    """Which leases: those of a host, or all."""

    host: Annotated[Id | None, Positional("[NAME]")] = None


class DropNeighbor(Request, frozen=True, kw_only=True):
    """A run's lease on a neighbour entry."""

    host: Annotated[Id, Positional("HOST")]
    address: Annotated[_Ip, Positional()]
    by: _Run


class TakeNeighbor(DropNeighbor, frozen=True, kw_only=True):
    """A neighbour entry to lease for a run."""

    pid: ClaimPid = None
    ttl_s: _LeaseTtl = None


class LockRouters(locks.AcquireRequest, frozen=True, kw_only=True):
    """Routers to lock, all or none; `ttl_s` or `pid` says what ends that.

    The type of job says the priority unless `priority` does.
    """

    by: Annotated[By, Flag("--by", metavar="JOB", help="The job that holds them.")]
    timeout_s: Annotated[
        WaitSeconds, timeout_flag(None, "network.lock_timeouts; 30, for several 60")
    ] = SERVER_WAIT_MAX_S
    job_type: Annotated[
        _JobType | None,
        Flag("--type", help="The kind of job, which says its priority.  [network.job_priorities]"),
    ] = None
    priority: Annotated[
        Priority | None, Flag("--priority", help="Higher goes first.  [default: that of --type]")
    ] = None


class UnlockRouters(locks.FreeNames, frozen=True, kw_only=True):
    """Routers that a job unlocks."""


class WaitForRouters(locks.WaitFor, frozen=True, kw_only=True):
    """Routers that are to be free; those that the job `by` has itself are not waited for."""


class CountsView(Plain, frozen=True, kw_only=True):
    """How many hosts there are, and how many leases that count."""

    hosts: int
    host_leases: int
    neighbor_leases: int


class Unregistered(Plain, frozen=True, kw_only=True):
    """The host that was removed."""

    unregistered: str


class LeaseDropped(Plain, frozen=True, kw_only=True):
    """How many lease a host still, and whether it may be taken down."""

    host: str
    count: int
    should_delete: bool


class NeighborTaken(Plain, frozen=True, kw_only=True):
    """How many lease a neighbour entry now."""

    host: str
    neighbor_ip: str
    count: int


class NeighborDropped(NeighborTaken, frozen=True, kw_only=True):
    """How many lease a neighbour entry still, and whether it may be removed."""

    should_delete: bool


class SweptView(Plain, frozen=True, kw_only=True):
    """How many leases were removed whose runs are gone."""

    host_leases: int
    neighbor_leases: int


@operation("POST /v1/network/hosts", cli="network hosts add", errors=(RegistryCollision,))
def add_host(hf: Holdfast, request: AddHost) -> HostInfo:
    """Register a host; refused, naming the other, when its name, address or MAC is taken."""
    hf.network.register_host(**_arguments(request))
    return {"host": request.name, **hf.network.get_host(request.name)}


@operation("POST /v1/network/batches/hosts", errors=(RegistryCollision,))
def add_hosts(hf: Holdfast, request: AddHosts) -> int:
    """Register hosts, all or none, and return how many."""
    return hf.network.register_hosts(map(_arguments, request.hosts))


def _arguments(host: AddHost) -> dict[str, Any]:
    """A host as the library takes it."""
    fields = asdict(host)
    return {"host_name": fields.pop("name"), "additional_info": fields.pop("info"), **fields}


@operation(
    "DELETE /v1/network/hosts/{host}",
    cli="network hosts remove",
    errors=(RegistryNotFound, RegistryHeld),
)
def remove_host(hf: Holdfast, request: RemoveHost) -> Unregistered:
    """Unregister a host; refused when runs lease it, unless their leases are to end too."""
    hf.network.remove_host(request.host, force=request.force)
    return Unregistered(unregistered=request.host)


@operation("GET /v1/network/hosts", cli="network hosts list")
def list_hosts(hf: Holdfast, request: ListHosts, damaged: Damage) -> dict[str, HostInfo]:
    """Hosts by name."""
    return hf.network.list_all_hosts(router_name=request.router, damaged=damaged)


@operation("GET /v1/network/hosts/{host}", cli="network hosts get", errors=(RegistryNotFound,))
def get_host(hf: Holdfast, request: HostName) -> HostInfo:
    """What is known of a host."""
    return hf.network.get_host(request.host)


@operation(
    "POST /v1/network/leases",
    cli="network leases take",
    errors=(RegistryNotFound, RegistryHeld),
)
def take_leases(hf: Holdfast, request: TakeLeases) -> dict[str, int]:
    """Lease hosts for a run, all or none, and return how many runs lease each."""
    return hf.network.lease_hosts(
        request.by,
        request.hosts,
        request.job_type,
        router_name=request.router,
        dscp=request.dscp,
        pid=request.pid,
        ttl_s=request.ttl_s,
        detached=True,
    )


@operation("POST /v1/network/leases/drop", cli="network leases drop", errors=(RegistryNotFound,))
def drop_lease(hf: Holdfast, request: DropLease) -> LeaseDropped:
    """End a run's lease on a host, and return how many are left."""
    count, should_delete = hf.network.release_source_host_lease(request.by, request.host)
    return LeaseDropped(host=request.host, count=count, should_delete=should_delete)


@operation("GET /v1/network/leases", cli="network leases list")
def list_leases(hf: Holdfast, request: ListLeases, damaged: Damage) -> dict[str, dict[str, Any]]:
    """Leases by host. Dead leases do not count, and go with the next change of their host."""
    return hf.network.list_host_leases(request.host, damaged=damaged)


@operation("POST /v1/network/neighbors", cli="network neighbors take", errors=(RegistryNotFound,))
def take_neighbor(hf: Holdfast, request: TakeNeighbor) -> NeighborTaken:
    """Lease a neighbour entry for a run, and return how many runs lease it."""
    count = hf.network.acquire_neighbor_lease(
        request.by,
        request.host,
        request.address,
        pid=request.pid,
        ttl_s=request.ttl_s,
        detached=True,
    )
    return NeighborTaken(host=request.host, neighbor_ip=request.address, count=count)


@operation(
    "POST /v1/network/neighbors/drop", cli="network neighbors drop", errors=(RegistryNotFound,)
)
def drop_neighbor(hf: Holdfast, request: DropNeighbor) -> NeighborDropped:
    """End a run's lease on a neighbour entry, and return how many are left."""
    host, address = request.host, request.address
    count, should_delete = hf.network.release_neighbor_lease(request.by, host, address)
    return NeighborDropped(host=host, neighbor_ip=address, count=count, should_delete=should_delete)


@operation("GET /v1/network/neighbors", cli="network neighbors list")
def list_neighbors(hf: Holdfast, damaged: Damage) -> dict[str, dict[str, Any]]:
    """Leases by neighbour entry."""
    return hf.network.list_neighbor_leases(damaged=damaged)


@operation(
    "POST /v1/network/routers/lock",
    cli="network routers lock",
    errors=(RegistryNotFound, RegistryDeadlock),
    undo=locks.give_back,
)
def lock_routers(hf: Holdfast, request: LockRouters, wait: Wait) -> locks.GrantView:
    """Lock routers, all or none, and wait for them up to `timeout_s`.

    The holder of a router has all of its hosts.
    """

    fields = asdict(request)
    names, by, limit_s = (fields.pop(name) for name in ("names", "by", "timeout_s"))
    claim = partial(hf.network.lock_routers, names, by, **fields, **wait.fields, detached=True)
    return locks.granted(hf, wait, limit_s, lambda left_s: claim(timeout=left_s))


@operation(
    "POST /v1/network/routers/unlock", cli="network routers unlock", errors=(RegistryNotFound,)
)
def unlock_routers(hf: Holdfast, request: UnlockRouters) -> locks.Freed:
    """Unlock what a job holds of some routers; returns those that it did hold."""
    return locks.Freed(released=hf.network.unlock_routers(request.names, request.by))


@operation("POST /v1/network/routers/wait", cli="network routers wait", errors=(RegistryDeadlock,))
def wait_for_routers(hf: Holdfast, request: WaitForRouters, wait: Wait) -> locks.Free:
    """Wait until all of the routers are free at one moment, and take nothing."""
    return locks.free_view(wait_for(hf, request, wait))


def wait_for(hf: Holdfast, request: locks.WaitFor, wait: Wait) -> Obstruction | None:
    """Wait as requested; return what blocked the routers when the time was over, or None."""
    return hf.network.wait_routers_free(
        request.names,
        # A command without a time limit waits as long as it takes, not for the registry's default.
        math.inf if request.timeout_s is None else request.timeout_s,
        job_id=request.by,
        mode=request.mode,
        **wait.fields,
    )


@operation("GET /v1/network/counts")
def counts(hf: Holdfast) -> CountsView:
    """How many hosts there are, and how many leases that count."""
    return CountsView(**hf.network.counts()._asdict())


@operation("POST /v1/upkeep/network/sweep", cli="network sweep")
def sweep(hf: Holdfast) -> SweptView:
    """Remove the leases of dead processes, and those whose time is over."""
    return SweptView(**hf.network.sweep()._asdict())


OPERATIONS = [
    *(add_host, add_hosts, remove_host, list_hosts, get_host),
    *(take_leases, drop_lease, list_leases, take_neighbor, drop_neighbor, list_neighbors),
    *(lock_routers, unlock_routers, wait_for_routers, counts, sweep),
]
