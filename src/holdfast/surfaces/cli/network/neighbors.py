"""`holdfast network neighbors`."""

import click

from holdfast.kernel.codec import to_json
from holdfast.surfaces.answers.network import neighbor_dropped, neighbor_taken
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.network.options import (
    lease_ttl_option,
    pid_option,
    run_option,
    shown,
    since,
)
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.render import json_document, table


@click.group(cls=InOrder)
def neighbors() -> None:
    """Leases on neighbour entries: which runs need an entry of a host's neighbour table."""


@neighbors.command()
@click.argument("host")
@click.argument("address")
@run_option
@pid_option
@lease_ttl_option
@json_option
@store_options
def take(
    host: str, address: str, by: str, pid: int | None, ttl_s: float | None, as_json: bool
) -> None:
    """Lease HOST's entry for ADDRESS, and print how many runs lease it."""
    with connected() as hf:
        done = neighbor_taken(hf, host, address, by=by, pid=pid, ttl_s=ttl_s)
    answer(to_json(done) if as_json else str(done.count))


@neighbors.command()
@click.argument("host")
@click.argument("address")
@run_option
@json_option
@store_options
def drop(host: str, address: str, by: str, as_json: bool) -> None:
    """End a run's lease on HOST's entry for ADDRESS, and print how many are left; exit status 1
    when nobody has one.
    """
    with connected() as hf:
        done = neighbor_dropped(hf, host, address, by)
    answer(to_json(done) if as_json else str(done.count))


@neighbors.command("list")
@json_option
@store_options
def list_(as_json: bool) -> None:
    """List leases on neighbour entries."""
    with connected(create=False) as hf:
        found = hf.network.list_neighbor_leases()
    if as_json:
        json_document(found)
        return
    table(
        ["host", "neighbour", "run", "process", "since", "ends", "state"],
        [
            [
                *(
                    one["host_name"],
                    one["neighbor_ip"],
                    lease["run_id"],
                    shown(lease["pid"]),
                    since(lease["allocated_at"]),
                ),
                *(shown(lease["expires_at"]), "dead" if lease["dead"] else "held"),
            ]
            for one in found.values()
            for lease in one["leases"]
        ],
        elastic=["host", "run"],
        empty="No leases. Take one: holdfast network neighbors take HOST ADDRESS --by RUN --pid $$",
    )
