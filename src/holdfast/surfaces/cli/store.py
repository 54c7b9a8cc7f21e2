"""`holdfast store`: the store itself."""

from pathlib import Path

import click

from holdfast.app import Upkeep, load_settings
from holdfast.kernel.errors import STATUS
from holdfast.surfaces.cli.render import json_document, pairs
from holdfast.surfaces.cli.session import Given, store_options


@click.group()
def store() -> None:
    """The store itself: where it is, whether it is sound, and copies of it."""


@store.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
def info(as_json: bool) -> None:
    """Show which store is used here."""
    upkeep = _upkeep()
    facts = upkeep.facts()
    json_document(facts) if as_json else pairs(list(facts.items()))


@store.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
def check(as_json: bool) -> int:
    """Look at every page, record, index and journal entry; exit 7 if anything is wrong. Changes nothing."""
    found = _upkeep().check()
    if as_json:
        json_document({"sound": not found, "findings": found})
    else:
        click.echo("\n".join(found) if found else "sound")
    return STATUS["store_corrupt"].exit if found else 0


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@store_options
def backup(file: Path) -> None:
    """Copy the store to a new FILE as of now, while others go on using it."""
    _upkeep().backup(file)
    click.echo(f"backed up to {file}")


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@store_options
def restore(file: Path) -> None:
    """Put the backup FILE in the store's place. Tokens given out since it was made stay refused."""
    _upkeep().restore(file)
    click.echo(f"restored from {file}")


def _upkeep() -> Upkeep:
    given = click.get_current_context().find_object(Given) or Given()
    return Upkeep(load_settings(store=given.store, namespace=given.namespace))
