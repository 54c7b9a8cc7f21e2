"""`holdfast jobs run`: a worker, which does one job after the other until it is stopped."""

import math
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Literal, TypeVar

import click

from holdfast.adapters.event_sender import Courier, Errand
from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.events import EventKind
from holdfast.kernel.errors import (
    EXIT_DONE,
    EXIT_NOTHING_TO_TAKE,
    HoldfastError,
    Lost,
    Refused,
    Unavailable,
    status_of,
)
from holdfast.operations.jobs import mirror
from holdfast.operations.operation import Flag, Request
from holdfast.processes.shared_tree import SharedTree
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.command import request_options
from holdfast.surfaces.cli.connection import connected, given, job_store_options
from holdfast.surfaces.cli.job_attempt import Attempt, Outcome, Progress, WorkSettings
from holdfast.surfaces.cli.outage import Outage
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.render import clipped

T = TypeVar("T")

EXIT_NOT_COMPLETED = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_VERDICT_TRIES = 30
_LAST_EVENTS_S = 5.0
_FOREVER_S = 10 * 365 * 24 * 3600.0


class Work(Request, frozen=True, kw_only=True):
    """What a worker does."""

    agent_session: Annotated[
        str, Flag("--agent-session", metavar="LABEL", help="Whose queue to work on.")
    ]
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


class Worker:
    """Works on the jobs of a label as this process.

    When it dies, its job is put back once all processes of its command are gone. Raises
    StoreUnavailable when the FIFO of its process tree cannot be made.
    """

    def __init__(
        self, hf: Holdfast, agent_session: str, settings: WorkSettings, *, quiet: bool
    ) -> None:
        self._hf = hf
        self._label = agent_session
        self._settings = settings
        self._quiet = quiet
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        # One tree for all jobs, so that the claim is known when a job is picked. A signal that
        # ended this process before it could handle it would leave the FIFO behind.
        self._tree = SharedTree(hf.processes.trees)
        self._me = hf.processes.of(os.getpid(), agent_session, self._tree.id)
        self._errand = Errand(Courier(hf.job_events), complain=self._say)
        self._outage = Outage(quiet=quiet)

    def work(self, *, once: bool, wait_s: float) -> int:
        """Work until stopped, until there was nothing to do for `wait_s`, or for one job; return
        the exit status.
        """
        job: Job | None = None
        while not self._stopping:
            job = job or self._pick(wait_s)
            if job is None:
                return EXIT_DONE if self._stopping or not once else EXIT_NOTHING_TO_TAKE
            outcome, job = self._do(job, pick_next=not once)
            if once:
                return _exit_of(outcome)
        if job is not None:
            self._give_back(job)
        return EXIT_DONE

    def close(self) -> None:
        """Send the last events if the broker is there, and let go."""
        self._errand.close(_LAST_EVENTS_S)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._tree.close()
        os.close(self._stop_fd)

    def _pick(self, wait_s: float) -> Job | None:
        end_s = time.monotonic() + wait_s

        def pick() -> Job | None:
            left_s = max(end_s - time.monotonic(), 0.0)
            return self._hf.jobs.pick_pending(
                self._label, wait_s=left_s, holder=self._me, stop_fd=self._stop_fd
            )

        return self._insist(pick, end_s)

    def _insist(self, work: Callable[[], T], end_s: float = math.inf) -> T:
        """Do it, again while the store is away: a database that is restarted comes back, and nobody
        should have to see to it that its workers do. Raises Unavailable when there is no time left,
        or this is stopped.
        """
        while True:
            try:
                done = work()
            except Unavailable as error:
                if self._stopping or time.monotonic() >= end_s:
                    raise
                self._outage.wait(error)
            else:
                self._outage.over()
                return done

    def _do(self, job: Job, *, pick_next: bool) -> tuple[Outcome, Job | None]:
        begun_s = time.monotonic()
        self._say(f"job {job.job_id}, attempt {job.attempt}: {clipped(job.prompt)}")
        try:
            self._insist(lambda: self._tell_start(job))
        except (Lost, Refused) as error:
            self._say(error.message)
            return Outcome(None, error.message, lost=True), None
        self._errand.wake(job.job_id)
        progress = Progress(self._hf, kept=self._errand.wake)
        attempt = Attempt(
            self._hf, job, self._settings, stop_fd=self._stop_fd, progress=progress, tree=self._tree
        )
        outcome = attempt.outcome()
        outcome, following = self._conclude(
            job, outcome, pick_next=pick_next and not self._stopping
        )
        self._errand.wake(job.job_id)
        took = f"after {time.monotonic() - begun_s:.1f} s"
        self._say(
            f"job {job.job_id} {_named(outcome)} {took}"
            + (f": {outcome.words}" if outcome.words else "")
        )
        mirror(self._hf)
        return outcome, following

    def _tell_start(self, job: Job) -> None:
        try:
            self._hf.job_events.publish(job.job_id, EventKind.STARTED, token=job.token)
        except Unavailable as error:
            # What may have been kept is not told twice.
            if error.fields.get("outcome") != "unknown":
                raise

    def _conclude(
        self, job: Job, outcome: Outcome, *, pick_next: bool
    ) -> tuple[Outcome, Job | None]:
        """Give the verdict and, in the same transaction, take the next job.

        A store that is away is tried again for a while.
        """
        if outcome.status is None:
            if outcome.lost:
                return self._as_it_stands(job, outcome), None
            self._give_back(job)
            return outcome, None
        for left in reversed(range(_VERDICT_TRIES)):
            try:
                following = self._give_verdict(job, outcome, outcome.status, pick_next=pick_next)
            except (Lost, Refused) as error:
                return self._as_it_stands(job, Outcome(None, error.message, lost=True)), None
            except Unavailable as error:
                if not left or self._stopping:
                    raise
                self._outage.wait(error)
            else:
                self._outage.over()
                return outcome, following
        return outcome, None

    def _as_it_stands(self, job: Job, lost: Outcome) -> Outcome:
        """What to tell of an attempt that was over before its verdict: as the command itself told
        it, or that it was lost.
        """
        try:
            found = self._hf.jobs.peek(job.job_id)
        except HoldfastError:
            return lost
        if (
            found is None
            or found.attempt != job.attempt
            or found.status not in (JobStatus.COMPLETED, JobStatus.ERROR)
        ):
            return lost
        return Outcome(found.status, found.result or found.error or "", found.error_code)

    def _give_verdict(
        self, job: Job, outcome: Outcome, status: JobStatus, *, pick_next: bool
    ) -> Job | None:
        completed = status is JobStatus.COMPLETED
        also = self._hf.job_events.with_step(
            EventKind.COMPLETED if completed else EventKind.ERROR,
            detail=outcome.words,
            data=None if outcome.code is None else {"code": outcome.code},
        )
        result, error = (outcome.words or None, None) if completed else (None, outcome.words)
        token = job.token or 0
        if pick_next:
            return self._hf.jobs.finish_and_pick(
                job.job_id,
                status,
                token=token,
                result=result,
                error=error,
                error_code=outcome.code,
                holder=self._me,
                also=also,
            ).picked
        self._hf.jobs.update_status(
            job.job_id,
            status,
            token=token,
            result=result,
            error=error,
            error_code=outcome.code,
            also=also,
        )
        return None

    def _give_back(self, job: Job) -> None:
        try:
            self._hf.jobs.requeue(job.job_id, token=job.token)
            self._say(f"job {job.job_id} is pending again")
        except (Lost, Refused) as error:
            self._say(error.message)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        os.eventfd_write(self._stop_fd, 1)

    def _say(self, text: str) -> None:
        if not self._quiet:
            remark(text)


def _named(outcome: Outcome) -> str:
    if outcome.status is JobStatus.COMPLETED:
        return "completed"
    return "failed" if outcome.status is JobStatus.ERROR else "was left"


def _exit_of(outcome: Outcome) -> int:
    if outcome.lost:
        from holdfast.kernel.errors import Fenced

        return status_of(Fenced("")).exit
    return EXIT_DONE if outcome.status in (JobStatus.COMPLETED, None) else EXIT_NOT_COMPLETED


@click.command(context_settings={"ignore_unknown_options": False})
@request_options(Work)
@click.option("-q", "--quiet", is_flag=True, help="Pass on only what the command says.")
@click.argument(
    "words", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@job_store_options
def run(request: Work, words: tuple[str, ...], quiet: bool) -> int:
    """Work on jobs: pick one, run a command for it, tell how it went, pick the next.

    \b
        holdfast jobs run --agent-session tmux:me -- ./agent.sh
        holdfast jobs run --agent-session tmux:me --validate ./check -- claude -p

    The command runs in the job's working folder. It finds the job on its standard input, and
    HOLDFAST_JOB_ID, HOLDFAST_JOB_TOKEN, HOLDFAST_JOB_ATTEMPT, HOLDFAST_JOB_PROMPT,
    HOLDFAST_JOB_AGENT, HOLDFAST_JOB_SESSION and HOLDFAST_JOB_ARTIFACTS (a line each) in its
    environment. The last line that it prints is the job's result.

    The job completes when the command exits with 0, has left the artifacts that were expected, and
    --validate finds it good. It is ended when its time is over, and when it was cancelled or put
    back. SIGTERM ends the worker in order: its command is ended, and the job is pending again.

    A command is ended with every process that it started, also daemons: SIGTERM, and SIGKILL after
    10 s. Processes that it leaves running when it exits are ended too, before the job completes. If
    the worker is killed, the job is pending again when the last of them is gone.
    """
    settings = WorkSettings(
        words=_found(words, "COMMAND"),
        validate=None
        if request.validate is None
        else _found(_split(request.validate), "--validate"),
        stdin=request.stdin,
        heartbeat_s=request.heartbeat_s,
        registry_dir=given().registry,
    )
    wait_s = request.wait_s
    if wait_s is None:
        wait_s = 0 if request.once else _FOREVER_S
    with connected() as hf:
        worker = Worker(hf, request.agent_session, settings, quiet=quiet)
        try:
            return worker.work(once=request.once, wait_s=wait_s)
        finally:
            worker.close()
            mirror(hf)


def _split(line: str) -> tuple[str, ...]:
    """The words of a line, as a shell would find them."""
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise click.BadParameter(
            f"it is no command line: {error}", param_hint="--validate"
        ) from None


def _found(words: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The command with its program's whole path, since it may run in another folder.

    Raises before any job is picked.
    """
    program = shutil.which(words[0]) if words and words[0] else None
    if program is None:
        name = shlex.quote(words[0]) if words else "nothing"
        why = f"{name} is no command: give a path that may be executed, or one that is on your PATH"
        raise click.BadParameter(why, param_hint=where)
    return (os.path.abspath(program), *words[1:])
