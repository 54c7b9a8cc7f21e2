"""The steps of a job's state machine: what a record becomes, and why a step is refused. No store is touched here."""

from datetime import datetime

from msgspec.structs import replace

from holdfast.domains.jobs.record import TRANSITIONS, Job, JobStatus
from holdfast.kernel.errors import Fenced, ImpossibleTransition, InvalidValue, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.names import check_text


def begun(job: Job, now: datetime, token: int, holder: Holder | None = None) -> Job:
    """The job as a new attempt."""
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
        result=None,
        error=None,
        error_code=None,
    )


def put_back(job: Job, now: datetime, *, deaths: int = 0) -> Job:
    """The job pending again, for the deaths of so many workers more; whoever had it is stale."""
    return replace(
        job,
        status=JobStatus.PENDING,
        updated_at=now,
        token=None,
        claimed_by=None,
        waiting_since=None,
        deaths=job.deaths + deaths,
    )


def ended(
    job: Job,
    status: JobStatus,
    now: datetime,
    *,
    result: str | None = None,
    error: str | None = None,
    error_code: str | None = None,
) -> Job:
    """The job in a last state."""
    return replace(
        job,
        status=status,
        updated_at=now,
        finished_at=now,
        token=None,
        claimed_by=None,
        waiting_since=None,
        result=result,
        error=error,
        error_code=error_code,
    )


def given_up(job: Job, now: datetime) -> Job:
    """A job that ended in error as cancelled. Its error and the time of its end stay."""
    return replace(job, status=JobStatus.CANCELLED, updated_at=now)


def moved(
    job: Job,
    status: JobStatus,
    now: datetime,
    token: int,
    *,
    result: str | None = None,
    error: str | None = None,
    error_code: str | None = None,
) -> Job:
    """The job after a step that TRANSITIONS has. Raises ImpossibleTransition for any other."""
    check_step(job, status)
    if status is JobStatus.RUNNING:
        return begun(job, now, token)
    if status is JobStatus.PENDING:
        return replace(put_back(job, now), result=result, error=error, error_code=error_code)
    return ended(job, status, now, result=result, error=error, error_code=error_code)


def check_step(job: Job, status: JobStatus) -> None:
    """Raises ImpossibleTransition for a step that TRANSITIONS does not have."""
    if status in TRANSITIONS[job.status]:
        return
    allowed = ", ".join(sorted(step.value for step in TRANSITIONS[job.status]))
    then = f"possible: {allowed}" if allowed else "it has ended: register it anew to have it done again"
    raise ImpossibleTransition(
        f"job {job.job_id} is {job.status.value} and cannot become {status.value}; {then}",
        job_id=job.job_id,
        status=job.status.value,
        wanted=status.value,
    )


def check_token(job: Job, token: int | None) -> None:
    """Raises Fenced for a token that is not the one of the job's current attempt. None is an operator, who needs none."""
    if token is None or token == job.token:
        return
    if job.token is None:
        message = (
            f"job {job.job_id} is {job.status.value}; token {token} no longer counts: stop work on it. If you are repeating "
            f"your own verdict, `holdfast jobs get --job {job.job_id}` shows whether it arrived"
        )
    else:
        message = (
            f"token {token} is not the one of job {job.job_id}'s current attempt ({job.token}): stop work on it, another has "
            "taken over"
        )
    raise Fenced(message, job_id=job.job_id, token=token, current=job.token)


def check_words(result: str | None, error: str | None) -> None:
    """Raises InvalidValue for words of a verdict that no encoding can carry."""
    if result is not None:
        check_text(result, "result")
    if error is not None:
        check_text(error, "error")


def status_named(value: JobStatus | str) -> JobStatus:
    """The status of that name. Raises InvalidValue."""
    try:
        return JobStatus(value)
    except ValueError:
        possible = ", ".join(status.value for status in JobStatus)
        raise InvalidValue(f"{ascii(value)[:60]} is no status of a job: use one of {possible}", field="status") from None


def no_such(job_id: str) -> NotFound:
    """There is no job of that id."""
    return NotFound(f"there is no job {job_id}: `holdfast jobs list` shows those there are", job_id=job_id)


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
        started_at=None,
        finished_at=None,
        last_event_at=None,
        waiting_since=None,
        result=None,
        error=None,
        error_code=None,
    )
