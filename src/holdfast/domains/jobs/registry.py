"""The registry of jobs: each operation is one transaction, and its journal entry commits with
it.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.change import job_topic, queue_topic, write
from holdfast.domains.jobs.draft import no_room, too_large
from holdfast.domains.jobs.leftovers import Leftovers, LiveTree
from holdfast.domains.jobs.reaper import Reaper, Unanswered
from holdfast.domains.jobs.records import (
    ATTEMPTS_MAX,
    JOBS,
    NEW_JOB_LIMITS,
    TOO_LARGE,
    Broker,
    Job,
    JobStatus,
    TimeLimits,
)
from holdfast.domains.jobs.transitions import Kept, Verdict, check_verdict
from holdfast.kernel.codec import cut
from holdfast.kernel.errors import (
    Corrupt,
    HoldfastError,
    ImpossibleTransition,
    InvalidValue,
    NotFound,
    Unavailable,
)
from holdfast.kernel.holder import Holder, Processes, Survivor, check_holder
from holdfast.kernel.limits import (
    JOB_PAST_ERROR_BYTES_MAX,
    JOBS_KEEP_LEAST,
    JOBS_PAGE,
    JOBS_PRUNE_EVERY,
    LIST_MAX,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.names import check_job_id, check_label
from holdfast.kernel.settings import JobSettings
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Scope, Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock

if TYPE_CHECKING:
    from holdfast.domains.jobs.work import Handler, Stdin, WorkReport, WorkRequest

T = TypeVar("T")


class Also(NamedTuple):
    """What else belongs to a step: `do` is given the job after it, inside its transaction over
    `scope`, and returns the job to be written.
    """

    scope: Scope
    do: Callable[[Tx, Job], Job]


class _NoRoom(NamedTuple):
    """A pending job whose record has no room for a claim: an earlier version registered it."""

    job: Job


class _Preceded(NamedTuple):
    """A pending job of which processes of an earlier attempt may live on this machine. Nobody has
    looked yet.
    """

    job: Job


class _FinishedAndBegun(NamedTuple):
    """What the transaction of `finish_and_pick` came to."""

    done: Job
    picked: Job | _NoRoom | _Preceded | None


_JOBS_ALONE: Scope = [rows(JOBS)]
_DEFAULTS = JobSettings()


class Finished(NamedTuple):
    """What `finish_and_pick` came to: the job that ended, and the next one, running, if there was
    one.
    """

    done: Job
    picked: Job | None


class Jobs:
    """Delegated work on one store.

    Promised: a job is picked by one worker at a time, in order of priority, then arrival; a verdict
    that shows a token counts only while that attempt is the current one; a dead worker's job is
    pending again at the next pick, once no process of its tree is left, and one past its limits
    ends in error; a job that is damaged, or too large to be claimed, holds up no other. Not
    promised: that work is done once; a job that was put back is done again. What is no error and
    should be known goes to `warn`, which is a log unless it is set. `limits` are the time limits of
    a new job whose registrant names none.
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
        self._keep = keep or _DEFAULTS
        self._limits = limits
        self._worker = worker
        self._leftovers = Leftovers(processes, embedded=store.embedded)
        self._reaper = Reaper(store, journal, processes, self._leftovers)
        self._unanswered = Unanswered(store, journal)
        self.warn: Callable[[str], None] = _log
        self.unlogged = False
        """Did this change jobs, other than by a pick, since the audit log was last brought up to
        date? A pick must start and end fast, so it leaves the log to the next process.
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
        max_attempts: int = ATTEMPTS_MAX,
        broker: Broker | None = None,
        topic_prefix: str | None = None,
        signed: bool = True,
        job_id: str | None = None,
    ) -> Job:
        """Register work for whoever picks for `agent_session`, and return it, pending.

        One attempt may take `timeout_sec`, which is a day unless told, and be without a sign of
        life for `idle_timeout_sec`, which is any time unless told; in a folder that other programs
        share they are 600 and 120 s unless told. Its events are `signed` with a key of its own
        unless told otherwise. Raises Collision when a given `job_id` is taken; InvalidName and
        InvalidValue before anything is stored.
        """
        # Here, as in other places of this module: picking must start fast, and needs none of it.
        from holdfast.domains.jobs.draft import Wish, new_job

        wish = Wish(
            prompt=prompt,
            agent=agent,
            agent_session=agent_session,
            timeout_sec=self._limits.timeout_sec if timeout_sec is None else timeout_sec,
            idle_timeout_sec=self._limits.idle_timeout_sec
            if idle_timeout_sec is None
            else idle_timeout_sec,
            expected_artifacts=tuple(expected_artifacts),
            workdir=workdir,
            priority=priority,
            max_attempts=max_attempts,
            broker=broker or Broker(),
            topic_prefix=topic_prefix,
            signed=signed,
            job_id=job_id,
        ).checked()
        about = self._store.now()

        def body(tx: Tx) -> Job:
            job = new_job(tx, wish, about)
            tx.put(JOBS, job.job_id, job)
            self._journal.append(
                tx, kind="job.registered", subject=job.job_id, data={"agent_session": agent_session}
            )
            tx.notify(queue_topic(agent_session))
            return job

        job = self._change(body)
        if crc32(b"%d" % job.arrival) % JOBS_PRUNE_EVERY == 0:
            self._prune_now_and_then()
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
        within `wait_s`.

        Two callers never get one job. The returned job's token is what a verdict must show.
        `holder` is the process that works on it: when it dies, and its process tree if it names
        one, the job is pending again. Where that cannot be seen, as from another machine, the same
        happens when it gives no sign of life for `jobs.lease_s`: see `heartbeat`. Without a holder,
        as for a one-shot command, only the job's time limits end the claim. A wait also ends when
        the descriptor `stop_fd` becomes readable. What a holder may have been given by a call that
        was not answered is put back by its process's next one.

        A job is passed over while processes of an earlier attempt at it live on this machine. They
        are asked to end, and killed after the grace; a pick that waits gets the job when they are
        gone. Raises InvalidName, and InvalidValue for a `wait_s` that is no number; LockTimeout
        when another writer kept the store shut until its end.
        """
        check_label(agent_session, "agent session")
        if wait_s != wait_s:
            raise InvalidValue("wait_s is not a number: give the seconds to wait", field="wait_s")
        if holder is not None:
            check_holder(holder)
        if wait_s <= 0:
            return self._pick_now(agent_session, holder)
        deadline = Deadline(wait_s)
        stops = [] if stop_fd is None else [stop_fd]
        with self._store.listen([queue_topic(agent_session)]) as ears:
            while True:
                swept = deadline.insist(self._reaper.sweep, stop_fd=stop_fd)
                old: list[LiveTree] = []
                job = deadline.insist(
                    partial(self._pick, agent_session, holder, old), stop_fd=stop_fd
                )
                left_s = deadline.left_s()
                if job is not None or deadline.passed():
                    return job
                # Whoever took a job since the sweep is not watched: of that one's death the next
                # look tells, a little later.
                ends = [left_s, swept.again_s, *(tree.again_s for tree in old)]
                sleep_s = min((seconds for seconds in ends if seconds is not None), default=None)
                with self._reaper.watching(swept.alive, [tree.id for tree in old]) as watched:
                    woken = ears.wait(0 if watched.died else sleep_s, also=[*watched.fds, *stops])
                if stop_fd in woken.ready:
                    return None

    def update_status(
        self,
        job_id: str,
        status: JobStatus | str,
        *,
        token: int | None = None,
        result: str | None = None,
        error: str | None = None,
        error_code: str | None = None,
        also: Also | None = None,
    ) -> Job:
        """Move a job to another status and return it.

        A worker shows the token of its attempt, and gets Fenced when that is no longer the current
        one; an operator may leave it out. Where an operator takes a job from a worker that is dead,
        this ends what is left of its command. `also` is what belongs to the same transaction.
        Raises NotFound, ImpossibleTransition for a step that TRANSITIONS does not have, and
        InvalidValue for what is no status. The job's status is changed in none of these cases; but
        the words of a verdict that came too late are kept as its `late_result`, and the refusal
        says so.
        """
        check_job_id(job_id)
        wanted = transitions.status_named(status)
        transitions.check_words(result, error, error_code)
        verdict = Verdict(wanted, result, error, error_code)
        steady_clock(self._store).look()
        taken_from: list[Job] = []

        def body(tx: Tx) -> Job | Kept:
            job = existing(tx, job_id)
            is_taken = job.status is JobStatus.RUNNING and (
                token is None or wanted is JobStatus.CANCELLED
            )
            taken_from[:] = [job] if is_taken else []
            if (late := check_verdict(tx, self._journal, job, token, verdict)) is not None:
                return late
            after = transitions.moved(
                job, *verdict, now=tx.now, token=tx.revision, by_operator=token is None
            )
            after = after if also is None else also.do(tx, after)
            after = write(tx, self._journal, job, after)
            if job.status is JobStatus.RUNNING and (token is None or wanted is JobStatus.PENDING):
                # Its worker should hear of it: a token shows which attempt is meant, and not that
                # its worker shows it.
                tx.notify(job_topic(job_id))
            return after

        moved = self._change(body, _JOBS_ALONE if also is None else also.scope)
        for job in taken_from:
            self._leftovers.end_of_dead_worker(job)
        return moved.fail() if isinstance(moved, Kept) else moved

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
        also: Also | None = None,
    ) -> Finished:
        """End a job and claim the next one of its label, or of `agent_session`, in one transaction:
        one sync instead of two.

        Both happen or neither. Raises as `update_status` does, and InvalidValue for a status that
        does not end a job.
        """
        check_job_id(job_id)
        wanted = transitions.status_named(status)
        if not wanted.ended:
            raise InvalidValue(
                f"{wanted.value} does not end a job: use completed, error or cancelled",
                field="status",
            )
        if agent_session is not None:
            check_label(agent_session, "agent session")
        transitions.check_words(result, error, error_code)
        if holder is not None:
            check_holder(holder)
        self._reaper.sweep_if_due()
        verdict = Verdict(wanted, result, error, error_code)
        damaged: Damage = []

        def body(tx: Tx) -> _FinishedAndBegun | Kept:
            damaged.clear()
            job = existing(tx, job_id)
            if (late := check_verdict(tx, self._journal, job, token, verdict)) is not None:
                return late
            # Taken before the first write: what was put after this transaction took its revision
            # could not be.
            row = tx.take_first(
                JOBS, "turn", (agent_session or job.agent_session,), damaged=damaged
            )
            done = transitions.ended(
                job, wanted, tx.now, result=result, error=error, error_code=error_code
            )
            done = done if also is None else also.do(tx, done)
            done = write(tx, self._journal, job, done)
            return _FinishedAndBegun(
                done, None if row is None else self._begin(tx, row.record, holder)
            )

        scope = _JOBS_ALONE if also is None else also.scope
        self.unlogged = True
        finished = self._unanswered.claim(body, _picked, scope=scope)
        self._tell(damaged)
        if isinstance(finished, Kept):
            return finished.fail()
        picked = finished.picked
        if isinstance(picked, (_NoRoom, _Preceded)):
            # The job has ended, and that must be known even if the store is away from here on.
            with contextlib.suppress(Unavailable):
                return Finished(
                    finished.done,
                    self._pick(agent_session or finished.done.agent_session, holder, []),
                )
        return Finished(finished.done, _claimed(picked))

    def cancel(self, job_id: str, *, reason: str | None = None) -> Job:
        """End a pending or running job as cancelled; a worker that has it is fenced from then on. A
        job that ended in error is given up: it counts as cancelled, keeps what it says of its
        error, and needs nobody any more. Raises as `update_status`.
        """

        def give_up(tx: Tx) -> Job | None:
            job = existing(tx, job_id)
            if job.status is not JobStatus.ERROR:
                return None
            told = {
                "why": "given_up",
                "reason": None if reason is None else cut(reason, JOB_PAST_ERROR_BYTES_MAX),
            }
            return write(tx, self._journal, job, transitions.given_up(job, tx.now), told=told)

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
        """Have a job that ended in error or was cancelled done again: it is pending in its old
        place. Its attempts go on counting, and may end by as many deaths of workers as those of a
        new job; `past_attempts` keeps what became of the last ones. Raises NotFound, and
        ImpossibleTransition for a job with another status.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> Job:
            job = existing(tx, job_id)
            return write(
                tx, self._journal, job, transitions.retried(job, tx.now), told={"why": "retried"}
            )

        return self._change(body)

    def retry_all(
        self,
        *,
        status: JobStatus | str = JobStatus.ERROR,
        agent_session: str | None = None,
        damaged: Damage | None = None,
    ) -> list[Job]:
        """Retry all jobs with this status, of one label or of all, each in a transaction of its
        own; return them, the newest first. One that another has retried meanwhile is passed over.
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
                try:
                    retried.append(self.retry(job.job_id))
                except (NotFound, ImpossibleTransition):
                    continue
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
        from holdfast.domains.jobs.work import WorkRequest, checked_task

        check_label(queue, "agent session")
        if wait_s != wait_s or (limit is not None and limit < 1):
            raise InvalidValue("give a wait_s that is a number, and a limit of at least 1")
        if heartbeat_s is not None and not heartbeat_s > 0:
            raise InvalidValue("heartbeat_s must be above 0", field="heartbeat_s")
        if self._worker is None:
            raise InvalidValue("only the jobs of a connection can be worked on: use hf.jobs")
        return self._worker(
            WorkRequest(
                queue=queue,
                task=checked_task(task),
                limit=limit,
                wait_s=wait_s,
                validate=None if validate is None else tuple(validate),
                stdin=stdin,
                heartbeat_s=heartbeat_s,
                stop_fd=stop_fd,
                adopts_orphans=adopts_orphans,
                on_output=on_output,
                on_event=on_event,
            )
        )

    def heartbeat(self, job_id: str, *, token: int) -> Job:
        """Give a sign of life for a running job, so that it does not count as idle, and return it.

        Not journalled, and may be lost with the power. Raises NotFound, and Fenced when the attempt
        is not the current one.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> Job:
            job = existing(tx, job_id)
            transitions.check_token(job, token)
            alive = replace(job, last_event_at=tx.now)
            tx.put(JOBS, job_id, alive)
            return alive

        # A worker that lives sees to it that others know how the store's clock runs.
        steady_clock(self._store).look()
        return self._store.transact(body, scope=_JOBS_ALONE, durable=False)

    def next_seq(self, job_id: str) -> int:
        """Take the next number for an event of a job. Starts at 1, never given twice, survives
        restarts. Raises NotFound.
        """
        check_job_id(job_id)

        def body(tx: Tx) -> int:
            job = existing(tx, job_id)
            tx.put(JOBS, job_id, replace(job, last_seq=job.last_seq + 1, updated_at=tx.now))
            return job.last_seq + 1

        return self._store.transact(body, scope=_JOBS_ALONE)

    def reap(self) -> list[Job]:
        """Put back the jobs of dead workers, end those past their limits, and return them as they
        are now.
        """
        self.unlogged = True
        return self._reaper.sweep().reaped

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
        """Remove finished jobs beyond the bounds (the configured ones unless told), with their
        events; return how many.

        Those that another program registered only if `adopted` says so. Registering does the rest
        now and then. Raises InvalidValue for bounds that cannot be.
        """
        from holdfast.domains.jobs.retention import prune

        keep = self._keep.keep_finished if keep_finished is None else keep_finished
        age_s = self._keep.keep_s if keep_s is None else keep_s
        # Whoever names an age means it; by the bounds alone the last ones stay.
        least = JOBS_KEEP_LEAST if keep_s is None else 0
        self.unlogged = True
        return prune(
            self._store, self._journal, keep=keep, keep_s=age_s, keep_least=least, adopted=adopted
        )

    def get_job(self, job_id: str) -> Job:
        """Return a job, reaped if it must be. Raises NotFound."""
        check_job_id(job_id)
        self._look_after()
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
        they must be.

        `before` is the arrival and id of a job, for the page of those that came earlier. Reads no
        more than it must. A damaged record raises, unless `damaged` is a list to tell of it in.
        Raises InvalidValue for what is no status, and for a negative limit; InvalidName.
        """
        from holdfast.domains.jobs.queries import newest

        wanted = None if status is None else transitions.status_named(status)
        if agent_session is not None:
            check_label(agent_session, "agent session")
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        self._look_after()
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
        claim. An earlier version registered them. Damaged records, which a pick skips too, go into
        `damaged`. Changes nothing.
        """
        from holdfast.domains.jobs.queries import pending_without_room

        return self._store.read(lambda tx: pending_without_room(tx, damaged), scope=[JOBS])

    def counts(self) -> dict[JobStatus, int]:
        """How many jobs have each status, as they are recorded: reads none of them, and reaps
        none.
        """
        from holdfast.domains.jobs.queries import counts

        return self._store.read(counts, scope=[JOBS])

    def _change(self, body: Callable[[Tx], T], scope: Scope = _JOBS_ALONE) -> T:
        self.unlogged = True
        return self._store.transact(body, scope=scope)

    def _prune_now_and_then(self) -> None:
        """The job is registered: what goes wrong here is nothing that its registrant should
        hear.
        """
        try:
            self.prune()
        except HoldfastError as error:
            self.warn(f"not pruned: {error.message}")

    def _look_after(self) -> None:
        """Reap before a look; a store that cannot be written can still be looked at."""
        try:
            self._reaper.sweep()
        except Unavailable as error:
            self.warn(f"not reaped: {error.message}")

    def _pick_now(self, agent_session: str, holder: Holder | None) -> Job | None:
        steady_clock(self._store).look()
        swept = self._reaper.sweep_if_due()
        job = self._pick(agent_session, holder, [])
        if job is None and not swept and self._reaper.sweep().reaped:
            return self._pick(agent_session, holder, [])
        return job

    def _pick(
        self,
        agent_session: str,
        holder: Holder | None,
        old: list[LiveTree],
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> Job | None:
        """Claim the next job. The live trees of earlier attempts, for which others were passed
        over, go into `old`.
        """
        old.clear()
        damaged: Damage = []
        passed: set[str] = set()
        gone: set[str] = set()

        def body(tx: Tx) -> Job | _NoRoom | _Preceded | None:
            damaged.clear()
            row = tx.take_first(JOBS, "turn", (agent_session,), but_for=passed, damaged=damaged)
            return None if row is None else self._begin(tx, row.record, holder, gone)

        while True:
            begun = self._unanswered.claim(body, _claimed, scope=_JOBS_ALONE, timeout_s=timeout_s)
            if isinstance(begun, _NoRoom):
                passed.add(begun.job.job_id)
                self._pass_over(begun.job)
            elif isinstance(begun, _Preceded):
                if living := self._leftovers.end_old(begun.job):
                    passed.add(begun.job.job_id)
                    old += living
                else:
                    gone.update(tree.id for tree in self._leftovers.old_trees(begun.job))
            else:
                self._tell(damaged)
                return begun

    def _begin(
        self, tx: Tx, pending: Job, holder: Holder | None, gone: Collection[str] = ()
    ) -> "Job | _NoRoom | _Preceded":
        """Claim a job, inside a transaction. Nothing is changed where its record has no room for
        that, or where processes of an earlier attempt may live: all but those of the trees that are
        known to be `gone`.
        """
        if any(tree.id not in gone for tree in self._leftovers.old_trees(pending)):
            return _Preceded(pending)
        job = transitions.begun(pending, tx.now, tx.revision, holder, self._keep.lease_s)
        try:
            return write(tx, self._journal, pending, job)
        except InvalidValue:
            if not too_large(job):
                raise
            return _NoRoom(pending)

    def _pass_over(self, pending: Job) -> None:
        """End a job in error that can never be claimed, so that its queue goes on and people see
        why. Where not even that can be written, it stays, each pick passes over it, and `holdfast
        doctor` tells of it.
        """

        def body(tx: Tx) -> None:
            row = tx.get(JOBS, pending.job_id)
            if row is not None and row.record == pending:
                failed = transitions.ended(
                    pending, JobStatus.ERROR, tx.now, error=no_room(pending), error_code=TOO_LARGE
                )
                write(tx, self._journal, pending, failed, told={"why": TOO_LARGE})

        with contextlib.suppress(InvalidValue):
            self._store.transact(body, scope=_JOBS_ALONE)
        self.warn(f"passed over space=jobs key={pending.job_id}: {no_room(pending)}")

    def _tell(self, damaged: Sequence[Corrupt]) -> None:
        for error in damaged:
            self.warn(f"passed over space=jobs key={error.fields.get('key')}: {error.message}")


def _claimed(found: Job | _NoRoom | _Preceded | None) -> Job | None:
    return found if isinstance(found, Job) else None


def _picked(found: _FinishedAndBegun | Kept) -> Job | None:
    return None if isinstance(found, Kept) else _claimed(found.picked)


def existing(tx: Tx, job_id: str) -> Job:
    """The job, latched. Raises NotFound."""
    row = tx.get(JOBS, job_id)
    if row is None:
        raise transitions.no_such(job_id)
    return row.record


def _log(warning: str) -> None:
    # Loaded here, since a pick mostly has nothing to warn of and must start fast.
    import logging

    logging.getLogger("holdfast.jobs").warning("%s", warning)
