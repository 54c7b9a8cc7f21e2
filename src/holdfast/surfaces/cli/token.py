"""`holdfast token`: is the token of a holder still in force?"""

import click

from holdfast.operations import locks as operations
from holdfast.surfaces.cli.command import CommandGroup


@click.group(cls=CommandGroup)
def token() -> None:
    """Tokens: a holder shows its token, so that a replaced one can be refused."""


@token.operation(operations.check_token)
def check(found: operations.InForce) -> str:
    """Is TOKEN in force on RESOURCE? Exit status 0 when it is, 4 when it is not.

    \b
        holdfast token check router-1 "$HOLDFAST_LOCK_TOKEN" && write-to router-1
    """
    return f"token {found.token} is in force on {found.resource}"
