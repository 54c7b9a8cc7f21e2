"""A job: its record, its states, the one table of transitions, and the broker of its events."""

import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from holdfast.kernel import token
from holdfast.kernel.codec import Instant, Plain, Record, Redacted, to_plain
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import FilePerRecord, Wire
from holdfast.kernel.lease import renew_every_s
from holdfast.kernel.limits import JOB_ATTEMPTS, JOB_LEASE_S
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space

HOST = "localhost"
PORT = 1883
TLS_PORT = 8883
PASSWORD_ENV = "MQTT_PASSWORD"
"""The variable with the password unless a record names another. A name, not a secret."""

TIMED_OUT = "timed_out"
WORKER_DIED = "worker_died"
TOO_LARGE = "too_large"


class Broker(Redacted, Plain, frozen=True, kw_only=True, omit_defaults=True):
    """A message broker. `password` is stored only if `store_password` says so; otherwise the
    variable `password_env` has it. `extra` keeps the fields that another program wrote.
    """

    secret_fields: ClassVar[frozenset[str]] = frozenset(("password", "extra"))

    host: str = HOST
    port: int = PORT
    tls: bool = False
    username: str | None = None
    password: str | None = None
    password_env: str = PASSWORD_ENV
    store_password: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


NO_BROKER = Broker()
"""Of a job that names none."""


class TimeLimits(Struct, frozen=True):
    """How long an attempt may take, and how long it may give no sign of life; None for any time."""

    timeout_sec: float
    idle_timeout_sec: float | None


NEW_JOB_LIMITS = TimeLimits(24 * 3600.0, None)
FOLDER_LIMITS = TimeLimits(600.0, 120.0)
"""The limits of a new job in a folder that other programs share, which expect these; and of every
record that names none.
"""


class JobStatus(enum.StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"

    ended: bool
    """Is this a final state?"""


TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset(
        {JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.CANCELLED, JobStatus.PENDING}
    ),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.ERROR: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}
"""docs/state_machines.md draws it."""

for _status, _steps in TRANSITIONS.items():
    # An attribute, since every write of a job asks for it several times.
    _status.ended = not _steps


class PastAttempt(Plain, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that ended without completing the job. `outcome` is its error code, or the job's
    status after it. `taken_away` is true if its worker gave no verdict: it was too slow, counted as
    dead, or an operator cancelled the job or put it back. Such a worker may still send a late
    result.
    """

    attempt: int
    token: int | None
    outcome: str
    ended_at: Instant
    started_at: Instant | None = None
    worker: Holder | None = None
    error: str | None = None
    taken_away: bool = False


class LateResult(Plain, frozen=True, kw_only=True):
    """A verdict that came too late to count: the wanted status, the attempt, and the actor."""

    status: JobStatus
    attempt: int
    at: Instant
    by: str
    result: str | None
    error: str | None
    error_code: str | None


class Job(Redacted, Record, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of delegated work.

    - `arrival` is the revision of its registration, which orders jobs without a clock.
    - `token` is that of the current attempt; None while nobody has the job.
    - `attempt` counts its attempts, and `deaths` those that ended by the death of the worker. Only
      deaths count towards `max_attempts`.
    - `lease_s` is how long an invisible worker is presumed alive without a sign of life, and
      `last_event_at` its last sign. `waiting_since` is set while the work waits for a permission.
    - `error_code` says in one word what `error` says in a sentence.
    - `past_attempts` are the last attempts that did not complete it, and `late_result` the verdict
      of one that came too late.
    - `extra` keeps the fields that another program wrote.
    """

    secret_fields: ClassVar[frozenset[str]] = frozenset(("auth_token", "extra"))

    job_id: str
    status: JobStatus = JobStatus.PENDING
    created_at: Instant
    updated_at: Instant
    prompt: str
    agent: str
    agent_session: str
    priority: int = 0
    arrival: int = 0
    broker: Broker = NO_BROKER
    topic_prefix: str = ""
    timeout_sec: float = FOLDER_LIMITS.timeout_sec
    idle_timeout_sec: float | None = FOLDER_LIMITS.idle_timeout_sec
    expected_artifacts: tuple[str, ...] = ()
    workdir: str | None = None
    last_seq: int = 0
    auth_token: str | None = None
    attempt: int = 0
    max_attempts: int = JOB_ATTEMPTS
    deaths: int = 0
    token: int | None = None
    claimed_by: Holder | None = None
    lease_s: float | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    last_event_at: Instant | None = None
    waiting_since: Instant | None = None
    result: str | None = None
    error: str | None = None
    error_code: str | None = None
    late_result: LateResult | None = None
    past_attempts: tuple[PastAttempt, ...] = ()
    extra: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def events_topic(self) -> str:
        """Where its events are published."""
        return f"{self.topic_prefix or default_prefix(self.job_id)}/events"


def default_prefix(job_id: str) -> str:
    """The topic prefix of a job that names none."""
    return f"holdfast/jobs/{job_id}"


def everything(job: Job) -> dict[str, Any]:
    """All fields as JSON, secrets included: for the job's own record only."""
    # By name, since encoding a record leaves out what has its default.
    facts = {name: getattr(job, name) for name in job.__struct_fields__}
    facts["broker"] = {name: getattr(job.broker, name) for name in job.broker.__struct_fields__}
    plain: dict[str, Any] = to_plain(facts)
    return plain


def shown(job: Job) -> dict[str, Any]:
    """All fields as JSON that may be shown: without the key of its events and without a password.
    Fields of another program are left out, since they may be secrets too.
    """
    facts = everything(job)
    facts["signed"] = facts.pop("auth_token") is not None
    del facts["extra"], facts["broker"]["extra"], facts["broker"]["password"]
    return facts


def due_at(job: Job) -> datetime | None:
    """When a running job has reached its time limit or its idle limit; None for never. Idle time
    does not count while it waits for a permission.
    """
    late = _after(job.started_at or job.updated_at, job.timeout_sec)
    if job.waiting_since is not None or job.idle_timeout_sec is None:
        return late
    return _earlier(late, _after(last_sign(job), job.idle_timeout_sec))


def lease_ends_at(job: Job) -> datetime | None:
    """When a worker that cannot be seen counts as dead, unless it gives a sign of life; None when
    only time limits end its claim.
    """
    if job.lease_s is None:
        return None
    idle_s = job.lease_s if job.idle_timeout_sec is None else job.idle_timeout_sec
    return _after(last_sign(job), min(job.lease_s, idle_s))


def beat_every_s(job: Job) -> float:
    """How often its worker should give a sign of life."""
    bounds = [bound for bound in (job.lease_s, job.idle_timeout_sec) if bound is not None]
    return renew_every_s(min(bounds, default=JOB_LEASE_S))


def due_place(job: Job) -> Parts:
    """The place of a running job in its index: when it must be checked."""
    due = _earlier(due_at(job), lease_ends_at(job))
    return (_NEVER,) if due is None else moment(due)


def moment(at: datetime) -> Parts:
    """The place in the index before which running jobs are overdue at that time."""
    return ((at - _EPOCH) // _MICROSECOND,)


def last_sign(job: Job) -> datetime:
    """When its worker last gave a sign of life: its start, an event or a heartbeat."""
    started, sign = job.started_at or job.updated_at, job.last_event_at
    return started if sign is None or sign < started else sign


def ended_group(status: JobStatus, *, adopted: bool) -> str:
    """The group of ended jobs in their index. Jobs that another program registered are apart, since
    only a person may remove them.
    """
    return f"{status} adopted" if adopted else str(status)


def is_adopted(job: Job) -> bool:
    """Did another program register it? Then its arrival is the beginning of an era. A job of ours
    gets such an arrival only by a counter that ran over, one in four million.
    """
    return job.arrival == token.first(token.era(job.arrival))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER = (1 << 63) - 1


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return (one or other) if one is None or other is None else min(one, other)


def _after(at: datetime, seconds: float) -> datetime | None:
    try:
        return at + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _turn(job: Job) -> Parts | None:
    if job.status is not JobStatus.PENDING:
        return None
    return (job.agent_session, -job.priority, job.arrival)


def _worker(job: Job) -> Parts | None:
    if job.claimed_by is None or job.status is not JobStatus.RUNNING:
        return None
    return job.claimed_by.parts


def _ended(job: Job) -> Parts | None:
    if not job.status.ended:
        return None
    return (ended_group(job.status, adopted=is_adopted(job)), job.arrival)


def _write(job: Job) -> dict[str, Any]:
    # Imported when a folder is used: a pick from a database must start fast.
    from holdfast.domains.jobs.wire import write

    return write(job)


def _read(key: str, document: dict[str, Any]) -> Job:
    from holdfast.domains.jobs.wire import read

    return read(key, document)


JOBS = Space(
    "jobs",
    Job,
    indexes={
        "turn": _turn,
        "running": lambda job: due_place(job) if job.status is JobStatus.RUNNING else None,
        "ended": _ended,
        "worker": _worker,
    },
    layout=FilePerRecord("jobs", "{key}.json", Wire(_write, _read), lock=".lock"),
)
"""Indexes: pending jobs in the order of their turn, running ones by when they are due and by their
process, ended ones by group and arrival.
"""
