"""Verdicts that come too late: they change no status, and what they say is kept beside it.

A late verdict is that of an attempt that was taken away, shown by its token, or an operator's without a token on a job whose
worker was too slow or taken for dead. Nobody else can write one.
"""

from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from holdfast.domains.jobs import steps
from holdfast.domains.jobs.record import JOBS, TIMED_OUT, WORKER_DIED, Job, JobStatus, LateResult
from holdfast.kernel.codec import cut
from holdfast.kernel.errors import Fenced, HoldfastError, ImpossibleTransition, InvalidValue
from holdfast.kernel.limits import JOB_LATE_BYTES_MAX
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal


class Verdict(NamedTuple):
    """What a worker or an operator says of a job: the status it should have, and in words why."""

    status: JobStatus
    result: str | None = None
    error: str | None = None
    error_code: str | None = None


class Kept(NamedTuple):
    """The refusal of a late verdict whose words were kept. It is raised once that is committed."""

    refusal: HoldfastError

    def fail(self) -> NoReturn:
        """Raises the refusal."""
        raise self.refusal


def check_verdict(tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict) -> Kept | None:
    """None when the verdict counts. Raises Fenced or ImpossibleTransition when it does not; if its words were kept, the refusal
    is returned instead, for the caller to commit and then to raise."""
    try:
        steps.check_token(job, token)
        steps.check_step(job, verdict.status)
    except (Fenced, ImpossibleTransition) as refusal:
        attempt = keep(tx, journal, job, token, verdict)
        if attempt is None:
            raise
        message = f"{refusal.message}. The verdict on attempt {attempt} is kept as the job's late_result"
        return Kept(type(refusal)(message, **refusal.fields, late_result=attempt))
    return None


def keep(tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict) -> int | None:
    """Keep what a late verdict says, and return its attempt; None for a verdict that is not kept: a stranger's, one of an
    earlier attempt than the kept one, or one for which the record has no room."""
    attempt = _attempt_of(job, token)
    known = job.late_result
    if verdict.status not in (JobStatus.COMPLETED, JobStatus.ERROR) or attempt is None:
        return None
    if known is not None and known.attempt > attempt:
        return None
    late = LateResult(
        status=verdict.status,
        attempt=attempt,
        at=tx.now,
        by=journal.actor,
        result=_bounded(verdict.result),
        error=_bounded(verdict.error),
        error_code=verdict.error_code,
    )
    if known is not None and replace(late, at=known.at, by=known.by) == known:
        return attempt
    try:
        tx.put(JOBS, job.job_id, replace(job, updated_at=tx.now, late_result=late))
    except InvalidValue:
        return None
    told = {"attempt": attempt, "wanted": verdict.status.value, "status": job.status.value}
    journal.append(tx, kind="job.late_result", subject=job.job_id, data=told)
    return attempt


def _attempt_of(job: Job, token: int | None) -> int | None:
    """Which attempt a late verdict is of; None when it is of none that was taken away."""
    if token is None:
        return job.attempt if job.status is JobStatus.ERROR and job.error_code in (TIMED_OUT, WORKER_DIED) else None
    return next((past.attempt for past in job.past_attempts if past.taken_away and past.token == token), None)


def _bounded(words: str | None) -> str | None:
    return None if words is None else cut(words, JOB_LATE_BYTES_MAX)
