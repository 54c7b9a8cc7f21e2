"""What several commands of `holdfast workflows` ask for."""

from functools import partial

import click

from holdfast.kernel.limits import WORKFLOW_TTL_S
from holdfast.surfaces.cli.locks.options import more_than_nothing, no_less_than_nothing

name_argument = click.argument("name", metavar="NAME")
recipe_option = click.option(
    "--recipe", required=True, metavar="RECIPE", help="What it needs loaded, such as llama-70b."
)
token_option = click.option(
    "--token", type=int, required=True, metavar="TOKEN", help="What `register` printed."
)

_ttl_option = partial(
    click.option,
    "--ttl",
    "ttl_s",
    metavar="SECONDS",
    type=float,
    callback=more_than_nothing,
    default=WORKFLOW_TTL_S,
    show_default=True,
)
ttl_option = _ttl_option(
    help="It ends this long after its last renewal, even if its process lives."
)
ttl_of_tree_option = _ttl_option(
    help=(
        "Where its processes cannot be seen, as from another machine, it ends this long after its "
        "last renewal."
    )
)
preemptible_option = click.option(
    "--preemptible",
    is_flag=True,
    help="It may be asked to yield, by a signal file that it looks for where stopping is safe.",
)
signal_path_option = click.option(
    "--signal-path",
    metavar="PATH",
    help="Where its signal file is to appear: absolute, and nothing there yet.",
)
wait_option = click.option(
    "-w",
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=float,
    callback=no_less_than_nothing,
    default=0.0,
    help=(
        "Wait this long until it may begin: a swap has ended, its recipe is loaded.  [default: "
        "refuse at once, exit status 4]"
    ),
)
