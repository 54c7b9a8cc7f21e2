"""`holdfast agents`: who is alive under which name, and what may be controlled by it.

options.py     what several commands ask for
launch.py      an agent that is to run: its names, its folder and its manifest
running.py     `run`: a command as an agent, kept fresh while it runs
starting.py    `start`: the same in a new tmux session
start_watch.py  whether it comes up there, and whether its program dies at once
handing.py     the environment that its pane is handed
pane_program.py  what its pane runs first
publishing.py  `publish`, `refresh`, `remove`
showing.py     `list`, `get`
finding.py     `resolve`, `target`
cleaning.py    `cleanup`
"""

import click

from holdfast.surfaces.cli.agents.cleaning import cleanup
from holdfast.surfaces.cli.agents.finding import resolve, target
from holdfast.surfaces.cli.agents.publishing import publish, refresh, remove
from holdfast.surfaces.cli.agents.running import run
from holdfast.surfaces.cli.agents.showing import get, list_
from holdfast.surfaces.cli.agents.starting import start
from holdfast.surfaces.cli.group import InOrder


@click.group(cls=InOrder)
def agents() -> None:
    """Live agents: one generation per id, found by name or id, and trusted only when everything
    agrees.

    \b
        holdfast agents start gpu -- claude
        holdfast agents list
        holdfast agents target gpu
    """


for _command in (run, start, list_, get, resolve, target, publish, refresh, remove, cleanup):
    agents.add_command(_command)
