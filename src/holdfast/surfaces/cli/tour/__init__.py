"""`holdfast tour`: a proof on a store in a temporary folder, with real processes and real kills.

Each part of Holdfast has a chapter: a function that gets a Tour, does what a user would do, and
states what must be true. A statement that is not true ends the tour with exit status 1, and is
named.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.settings import FILE_NAME, Settings
from holdfast.processes.signals import Interrupted
from holdfast.runtime.connection import connected
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.tour.agents import agents_chapter
from holdfast.surfaces.cli.tour.cleanup import cleaned_up
from holdfast.surfaces.cli.tour.gateway import gateway_chapter
from holdfast.surfaces.cli.tour.jobs import jobs_chapter
from holdfast.surfaces.cli.tour.locks import locks_chapter
from holdfast.surfaces.cli.tour.network import network_chapter
from holdfast.surfaces.cli.tour.recovery import recovery_chapter
from holdfast.surfaces.cli.tour.steps import BrokenStep, Tour, filled, last_errors
from holdfast.surfaces.cli.tour.store import store_chapter
from holdfast.surfaces.cli.tour.workflows import workflows_chapter


class Chapter(NamedTuple):
    """A part of the tour: its title, why it matters, and its steps."""

    title: str
    why: str
    run: Callable[[Tour], None]


CHAPTERS = [
    Chapter(
        "Agents: who is alive, and who may take over",
        "A pid file says that something ran once. Here a name leads to the one agent that is "
        "alive, or to none.",
        agents_chapter,
    ),
    Chapter(
        "Network: two jobs, three routers",
        "Two test runs on one router spoil each other's results. Each job locks all that it needs "
        "in one step, in any order.",
        network_chapter,
    ),
    Chapter(
        "Locks: who holds one, and who is next",
        "Anything with a name can be locked: a board, a port, a branch. Nobody polls, and nobody "
        "waits for a dead process.",
        locks_chapter,
    ),
    Chapter(
        "Jobs: one worker at a time, and one verdict",
        "Work that two workers do is done wrong; work that nobody does is lost.",
        jobs_chapter,
    ),
    Chapter(
        "A worker is killed",
        "It runs out of memory in the middle of a job, and has a lock and a lease.",
        recovery_chapter,
    ),
    Chapter(
        "Gateways: no prompt is lost or typed twice",
        "A prompt that waits in a script is lost with the script. A prompt that is sent again may "
        "reach the wrong agent.",
        gateway_chapter,
    ),
    Chapter(
        "Workflows: who needs the model, and when it may be swapped",
        "One GPU holds one model. A swap during work breaks the work; a swap that waits for ever "
        "blocks everybody.",
        workflows_chapter,
    ),
    Chapter(
        "The store: what survives",
        "All of this is in one file here. Every change that was acknowledged survives a crash and "
        "a power loss.",
        store_chapter,
    ),
]

_INTRODUCTION = (
    "Holdfast keeps agents, jobs and shared resources from stepping on each other. Everything here "
    "happens now, in real processes on a store in a temporary folder. A dot says what is done, a "
    "check mark what was found true after it; every kill is a kill -9."
)
_NEXT = (
    "Next: put `holdfast locks run NAME -- COMMAND` around something that must not run twice at a "
    "time. `holdfast doctor` checks this machine; `holdfast --help` and docs/quickstart.md show "
    "the rest."
)
_UNEXPECTED = (
    HoldfastError,
    subprocess.SubprocessError,
    ValueError,
    LookupError,
    ProcessLookupError,
)
"""What a step raises if Holdfast is at fault; not an error of the terminal."""


@click.command()
@click.option("--keep", is_flag=True, help="Leave the temporary store there and say where it is.")
def tour(keep: bool) -> int:
    """See Holdfast work, with real processes and kills, in less than a minute.

    Exits 0 if every statement is true, else 1, and says which is not.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-tour-"))
    # The nearest settings for all processes there, whatever the folders above have.
    (folder / FILE_NAME).touch()
    url = f"sqlite:{folder / 'store.sqlite'}"
    started_s = time.monotonic()
    try:
        click.secho("A tour of Holdfast", bold=True)
        click.echo(filled(_INTRODUCTION))
        with _interrupted_by_sigterm(), cleaned_up(folder, keep=keep):
            checked = _run_chapters(url, folder)
    except BrokenStep as broken:
        click.secho(f"\n  ✗ {broken}", fg="red")
        for line in last_errors(folder):
            click.secho(f"    {printable(line)}", dim=True)
        click.echo("The tour stops here: this statement is not true.")
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    took_s = time.monotonic() - started_s
    click.secho(f"\nAll {checked} statements are true, in {took_s:.0f} s.", bold=True)
    click.echo(filled(_NEXT))
    if shutil.which("holdfast") is None:
        activate = Path(sys.executable).with_name("activate")
        click.echo(f"`. {activate}` puts `holdfast` on your PATH.")
    if keep:
        click.echo(f"The store is kept: --store {url}")
    return 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_chapters(url: str, folder: Path) -> int:
    """Run all chapters; return how many statements were checked. Raises BrokenStep."""
    with connected(Settings(store=url)) as hf, closing(Tour(hf, url, folder)) as tour:
        for number, chapter in enumerate(CHAPTERS, 1):
            click.secho(f"\n{number}/{len(CHAPTERS)}  {chapter.title}", bold=True)
            click.secho(filled(chapter.why, "  "), dim=True)
            try:
                chapter.run(tour)
            except _UNEXPECTED as error:
                words = f"{type(error).__name__}: {error}"
                words = error.message if isinstance(error, HoldfastError) else words
                raise BrokenStep(f"{tour.last_said}: {words}") from error
        return tour.checked
