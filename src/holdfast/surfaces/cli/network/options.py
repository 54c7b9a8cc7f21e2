"""What several commands of `holdfast network` ask for."""

from collections.abc import Callable
from datetime import UTC, datetime

import click

from holdfast.kernel.settings import JOB_TYPES
from holdfast.surfaces.cli.locks.options import F, by_option, ttl_option
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import moment

run_option = by_option("The run that holds it; routers know it as a job.", required=True)
lease_ttl_option = ttl_option(
    "It ends after this long, unless taken again.  [network.lease_ttl_s; never]"
)
pid_option = click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    help="It ends when this process does, such as a script's own: --pid $$.",
)


def type_option(words: str, *, required: bool = False) -> Callable[[F], F]:
    """--type quick|detailed."""
    return click.option(
        "--type", "job_type", type=click.Choice(JOB_TYPES), required=required, help=words
    )


def since(value: object) -> str:
    """A time as its file has it: seconds since 1970 are told as an instant, a text as it is."""
    if isinstance(value, int | float):
        try:
            return moment(datetime.fromtimestamp(value, UTC))
        except (ValueError, OverflowError, OSError):
            return str(value)
    return "-" if value is None else str(value)


def shown(value: object) -> str:
    """A value that may not be there."""
    return "-" if value is None or value == "" else str(value)
