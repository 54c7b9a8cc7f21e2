"""Removing jobs that ended long ago, and their events.

A job that another program registered is left alone unless it is asked for: that program may look
for its file, and nobody but the file may know what became of it. So its end is told in the journal
before it goes.
"""

from collections.abc import Sequence

from holdfast.domains.jobs.events import JOB_EVENTS
from holdfast.domains.jobs.queries import oldest_ended
from holdfast.domains.jobs.records import JOBS, Job, JobStatus, ended_group, is_adopted
from holdfast.kernel.clock import ago, render
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOBS_KEEP, JOBS_KEEP_LEAST, JOBS_KEEP_S, JOBS_PRUNED_MAX
from holdfast.kernel.space import rows
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock


def prune(
    store: Store,
    journal: Journal,
    *,
    keep: int = JOBS_KEEP,
    keep_s: float = JOBS_KEEP_S,
    keep_least: int = JOBS_KEEP_LEAST,
    adopted: bool = False,
) -> int:
    """Remove jobs that ended more than `keep_s` ago, and the oldest above `keep`, with their
    events; return how many.

    The last `keep_least` go for no age, and none goes for an age that it has by a clock that was
    just set forward. Jobs that have not ended are never removed, and those that another program
    registered only with `adopted`; without it they do not count towards `keep` either. Raises
    InvalidValue for bounds that cannot be.
    """
    if keep < 0 or not 0 <= keep_s < float("inf"):
        raise InvalidValue(
            f"cannot keep {counted(keep, 'job')} for {keep_s} s: give numbers from 0 on", keep=keep
        )
    whose = (False, True) if adopted else (False,)
    groups = [
        ended_group(status, adopted=theirs)
        for status in JobStatus
        if status.ended
        for theirs in whose
    ]
    steady_clock(store).look()
    removed = 0
    while gone := _some(store, journal, groups, keep, keep_s, keep_least):
        removed += gone
    return removed


def _some(
    store: Store, journal: Journal, groups: Sequence[str], keep: int, keep_s: float, least: int
) -> int:
    def look(tx: ReadTx) -> list[Job]:
        number = sum(tx.count(JOBS, "ended", (group,)) for group in groups)
        oldest = oldest_ended(tx, groups, JOBS_PRUNED_MAX)
        now = steady_clock(store).proven(tx.now, asked=not least)

        def old(job: Job) -> bool:
            return now is not None and (job.finished_at or job.updated_at) < ago(now, keep_s)

        return [
            job
            for at, job in enumerate(oldest)
            if number - at > keep or (number - at > least and old(job))
        ]

    chosen = sorted(store.read(look, scope=[JOBS]), key=lambda job: job.job_id)
    if not chosen:
        return 0

    def body(tx: Tx) -> int:
        removed = 0
        for job in chosen:
            row = tx.get(JOBS, job.job_id)
            if row is None or row.record != job:
                # Another was quicker, and its id may be that of a new job by now.
                continue
            for event in tx.range(JOB_EVENTS, prefix=f"{job.job_id}/", damaged=[]):
                tx.delete(JOB_EVENTS, event.key)
            tx.delete(JOBS, job.job_id)
            removed += 1
            if is_adopted(job):
                journal.append(tx, kind="job.removed", subject=job.job_id, data=_last_words(job))
        if removed:
            journal.append(tx, kind="job.pruned", subject="jobs", data={"removed": removed})
        return removed

    return store.transact(body, scope=[rows(JOBS), JOB_EVENTS])


def _last_words(job: Job) -> dict[str, str]:
    """What is told of a job that no other entry may tell of."""
    facts = {"status": job.status.value, "agent": job.agent, "agent_session": job.agent_session}
    return {**facts, "created_at": render(job.created_at), "updated_at": render(job.updated_at)}
