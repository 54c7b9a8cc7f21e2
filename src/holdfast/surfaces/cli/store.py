"""`holdfast store`: the store itself."""

import sys
from pathlib import Path

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import STATUS, InvalidValue
from holdfast.runtime.configuration import load_settings, store_origin
from holdfast.runtime.maintenance import Upkeep
from holdfast.surfaces.cli.command import CommandGroup, json_option
from holdfast.surfaces.cli.connection import settings_here
from holdfast.surfaces.cli.hints import chosen
from holdfast.surfaces.cli.output import answer, printable, say, working
from holdfast.surfaces.cli.render import json_document, pairs
from holdfast.surfaces.cli.store_options import store_options


@click.group(cls=CommandGroup)
def store() -> None:
    """The store itself: where it is, whether it is sound, and copies of it."""


@store.command()
@json_option
@store_options
def info(as_json: bool) -> None:
    """Show which store is used here, and what chose it."""
    facts = {**_upkeep().facts(), "chosen_by": "--store" if "store" in chosen else store_origin()}
    # A path may hold bytes that are no text, which JSON cannot carry.
    facts = {name: printable(fact) for name, fact in facts.items()}
    json_document(facts) if as_json else pairs(list(facts.items()))


@store.command()
@json_option
@store_options
def check(as_json: bool) -> int:
    """Look at every page, record, index and journal entry; exit status 7 if anything is wrong.

    Changes nothing.
    """
    with working("checking"):
        found = _upkeep().check()
    if as_json:
        json_document({"sound": not found, "findings": found})
    else:
        click.echo("\n".join(found) if found else "sound")
    return STATUS["store_corrupt"].exit if found else 0


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@store_options
def backup(file: Path, as_json: bool) -> None:
    """Copy the store to a new FILE as of now, while others go on using it."""
    with working("copying"):
        _upkeep().backup(file)
    _done("backed up to", file, as_json)


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Replace the store without asking.")
@json_option
@store_options
def restore(file: Path, yes: bool, as_json: bool) -> int:
    """Put the backup FILE in the store's place, for everybody who uses it.

    The store that it replaces is saved beside it first. Tokens given out since the backup was made
    stay refused.
    """
    upkeep = _upkeep()
    if not yes and upkeep.exists() and not _agreed(upkeep, file):
        say("nothing was changed")
        return 1
    with working("restoring"):
        saved = upkeep.restore(file)
    from_, at = printable(str(file)), None if saved is None else printable(str(saved))
    line = f"restored from {from_}"
    line += f"\nthe store that it replaced is saved in {at}" if at else ""
    answer(to_json({"restored_from": from_, "saved": at}) if as_json else line)
    return 0


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy everything in the store FROM to the new store TO: sqlite:PATH, files:DIR or
    postgresql://...

    Tokens stay as they are, and TO gives only greater ones. The queues of gateways come along. Stop
    gateways, and all other programs that write to FROM, first, and let them use TO after it.
    """
    with working("copying"):
        copied = Upkeep(load_settings(store=source)).copy(target)
    lines = [f"{number} of {name}" for name, number in copied.items() if number]
    text = "\n".join(lines) or "nothing but an era"
    answer(to_json({"copied": copied}) if as_json else text)


@store.command("begin-era")
@json_option
@store_options
def begin_era(as_json: bool) -> None:
    """Give only tokens of a new era from now on.

    For a PostgreSQL whose files were put back as they once were. It notices a crash, a standby that
    took over and a restored dump by itself.
    """
    era = _upkeep().begin_era()
    answer(to_json({"era": era}) if as_json else f"era {era}")


@store.command()
@click.argument("space")
@click.argument("key")
@json_option
@store_options
def remove(space: str, key: str, as_json: bool) -> None:
    """Remove the record KEY from SPACE, such as a damaged one; the journal keeps its content.

    For records that no other command can read. `holdfast store check` names them as SPACE/KEY.
    """
    held = _upkeep().remove(space, key)
    answer(
        to_json({"removed": f"{space}/{key}", "held": held})
        if as_json
        else f"removed {printable(f'{space}/{key}')}"
    )


def _agreed(upkeep: Upkeep, file: Path) -> bool:
    """Ask on a terminal whether to replace the store. Raises InvalidValue without a terminal."""
    what = (
        f"this replaces {upkeep.facts()['store']} by {file} for everybody who uses it, "
        "and saves what is there beside it"
    )
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise InvalidValue(f"{what}. There is no terminal to ask on: give --yes to do it")
    try:
        return click.confirm(f"{printable(what)}. Go on?", err=True)
    except click.Abort:
        # The terminal was closed, or Ctrl-C pressed.
        click.echo(err=True)
        return False


def _done(what: str, file: Path, as_json: bool) -> None:
    shown = printable(str(file))
    answer(to_json({what.replace(" ", "_"): shown}) if as_json else f"{what} {shown}")


def _upkeep() -> Upkeep:
    return Upkeep(settings_here())
