"""`holdfast tour`: the proof, on a store in a temporary folder, with real processes and real kills.

Each part of Holdfast brings a chapter: a function that is given a Stage, does things as a user
would, and states what must be true. A statement that does not hold ends the tour with exit status
1, and is named.
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
from holdfast.surfaces.cli.tour.gateway import gateway_chapter
from holdfast.surfaces.cli.tour.jobs import jobs_chapter
from holdfast.surfaces.cli.tour.locks import locks_chapter
from holdfast.surfaces.cli.tour.network import network_chapter
from holdfast.surfaces.cli.tour.recovery import recovery_chapter
from holdfast.surfaces.cli.tour.stage import BrokenStep, Stage, complaints, filled
from holdfast.surfaces.cli.tour.store import store_chapter
from holdfast.surfaces.cli.tour.warden import attended
from holdfast.surfaces.cli.tour.workflows import workflows_chapter


class Chapter(NamedTuple):
    """A part of the tour: its title, why anybody wants it, and what is played."""

    title: str
    why: str
    play: Callable[[Stage], None]


CHAPTERS = [
    Chapter(
        "Agents: who is alive, and who may take over",
        "A pid file says that something ran once. Here a name leads to the one agent that lives, "
        "or to nobody.",
        agents_chapter,
    ),
    Chapter(
        "Network: two jobs, three routers",
        "Two test runs on one router spoil each other's results. Each takes all it needs in one "
        "step, in any order.",
        network_chapter,
    ),
    Chapter(
        "Locks: who has it, and who is next",
        "Anything with a name can be locked: a board, a port, a branch. Nobody polls, and nobody "
        "waits for the dead.",
        locks_chapter,
    ),
    Chapter(
        "Jobs: whose turn it is, and whose word counts",
        "Work that two workers do is done wrong; work that nobody does is lost. Each job is one "
        "worker's at a time.",
        jobs_chapter,
    ),
    Chapter(
        "A worker is killed",
        "The usual night: out of memory, in the middle of a job, with a lock and a lease in its "
        "hands.",
        recovery_chapter,
    ),
    Chapter(
        "Gateways: what must never be typed twice",
        "A prompt that waits in a script is lost with the script. One that is sent again may "
        "reach the wrong agent.",
        gateway_chapter,
    ),
    Chapter(
        "Workflows: who needs the model, and when it may be swapped",
        "One GPU holds one model. A swap under running work kills it; one that waits for ever "
        "blocks everybody.",
        workflows_chapter,
    ),
    Chapter(
        "The store: what survives",
        "All of this is one file here. What was acknowledged is in it, whenever a process or the "
        "power goes.",
        store_chapter,
    ),
]

_INTRODUCTION = (
    "Agents, jobs and shared things that do not step on each other. What you read happens now, by "
    "real processes on a store in "
    "a temporary folder. A dot says what is done, a check mark what was found true after it; "
    "every kill is a kill -9."
)
_NEXT = (
    "Next: `holdfast locks run NAME -- COMMAND` around something that must not run twice at a "
    "time; `holdfast doctor` looks at "
    "this machine; `holdfast --help` and docs/quickstart.md show the rest."
)

_UNFORESEEN = (
    HoldfastError,
    subprocess.SubprocessError,
    ValueError,
    LookupError,
    ProcessLookupError,
)
"""What a step raises that does not come out as told. A terminal that cannot be written is no such
thing.
"""


@click.command()
@click.option("--keep", is_flag=True, help="Leave the temporary store there and say where it is.")
def tour(keep: bool) -> int:
    """See Holdfast work, with real processes and kills, in less than a minute.

    Exits 0 if everything came out as told, else 1, and says what did not.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-tour-"))
    # The nearest settings for all that runs in there, whatever lies above.
    (folder / FILE_NAME).touch()
    url = f"sqlite:{folder / 'store.sqlite'}"
    begun_s = time.monotonic()
    try:
        click.secho("A tour of Holdfast", bold=True)
        click.echo(filled(_INTRODUCTION))
        with _ended_in_order(), attended(folder, keep=keep):
            told = _played(url, folder)
    except BrokenStep as broken:
        click.secho(f"\n  ✗ {broken}", fg="red")
        for line in complaints(folder):
            click.secho(f"    {printable(line)}", dim=True)
        click.echo("The tour stops here: this did not come out as told.")
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    click.secho(f"\nAll {told} statements held, in {time.monotonic() - begun_s:.0f} s.", bold=True)
    _next_steps(url if keep else None)
    return 0


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Whoever tells the tour to end has its processes and its folder cleared away too, as by
    Ctrl-C.
    """

    def end(number: int, _: object) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _played(url: str, folder: Path) -> int:
    """Play all chapters; return how many statements held. Raises BrokenStep."""
    with connected(Settings(store=url)) as hf, closing(Stage(hf, url, folder)) as stage:
        for number, chapter in enumerate(CHAPTERS, 1):
            stage.title(f"{number}/{len(CHAPTERS)}  {chapter.title}", chapter.why)
            try:
                chapter.play(stage)
            except _UNFORESEEN as error:
                words = (
                    error.message
                    if isinstance(error, HoldfastError)
                    else f"{type(error).__name__}: {error}"
                )
                raise BrokenStep(f"{stage.last_said}: {words}") from error
        return stage.told


def _next_steps(kept: str | None) -> None:
    click.echo(filled(_NEXT))
    if shutil.which("holdfast") is None:
        click.echo(
            f"`. {Path(sys.executable).with_name('activate')}` puts `holdfast` on your PATH."
        )
    if kept is not None:
        click.echo(f"The store is kept: --store {kept}")
