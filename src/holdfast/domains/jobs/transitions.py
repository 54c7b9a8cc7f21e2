"""The steps of a job's state machine: what a record becomes, and why a step is refused. No store is
touched here.

Verdicts that come too late: they change no status, and what they say is kept beside it.

A late verdict is that of an attempt that was taken away, shown by its token, or an operator's
without a token on a job whose worker was too slow or taken for dead. Nobody else can write one.
"""

from datetime import datetime
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from holdfast.domains.jobs.records import (
    JOBS,
    TIMED_OUT,
    TRANSITIONS,
    WORKER_DIED,
    Job,
    JobStatus,
    LateResult,
    PastAttempt,
)
from holdfast.kernel.codec import cut
from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    ImpossibleTransition,
    InvalidValue,
    NotFound,
)
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import (
    JOB_LATE_BYTES_MAX,
    JOB_PAST_ATTEMPTS_MAX,
    JOB_PAST_ERROR_BYTES_MAX,
)
from holdfast.kernel.names import check_label, check_text
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal

RETRIED = frozenset({JobStatus.ERROR, JobStatus.CANCELLED})
"""What an operator may have tried again."""


def begun(
    job: Job, now: datetime, token: int, holder: Holder | None = None, lease_s: float | None = None
) -> Job:
    """The job as a new attempt. The lease is for a claim with a process: where that cannot be seen,
    silence is death.
    """
    return replace(
        job,
        status=JobStatus.RUNNING,
        updated_at=now,
        started_at=now,
        finished_at=None,
        last_event_at=None,
        waiting_since=None,
        attempt=job.attempt + 1,
        token=token,
        claimed_by=holder,
        lease_s=None if holder is None else lease_s,
        result=None,
        error=None,
        error_code=None,
    )


def put_back(
    job: Job,
    now: datetime,
    *,
    outcome: str,
    deaths: int = 0,
    taken_away: bool = False,
    error: str | None = None,
) -> Job:
    """The job pending again, with `deaths` added to those of its workers. The attempt that had it
    is stale: `outcome`, `error` and `taken_away` say how it ended.
    """
    return replace(
        job,
        status=JobStatus.PENDING,
        updated_at=now,
        token=None,
        claimed_by=None,
        waiting_since=None,
        lease_s=None,
        deaths=job.deaths + deaths,
        past_attempts=_past_attempts(job, now, outcome, error, taken_away=taken_away),
    )


def ended(
    job: Job,
    status: JobStatus,
    now: datetime,
    *,
    result: str | None = None,
    error: str | None = None,
    error_code: str | None = None,
    taken_away: bool = False,
) -> Job:
    """The job in a last state. `taken_away` says that no verdict of its worker ended it."""
    past = job.past_attempts
    if job.status is JobStatus.RUNNING and status is not JobStatus.COMPLETED:
        # Work that runs on after its time limit may still bring a result.
        late = taken_away or error_code == TIMED_OUT
        past = _past_attempts(job, now, error_code or status.value, error, taken_away=late)
    return replace(
        job,
        status=status,
        updated_at=now,
        finished_at=now,
        token=None,
        claimed_by=None,
        lease_s=None,
        waiting_since=None,
        result=result,
        error=error,
        error_code=error_code,
        past_attempts=past,
    )


def retried(job: Job, now: datetime) -> Job:
    """A failed or cancelled job pending again, in its old place. Its attempts go on counting, and
    may end by as many deaths as those of a new job. Raises ImpossibleTransition for any other.
    """
    if job.status not in RETRIED:
        then = "only a job that ended in error or was cancelled can be tried again"
        raise ImpossibleTransition(
            f"job {job.job_id} is {job.status.value}: {then}",
            job_id=job.job_id,
            status=job.status.value,
            wanted=JobStatus.PENDING.value,
        )
    return replace(
        job,
        status=JobStatus.PENDING,
        updated_at=now,
        finished_at=None,
        deaths=0,
        result=None,
        error=None,
        error_code=None,
        past_attempts=_with_last(job),
    )


def _with_last(job: Job) -> tuple[PastAttempt, ...]:
    """Its past attempts, with the one that ended it. Another program that ended it has not written
    that down, and the error would be lost when it is tried again.
    """
    if (
        job.error is None
        or not job.attempt
        or any(past.attempt == job.attempt for past in job.past_attempts)
    ):
        return job.past_attempts
    ended_at = job.finished_at or job.updated_at
    return _past_attempts(
        job, ended_at, job.error_code or job.status.value, job.error, taken_away=False
    )


def given_up(job: Job, now: datetime) -> Job:
    """A job that ended in error as cancelled. Its error and the time of its end stay."""
    return replace(job, status=JobStatus.CANCELLED, updated_at=now)


def moved(
    job: Job,
    status: JobStatus,
    result: str | None = None,
    error: str | None = None,
    error_code: str | None = None,
    *,
    now: datetime,
    token: int,
    by_operator: bool = False,
) -> Job:
    """The job after a step that TRANSITIONS has. Raises ImpossibleTransition for any other."""
    check_step(job, status)
    if status is JobStatus.RUNNING:
        return begun(job, now, token)
    if status is JobStatus.PENDING:
        outcome = error_code or ("requeued" if by_operator else "given_back")
        back = put_back(job, now, outcome=outcome, error=error, taken_away=by_operator)
        return replace(back, result=result, error=error, error_code=error_code)
    # An operator that cancels takes the job away. One that says how it ended may be the work
    # itself, without its token.
    taken_away = by_operator and status is JobStatus.CANCELLED
    return ended(
        job, status, now, result=result, error=error, error_code=error_code, taken_away=taken_away
    )


def check_step(job: Job, status: JobStatus) -> None:
    """Raises ImpossibleTransition for a step that TRANSITIONS does not have."""
    if status in TRANSITIONS[job.status]:
        return
    allowed = ", ".join(sorted(step.value for step in TRANSITIONS[job.status]))
    if allowed:
        then = f"possible: {allowed}"
    elif job.status in RETRIED:
        then = f"it has ended: `holdfast jobs retry {job.job_id}` puts it back into its queue"
    else:
        then = "it has ended: register a new job to repeat the work"
    raise ImpossibleTransition(
        f"job {job.job_id} is {job.status.value} and cannot become {status.value}; {then}",
        job_id=job.job_id,
        status=job.status.value,
        wanted=status.value,
    )


def check_token(job: Job, token: int | None) -> None:
    """Raises Fenced for a token that is not the one of the job's current attempt. None is an
    operator, who needs none.
    """
    if token is None or token == job.token:
        return
    if job.token is None:
        message = (
            f"job {job.job_id} is {job.status.value}; token {token} no longer counts: stop work "
            "on it. If you are repeating "
            f"your own verdict, `holdfast jobs get --job {job.job_id}` shows whether it arrived"
        )
    else:
        message = (
            f"token {token} is not the one of job {job.job_id}'s current attempt ({job.token}): "
            "stop work on it, another has "
            "taken over"
        )
    raise Fenced(message, job_id=job.job_id, token=token, current=job.token)


def check_words(result: str | None, error: str | None, error_code: str | None) -> None:
    """Raises InvalidValue for words of a verdict that no encoding can carry, and InvalidName for a
    code that is no label. Words may be of any length: see `bounds.fitted`.
    """
    if result is not None:
        check_text(result, "result")
    if error is not None:
        check_text(error, "error")
    if error_code is not None:
        check_label(error_code, "error code")


def status_named(value: JobStatus | str) -> JobStatus:
    """The status of that name. Raises InvalidValue."""
    try:
        return JobStatus(value)
    except ValueError:
        possible = ", ".join(status.value for status in JobStatus)
        raise InvalidValue(
            f"{ascii(value)[:60]} is no status of a job: use one of {possible}", field="status"
        ) from None


def no_such(job_id: str) -> NotFound:
    """There is no job of that id."""
    return NotFound(
        f"there is no job {job_id}: `holdfast jobs list` shows those there are", job_id=job_id
    )


def as_registered(job: Job) -> Job:
    """The job as it was when it was registered: what its attempts added is taken away."""
    return replace(
        job,
        status=JobStatus.PENDING,
        updated_at=job.created_at,
        last_seq=0,
        attempt=0,
        deaths=0,
        token=None,
        claimed_by=None,
        lease_s=None,
        started_at=None,
        finished_at=None,
        last_event_at=None,
        waiting_since=None,
        result=None,
        error=None,
        error_code=None,
        late_result=None,
        past_attempts=(),
    )


def _past_attempts(
    job: Job, now: datetime, outcome: str, error: str | None, *, taken_away: bool
) -> tuple[PastAttempt, ...]:
    """Those of the job, with the one that ends now."""
    ended = PastAttempt(
        attempt=job.attempt,
        token=job.token,
        outcome=outcome,
        ended_at=now,
        started_at=job.started_at,
        worker=job.claimed_by,
        error=None if error is None else cut(error, JOB_PAST_ERROR_BYTES_MAX),
        taken_away=taken_away,
    )
    return (*job.past_attempts, ended)[-JOB_PAST_ATTEMPTS_MAX:]


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


def check_verdict(
    tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict
) -> Kept | None:
    """None when the verdict counts. Raises Fenced or ImpossibleTransition when it does not; if its
    words were kept, the refusal is returned instead, for the caller to commit and then to raise.
    """
    try:
        check_token(job, token)
        check_step(job, verdict.status)
    except (Fenced, ImpossibleTransition) as refusal:
        attempt = keep(tx, journal, job, token, verdict)
        if attempt is None:
            raise
        message = (
            f"{refusal.message}. The verdict on attempt {attempt} is kept as the job's late_result"
        )
        return Kept(type(refusal)(message, **refusal.fields, late_result=attempt))
    return None


def keep(tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict) -> int | None:
    """Keep what a late verdict says, and return its attempt; None for a verdict that is not kept: a
    stranger's, one of an earlier attempt than the kept one, or one for which the record has no
    room.
    """
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
        return (
            job.attempt
            if job.status is JobStatus.ERROR and job.error_code in (TIMED_OUT, WORKER_DIED)
            else None
        )
    return next(
        (past.attempt for past in job.past_attempts if past.taken_away and past.token == token),
        None,
    )


def _bounded(words: str | None) -> str | None:
    return None if words is None else cut(words, JOB_LATE_BYTES_MAX)
