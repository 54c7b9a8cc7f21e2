"""`holdfast locks`: who holds which resource, and whose turn is next.

options.py    what several commands ask for
running.py    `run`: a command under a lock, with child.py (the process it becomes), passing.py (signals) and losing.py
taking.py     `acquire`, `renew`, `release`, `wait`, `kick`
showing.py    `status`, with words.py for processes and spans of time
explaining.py `explain`
graphing.py   `graph`
counting.py   `stats`
telling.py    who is being waited for, on stderr
"""

import click

from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.counting import stats
from holdfast.surfaces.cli.locks.explaining import explain
from holdfast.surfaces.cli.locks.graphing import graph
from holdfast.surfaces.cli.locks.running import run
from holdfast.surfaces.cli.locks.showing import status
from holdfast.surfaces.cli.locks.taking import acquire, kick, release, renew, wait


@click.group(cls=InOrder)
def locks() -> None:
    """Locks on resources of any name: one holder, or many that share.

    For a script, `run` is all it takes, and works as flock(1) does:

    \b
        holdfast locks run router-1 -- ./flash.sh router-1
        holdfast locks explain router-1
    """


for _command in (run, acquire, renew, release, wait, status, explain, graph, stats, kick):
    locks.add_command(_command)
