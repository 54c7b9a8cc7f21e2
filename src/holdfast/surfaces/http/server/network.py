"""Hosts, leases, routers and neighbours over HTTP. A router is a lock of its own name."""

import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import BATCH_MAX, DSCP_MAX, SERVER_WAIT_MAX_S
from holdfast.kernel.store import Damage
from holdfast.primitives.locks.records import Mode
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import locks as lock_answers
from holdfast.surfaces.answers import network as answers
from holdfast.surfaces.http.server.desk import Turn
from holdfast.surfaces.http.server.fields import (
    By,
    Id,
    Names,
    Pid,
    Priority,
    Resource,
    Ttl,
    Wait,
    from_nothing,
    listed,
    told,
)
from holdfast.surfaces.http.server.locks import FreeNames, WaitFor, give_back, taken
from holdfast.surfaces.http.server.operation import operation

_Ip = Annotated[str, told("An IP address, with or without a mask.", examples=["10.1.1.100/24"])]
_Mac = Annotated[str, told("A MAC address.", examples=["02:00:0a:01:01:64"])]
_JobType = Literal["quick", "detailed"]
_Dscp = Annotated[
    int, from_nothing("The code point that a quick job marks its packets with.", DSCP_MAX)
]


class AddHost(Plain, frozen=True, kw_only=True):
    """A host: its name, address and MAC are nobody else's."""

    name: Id
    primary_ip: _Ip
    connected_to: Resource
    mac_address: _Mac
    info: dict[str, str] = msgspec.field(default_factory=dict)


class AddHosts(Plain, frozen=True, kw_only=True):
    """Hosts, all or none."""

    hosts: Annotated[list[AddHost], Meta(max_length=BATCH_MAX)]


class RemoveHost(Plain, frozen=True, kw_only=True):
    """A host, and whether the leases on it are to end too."""

    host: Id
    force: bool = False


class OfHost(Plain, frozen=True, kw_only=True):
    """A host."""

    host: Id


class ListHosts(Plain, frozen=True, kw_only=True):
    """Which hosts: those of a router, or all."""

    router: Resource | None = None


class TakeLeases(Plain, frozen=True, kw_only=True):
    """Hosts to lease for a run, all or none; each host's own router unless one is said."""

    hosts: Annotated[list[str], listed("The hosts' names.", Id, BATCH_MAX, 1)]
    by: By
    job_type: _JobType
    router: Resource | None = None
    dscp: _Dscp | None = None
    pid: Pid | None = None
    ttl_s: Ttl | None = None


class DropLease(Plain, frozen=True, kw_only=True):
    """A run's lease on a host."""

    host: Id
    by: By


class ListLeases(Plain, frozen=True, kw_only=True):
    """Which leases: those of a host, or all."""

    host: Id | None = None


class TakeNeighbor(Plain, frozen=True, kw_only=True):
    """A neighbour entry to lease for a run."""

    host: Id
    address: _Ip
    by: By
    pid: Pid | None = None
    ttl_s: Ttl | None = None


class DropNeighbor(Plain, frozen=True, kw_only=True):
    """A run's lease on a neighbour entry."""

    host: Id
    address: _Ip
    by: By


class LockRouters(Plain, frozen=True, kw_only=True):
    """Routers to lock, all or none; `ttl_s` or `pid` says what ends that. The kind of job says its
    priority unless told.
    """

    names: Names
    by: By
    mode: Mode = Mode.EXCLUSIVE
    timeout_s: Wait = SERVER_WAIT_MAX_S
    job_type: _JobType | None = None
    priority: Priority | None = None
    ttl_s: Ttl | None = None
    pid: Pid | None = None


class UnlockRouters(FreeNames, frozen=True, kw_only=True):
    """Routers that a job lets go of."""


class WaitForRouters(WaitFor, frozen=True, kw_only=True):
    """Routers that are to be free; those that the job `by` has itself are not waited for."""


class CountsView(Plain, frozen=True, kw_only=True):
    """How many hosts there are, and how many leases that count."""

    hosts: int
    host_leases: int
    neighbor_leases: int


@operation("POST", "/v1/network/hosts", problems=(409,))
def add_host(hf: Holdfast, asked: AddHost) -> dict[str, Any]:
    """Register a host; refused, naming the other, when its name, address or MAC is taken."""
    hf.network.register_host(
        asked.name, asked.primary_ip, asked.connected_to, asked.mac_address, asked.info
    )
    return answers.host_added(hf, asked.name)


@operation("POST", "/v1/network/batches/hosts", problems=(409,))
def add_hosts(hf: Holdfast, asked: AddHosts) -> int:
    """Register hosts, all or none, and answer with how many."""
    return hf.network.register_hosts(
        [
            {
                "host_name": host.name,
                "primary_ip": host.primary_ip,
                "connected_to": host.connected_to,
                "mac_address": host.mac_address,
                "additional_info": host.info,
            }
            for host in asked.hosts
        ]
    )


@operation("DELETE", "/v1/network/hosts/{host}", problems=(404, 409))
def remove_host(hf: Holdfast, asked: RemoveHost) -> answers.Unregistered:
    """Unregister a host; refused when runs lease it, unless their leases are to end too."""
    return answers.unregistered(hf, asked.host, force=asked.force)


@operation("GET", "/v1/network/hosts")
def list_hosts(hf: Holdfast, asked: ListHosts, damaged: Damage) -> dict[str, dict[str, Any]]:
    """Hosts by name."""
    return answers.hosts_of(hf.network.list_all_hosts(damaged=damaged), asked.router)


@operation("GET", "/v1/network/hosts/{host}", problems=(404,))
def get_host(hf: Holdfast, asked: OfHost) -> dict[str, Any]:
    """What is known of a host."""
    return answers.host_of(hf, asked.host)


@operation("POST", "/v1/network/leases", problems=(404, 409))
def take_leases(hf: Holdfast, asked: TakeLeases) -> dict[str, int]:
    """Lease hosts for a run, all or none, and answer with how many runs lease each."""
    return answers.leased(
        hf,
        asked.hosts,
        by=asked.by,
        job_type=asked.job_type,
        router=asked.router,
        dscp=asked.dscp,
        pid=asked.pid,
        ttl_s=asked.ttl_s,
    )


@operation("POST", "/v1/network/leases/drop", problems=(404,))
def drop_lease(hf: Holdfast, asked: DropLease) -> answers.LeaseDropped:
    """End a run's lease on a host, and answer with how many are left."""
    return answers.lease_dropped(hf, asked.host, asked.by)


@operation("GET", "/v1/network/leases")
def list_leases(hf: Holdfast, asked: ListLeases, damaged: Damage) -> dict[str, dict[str, Any]]:
    """Leases by host. Those that are dead do not count, and go with the next change of their
    host.
    """
    return hf.network.list_host_leases(asked.host, damaged=damaged)


@operation("POST", "/v1/network/neighbors", problems=(404,))
def take_neighbor(hf: Holdfast, asked: TakeNeighbor) -> answers.NeighborTaken:
    """Lease a neighbour entry for a run, and answer with how many runs lease it."""
    return answers.neighbor_taken(
        hf, asked.host, asked.address, by=asked.by, pid=asked.pid, ttl_s=asked.ttl_s
    )


@operation("POST", "/v1/network/neighbors/drop", problems=(404,))
def drop_neighbor(hf: Holdfast, asked: DropNeighbor) -> answers.NeighborDropped:
    """End a run's lease on a neighbour entry, and answer with how many are left."""
    return answers.neighbor_dropped(hf, asked.host, asked.address, asked.by)


@operation("GET", "/v1/network/neighbors")
def list_neighbors(hf: Holdfast, damaged: Damage) -> dict[str, dict[str, Any]]:
    """Leases by neighbour entry."""
    return hf.network.list_neighbor_leases(damaged=damaged)


@operation("POST", "/v1/network/routers/lock", problems=(404, 409), undo=give_back)
def lock_routers(hf: Holdfast, asked: LockRouters, turn: Turn) -> lock_answers.GrantView:
    """Lock routers, all or none, and wait for them up to `timeout_s`. Whoever has a router has all
    of its hosts.
    """
    return taken(
        hf,
        asked.names,
        turn,
        by=asked.by,
        mode=asked.mode,
        timeout_s=asked.timeout_s,
        priority=answers.router_priority(hf, asked.job_type, asked.priority),
        ttl_s=asked.ttl_s,
        pid=asked.pid,
    )


@operation("POST", "/v1/network/routers/unlock", problems=(404,))
def unlock_routers(hf: Holdfast, asked: UnlockRouters) -> lock_answers.Freed:
    """Unlock what a job holds of some routers; answers with those that it did hold."""
    return lock_answers.freed(hf, asked.names, asked.by)


@operation("POST", "/v1/network/routers/wait", problems=(409,))
def wait_for_routers(hf: Holdfast, asked: WaitForRouters, turn: Turn) -> lock_answers.Free:
    """Wait until all of the routers are free at one moment, and take nothing."""
    by = f"wait-{secrets.token_hex(6)}" if asked.by is None else asked.by
    why = hf.locks.wait_free(
        asked.names, by=by, mode=asked.mode, timeout_s=asked.timeout_s, stop_fd=turn.stop_fd
    )
    return lock_answers.free_view(why)


@operation("GET", "/v1/network/counts")
def counts(hf: Holdfast) -> CountsView:
    """How many hosts there are, and how many leases that count."""
    return CountsView(**hf.network.counts()._asdict())


@operation("POST", "/v1/upkeep/network/sweep")
def sweep(hf: Holdfast) -> answers.SweptView:
    """Remove the leases of dead processes, and those whose time is over."""
    return answers.swept(hf)


OPERATIONS = [
    *(add_host, add_hosts, remove_host, list_hosts, get_host, take_leases, drop_lease, list_leases),
    *(
        take_neighbor,
        drop_neighbor,
        list_neighbors,
        lock_routers,
        unlock_routers,
        wait_for_routers,
        counts,
        sweep,
    ),
]
