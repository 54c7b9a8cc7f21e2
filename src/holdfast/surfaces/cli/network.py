"""`holdfast network`: hosts, routers and neighbours of a network under test."""

from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import replace

from holdfast.kernel.text import counted
from holdfast.operations import network as operations
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.command import (
    CommandGroup,
    json_option,
    nonblock_option,
    quiet_option,
    request_options,
)
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.lock_acquire import take
from holdfast.surfaces.cli.locks import release_names, status_command, wait_until_free
from holdfast.surfaces.cli.render import moment, pairs, table, value_text
from holdfast.surfaces.cli.store_options import store_options


@click.group(cls=CommandGroup)
def network() -> None:
    """Hosts, routers and neighbours of a network under test: who uses what, and what may go.

    It keeps track and coordinates; no interface, route or namespace is touched.

    \b
        holdfast network routers lock router-1 --by run-7 --pid $$
        holdfast network leases take h1 --by run-7 --type quick --pid $$
    """


@click.group(cls=CommandGroup)
def hosts() -> None:
    """Registered hosts: names, addresses and MACs are each unique."""


@hosts.operation(operations.add_host, "add")
def add_host(facts: dict[str, Any]) -> str:
    """Register a host; exit status 4, naming the other, when its name, address or MAC is taken."""
    return f"registered {facts['host']}"


@hosts.operation(operations.remove_host, "remove")
def remove_host(done: operations.Unregistered) -> str:
    """Unregister a host; exit status 4 when runs lease it, 1 when there is none."""
    return f"unregistered {done.unregistered}"


@hosts.operation(operations.list_hosts, "list")
def list_hosts(found: dict[str, operations.HostInfo]) -> None:
    """List hosts by name; exit status 7 if there are damaged records, which are named on stderr."""
    rows = [
        [
            *(name, info["primary_ip"], info["connected_to"], info["mac_address"]),
            _since(info.get("registered_at_timestamp")),
        ]
        for name, info in found.items()
    ]
    table(
        ["host", "address", "router", "mac", "registered"],
        rows,
        elastic=["host", "router"],
        empty="No hosts. Register one: "
        "holdfast network hosts add NAME --ip ADDRESS --router NAME --mac MAC",
    )


@hosts.operation(operations.get_host, "get")
def get_host(info: operations.HostInfo, request: operations.HostName, hf: Holdfast) -> None:
    """Show one host; exit status 1 when there is none."""
    count = hf.network.get_host_lease_count(request.host)
    facts = [(key, value_text(value)) for key, value in info.items()]
    pairs([("host", request.host), *facts, ("leases", str(count))])


@click.group(cls=CommandGroup)
def leases() -> None:
    """Leases on source hosts: which runs use a host, counted by the runs."""


@leases.operation(operations.take_leases, "take")
def take_leases(counts: dict[str, int]) -> str:
    """Lease hosts for a run, all or none, and print how many runs lease each.

    \b
        holdfast network leases take h1 h2 --by run-7 --type quick --pid $$

    Exit status 4 when another job holds the router exclusively. A lease without --pid or --ttl
    lasts until it is dropped.
    """
    return "\n".join(f"{name}\t{count}" for name, count in counts.items())


@leases.operation(operations.drop_lease, "drop")
def drop_lease(done: operations.LeaseDropped) -> str:
    """End a run's lease on a host, and print how many are left; exit status 1 when it has none."""
    return str(done.count)


@leases.operation(operations.list_leases, "list")
def list_leases(found: dict[str, dict[str, Any]]) -> None:
    """List leases, of all hosts or of one. Dead leases do not count, and go with the next change.

    Exit status 7 if there are damaged records, which are named on stderr.
    """
    table(
        ["host", "router", "run", "type", "dscp", "process", "since", "ends", "state"],
        [
            [
                *(host, one["router"], lease["run_id"]),
                *(value_text(lease[name]) for name in ("job_type", "dscp", "pid")),
                *_lease_end(lease),
            ]
            for host, one in found.items()
            for lease in one["leases"]
        ],
        elastic=["host", "router", "run"],
        empty="No leases. Take one: "
        "holdfast network leases take HOST --by RUN --type quick --pid $$",
    )


@click.group(cls=CommandGroup)
def routers() -> None:
    """Router locks: the holder of a router has all of its hosts.

    `holdfast locks explain ROUTER` shows why one is not free.
    """


@routers.command(short_help="Lock routers and print the token.")
@request_options(operations.LockRouters)
@nonblock_option
@quiet_option
@json_option
@store_options
def lock(request: operations.LockRouters, nonblock: bool, quiet: bool, as_json: bool) -> None:
    """Lock routers, all or none, and print the token; exit status 5 when that took too long.

    \b
        holdfast network routers lock router-1 router-2 --by run-7 --pid $$

    The lock ends with the process of --pid, after --ttl, or by `unlock`. Quick jobs share a router
    with --shared.
    """
    request = replace(request, timeout_s=0) if nonblock else request
    take(operations.lock_routers, request, quiet=quiet, as_json=as_json)


@routers.command(short_help="Unlock what a job holds.")
@request_options(operations.UnlockRouters)
@json_option
@store_options
def unlock(request: operations.UnlockRouters, as_json: bool) -> int:
    """Unlock what a job holds of these routers; exit status 1 when it does not hold all of them."""
    return release_names(operations.unlock_routers, request, as_json=as_json)


@routers.command(short_help="Wait until routers are free, and take nothing.")
@request_options(operations.WaitForRouters)
@nonblock_option
@quiet_option
@json_option
@store_options
def wait(request: operations.WaitForRouters, nonblock: bool, quiet: bool, as_json: bool) -> int:
    """Wait until all the routers are free at once, and take nothing.

    \b
        holdfast network routers wait router-1 --timeout 60 && echo free

    Exit status 5 when they are not free in time. Another may take them in the next instant: to have
    them, use `lock`.
    """
    return wait_until_free(
        operations.wait_for, request, nonblock=nonblock, quiet=quiet, as_json=as_json
    )


routers.add_command(status_command(lambda hf, names: hf.network.router_status(names)))


@click.group(cls=CommandGroup)
def neighbors() -> None:
    """Leases on neighbour entries: which runs need an entry of a host's neighbour table."""


@neighbors.operation(operations.take_neighbor, "take")
def take_neighbor(done: operations.NeighborTaken) -> str:
    """Lease HOST's entry for ADDRESS, and print how many runs lease it."""
    return str(done.count)


@neighbors.operation(operations.drop_neighbor, "drop")
def drop_neighbor(done: operations.NeighborDropped) -> str:
    """End a run's lease on HOST's entry for ADDRESS, and print how many are left.

    Exit status 1 when nobody has one.
    """
    return str(done.count)


@neighbors.operation(operations.list_neighbors, "list")
def list_neighbors(found: dict[str, dict[str, Any]]) -> None:
    """List leases on neighbour entries."""
    table(
        ["host", "neighbour", "run", "process", "since", "ends", "state"],
        [
            [
                *(one["host_name"], one["neighbor_ip"], lease["run_id"], value_text(lease["pid"])),
                *_lease_end(lease),
            ]
            for one in found.values()
            for lease in one["leases"]
        ],
        elastic=["host", "run"],
        empty="No leases. Take one: holdfast network neighbors take HOST ADDRESS --by RUN --pid $$",
    )


for _group in (hosts, leases, routers, neighbors):
    network.add_command(_group)


@network.operation(operations.sweep)
def sweep(done: operations.SweptView) -> str:
    hosts = counted(done.host_leases, "host lease")
    return f"swept {hosts} and {counted(done.neighbor_leases, 'neighbour lease')}"


@network.command()
@store_options
def metrics() -> None:
    """Print counters of locks and registry as Prometheus scrapes them; needs the extra `server`.

    \b
        holdfast network metrics > /var/lib/node_exporter/holdfast.prom
    """
    # Here, as it is slow to load and nothing else needs it.
    from holdfast.runtime.metrics.sources import exposition

    with connected(create=False) as hf:
        click.echo(exposition(hf.locks, hf.network), nl=False)


def _lease_end(lease: dict[str, Any]) -> tuple[str, str, str]:
    state = "dead" if lease["dead"] else "held"
    return _since(lease["allocated_at"]), value_text(lease["expires_at"]), state


def _since(value: object) -> str:
    """A time as its file has it: seconds since 1970 as an instant, a text as it is."""
    if isinstance(value, int | float):
        try:
            return moment(datetime.fromtimestamp(value, UTC))
        except (ValueError, OverflowError, OSError):
            return str(value)
    return value_text(value)
