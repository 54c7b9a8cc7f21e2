"""Removing jobs that ended long ago, and their events."""

from datetime import timedelta

from holdfast.domains.jobs.events import JOB_EVENTS
from holdfast.domains.jobs.listing import oldest_ended
from holdfast.domains.jobs.record import JOBS, Job
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOBS_KEEP, JOBS_KEEP_S, JOBS_PRUNED_MAX
from holdfast.kernel.space import rows
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.primitives.journal import Journal


def prune(store: Store, journal: Journal, *, keep: int = JOBS_KEEP, keep_s: float = JOBS_KEEP_S) -> int:
    """Remove jobs that ended more than `keep_s` ago, and the oldest above `keep`, with their events; return how many.

    Jobs that have not ended are never removed. Raises InvalidValue for bounds that cannot be.
    """
    if keep < 0 or not 0 <= keep_s < float("inf"):
        raise InvalidValue(f"cannot keep {keep} jobs for {keep_s} s: give numbers from 0 on", keep=keep)
    removed = 0
    while gone := _some(store, journal, keep, keep_s):
        removed += gone
    return removed


def _some(store: Store, journal: Journal, keep: int, keep_s: float) -> int:
    def look(tx: ReadTx) -> list[Job]:
        number = tx.count(JOBS, "ended")
        oldest = oldest_ended(tx, JOBS_PRUNED_MAX)
        before = tx.now - timedelta(seconds=min(keep_s, _CENTURY_S))
        return [job for at, job in enumerate(oldest) if number - at > keep or (job.finished_at or job.updated_at) < before]

    chosen = sorted(job.job_id for job in store.read(look, scope=[JOBS]))
    if not chosen:
        return 0

    def body(tx: Tx) -> int:
        for job_id in chosen:
            for row in tx.range(JOB_EVENTS, prefix=f"{job_id}/", damaged=[]):
                tx.delete(JOB_EVENTS, row.key)
            tx.delete(JOBS, job_id)
        journal.append(tx, kind="job.pruned", subject="jobs", data={"removed": len(chosen)})
        return len(chosen)

    return store.transact(body, scope=[rows(JOBS), JOB_EVENTS])


_CENTURY_S = 100 * 365 * 24 * 3600.0
