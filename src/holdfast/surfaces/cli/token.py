"""`holdfast token`: what a holder shows with its work."""

import click

from holdfast.kernel.codec import to_json
from holdfast.surfaces.answers.locks import InForce
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.output import printable


@click.group(cls=InOrder)
def token() -> None:
    """Tokens: whoever holds a resource shows one, so that whoever was replaced can be refused."""


@token.command()
@click.argument("resource")
@click.argument("token", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
def check(resource: str, token: int, as_json: bool) -> None:
    """Is TOKEN in force on RESOURCE? Exit status 0 when it is, 4 when it is not.

    \b
        holdfast token check router-1 "$HOLDFAST_LOCK_TOKEN" && write-to router-1
    """
    with connected(create=False) as hf:
        hf.check_token(resource, token)
    in_force = f"token {token} is in force on {printable(resource)}"
    click.echo(to_json(InForce(resource=resource, token=token)) if as_json else in_force)
