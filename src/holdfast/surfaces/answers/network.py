"""Hosts, leases and neighbours: what is answered of them, and what is looked up before they are
asked for.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import RegistryNotFound
from holdfast.kernel.names import check_label
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.claims import refuse_unseen

HostInfo = dict[str, Any]
"""What is known of a host: its core fields, and whatever was said beside."""


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


class NeighborDropped(Plain, frozen=True, kw_only=True):
    """How many lease a neighbour entry still, and whether it may be removed."""

    host: str
    neighbor_ip: str
    count: int
    should_delete: bool


class SweptView(Plain, frozen=True, kw_only=True):
    """How many leases were removed whose runs are gone."""

    host_leases: int
    neighbor_leases: int


def host_added(hf: Holdfast, name: str) -> HostInfo:
    """A host that was just registered, with its name."""
    return {"host": name, **(hf.network.get_host_info(name) or {})}


def host_of(hf: Holdfast, name: str) -> HostInfo:
    """What is known of a host. Raises RegistryNotFound."""
    info = hf.network.get_host_info(name)
    if info is None:
        raise no_such_host(name)
    return info


def hosts_of(found: dict[str, HostInfo], router: str | None) -> dict[str, HostInfo]:
    """The hosts of a router, or all. Raises InvalidName."""
    if router is not None:
        check_label(router, "router name")
    return {name: info for name, info in found.items() if router in (None, info["connected_to"])}


def unregistered(hf: Holdfast, name: str, *, force: bool) -> Unregistered:
    """Remove a host. Raises RegistryNotFound when there is none."""
    if not hf.network.unregister_host(name, force=force):
        raise no_such_host(name)
    return Unregistered(unregistered=name)


def leased(
    hf: Holdfast,
    names: Iterable[str],
    *,
    by: str,
    job_type: str,
    router: str | None,
    dscp: int | None,
    pid: int | None,
    ttl_s: float | None,
) -> dict[str, int]:
    """Lease hosts for a run, all or none, each with its own router unless one is said; return how
    many lease each.
    """
    refuse_unseen(hf, pid, ttl_s or hf.settings.network.lease_ttl_s, "lease")
    wanted = [
        {
            "host_name": name,
            "job_type": job_type,
            "router_name": host_of(hf, name)["connected_to"] if router is None else router,
            "dscp": dscp,
        }
        for name in dict.fromkeys(names)
    ]
    return hf.network.acquire_source_host_leases(by, wanted, pid=pid, ttl_s=ttl_s)


def lease_dropped(hf: Holdfast, name: str, by: str) -> LeaseDropped:
    """End a run's lease on a host."""
    count, should_delete = hf.network.release_source_host_lease(by, name)
    return LeaseDropped(host=name, count=count, should_delete=should_delete)


def neighbor_taken(
    hf: Holdfast, host: str, address: str, *, by: str, pid: int | None, ttl_s: float | None
) -> NeighborTaken:
    """Lease a neighbour entry for a run."""
    refuse_unseen(hf, pid, ttl_s or hf.settings.network.lease_ttl_s, "lease")
    count = hf.network.acquire_neighbor_lease(by, host, address, pid=pid, ttl_s=ttl_s)
    return NeighborTaken(host=host, neighbor_ip=address, count=count)


def neighbor_dropped(hf: Holdfast, host: str, address: str, by: str) -> NeighborDropped:
    """End a run's lease on a neighbour entry."""
    count, should_delete = hf.network.release_neighbor_lease(by, host, address)
    return NeighborDropped(host=host, neighbor_ip=address, count=count, should_delete=should_delete)


def swept(hf: Holdfast) -> SweptView:
    """Remove the leases of dead processes, and those whose time is over."""
    return SweptView(**hf.network.sweep()._asdict())


def router_priority(hf: Holdfast, job_type: str | None, priority: int | None) -> int:
    """The priority that was said, else that of the kind of job."""
    return (
        hf.settings.network.job_priorities.get(job_type or "", 0) if priority is None else priority
    )


def router_limit_s(hf: Holdfast, names: Sequence[str], timeout_s: float | None) -> float:
    """The time limit that was said, else the configured one for a router, or for a set of them."""
    times = hf.settings.network.lock_timeouts
    if timeout_s is not None:
        return timeout_s
    return times.router_lock if len(names) == 1 else times.router_lock_atomic


def no_such_host(name: str) -> RegistryNotFound:
    """There is no such host."""
    return RegistryNotFound(
        f"there is no host {name}: `holdfast network hosts list` shows those there are", host=name
    )
