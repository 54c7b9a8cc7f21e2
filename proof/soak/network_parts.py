"""Hosts with unique addresses, leases that are counted, routers that are locked."""

from holdfast.kernel.errors import Held, NotFound
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

_HOSTS = 12
ROUTERS = [f"router-{number}" for number in range(3)]


def manager(child: Child, hf: Holdfast) -> bool:
    """Registers, leases, releases and removes at random; a witness guards the lock of a router."""
    if child.draining:
        return False
    number = child.draw.randrange(_HOSTS)
    doing = child.draw.choice([_host, _lease, _lease, _neighbor, _routers])
    try:
        doing(child, hf, number)
    except (Held, NotFound):
        # Another process holds the router, or has removed the host: the registry raises its own
        # error.
        child.count("refused")
    child.did()
    return True


def _host(child: Child, hf: Holdfast, number: int) -> None:
    if child.draw.random() < 0.3:
        hf.network.unregister_host(f"h{number}")
        return
    # Each address belongs to two hosts, so that they collide.
    address = number // 2
    hf.network.check_and_register_host(
        f"h{number}",
        f"10.0.0.{address + 1}/24",
        ROUTERS[number % 3],
        f"02:00:00:00:00:{address:02x}",
    )


def _lease(child: Child, hf: Holdfast, number: int) -> None:
    count = hf.network.acquire_source_host_lease(
        child.name, f"h{number}", "quick", ROUTERS[number % 3]
    )
    if count < 1:
        child.wrong(f"{child.name} leases h{number}, and nobody does")
    child.pause(0.02)
    hf.network.release_source_host_lease(child.name, f"h{number}")


def _neighbor(child: Child, hf: Holdfast, number: int) -> None:
    hf.network.acquire_neighbor_lease(child.name, f"h{number}", "10.9.9.9")
    child.pause(0.02)
    hf.network.release_neighbor_lease(child.name, f"h{number}", "10.9.9.9")


def _routers(child: Child, hf: Holdfast, number: int) -> None:
    names = sorted(child.draw.sample(ROUTERS, child.draw.choice([1, 2])))
    if not hf.network.acquire_all_router_locks_atomic(names, child.name, timeout=1.0):
        child.count("refused")
        return
    with child.witness(f"router-{names[0]}") as alone:
        if not alone:
            child.wrong(f"{names[0]} is locked by another too")
        child.pause(0.02)
    if hf.network.release_all_router_locks(names, child.name) != len(names):
        child.wrong(f"{child.name} lives, and lost a lock of {names}")
