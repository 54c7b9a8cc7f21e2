"""`holdfast workflows`: work that needs a recipe on the GPU.

registering.py  `register`, `renew`, `release`
showing.py      `list`, `sweep`
running.py      `run`: a command as a workflow
words.py        how people are told of workflows and swaps
"""

import click

from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.workflows.registering import register, release, renew
from holdfast.surfaces.cli.workflows.running import run
from holdfast.surfaces.cli.workflows.showing import list_, sweep


@click.group(cls=InOrder)
def workflows() -> None:
    """Work that needs a recipe on the GPU.

    For a script, `run` is all it takes:

    \b
        holdfast workflows run nightly --recipe llama-70b -- ./evaluate.sh
        holdfast workflows list
    """


for _command in (run, register, renew, release, list_, sweep):
    workflows.add_command(_command)
