"""`holdfast network routers`: a router is a resource of `holdfast locks` under its own name."""

from copy import copy

import click

from holdfast.kernel.limits import LOCK_PRIORITY_MAX
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.network import router_limit_s, router_priority
from holdfast.surfaces.cli.connection import store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.options import (
    by_option,
    json_option,
    limit_options,
    mode_of,
    mode_option,
    names_argument,
    quiet_option,
    ttl_option,
)
from holdfast.surfaces.cli.locks.showing import status
from holdfast.surfaces.cli.locks.taking import release_names, take, wait
from holdfast.surfaces.cli.network.options import pid_option, type_option


@click.group(cls=InOrder)
def routers() -> None:
    """Router locks: whoever has a router has all of its hosts. `holdfast locks explain ROUTER`
    tells why one is not free.
    """


@routers.command(short_help="Lock routers and print the token.")
@names_argument
@by_option("The job that holds them.", required=True)
@ttl_option("It ends after this long, unless renewed.")
@pid_option
@limit_options(None, "network.lock_timeouts; 30, for several 60")
@mode_option
@type_option("The kind of job, which says its priority.  [network.job_priorities]")
@click.option(
    "--priority",
    type=click.IntRange(-LOCK_PRIORITY_MAX, LOCK_PRIORITY_MAX),
    help="Higher goes first.  [default: that of --type]",
)
@quiet_option
@json_option
@store_options
def lock(
    names: tuple[str, ...],
    by: str,
    ttl_s: float | None,
    pid: int | None,
    timeout_s: float | None,
    nonblock: bool,
    shared: bool,
    job_type: str | None,
    priority: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Lock routers, all or none, and print the token; exit status 5 when they were not to be had in
    time.

    \b
        holdfast network routers lock router-1 router-2 --by run-7 --pid $$

    The lock ends with the process of --pid, after --ttl, or by `unlock`. Quick jobs share a router
    with --shared.
    """

    def limit_s(hf: Holdfast) -> float:
        return 0 if nonblock else router_limit_s(hf, names, timeout_s)

    def chosen(hf: Holdfast) -> int:
        return router_priority(hf, job_type, priority)

    take(names, by, ttl_s, pid, limit_s, mode_of(shared), chosen, quiet=quiet, as_json=as_json)


@routers.command(short_help="Unlock what a job holds.")
@names_argument
@by_option("The job that holds them.", required=True)
@json_option
@store_options
def unlock(names: tuple[str, ...], by: str, as_json: bool) -> int:
    """Unlock what a job holds of these routers; exit status 1 when it does not hold all of them."""
    return release_names(names, by, as_json)


def _wait_here() -> click.Command:
    """`holdfast locks wait`, with a help that names the commands of this group."""
    here = copy(wait)
    here.short_help = "Wait until routers are free, and take nothing."
    here.help = """Wait until all the routers are free at once, and take nothing; exit status 5 when they are not in time.

    \b
        holdfast network routers wait router-1 --timeout 60 && echo free

    Another may take them in the next instant: to have them, use `lock`.
    """
    return here


routers.add_command(_wait_here())
routers.add_command(status)
