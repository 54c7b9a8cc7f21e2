"""`holdfast network`: hosts, routers and neighbours of a network under test.

options.py    what several commands ask for
hosts.py      `hosts add | remove | list | get`
leases.py     `leases take | drop | list`
routers.py    `routers lock | unlock | wait | status`, which are those of `holdfast locks`
neighbors.py  `neighbors take | drop | list`
upkeep.py     `sweep` and `metrics`
"""

import click

from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.network.hosts import hosts
from holdfast.surfaces.cli.network.leases import leases
from holdfast.surfaces.cli.network.neighbors import neighbors
from holdfast.surfaces.cli.network.routers import routers
from holdfast.surfaces.cli.network.upkeep import metrics, sweep


@click.group(cls=InOrder)
def network() -> None:
    """Hosts, routers and neighbours of a network under test: who uses what, and what may be taken
    down.

    It keeps track and coordinates; no interface, route or namespace is touched.

    \b
        holdfast network routers lock router-1 --by run-7 --pid $$
        holdfast network leases take h1 --by run-7 --type quick --pid $$
    """


for _command in (hosts, leases, routers, neighbors, sweep, metrics):
    network.add_command(_command)
