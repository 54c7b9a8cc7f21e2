"""`holdfast metrics`: the text of a server's /metrics, without a server."""

import click

from holdfast import __version__
from holdfast.kernel.errors import Corrupt, StoreUnavailable
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.store_options import store_options


@click.command()
@store_options
def metrics() -> None:
    """Print all metrics as Prometheus scrapes them; needs the extra `server`.

    \b
        holdfast metrics > holdfast.prom.new && mv holdfast.prom.new holdfast.prom

    A store that cannot be used is a value (holdfast_store_up 0), not a failure.
    """
    # Loaded here, as it loads slowly and nothing else needs it.
    from holdfast.runtime.metrics.sources import Metrics, without_store

    try:
        with connected(create=False) as hf:
            text = Metrics(hf, version=__version__).text()
    except (StoreUnavailable, Corrupt) as error:
        # A value, and no failure: without a new file Prometheus would go on with the last values.
        remark(error.message)
        text = without_store()
    click.echo(text, nl=False)
