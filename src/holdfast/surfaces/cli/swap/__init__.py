"""`holdfast swap`: the recipe that is loaded, and loading another.

swapping.py  `to`
showing.py   `status`, `reconcile`, `log`
"""

import click

from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.swap.showing import log, reconcile, status
from holdfast.surfaces.cli.swap.swapping import to


@click.group(cls=InOrder)
def swap() -> None:
    """The recipe that is loaded, and loading another when nobody needs it any more.

    \b
        holdfast swap to llama-70b -- ./load.sh llama-70b
        holdfast swap status
    """


for _command in (to, status, reconcile, log):
    swap.add_command(_command)
