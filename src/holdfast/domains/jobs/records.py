"""A job: its record, its states, and the one table of transitions between them.

The message broker that a job's record names. How to reach it is told in reach.py, which picking
does not need.
"""

import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

import msgspec

from holdfast.kernel import token
from holdfast.kernel.codec import Discreet, Instant, Plain, Record, to_plain
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import FilePerRecord, Wire
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space

HOST = "localhost"
PORT = 1883
TLS_PORT = 8883
PASSWORD_ENV = "MQTT_PASSWORD"
"""Which variable holds the password unless a record names another. A name, not a secret."""


class Broker(Discreet, Plain, frozen=True, kw_only=True, omit_defaults=True):
    """A message broker. `password` is written down only where `store_password` says so; otherwise
    the variable `password_env` has it. `extra` keeps what another program wrote beside these.
    """

    unshown: ClassVar[frozenset[str]] = frozenset(("password", "extra"))

    host: str = HOST
    port: int = PORT
    tls: bool = False
    username: str | None = None
    password: str | None = None
    password_env: str = PASSWORD_ENV
    store_password: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class TimeLimits(NamedTuple):
    """How long one attempt may take, and how long it may give no sign of life; None for any
    time.
    """

    timeout_sec: float
    idle_timeout_sec: float | None


NEW_JOB_LIMITS = TimeLimits(24 * 3600.0, None)
"""Of a new job unless told."""
FOLDER_LIMITS = TimeLimits(600.0, 120.0)
"""Of a new job in a folder that other programs share, which expect these; and of every record that
names no limits.
"""
ATTEMPTS_MAX = 3
"""How many attempts at a job may end by the death of its worker, unless told, before that ends the
job.
"""


class JobStatus(enum.StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"

    ended: bool
    """Is this a last state?"""


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
    # Kept with each status, since every write of a job asks for it several times.
    _status.ended = not _steps


TIMED_OUT = "timed_out"
WORKER_DIED = "worker_died"
TOO_LARGE = "too_large"


class PastAttempt(Plain, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that ended without completing the job. `outcome` is its error code, or what became
    of the job.

    `taken_away` says that the worker itself gave no verdict: its time was over, it was taken for
    dead, or an operator cancelled the job or put it back. Such a worker may still deliver a late
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
    """A verdict that came too late to count: which status it wanted, for which attempt, when, and
    by which actor.
    """

    status: JobStatus
    attempt: int
    at: Instant
    by: str
    result: str | None
    error: str | None
    error_code: str | None


class Job(Discreet, Record, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of delegated work.

    `token` is that of the current attempt, None while nobody has it; `arrival` is the revision it
    was registered at, which orders jobs without a clock. `attempt` counts how often it was begun,
    and `deaths` how many of these attempts ended by the death of the worker: only they count
    towards `max_attempts`, and not those that were given back. `last_event_at` is the last sign of
    life, and `waiting_since` is set while the work waits for a permission. `error_code` says in one
    word what `error` says in a sentence. `lease_s` is how long a worker that nobody can see is
    believed without a sign of life. `past_attempts` has the last attempts that did not complete it,
    and `late_result` the verdict of one that came too late. `extra` keeps what another program
    wrote into the record beside these.
    """

    unshown: ClassVar[frozenset[str]] = frozenset(("auth_token", "extra"))

    job_id: str
    status: JobStatus = JobStatus.PENDING
    created_at: Instant
    updated_at: Instant
    prompt: str
    agent: str
    agent_session: str
    priority: int = 0
    arrival: int = 0
    broker: Broker = Broker()
    topic_prefix: str = ""
    timeout_sec: float = FOLDER_LIMITS.timeout_sec
    idle_timeout_sec: float | None = FOLDER_LIMITS.idle_timeout_sec
    expected_artifacts: tuple[str, ...] = ()
    workdir: str | None = None
    last_seq: int = 0
    auth_token: str | None = None
    attempt: int = 0
    max_attempts: int = ATTEMPTS_MAX
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
    """The topics of a job that names none."""
    return f"holdfast/jobs/{job_id}"


def everything(job: Job) -> dict[str, Any]:
    """All fields as JSON would show them, secrets included: for the job's own record and nothing
    else.
    """
    facts = {name: to_plain(getattr(job, name)) for name in job.__struct_fields__}
    facts["broker"] = {
        name: to_plain(getattr(job.broker, name)) for name in job.broker.__struct_fields__
    }
    return facts


def shown(job: Job) -> dict[str, Any]:
    """All fields as they may be shown: whether events are signed, but neither the key they are
    signed with nor a password.
    """
    facts = everything(job)
    facts["signed"] = facts.pop("auth_token") is not None
    del facts["broker"]["password"]
    # Another program's fields may be anything, secrets too.
    del facts["extra"], facts["broker"]["extra"]
    return facts


def due_at(job: Job) -> datetime | None:
    """When a running job has taken too long, or has been without a sign for too long; None for
    never.

    While it waits for a permission it is not expected to give signs.
    """
    late = _after(job.started_at or job.updated_at, job.timeout_sec)
    if job.waiting_since is not None or job.idle_timeout_sec is None:
        return late
    return _earlier(late, _after(last_sign(job), job.idle_timeout_sec))


def lease_ends_at(job: Job) -> datetime | None:
    """When a worker that nobody can see counts as dead, unless it gives a sign; None when only time
    limits end its claim.
    """
    if job.lease_s is None:
        return None
    patience_s = (
        job.lease_s if job.idle_timeout_sec is None else min(job.lease_s, job.idle_timeout_sec)
    )
    return _after(last_sign(job), patience_s)


def beat_every_s(job: Job) -> float | None:
    """How often its worker should give a sign of life, so that two may be lost; None when no
    silence ends the claim.
    """
    bounds = [bound for bound in (job.lease_s, job.idle_timeout_sec) if bound is not None]
    return min(bounds) / 3 if bounds else None


def due_place(job: Job) -> Parts:
    """The place of a running job among those that are running: when it must be looked at."""
    due = _earlier(due_at(job), lease_ends_at(job))
    return (_NEVER,) if due is None else moment(due)


def moment(at: datetime) -> Parts:
    """Before this place are the running jobs that are overdue at that time."""
    return ((at - _EPOCH) // _MICROSECOND,)


def last_sign(job: Job) -> datetime:
    """When its worker last gave a sign of life: the beginning of the attempt, an event or a
    heartbeat.
    """
    begun, sign = job.started_at or job.updated_at, job.last_event_at
    return begun if sign is None or sign < begun else sign


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


def _after(at: datetime, seconds: float) -> datetime | None:
    try:
        return at + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _turn(job: Job) -> Parts | None:
    """Pending jobs by label, then priority, then arrival."""
    return (
        (job.agent_session, -job.priority, job.arrival) if job.status is JobStatus.PENDING else None
    )


def _running(job: Job) -> Parts | None:
    """Running jobs by when they are overdue."""
    return due_place(job) if job.status is JobStatus.RUNNING else None


def _worker(job: Job) -> Parts | None:
    """Running jobs by the process that has them, if one is recorded."""
    return (
        job.claimed_by.parts
        if job.claimed_by is not None and job.status is JobStatus.RUNNING
        else None
    )


def ended_group(status: JobStatus, *, adopted: bool) -> str:
    """Where those that ended so are: the ones that another program registered apart, since only a
    person may remove them.
    """
    return f"{status.value} adopted" if adopted else status.value


def is_adopted(job: Job) -> bool:
    """Did another program register it? Then its arrival is the beginning of an era, which no job
    that is registered here gets but by a counter that ran over: one in four million, which is then
    removed by a person too.
    """
    return job.arrival == token.first(token.era(job.arrival))


def _ended(job: Job) -> Parts | None:
    """Jobs that ended, by how, then arrival."""
    return (
        (ended_group(job.status, adopted=is_adopted(job)), job.arrival)
        if job.status.ended
        else None
    )


def _write(job: Job) -> dict[str, Any]:
    from holdfast.domains.jobs.wire import write

    return write(job)


def _read(key: str, document: dict[str, Any]) -> Job:
    from holdfast.domains.jobs.wire import read

    return read(key, document)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER = (1 << 63) - 1

JOBS = Space(
    "jobs",
    Job,
    indexes={"turn": _turn, "running": _running, "ended": _ended, "worker": _worker},
    # Loaded when a folder is used: picking from a database needs none of it.
    layout=FilePerRecord("jobs", "{key}.json", Wire(_write, _read), lock=".lock"),
)
