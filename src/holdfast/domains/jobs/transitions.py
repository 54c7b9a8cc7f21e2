"""The steps of a job's state machine: what a record becomes, why a step is refused, and how a step
is written.

A verdict that comes too late changes no status, but its words are kept in the job's `late_result`.
It is late if it shows the token of an attempt that was taken away, or if an operator gives it
without a token on a job whose worker was too slow or counted as dead. Every other late verdict is
refused and forgotten.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.domains.jobs.draft import fitted
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
from holdfast.kernel.store import Scope, Tx
from holdfast.primitives.journal import Journal

RETRIED = frozenset({JobStatus.ERROR, JobStatus.CANCELLED})
"""The statuses of jobs that an operator may retry."""
_UNCLAIMED: dict[str, None] = dict.fromkeys(("token", "claimed_by", "lease_s", "waiting_since"))
_NO_VERDICT: dict[str, None] = dict.fromkeys(("result", "error", "error_code"))


class Verdict(Struct, frozen=True):
    """The status that a worker or an operator wants for a job, and the words for it."""

    status: JobStatus
    result: str | None = None
    error: str | None = None
    error_code: str | None = None


def verdict_of(
    status: JobStatus | str, result: str | None, error: str | None, error_code: str | None
) -> Verdict:
    """A caller's verdict. Raises InvalidValue for an unknown status and for words that no encoding
    can carry, and InvalidName for a code that is not a label. Words may have any length: see
    `draft.fitted`.
    """
    wanted = status_named(status)
    if result is not None:
        check_text(result, "result")
    if error is not None:
        check_text(error, "error")
    if error_code is not None:
        check_label(error_code, "error code")
    return Verdict(wanted, result, error, error_code)


class ExtraChange(Struct, frozen=True):
    """What else belongs to a step: `do` gets the job after it, inside its transaction over `scope`,
    and returns the job to be written.
    """

    scope: Scope
    do: Callable[[Tx, Job], Job]


class LateRefusal(Struct, frozen=True):
    """The refusal of a verdict whose words were kept. It is raised once that is committed."""

    error: HoldfastError


def queue_topic(agent_session: str) -> str:
    """The topic that wakes the workers that wait for a job of a label."""
    return f"jobs/{agent_session}"


def job_topic(job_id: str) -> str:
    """The topic that wakes a worker whose job was taken away."""
    return f"job/{job_id}"


def write(
    tx: Tx, journal: Journal, before: Job, after: Job, *, facts: Mapping[str, Any] | None = None
) -> Job:
    """Write a job after a step, with its journal entry and notice; return it as it was written: a
    verdict that is too long is cut. The journal gets no prompt, result or error, only `facts`.
    Raises InvalidValue, with nothing changed, for a job that an earlier version registered too
    large.
    """
    after = fitted(after)
    tx.put(JOBS, after.job_id, after)
    change = {
        "from": str(before.status),
        "to": str(after.status),
        "attempt": after.attempt,
        "token": after.token,
    }
    journal.append(
        tx,
        kind="job.status_changed",
        subject=after.job_id,
        data={**change, **facts} if facts else change,
    )
    if after.status is JobStatus.PENDING:
        tx.notify(queue_topic(after.agent_session))
    return after


def started(
    job: Job, now: datetime, token: int, holder: Holder | None = None, lease_s: float | None = None
) -> Job:
    """The job as a new attempt. Only a claim with a process has a lease."""
    return replace(
        job,
        **_NO_VERDICT,
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
    """The job pending again, with `deaths` added to those of its workers. `outcome`, `error` and
    `taken_away` say how the attempt ended.
    """
    return replace(
        job,
        **_UNCLAIMED,
        status=JobStatus.PENDING,
        updated_at=now,
        deaths=job.deaths + deaths,
        past_attempts=_past_attempts(job, now, outcome, error, taken_away=taken_away),
    )


def ended(job: Job, verdict: Verdict, now: datetime, *, taken_away: bool = False) -> Job:
    """The job in a final state. `taken_away` says that no verdict of its worker ended it."""
    status, error = verdict.status, verdict.error
    past = job.past_attempts
    if job.status is JobStatus.RUNNING and status is not JobStatus.COMPLETED:
        # Work that runs on after its time limit may still bring a result.
        late = taken_away or verdict.error_code == TIMED_OUT
        outcome = verdict.error_code or status.value
        past = _past_attempts(job, now, outcome, error, taken_away=late)
    facts = {**_UNCLAIMED, **asdict(verdict)}
    return replace(job, **facts, updated_at=now, finished_at=now, past_attempts=past)


def retried(job: Job, now: datetime) -> Job:
    """A failed or cancelled job pending again, in its old place. `attempt` goes on, and deaths are
    counted from 0 again. Raises ImpossibleTransition for any other job.
    """
    if job.status not in RETRIED:
        raise ImpossibleTransition(
            f"job {job.job_id} is {job.status.value}: only a job that ended in error or was "
            "cancelled can be tried again",
            job_id=job.job_id,
            status=job.status.value,
            wanted=JobStatus.PENDING.value,
        )
    past = job.past_attempts
    if job.error is not None and job.attempt and all(one.attempt != job.attempt for one in past):
        # Another program ended it, which records no past attempts: its error would be lost.
        ended_at, outcome = job.finished_at or job.updated_at, job.error_code or job.status.value
        past = _past_attempts(job, ended_at, outcome, job.error, taken_away=False)
    return replace(
        job,
        **_NO_VERDICT,
        status=JobStatus.PENDING,
        updated_at=now,
        finished_at=None,
        deaths=0,
        past_attempts=past,
    )


def given_up(job: Job, now: datetime) -> Job:
    """A job that ended in error as cancelled. Its error and the time of its end stay."""
    return replace(job, status=JobStatus.CANCELLED, updated_at=now)


def moved(job: Job, verdict: Verdict, *, now: datetime, token: int, by_operator: bool) -> Job:
    """The job after the step to the verdict's status. `token` is for a new attempt. Raises
    ImpossibleTransition for a step that TRANSITIONS does not have.
    """
    status, error = verdict.status, verdict.error
    check_step(job, status)
    if status is JobStatus.RUNNING:
        return started(job, now, token)
    if status is JobStatus.PENDING:
        outcome = verdict.error_code or ("requeued" if by_operator else "given_back")
        back = put_back(job, now, outcome=outcome, error=error, taken_away=by_operator)
        return replace(back, **asdict(verdict))
    # An operator who cancels takes the job away. One who says how it ended may be the work itself,
    # without its token.
    return ended(job, verdict, now, taken_away=by_operator and status is JobStatus.CANCELLED)


def check_step(job: Job, status: JobStatus) -> None:
    """Raises ImpossibleTransition for a step that TRANSITIONS does not have."""
    if status in TRANSITIONS[job.status]:
        return
    allowed = ", ".join(sorted(step.value for step in TRANSITIONS[job.status]))
    if allowed:
        advice = f"possible: {allowed}"
    elif job.status in RETRIED:
        advice = f"it has ended: `holdfast jobs retry {job.job_id}` puts it back into its queue"
    else:
        advice = "it has ended: register a new job to repeat the work"
    raise ImpossibleTransition(
        f"job {job.job_id} is {job.status.value} and cannot become {status.value}; {advice}",
        job_id=job.job_id,
        status=job.status.value,
        wanted=status.value,
    )


def check_token(job: Job, token: int | None) -> None:
    """Raises Fenced for a token that is not the one of the current attempt. An operator shows
    none.
    """
    if token is None or token == job.token:
        return
    if job.token is None:
        message = (
            f"job {job.job_id} is {job.status.value}; token {token} no longer counts: stop work on "
            "it. If you are repeating your own verdict, "
            f"`holdfast jobs get --job {job.job_id}` shows whether it arrived"
        )
    else:
        message = (
            f"token {token} is not the one of job {job.job_id}'s current attempt ({job.token}): "
            "stop work on it, another worker has the job"
        )
    raise Fenced(message, job_id=job.job_id, token=token, current=job.token)


def check_verdict(
    tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict
) -> LateRefusal | None:
    """None when the verdict counts. Raises Fenced or ImpossibleTransition when it does not. If its
    words were kept, the refusal is returned instead: the caller commits, and then raises it.
    """
    try:
        check_token(job, token)
        check_step(job, verdict.status)
    except (Fenced, ImpossibleTransition) as refusal:
        attempt = keep_late(tx, journal, job, token, verdict)
        if attempt is None:
            raise
        message = (
            f"{refusal.message}. The verdict on attempt {attempt} is kept as the job's late_result"
        )
        return LateRefusal(type(refusal)(message, **refusal.fields, late_result=attempt))
    return None


def keep_late(
    tx: Tx, journal: Journal, job: Job, token: int | None, verdict: Verdict
) -> int | None:
    """Keep the words of a late verdict and return its attempt. None when they are not kept: no
    attempt that was taken away has its token, the words of a later attempt are kept already, or the
    record has no room.
    """
    if token is None:
        too_slow = job.status is JobStatus.ERROR and job.error_code in (TIMED_OUT, WORKER_DIED)
        attempt = job.attempt if too_slow else None
    else:
        taken = (past for past in job.past_attempts if past.taken_away and past.token == token)
        attempt = next((past.attempt for past in taken), None)
    known = job.late_result
    if verdict.status not in (JobStatus.COMPLETED, JobStatus.ERROR) or attempt is None:
        return None
    if known is not None and known.attempt > attempt:
        return None
    result, error = verdict.result, verdict.error
    late = LateResult(
        status=verdict.status,
        attempt=attempt,
        at=tx.now,
        by=journal.actor,
        result=None if result is None else cut(result, JOB_LATE_BYTES_MAX),
        error=None if error is None else cut(error, JOB_LATE_BYTES_MAX),
        error_code=verdict.error_code,
    )
    if known is not None and replace(late, at=known.at, by=known.by) == known:
        return attempt
    try:
        tx.put(JOBS, job.job_id, replace(job, updated_at=tx.now, late_result=late))
    except InvalidValue:
        return None
    facts = {"attempt": attempt, "wanted": verdict.status.value, "status": job.status.value}
    journal.append(tx, kind="job.late_result", subject=job.job_id, data=facts)
    return attempt


def status_named(value: JobStatus | str) -> JobStatus:
    """The status of that name. Raises InvalidValue."""
    try:
        return JobStatus(value)
    except ValueError:
        possible = ", ".join(status.value for status in JobStatus)
        raise InvalidValue(
            f"{ascii(value)[:60]} is not a job status: use one of {possible}", field="status"
        ) from None


def no_such(job_id: str) -> NotFound:
    return NotFound(
        f"there is no job {job_id}: `holdfast jobs list` shows the existing ones", job_id=job_id
    )


def existing(tx: Tx, job_id: str) -> Job:
    """The job, latched for this transaction. Raises NotFound."""
    row = tx.get(JOBS, job_id)
    if row is None:
        raise no_such(job_id)
    return row.record


def as_registered(job: Job) -> Job:
    """The job as it was when it was registered, without what its attempts added."""
    return replace(
        job,
        **_UNCLAIMED,
        **_NO_VERDICT,
        status=JobStatus.PENDING,
        updated_at=job.created_at,
        last_seq=0,
        attempt=0,
        deaths=0,
        started_at=None,
        finished_at=None,
        last_event_at=None,
        late_result=None,
        past_attempts=(),
    )


def _past_attempts(
    job: Job, now: datetime, outcome: str, error: str | None, *, taken_away: bool
) -> tuple[PastAttempt, ...]:
    """The last past attempts of the job, with the one that ends now."""
    this = PastAttempt(
        attempt=job.attempt,
        token=job.token,
        outcome=outcome,
        ended_at=now,
        started_at=job.started_at,
        worker=job.claimed_by,
        error=None if error is None else cut(error, JOB_PAST_ERROR_BYTES_MAX),
        taken_away=taken_away,
    )
    return (*job.past_attempts, this)[-JOB_PAST_ATTEMPTS_MAX:]
