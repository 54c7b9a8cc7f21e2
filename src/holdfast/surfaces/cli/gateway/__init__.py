"""`holdfast gateway`: one agent's durable queue of requests.

serving.py    serve
asking.py     prompt, interrupt, cancel, reconcile, prune, detach
showing.py    status, requests
"""

import click

from holdfast.surfaces.cli.gateway.asking import cancel, detach, interrupt, prompt, prune, reconcile
from holdfast.surfaces.cli.gateway.serving import serve
from holdfast.surfaces.cli.gateway.showing import requests, status
from holdfast.surfaces.cli.group import InOrder


@click.group(cls=InOrder)
def gateway() -> None:
    """An agent's gateway: prompts are accepted durably, delivered once and in order, and never to
    another instance.
    """


for command in (serve, status, prompt, interrupt, requests, cancel, reconcile, prune, detach):
    gateway.add_command(command)
