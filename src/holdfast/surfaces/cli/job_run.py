"""`holdfast jobs run`: a worker, which does one job after the other until it is stopped."""

import os
import shlex
import shutil
from contextlib import suppress
from typing import Annotated, Literal

import click

from holdfast.kernel.errors import EXIT_DONE, EXIT_NOTHING_TO_TAKE, Fenced, status_of
from holdfast.operations.fields import QUEUE
from holdfast.operations.operation import Flag, Request
from holdfast.surfaces.cli.command import request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.output import remark, write
from holdfast.surfaces.cli.store_options import job_store_options

EXIT_NOT_COMPLETED = 1
_FOREVER_S = 10 * 365 * 24 * 3600.0


class RunWorker(Request, frozen=True, kw_only=True):
    """What a worker does."""

    agent_session: Annotated[str, Flag(*QUEUE, metavar="LABEL", help="The queue to work on.")]
    once: Annotated[
        bool,
        Flag("--once", help="End after one job: 0 if it completed, 1 if not, 3 if there was none."),
    ] = False
    wait_s: Annotated[
        float | None,
        Flag("--wait", help="End after this many seconds without a job.  [default: never]"),
    ] = None
    validate: Annotated[
        str | None,
        Flag(
            "--validate",
            metavar="COMMAND",
            help="Run this when the command has ended well: the job completes if it exits with 0.",
        ),
    ] = None
    stdin: Annotated[
        Literal["job", "prompt", "none"],
        Flag(
            "--stdin",
            show_default=True,
            help="What the command reads: the job as JSON, its prompt alone, or nothing.",
        ),
    ] = "job"
    heartbeat_s: Annotated[
        float | None,
        Flag(
            "--heartbeat",
            within=(0.05, None),
            help="Seconds between signs of life.  "
            "[default: a third of the lease, or of --idle-timeout if that is shorter]",
        ),
    ] = None


@click.command(context_settings={"ignore_unknown_options": False})
@request_options(RunWorker)
@click.option("-q", "--quiet", is_flag=True, help="Print only what the command prints.")
@click.argument(
    "words", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@job_store_options
def run(request: RunWorker, words: tuple[str, ...], quiet: bool) -> int:
    """Work on jobs: pick one, run a command for it, report the verdict, pick the next.

    \b
        holdfast jobs run --queue tmux:me -- ./agent.sh
        holdfast jobs run --queue tmux:me --validate ./check -- claude -p

    The command runs in the job's working folder. It finds the job on its standard input, and
    HOLDFAST_JOB_ID, HOLDFAST_JOB_TOKEN, HOLDFAST_JOB_ATTEMPT, HOLDFAST_JOB_PROMPT,
    HOLDFAST_JOB_AGENT, HOLDFAST_JOB_SESSION and HOLDFAST_JOB_ARTIFACTS (a line each) in its
    environment. The last line that it prints is the job's result.

    The job completes when the command exits with 0, has left the artifacts that were expected, and
    --validate exits with 0. The command is ended when its time is over, and when the job was
    cancelled or put back. SIGTERM ends the worker and its command; the job is pending again.

    A command is ended with every process that it started, also daemons: SIGTERM, and SIGKILL after
    10 s. Processes that it leaves running when it exits are ended too, before the job completes. If
    the worker is killed, the job is pending again when the last of them is gone.
    """
    command = _found(words, "COMMAND")
    validate = None if request.validate is None else _split(request.validate)
    wait_s = request.wait_s
    if wait_s is None:
        wait_s = 0 if request.once else _FOREVER_S
    with connected() as hf:
        try:
            done = hf.jobs.work(
                request.agent_session,
                command,
                limit=1 if request.once else None,
                wait_s=wait_s,
                validate=None if validate is None else _found(validate, "--validate"),
                stdin=request.stdin,
                heartbeat_s=request.heartbeat_s,
                adopts_orphans=True,
                on_output=_print,
                on_event=(lambda _: None) if quiet else remark,
            )
        finally:
            hf.catch_up()
    if not request.once or done.given_back:
        return EXIT_DONE
    if done.lost:
        return status_of(Fenced("")).exit
    if not done.attempts:
        return EXIT_DONE if done.stopped else EXIT_NOTHING_TO_TAKE
    return EXIT_DONE if done.completed else EXIT_NOT_COMPLETED


def _print(line: str) -> None:
    # If nobody reads it, the work goes on all the same.
    with suppress(OSError):
        write(line)


def _split(line: str) -> tuple[str, ...]:
    """The words of a line, as a shell would find them."""
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise click.BadParameter(
            f"it is no command line: {error}", param_hint="--validate"
        ) from None


def _found(words: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The command with the whole path of its program, since it may run in another folder. Raises
    BadParameter.
    """
    program = shutil.which(words[0]) if words and words[0] else None
    if program is None:
        name = shlex.quote(words[0]) if words else "nothing"
        why = f"{name} is no command: give a path that may be executed, or one that is on your PATH"
        raise click.BadParameter(why, param_hint=where)
    return (os.path.abspath(program), *words[1:])
