"""Jobs: what is answered of them, and what keeps their audit log up to date."""

from typing import Any

import msgspec

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.events import Event
from holdfast.domains.jobs.records import LateResult, PastAttempt, shown
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import BrokerUnavailable, Corrupt, InvalidValue, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.names import check_job_id
from holdfast.runtime.connection import Holdfast


class BrokerView(Plain, frozen=True, kw_only=True):
    """The broker of a job's events, without a password."""

    host: str
    port: int
    tls: bool
    username: str | None
    password_env: str
    store_password: bool


class JobView(Plain, frozen=True, kw_only=True):
    """A job as it may be shown: whether its events are signed, but not the key."""

    schema_version: int
    job_id: str
    status: JobStatus
    created_at: Instant
    updated_at: Instant
    prompt: str
    agent: str
    agent_session: str
    priority: int
    arrival: int
    broker: BrokerView
    topic_prefix: str
    timeout_sec: float
    idle_timeout_sec: float | None
    expected_artifacts: tuple[str, ...]
    workdir: str | None
    last_seq: int
    attempt: int
    deaths: int
    max_attempts: int
    token: int | None
    claimed_by: Holder | None
    lease_s: float | None
    started_at: Instant | None
    finished_at: Instant | None
    last_event_at: Instant | None
    waiting_since: Instant | None
    result: str | None
    error: str | None
    error_code: str | None
    late_result: LateResult | None
    past_attempts: tuple[PastAttempt, ...]
    signed: bool


class FinishedView(Plain, frozen=True, kw_only=True):
    """The job that ended, and the next one, running, if there was one."""

    done: JobView
    picked: JobView | None


class Pruned(Plain, frozen=True, kw_only=True):
    """How many finished jobs were removed."""

    removed: int


class Sent(Plain, frozen=True, kw_only=True):
    """How many events their brokers have now that they had not."""

    sent: int


def view_of(job: Job) -> JobView:
    """A job for showing."""
    return msgspec.convert(shown(job), JobView)


def logged(hf: Holdfast, *, wait: bool = False) -> str | None:
    """Bring the audit log of jobs up to date; return in words what went wrong, which breaks
    nothing, or None.
    """
    return next(iter(hf.catch_up(wait=wait)), None)


def found(hf: Holdfast, job_id: str) -> Job | None:
    """The job as it is; None when it is gone or damaged."""
    try:
        return hf.jobs.peek(job_id)
    except Corrupt:
        return None


def sent(hf: Holdfast, event: Event | None = None) -> int:
    """Send what the broker of an event's job has not had yet, or all brokers; return how many
    events those were. Raises BrokerUnavailable, and InvalidValue for a topic that nothing can be
    sent to; what is not sent stays kept.
    """
    from holdfast.adapters.event_sender import EventSender

    before = (
        ""
        if event is None
        else f"event {event.seq} of job {event.job_id} is kept and not sent yet: "
    )
    courier = EventSender(hf.job_events)
    try:
        return courier.send(None if event is None else [event.job_id])
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{before}{error.message}. `holdfast jobs publish --unsent` sends what is kept",
            **error.fields,
        ) from None
    except InvalidValue as error:
        raise InvalidValue(f"{before}{error.message}", **error.fields) from None
    finally:
        courier.close()


def timeline(hf: Holdfast, job_id: str, tail: int | None) -> list[dict[str, Any]]:
    """The last lines of a job's audit log, or all. Raises NotFound when it is not logged,
    InvalidName.
    """
    if hf.job_log is None:
        raise NotFound(
            "this store keeps nothing, so there is no log of its jobs: use another --store"
        )
    lines = list(hf.job_log.events(check_job_id(job_id)))
    if not lines:
        raise NotFound(
            f"no job {job_id} is logged in {hf.job_log.folder}: `holdfast jobs logs --list` shows "
            "those that are"
        )
    return lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
