"""What the operations on jobs return."""

import msgspec

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import LateResult, PastAttempt, shown
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.holder import Holder


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
    """How many kept events the brokers received."""

    sent: int


def view_of(job: Job) -> JobView:
    """A job for showing."""
    return msgspec.convert(shown(job), JobView)
