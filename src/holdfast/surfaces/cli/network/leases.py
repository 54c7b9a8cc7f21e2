"""`holdfast network leases`."""

from typing import Any

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.limits import DSCP_MAX
from holdfast.kernel.store import Damage
from holdfast.surfaces.answers.network import lease_dropped, leased
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.options import json_option, names_argument
from holdfast.surfaces.cli.network.options import (
    lease_ttl_option,
    pid_option,
    run_option,
    shown,
    since,
    type_option,
)
from holdfast.surfaces.cli.output import answer, damage_told, printable
from holdfast.surfaces.cli.render import json_document, table


@click.group(cls=InOrder)
def leases() -> None:
    """Leases on source hosts: which runs use a host, counted by the runs."""


@leases.command()
@names_argument
@run_option
@type_option("What the run does with it.", required=True)
@click.option(
    "--router", metavar="NAME", help="The router of the hosts.  [default: each host's own]"
)
@click.option(
    "--dscp",
    type=click.IntRange(0, DSCP_MAX),
    help="The code point that a quick job marks its packets with.",
)
@pid_option
@lease_ttl_option
@json_option
@store_options
def take(
    names: tuple[str, ...],
    by: str,
    job_type: str,
    router: str | None,
    dscp: int | None,
    pid: int | None,
    ttl_s: float | None,
    as_json: bool,
) -> None:
    """Lease hosts for a run, all or none, and print how many runs lease each.

    \b
        holdfast network leases take h1 h2 --by run-7 --type quick --pid $$

    Exit status 4 when another job has the router alone. A lease without --pid or --ttl lasts until
    it is dropped.
    """
    with connected() as hf:
        counts = leased(
            hf, names, by=by, job_type=job_type, router=router, dscp=dscp, pid=pid, ttl_s=ttl_s
        )
    answer(
        to_json(counts)
        if as_json
        else printable("\n".join(f"{name}\t{count}" for name, count in counts.items()))
    )


@leases.command()
@click.argument("name")
@run_option
@json_option
@store_options
def drop(name: str, by: str, as_json: bool) -> None:
    """End a run's lease on a host, and print how many are left; exit status 1 when it has none."""
    with connected() as hf:
        done = lease_dropped(hf, name, by)
    answer(to_json(done) if as_json else str(done.count))


@leases.command("list")
@click.argument("name", required=False)
@json_option
@store_options
def list_(name: str | None, as_json: bool) -> int:
    """List leases, of all hosts or of one. Those that are dead do not count, and go with the next
    change of their host.

    Exit status 7 if there are damaged records, which are named on stderr.
    """
    damaged: Damage = []
    with connected(create=False) as hf:
        found = hf.network.list_host_leases(name, damaged=damaged)
    if as_json:
        json_document(found)
    else:
        table(
            ["host", "router", "run", "type", "dscp", "process", "since", "ends", "state"],
            [
                _row(host, one["router"], lease)
                for host, one in found.items()
                for lease in one["leases"]
            ],
            elastic=["host", "router", "run"],
            empty=(
                "No leases. Take one: holdfast network leases take HOST --by RUN --type quick "
                "--pid $$"
            ),
        )
    return damage_told(damaged)


def _row(host: str, router: str, lease: dict[str, Any]) -> list[str]:
    facts = [
        host,
        router,
        lease["run_id"],
        *(shown(lease[name]) for name in ("job_type", "dscp", "pid")),
    ]
    return [
        *facts,
        since(lease["allocated_at"]),
        shown(lease["expires_at"]),
        "dead" if lease["dead"] else "held",
    ]
