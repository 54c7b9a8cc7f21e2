"""`holdfast metrics`: what a server says at /metrics, without one."""

import click

from holdfast import __version__
from holdfast.surfaces.cli.connection import connected, store_options


@click.command()
@store_options
def metrics() -> None:
    """Print all metrics as Prometheus scrapes them; needs the extra `server`.

    \b
        holdfast metrics > /var/lib/node_exporter/holdfast.prom
    """
    # Here, as it is not cheap to load and nothing else needs it.
    from holdfast.measuring import metrics_of

    with connected(create=False) as hf:
        click.echo(metrics_of(hf, version=__version__).text(), nl=False)
