"""A job: its record, its states, and the one table of transitions between them."""

import enum
from collections.abc import Mapping

from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.holder import Holder
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import Space

JOB_ID_CHARS = 8
TIMEOUT_S = 600.0
IDLE_TIMEOUT_S = 120.0


class JobStatus(enum.Enum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset({JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.CANCELLED, JobStatus.PENDING}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.ERROR: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}
"""docs/state_machines.md draws it."""


class Job(Record, frozen=True, kw_only=True):
    """One piece of delegated work.

    `token` is that of the current attempt, None while nobody has it; `arrival` is the revision it was registered at, which
    orders jobs without a clock.
    """

    job_id: str
    status: JobStatus = JobStatus.PENDING
    created_at: Instant
    updated_at: Instant
    prompt: str
    agent: str
    agent_session: str
    priority: int = 0
    arrival: int = 0
    timeout_sec: float = TIMEOUT_S
    idle_timeout_sec: float = IDLE_TIMEOUT_S
    expected_artifacts: tuple[str, ...] = ()
    attempt: int = 0
    token: int | None = None
    claimed_by: Holder | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    result: str | None = None
    error: str | None = None


def _turn(job: Job) -> Parts | None:
    """Pending jobs by label, then priority, then arrival."""
    return (job.agent_session, -job.priority, job.arrival) if job.status is JobStatus.PENDING else None


JOBS = Space("jobs", Job, indexes={"turn": _turn})
