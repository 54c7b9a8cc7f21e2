"""`holdfast tour`: the proof, on a store in a temporary folder, with real processes and real kills.

Each part of Holdfast brings a chapter: a function that is given a Stage, does things as a user would, and states what must
be true. A statement that does not hold ends the tour with exit status 1.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from holdfast.app import connect
from holdfast.surfaces.cli.tour.agents import agents_chapter
from holdfast.surfaces.cli.tour.jobs import jobs_chapter
from holdfast.surfaces.cli.tour.locks import locks_chapter
from holdfast.surfaces.cli.tour.stage import BrokenStep, Stage
from holdfast.surfaces.cli.tour.store import store_chapter
from holdfast.surfaces.cli.tour.workflows import workflows_chapter

CHAPTERS: dict[str, Callable[[Stage], None]] = {
    "Jobs: whose turn it is, and whose word counts": jobs_chapter,
    "Agents: who is alive, and who may take over": agents_chapter,
    "Locks: who has it, and who is next": locks_chapter,
    "Workflows: who needs the model, and when it may be swapped": workflows_chapter,
    "The store: what survives": store_chapter,
}


@click.command()
@click.option("--keep", is_flag=True, help="Leave the temporary store there and say where it is.")
def tour(keep: bool) -> int:
    """See Holdfast work, with real processes and kills, in a few seconds."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-tour-"))
    url = f"sqlite:{folder / 'store.sqlite'}"
    click.secho("A tour of Holdfast", bold=True)
    click.echo(f"On a SQLite store of its own, with nothing to start: {folder / 'store.sqlite'}")
    try:
        with connect(url) as hf:
            stage = Stage(hf, url)
            for title, chapter in CHAPTERS.items():
                stage.title(title)
                chapter(stage)
    except BrokenStep as broken:
        click.secho(f"\n  ✗ {broken}", fg="red")
        click.echo("The tour stops here: this did not come out as told.")
        return 1
    finally:
        if not keep:
            _remove(folder)
    click.secho(f"\nAll {stage.told} statements held.", bold=True)
    click.echo("Next: `holdfast jobs register --prompt 'say hello' --agent-session tmux:me`, then `holdfast --help`.")
    if shutil.which("holdfast") is None:
        click.echo(f"`. {Path(sys.executable).with_name('activate')}` puts `holdfast` on your PATH.")
    if keep:
        click.echo(f"The store is kept: --store {url}")
    return 0


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
