"""`holdfast metrics`: what a server says at /metrics, without one."""

import click

from holdfast import __version__
from holdfast.kernel.errors import Corrupt, StoreUnavailable
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import remark


@click.command()
@store_options
def metrics() -> None:
    """Print all metrics as Prometheus scrapes them; needs the extra `server`.

    \b
        holdfast metrics > holdfast.prom.new && mv holdfast.prom.new holdfast.prom

    A store that cannot be used is a value (holdfast_store_up 0), and no failure.
    """
    # Here, as it is not cheap to load and nothing else needs it.
    from holdfast.runtime.metrics.sources import Metrics, without_store

    try:
        with connected(create=False) as hf:
            told = Metrics(hf, version=__version__).text()
    except (StoreUnavailable, Corrupt) as error:
        # A value, and no failure: what was written last would be believed for as long as nothing
        # takes its place.
        remark(error.message)
        told = without_store()
    click.echo(told, nl=False)
