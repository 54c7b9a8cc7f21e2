"""The worker: picks jobs of a queue one after the other, does each, and gives its verdict."""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from msgspec import UNSET

from holdfast.adapters.event_sender import BackgroundSender, EventSender
from holdfast.domains.jobs.events import EventKind
from holdfast.domains.jobs.records import Job, JobStatus
from holdfast.domains.jobs.work import WorkReport, WorkRequest
from holdfast.kernel.errors import HoldfastError, Lost, Refused, Unavailable
from holdfast.kernel.text import clipped
from holdfast.processes.trees import SharedTree
from holdfast.runtime.attempt import Attempt, AttemptOutcome
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.outage import Outage
from holdfast.stores.listener import readable

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_VERDICT_TRIES = 30
_LAST_EVENTS_S = 5.0

_log = logging.getLogger("holdfast.jobs")


def work(hf: Holdfast, request: WorkRequest, registry_dir: Path | None) -> WorkReport:
    """Work as `Jobs.work` says. Raises StoreUnavailable when the FIFO of the worker's process tree
    cannot be made, and Unavailable when the store is away for too long.
    """
    worker = Worker(hf, request, registry_dir)
    try:
        return worker.run()
    finally:
        worker.close()


class Worker:
    """Works on the jobs of a queue as this process. When it dies, its job is put back once all
    processes of its command are gone.
    """

    def __init__(self, hf: Holdfast, request: WorkRequest, registry_dir: Path | None) -> None:
        self._hf = hf
        self._request = request
        self._registry_dir = registry_dir
        self._say = request.on_event or _log.info
        self._interruptible = False
        self._tally: Counter[str] = Counter()
        self._own_stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_fd = self._own_stop_fd if request.stop_fd is None else request.stop_fd
        self._outage = Outage(self._say, lambda limit_s: readable([self._stop_fd], limit_s))
        # Before the tree is made: a signal that ended this process would leave the FIFO behind.
        self._handlers = {
            number: signal.signal(number, self._stop)
            for number in _SIGNALS
            if request.stop_fd is None and threading.current_thread() is threading.main_thread()
        }
        # One tree for all jobs: the claim names it before the job, and so the attempt, is known.
        # A handler without a validation starts no command.
        runs_commands = request.command is not None or request.validate is not None
        self._tree = SharedTree(hf.processes.trees) if runs_commands else None
        tree_id = UNSET if self._tree is None else self._tree.id
        self._me = hf.processes.of(os.getpid(), request.queue, tree_id)
        self._sender = BackgroundSender(EventSender(hf.job_events), complain=self._say)

    def run(self) -> WorkReport:
        """Work until stopped, until there was no job for `wait_s`, or until the limit."""
        limit = self._request.limit
        job: Job | None = None
        while not self._stopping() and (limit is None or self._tally.total() < limit):
            job = job or self._pick()
            if job is None:
                break
            job = self._do(job, pick_next=limit is None or self._tally.total() + 1 < limit)
        if job is not None:
            self._give_back(job)
        return WorkReport(**self._tally, stopped=self._stopping())

    def close(self) -> None:
        """Send the last events if the broker is there, and restore the signals."""
        self._sender.close(_LAST_EVENTS_S)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._tree is not None:
            self._tree.close()
        os.close(self._own_stop_fd)

    def _pick(self) -> Job | None:
        end_s = time.monotonic() + self._request.wait_s

        def pick() -> Job | None:
            left_s = max(end_s - time.monotonic(), 0.0)
            return self._hf.jobs.pick_pending(
                self._request.queue, wait_s=left_s, holder=self._me, stop_fd=self._stop_fd
            )

        return self._through_outages(pick, lambda: time.monotonic() < end_s)

    def _through_outages(self, act: Callable[[], T], goes_on: Callable[[], bool]) -> T:
        """Act, and again while the store is away: a database that restarts comes back, and its
        workers must not end for that. Raises Unavailable when this is stopped or may not go on.
        """
        while True:
            try:
                done = act()
            except Unavailable as error:
                if self._stopping() or not goes_on():
                    raise
                self._outage.wait(error)
            else:
                self._outage.over()
                return done

    def _do(self, job: Job, *, pick_next: bool) -> Job | None:
        """Make an attempt at a job and give its verdict; return the next job if one was picked."""
        started_s = time.monotonic()
        self._say(f"job {job.job_id}, attempt {job.attempt}: {clipped(job.prompt)}")
        try:
            self._through_outages(lambda: self._publish_start(job), lambda: True)
        except (Lost, Refused) as error:
            self._say(error.message)
            self._tally["lost"] += 1
            return None
        self._sender.wake(job.job_id)
        attempt = Attempt(
            self._hf,
            job,
            self._request,
            stop_fd=self._stop_fd,
            tree=self._tree,
            registry_dir=self._registry_dir,
            on_progress=lambda: self._sender.wake(job.job_id),
            on_timeout=lambda outcome: self._end_overdue(job, outcome),
        )
        self._interruptible = self._request.command is None
        try:
            outcome = attempt.run()
        except BaseException:
            # Of a handler: KeyboardInterrupt or SystemExit.
            self._interruptible = False
            with suppress(HoldfastError):
                self._give_back(job)
            raise
        self._interruptible = False
        outcome, following = self._conclude(
            job, outcome, pick_next=pick_next and not self._stopping()
        )
        self._sender.wake(job.job_id)
        kind, named = {
            JobStatus.COMPLETED: ("completed", "completed"),
            JobStatus.ERROR: ("failed", "failed"),
        }.get(outcome.status or JobStatus.PENDING, ("given_back", "was left"))
        self._tally["lost" if outcome.lost else kind] += 1
        why = f": {outcome.words}" if outcome.words else ""
        self._say(f"job {job.job_id} {named} after {time.monotonic() - started_s:.1f} s{why}")
        self._hf.catch_up()
        return following

    def _publish_start(self, job: Job) -> None:
        try:
            self._hf.job_events.publish(job.job_id, EventKind.STARTED, token=job.token)
        except Unavailable as error:
            # An event that may have been stored is not published twice.
            if error.fields.get("outcome") != "unknown":
                raise

    def _conclude(
        self, job: Job, outcome: AttemptOutcome, *, pick_next: bool
    ) -> tuple[AttemptOutcome, Job | None]:
        """Give the verdict and, in the same transaction, pick the next job. Return what counts in
        the end: the job may have ended before.
        """
        if outcome.status is None:
            if outcome.lost:
                return self._recorded(job, outcome), None
            self._give_back(job)
            return outcome, None
        tries = iter(range(_VERDICT_TRIES - 1))
        try:
            return outcome, self._through_outages(
                lambda: self._give_verdict(job, outcome, pick_next=pick_next),
                lambda: next(tries, None) is not None,
            )
        except (Lost, Refused) as error:
            return self._recorded(job, AttemptOutcome(None, error.message, lost=True)), None

    def _recorded(self, job: Job, lost: AttemptOutcome) -> AttemptOutcome:
        """The end of the attempt as the record has it, where the task reported it itself."""
        try:
            found = self._hf.jobs.peek(job.job_id)
        except HoldfastError:
            return lost
        ends = (JobStatus.COMPLETED, JobStatus.ERROR)
        if found is None or found.attempt != job.attempt or found.status not in ends:
            return lost
        return AttemptOutcome(found.status, found.result or found.error or "", found.error_code)

    def _give_verdict(
        self, job: Job, outcome: AttemptOutcome, *, pick_next: bool = False
    ) -> Job | None:
        completed = outcome.status is JobStatus.COMPLETED
        also = self._hf.job_events.with_step(
            EventKind.COMPLETED if completed else EventKind.ERROR,
            detail=outcome.words,
            data=None if outcome.code is None else {"code": outcome.code},
        )
        status = JobStatus.COMPLETED if completed else JobStatus.ERROR
        result, error = (outcome.words or None, None) if completed else (None, outcome.words)
        token, code = job.token or 0, outcome.code
        if pick_next:
            return self._hf.jobs.finish_and_pick(
                job.job_id,
                status,
                token=token,
                agent_session=job.agent_session,
                result=result,
                error=error,
                error_code=code,
                holder=self._me,
                also=also,
            ).picked
        self._hf.jobs.update_status(
            job.job_id, status, token=token, result=result, error=error, error_code=code, also=also
        )
        return None

    def _end_overdue(self, job: Job, outcome: AttemptOutcome) -> None:
        # If the store is away, the next reaper ends the job.
        with suppress(HoldfastError):
            self._give_verdict(job, outcome)
            self._sender.wake(job.job_id)
            self._say(f"job {job.job_id}: {outcome.words}. Its handler goes on and cannot be ended")

    def _give_back(self, job: Job) -> None:
        try:
            self._hf.jobs.requeue(job.job_id, token=job.token)
            self._say(f"job {job.job_id} is pending again")
        except (Lost, Refused) as error:
            self._say(error.message)

    def _stopping(self) -> bool:
        return bool(readable([self._stop_fd], 0))

    def _stop(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self._interruptible and self._stopping():
            # Only an exception ends a handler.
            raise KeyboardInterrupt
        os.eventfd_write(self._own_stop_fd, 1)
