"""Removes jobs that ended long ago, with their events.

A job that another program registered is left alone unless the caller wants it removed: that
program may read its file, and only the file may show how it ended. So the journal records that
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
    most: int | None = None,
) -> int:
    """Remove jobs that ended more than `keep_s` ago, and the oldest above `keep`, with their
    events; return how many.

    With `most` it stops once it has removed so many. The last `keep_least` stay at any age, and a
    clock that was just set forward ages no job. Jobs that another program registered are removed,
    and count towards `keep`, only with `adopted`.
    Raises InvalidValue for bounds that cannot be.
    """
    if keep < 0 or not 0 <= keep_s < float("inf"):
        raise InvalidValue(
            f"cannot keep {counted(keep, 'job')} for {keep_s} s: give numbers from 0 on", keep=keep
        )
    groups = [
        ended_group(status, adopted=theirs)
        for status in JobStatus
        if status.ended
        for theirs in ((False, True) if adopted else (False,))
    ]
    steady_clock(store).compare()

    def oldest(tx: ReadTx) -> list[Job]:
        number = sum(tx.count(JOBS, "ended", (group,)) for group in groups)
        now = steady_clock(store).for_retention(tx.now, age_given=not keep_least)

        def is_old(job: Job) -> bool:
            return now is not None and (job.finished_at or job.updated_at) < ago(now, keep_s)

        return [
            job
            for at, job in enumerate(oldest_ended(tx, groups, JOBS_PRUNED_MAX))
            if number - at > keep or (number - at > keep_least and is_old(job))
        ]

    total = 0
    while (most is None or total < most) and (chosen := store.read(oldest, scope=[JOBS])):
        removed = _remove(store, journal, sorted(chosen, key=lambda job: job.job_id))
        total += removed
        if not removed:
            break
    return total


def _remove(store: Store, journal: Journal, jobs: Sequence[Job]) -> int:
    def body(tx: Tx) -> int:
        removed = 0
        for job in jobs:
            row = tx.get(JOBS, job.job_id)
            if row is None or row.record != job:
                # Another process removed it first, and a new job may have its id.
                continue
            for event in tx.range(JOB_EVENTS, prefix=f"{job.job_id}/", damaged=[]):
                tx.delete(JOB_EVENTS, event.key)
            tx.delete(JOBS, job.job_id)
            removed += 1
            if is_adopted(job):
                # Another program registered it: this may be its only entry in the journal.
                facts = {
                    "status": job.status.value,
                    "agent": job.agent,
                    "agent_session": job.agent_session,
                    "created_at": render(job.created_at),
                    "updated_at": render(job.updated_at),
                }
                journal.append(tx, kind="job.removed", subject=job.job_id, data=facts)
        if removed:
            journal.append(tx, kind="job.pruned", subject="jobs", data={"removed": removed})
        return removed

    return store.transact(body, scope=[rows(JOBS), JOB_EVENTS])
