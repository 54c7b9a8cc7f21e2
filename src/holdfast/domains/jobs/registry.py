"""The registry of jobs: each operation is one transaction, which also writes its journal entry."""

import contextlib
from binascii import crc32
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.leftovers import Leftovers
from holdfast.domains.jobs.picker import JOBS_ALONE, Picker, PickStep, claimed
from holdfast.domains.jobs.reaper import Reaper
from holdfast.domains.jobs.records import (
    JOBS,
    NEW_JOB_LIMITS,
    NO_BROKER,
    Broker,
    Job,
    JobStatus,
    TimeLimits,
)
from holdfast.kernel.codec import cut
from holdfast.kernel.errors import (
    HoldfastError,
    ImpossibleTransition,
    InvalidValue,
    NotFound,
    Unavailable,
)
from holdfast.kernel.holder import Holder, Processes, Survivor, check_holder
from holdfast.kernel.limits import (
    JOB_ATTEMPTS,
    JOB_PAST_ERROR_BYTES_MAX,
    JOBS_KEEP_LEAST,
    JOBS_PAGE,
    JOBS_PRUNE_EVERY,
    LIST_MAX,
)
from holdfast.kernel.names import check_job_id, check_label
from holdfast.kernel.settings import JobSettings
from holdfast.kernel.store import Damage, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.log import warn
from holdfast.primitives.steady_clock import steady_clock

if TYPE_CHECKING:
    from holdfast.domains.jobs.work import Handler, Stdin, WorkReport, WorkRequest

T = TypeVar("T")


class Finished(NamedTuple):
    """The job that `finish_and_pick` ended, and the next one, running, if there was one."""

    done: Job
    picked: Job | None


class Jobs:
    """Delegated work on one store.

    Promised: one worker at a time gets a job, in order of priority, then arrival. A verdict with a
    token counts only while that attempt is the current one. A dead worker's job is pending again at
    the next pick, once no process of its tree is left; a job past its limits ends in error. A job
    that is damaged, or too large to be claimed, holds up no other. Not promised: that work is done
    only once, since a job that was put back is done again.

    `warn` is called with problems that are not errors of the caller; it logs unless it is set.
    `limits` are the time limits of a new job whose registrant names none.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        keep: JobSettings | None = None,
        *,
        limits: TimeLimits = NEW_JOB_LIMITS,
        worker: "Callable[[WorkRequest], WorkReport] | None" = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._keep = keep or JobSettings()
        self._limits = limits
        self._worker = worker
        self._leftovers = Leftovers(processes, embedded=store.embedded)
        self._reaper = Reaper(store, journal, processes, self._leftovers)
        self._picker = Picker(
            store,
            journal,
            self._leftovers,
            self._reaper,
            lease_s=self._keep.lease_s,
            warn=self._warn,
        )
        self.warn: Callable[[str], None] = _log
        self.unlogged = False
        """True if this object changed jobs since the audit log was last brought up to date. A pick
        does not count: it must start and end fast, and leaves the log to the next process.
        """

    def register_job(
        self,
        prompt: str,
        *,
        agent: str,
        agent_session: str,
        timeout_sec: float | None = None,
        idle_timeout_sec: float | None = None,
        expected_artifacts: Sequence[str] = (),
        workdir: str | None = None,
        priority: int = 0,
        max_attempts: int = JOB_ATTEMPTS,
        broker: Broker | None = None,
        topic_prefix: str | None = None,
        signed: bool = True,
        job_id: str | None = None,
    ) -> Job:
        """Register work for the queue `agent_session`, and return it, pending.

        One attempt may take `timeout_sec` (default: a day), and give no sign of life for
        `idle_timeout_sec` (default: any time). In a folder that other programs share the defaults
        are 600 and 120 s. `workdir` is an absolute path. Its events are `signed` with a key of its
        own. Raises Collision when a given `job_id` is taken; InvalidName and InvalidValue before
        anything is stored.
        """
        # Imported here, as elsewhere in this module: a pick must start fast and needs none of it.
        from holdfast.domains.jobs.draft import check_draft, new_job

        if isinstance(expected_artifacts, str):
            # Each of its characters would be an artifact, which no work leaves.
            raise InvalidValue(
                "expected_artifacts is a text: give a list of paths", field="expected_artifacts"
            )
        now, limits = self._store.now(), self._limits
        idle_s = limits.idle_timeout_sec if idle_timeout_sec is None else idle_timeout_sec
        draft = Job(
            job_id=job_id or "",
            created_at=now,
            updated_at=now,
            prompt=prompt,
            agent=agent,
            agent_session=agent_session,
            priority=priority,
            broker=broker or NO_BROKER,
            topic_prefix=topic_prefix or "",
            timeout_sec=limits.timeout_sec if timeout_sec is None else timeout_sec,
            idle_timeout_sec=idle_s,
            expected_artifacts=tuple(expected_artifacts),
            workdir=workdir,
            max_attempts=max_attempts,
        )
        check_draft(draft, job_id, topic_prefix)

        def body(tx: Tx) -> Job:
            job = new_job(tx, draft, signed=signed)
            tx.put(JOBS, job.job_id, job)
            self._journal.append(
                tx, kind="job.registered", subject=job.job_id, data={"agent_session": agent_session}
            )
            tx.notify(transitions.queue_topic(agent_session))
            return job

        job = self._change(body)
        if crc32(b"%d" % job.arrival) % JOBS_PRUNE_EVERY == 0:
            try:
                self._prune(most=2 * JOBS_PRUNE_EVERY)
            except HoldfastError as error:
                # The job is registered, so its registrant gets no error.
                self.warn(f"not pruned: {error.message}")
        return job

    def pick_pending(
        self,
        agent_session: str,
        *,
        wait_s: float = 0,
        holder: Holder | None = None,
        stop_fd: int | None = None,
    ) -> Job | None:
        """Claim the next pending job of a label and return it, running; None when there is none
        within `wait_s`, or when the descriptor `stop_fd` becomes readable.

        Two callers never get one job. The verdict must show the returned job's token. `holder` is
        the process that works on it: when it dies, with its process tree if it names one, the job
        is pending again. Where that cannot be seen, as from another machine, the same happens when
        it gives no sign of life for `jobs.lease_s`: see `heartbeat`. Without a holder, only the
        job's time limits end the claim. If a call with a holder was not answered, the next call of
        that process puts back what it may have claimed.

        A job is skipped while processes of an earlier attempt at it live on this machine. They
        are asked to end, and killed after the grace; a pick that waits gets the job when they are
        gone. Raises InvalidName, InvalidValue for a `wait_s` that is not a number, and LockTimeout
        when another writer kept the store shut until its end.
        """
        check_label(agent_session, "agent session")
        if wait_s != wait_s:
            raise InvalidValue("wait_s is not a number: give the seconds to wait", field="wait_s")
        if holder is not None:
            check_holder(holder)
        if wait_s <= 0:
            return self._picker.pick_now(agent_session, holder)
        return self._picker.wait(agent_session, holder, wait_s, stop_fd)

    def update_status(
        self,
        job_id: str,
        status: JobStatus | str,
        *,
        token: int | None = None,
        result: str | None = None,
        error: str | None = None,
        error_code: str | None = None,
        also: transitions.ExtraChange | None = None,
    ) -> Job:
        """Move a job to another status and return it.

        A worker shows the token of its attempt, and gets Fenced when that is no longer the current
        one; an operator may leave it out. When an operator takes a job from a dead worker, this
        ends what is left of its command. `also` belongs to the same transaction.

        Raises NotFound, ImpossibleTransition for a step that TRANSITIONS does not have, and
        InvalidValue for an unknown status. The status is changed in none of these cases. But the
        words of a verdict that came too late are kept as `late_result`, and the error says so.
        """
        check_job_id(job_id)
        verdict = transitions.verdict_of(status, result, error, error_code)
        wanted = verdict.status
        steady_clock(self._store).compare()
        taken_from: list[Job] = []

        def body(tx: Tx) -> Job | transitions.LateRefusal:
            job = transitions.existing(tx, job_id)
            running, operator = job.status is JobStatus.RUNNING, token is None
            is_taken = running and (operator or wanted is JobStatus.CANCELLED)
            taken_from[:] = [job] if is_taken else []
            late = transitions.check_verdict(tx, self._journal, job, token, verdict)
            if late is not None:
                return late
            after = transitions.moved(
                job, verdict, now=tx.now, token=tx.revision, by_operator=operator
            )
            after = after if also is None else also.do(tx, after)
            after = transitions.write(tx, self._journal, job, after)
            if running and (operator or wanted is JobStatus.PENDING):
                # Its worker must be notified. A token shows which attempt is meant, and not that
                # its worker shows it.
                tx.notify(transitions.job_topic(job_id))
            return after

        moved = self._change(body, also)
        for job in taken_from:
            self._leftovers.end_of_dead_worker(job)
        if isinstance(moved, transitions.LateRefusal):
            raise moved.error
        return moved

    def finish_and_pick(
        self,
        job_id: str,
        status: JobStatus | str,
        *,
        token: int,
        agent_session: str | None = None,
        result: str | None = None,
        error: str | None = None,
        error_code: str | None = None,
        holder: Holder | None = None,
        also: transitions.ExtraChange | None = None,
    ) -> Finished:
        """End a job and claim the next one of its label, or of `agent_session`, in one transaction:
        one sync instead of two. Both happen or neither. Raises as `update_status`, and InvalidValue
        for a status that does not end a job.
        """
        check_job_id(job_id)
        verdict = transitions.verdict_of(status, result, error, error_code)
        if not verdict.status.ended:
            raise InvalidValue(
                f"{verdict.status.value} does not end a job: use completed, error or cancelled",
                field="status",
            )
        if agent_session is not None:
            check_label(agent_session, "agent session")
        if holder is not None:
            check_holder(holder)
        self._reaper.sweep_if_due()
        damaged: Damage = []

        def body(tx: Tx) -> tuple[Job, PickStep | None] | transitions.LateRefusal:
            damaged.clear()
            if agent_session is not None:
                tx.will_take(JOBS, "turn", (agent_session,))
            job = transitions.existing(tx, job_id)
            late = transitions.check_verdict(tx, self._journal, job, token, verdict)
            if late is not None:
                return late
            # Taken before the first write: a job that was put after this transaction took its
            # revision could not be taken.
            queue = agent_session or job.agent_session
            row = tx.take_first(JOBS, "turn", (queue,), damaged=damaged)
            done = transitions.ended(job, verdict, tx.now)
            done = done if also is None else also.do(tx, done)
            done = transitions.write(tx, self._journal, job, done)
            return done, None if row is None else self._picker.begin(tx, row.record, holder)

        finished = self._picker.claims.claim(
            body, _picked, scope=JOBS_ALONE if also is None else also.scope
        )
        self.unlogged = True
        self._picker.warn_of(damaged)
        if isinstance(finished, transitions.LateRefusal):
            raise finished.error
        done, step = finished
        if step is not None and claimed(step) is None:
            # The job has ended, and the caller must learn that even if the store is away from here.
            with contextlib.suppress(Unavailable):
                queue = agent_session or done.agent_session
                return Finished(done, self._picker.pick(queue, holder, []))
        return Finished(done, claimed(step))

    def cancel(self, job_id: str, *, reason: str | None = None) -> Job:
        """End a pending or running job as cancelled; a worker that has it is fenced from then on. A
        job that ended in error is given up: it counts as cancelled and keeps its error. Raises as
        `update_status`.
        """

        def give_up(tx: Tx) -> Job | None:
            job = transitions.existing(tx, job_id)
            if job.status is not JobStatus.ERROR:
                return None
            why = None if reason is None else cut(reason, JOB_PAST_ERROR_BYTES_MAX)
            facts = {"why": "given_up", "reason": why}
            after = transitions.given_up(job, tx.now)
            return transitions.write(tx, self._journal, job, after, facts=facts)

        seen = self.peek(job_id)
        if seen is not None and seen.status is JobStatus.ERROR:
            given_up = self._change(give_up)
            if given_up is not None:
                return given_up
        return self.update_status(
            job_id, JobStatus.CANCELLED, error=reason, error_code="cancelled" if reason else None
        )

    def requeue(self, job_id: str, *, token: int | None = None) -> Job:
        """Put a running job back, for the next pick; a worker that has it is fenced from then on.
        Raises as `update_status`.
        """
        return self.update_status(job_id, JobStatus.PENDING, token=token)

    def retry(self, job_id: str) -> Job:
        """Retry a job that ended in error or was cancelled: it is pending in its old place, and is
        returned. `attempt` goes on, and deaths of workers are counted from 0 again; `past_attempts`
        keeps the ends of the last ones. Raises NotFound, and ImpossibleTransition for a job with
        another status.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> Job:
            job = transitions.existing(tx, job_id)
            after = transitions.retried(job, tx.now)
            return transitions.write(tx, self._journal, job, after, facts={"why": "retried"})

        return self._change(body)

    def retry_all(
        self,
        *,
        status: JobStatus | str = JobStatus.ERROR,
        agent_session: str | None = None,
        damaged: Damage | None = None,
    ) -> list[Job]:
        """Retry all jobs with this status, of one label or of all, each in its own transaction;
        return them, the newest first. One that another process retried meanwhile is skipped.
        Raises InvalidValue for a status that cannot be retried, and as `list_jobs`.
        """
        wanted = transitions.status_named(status)
        if wanted not in transitions.RETRIED:
            raise InvalidValue(
                f"jobs that are {wanted.value} cannot be retried: use error or cancelled",
                field="status",
            )
        retried: list[Job] = []
        before: tuple[int, str] | None = None
        while page := self.list_jobs(
            status=wanted,
            agent_session=agent_session,
            limit=JOBS_PAGE,
            before=before,
            damaged=damaged,
        ):
            for job in reversed(page):
                with contextlib.suppress(NotFound, ImpossibleTransition):
                    retried.append(self.retry(job.job_id))
            before = (page[0].arrival, page[0].job_id)
        return retried

    def work(
        self,
        queue: str,
        task: "Sequence[str] | Handler",
        *,
        limit: int | None = None,
        wait_s: float = float("inf"),
        validate: Sequence[str] | None = None,
        stdin: "Stdin" = "job",
        heartbeat_s: float | None = None,
        stop_fd: int | None = None,
        adopts_orphans: bool = False,
        on_output: Callable[[str], None] | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> "WorkReport":
        """Be a worker: pick the jobs of a queue one after the other and do `task` for each. Return
        after `limit` jobs, after `wait_s` without a job, or when stopped: by SIGTERM, SIGINT or
        SIGHUP, or by `stop_fd` becoming readable in place of the signals. Outside of the main
        thread only `stop_fd` stops it.

        A task is a command, or a handler that takes the job. A command is run in the job's workdir
        with the job in its environment and on standard input (`stdin`); `on_output` gets each line
        that it prints, and its last line is the result. It is ended, with all its processes, when
        the worker stops, the job is taken away, or its time is over. A handler runs in this thread
        and returns the result. An exception ends the job in error. Nothing ends a handler early:
        when the worker is stopped, the handler finishes first (a second SIGINT raises
        KeyboardInterrupt in it), and `heartbeat` raises Fenced in it once the job was taken away.

        The job completes if its expected artifacts exist and `validate`, a command, exits with 0.
        The worker sends heartbeats and events meanwhile, and waits for a store that is away.
        `on_event` gets what happens, in words; without it they are logged. `adopts_orphans` is for
        a process that starts no other processes meanwhile: it then also finds those processes of
        the command whose guardian was killed.

        Raises InvalidName and InvalidValue, and Unavailable when the store is away at the end of
        `wait_s` or at a stop.
        """
        from holdfast.domains.jobs.work import WorkRequest, checked_command, checked_task

        request = WorkRequest(
            queue=queue,
            task=checked_task(task),
            limit=limit,
            wait_s=wait_s,
            validate=None if validate is None else checked_command(validate, "validate"),
            stdin=stdin,
            heartbeat_s=heartbeat_s,
            stop_fd=stop_fd,
            adopts_orphans=adopts_orphans,
            on_output=on_output,
            on_event=on_event,
        )
        request.check()
        if self._worker is None:
            raise InvalidValue("only the jobs of a connection can be worked on: use hf.jobs")
        return self._worker(request)

    def heartbeat(self, job_id: str, *, token: int) -> Job:
        """Give a sign of life for a running job, so that it does not count as idle, and return it.
        It is not journalled, and may be lost with the power. Raises NotFound, and Fenced when the
        attempt is not the current one.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> Job:
            job = transitions.existing(tx, job_id)
            transitions.check_token(job, token)
            alive = replace(job, last_event_at=tx.now)
            tx.put(JOBS, job_id, alive)
            return alive

        # A live worker lets others know how the store's clock runs.
        steady_clock(self._store).compare()
        return self._store.transact(body, scope=JOBS_ALONE, durable=False)

    def next_seq(self, job_id: str) -> int:
        """Take the next number for an event of a job. Starts at 1, is never given twice, survives
        restarts. Raises NotFound.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> int:
            job = transitions.existing(tx, job_id)
            tx.put(JOBS, job_id, replace(job, last_seq=job.last_seq + 1, updated_at=tx.now))
            return job.last_seq + 1

        return self._store.transact(body, scope=JOBS_ALONE)

    def reap(self) -> list[Job]:
        """Put back the jobs of dead workers, end those past their limits, and return both as they
        are now.
        """
        reaped = self._reaper.sweep().reaped
        self.unlogged = True
        return reaped

    def abandoned(self) -> list[Job]:
        """The running jobs that the next pick or list would reap: nobody works on them. Changes
        nothing.
        """
        return self._reaper.due()

    def prune(
        self,
        *,
        keep_finished: int | None = None,
        keep_s: float | None = None,
        adopted: bool = False,
    ) -> int:
        """Remove finished jobs beyond the bounds (default: the configured ones), with their events;
        return how many. Those that another program registered only with `adopted`. Registering does
        this now and then. Raises InvalidValue for bounds that cannot be.
        """
        return self._prune(keep_finished, keep_s, adopted=adopted)

    def get_job(self, job_id: str) -> Job:
        """Return a job, reaped if it must be. Raises NotFound."""
        check_job_id(job_id)
        self._reap_before_reading()
        row = self._store.get(JOBS, job_id)
        if row is None:
            raise transitions.no_such(job_id)
        return row.record

    def survivors(self, job: Job) -> list[Survivor]:
        """The live processes of earlier attempts at a pending job on this machine. No pick begins
        it before they are gone.
        """
        return self._leftovers.survivors(job) if job.status is JobStatus.PENDING else []

    def peek(self, job_id: str) -> Job | None:
        """Return a job as it is, without reaping; None when there is none."""
        row = self._store.get(JOBS, check_job_id(job_id))
        return None if row is None else row.record

    def list_jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        agent_session: str | None = None,
        limit: int = LIST_MAX,
        before: tuple[int, str] | None = None,
        damaged: Damage | None = None,
    ) -> list[Job]:
        """Return jobs in the order they arrived, the newest `limit` of those that match, reaped if
        they must be. `before` is the arrival and id of a job, for the page of those that came
        earlier.

        A damaged record raises, unless `damaged` is a list that collects such errors. Raises
        InvalidValue for an unknown status and for a negative limit; InvalidName.
        """
        from holdfast.domains.jobs.queries import newest

        wanted = None if status is None else transitions.status_named(status)
        if agent_session is not None:
            check_label(agent_session, "agent session")
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        self._reap_before_reading()
        return self._store.read(
            lambda tx: newest(
                tx,
                status=wanted,
                agent_session=agent_session,
                limit=limit,
                before=before,
                damaged=damaged,
            ),
            scope=[JOBS],
        )

    def unpickable(self, *, damaged: Damage) -> list[Job]:
        """Return the pending jobs that every pick skips because their record has no room for a
        claim: an earlier version registered them. Damaged records, which a pick skips too, go into
        `damaged`. Changes nothing.
        """
        from holdfast.domains.jobs.queries import pending_without_room

        return self._store.read(lambda tx: pending_without_room(tx, damaged), scope=[JOBS])

    def counts(self) -> dict[JobStatus, int]:
        """How many jobs have each status, as recorded: reads none of them, and reaps none."""
        from holdfast.domains.jobs.queries import counts

        return self._store.read(counts, scope=[JOBS])

    def _prune(
        self,
        keep_finished: int | None = None,
        keep_s: float | None = None,
        *,
        adopted: bool = False,
        most: int | None = None,
    ) -> int:
        from holdfast.domains.jobs.retention import prune

        removed = prune(
            self._store,
            self._journal,
            keep=self._keep.keep_finished if keep_finished is None else keep_finished,
            keep_s=self._keep.keep_s if keep_s is None else keep_s,
            # A caller who names an age means it; by the configured bounds the last ones stay.
            keep_least=JOBS_KEEP_LEAST if keep_s is None else 0,
            adopted=adopted,
            most=most,
        )
        self.unlogged = True
        return removed

    def _change(self, body: Callable[[Tx], T], also: transitions.ExtraChange | None = None) -> T:
        changed = self._store.transact(body, scope=JOBS_ALONE if also is None else also.scope)
        # Only after a commit: a store that refuses the change gets no log beside it.
        self.unlogged = True
        return changed

    def _reap_before_reading(self) -> None:
        try:
            self._reaper.sweep()
        except Unavailable as error:
            # A store that cannot be written can still be read.
            self.warn(f"not reaped: {error.message}")

    def _warn(self, text: str) -> None:
        # `warn` may be set after the picker was made.
        self.warn(text)


def _picked(finished: tuple[Job, PickStep | None] | transitions.LateRefusal) -> Job | None:
    return None if isinstance(finished, transitions.LateRefusal) else claimed(finished[1])


def _log(warning: str) -> None:
    warn("%s", warning, logger="holdfast.jobs")
