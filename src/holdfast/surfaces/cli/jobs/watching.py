"""`holdfast jobs watch`."""

import math

import click

from holdfast.processes.signals import interruptible
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.jobs.options import jobs_argument, json_option, mirror, where_options
from holdfast.surfaces.cli.jobs.watch import Watch


@click.command()
@jobs_argument
@click.option(
    "--any", "any_", is_flag=True, help="Watch all jobs, and end with the first that ends."
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Seconds to watch at most.  [default: no limit]",
)
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Seconds to watch without anything new.  [default: no limit]",
)
@json_option
@where_options
def watch(
    job_ids: tuple[str, ...],
    any_: bool,
    timeout_s: float | None,
    idle_s: float | None,
    as_json: bool,
) -> int:
    """Follow jobs until they end: exit status 0 when all completed, 1 when one ended otherwise, 5
    when time ran out.

    Events come from the broker as they are sent; the registry is what counts, so a watcher that
    comes late, or loses the broker, sees the end all the same.
    """
    if any_ == bool(job_ids):
        raise click.UsageError("say which jobs, or --any")
    if math.isnan(timeout_s or 0) or math.isnan(idle_s or 0):
        raise click.UsageError("nan is no number of seconds")
    with connected() as hf, interruptible():
        watched = Watch(hf, job_ids, as_json=as_json)
        try:
            return watched.until_end(timeout_s=timeout_s, idle_s=idle_s)
        finally:
            watched.close()
            if watched.away is None:
                mirror(hf)
