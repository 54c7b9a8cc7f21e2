"""`holdfast network sweep` and `metrics`."""

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.text import counted
from holdfast.surfaces.answers.network import swept
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.output import answer


@click.command()
@json_option
@store_options
def sweep(as_json: bool) -> None:
    """Remove the leases of dead processes, and those whose time is over."""
    with connected() as hf:
        done = swept(hf)
    words = (
        f"swept {counted(done.host_leases, 'host lease')} and "
        f"{counted(done.neighbor_leases, 'neighbour lease')}"
    )
    answer(to_json(done) if as_json else words)


@click.command()
@store_options
def metrics() -> None:
    """Print counters of locks and registry as Prometheus scrapes them; needs the extra `server`.

    \b
        holdfast network metrics > /var/lib/node_exporter/holdfast.prom
    """
    # Here, as it is not cheap to load and nothing else needs it.
    from holdfast.runtime.metrics import exposition

    with connected(create=False) as hf:
        click.echo(exposition(hf.locks, hf.network), nl=False)
