"""A worker: one job after the other, each told of as it goes, until it is stopped or there is
nothing left.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

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
from holdfast.processes.shared_tree import SharedTree
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.jobs.labour import Labour, Outcome, Progress, Way
from holdfast.surfaces.cli.jobs.options import mirror
from holdfast.surfaces.cli.outage import Outage
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.render import clipped

T = TypeVar("T")

EXIT_NOT_COMPLETED = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_VERDICT_TRIES = 30
_LAST_EVENTS_S = 5.0


class Worker:
    """Works on the jobs of a label as this process. When it dies, its job is put back once all
    processes of its command are gone. Raises StoreUnavailable when the FIFO of its process tree
    cannot be made.
    """

    def __init__(self, hf: Holdfast, agent_session: str, way: Way, *, quiet: bool) -> None:
        self._hf = hf
        self._label = agent_session
        self._way = way
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
        labour = Labour(
            self._hf, job, self._way, stop_fd=self._stop_fd, progress=progress, tree=self._tree
        )
        outcome = labour.outcome()
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
        """Give the verdict and, in the same transaction, take the next job. A store that is away is
        tried again for a while.
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
