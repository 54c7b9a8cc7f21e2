"""A change of a job is its record, the journal entry that tells of it, and the notices to those
who wait for it.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.domains.jobs.draft import fitted
from holdfast.domains.jobs.records import JOBS, Job, JobStatus
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal


def write(
    tx: Tx, journal: Journal, before: Job, after: Job, *, told: Mapping[str, Any] | None = None
) -> Job:
    """Write a job after a step, inside a transaction, and return it as it was written: too long
    words of a verdict are cut. The prompt, the result and the error's words stay in the record.
    Raises InvalidValue, with nothing changed, for a job that an earlier version registered too
    large.
    """
    after = fitted(after)
    tx.put(JOBS, after.job_id, after)
    change = {
        "from": before.status.value,
        "to": after.status.value,
        "attempt": after.attempt,
        "token": after.token,
    }
    journal.append(
        tx,
        kind="job.status_changed",
        subject=after.job_id,
        data={**change, **told} if told else change,
    )
    if after.status is JobStatus.PENDING:
        tx.notify(queue_topic(after.agent_session))
    return after


def queue_topic(agent_session: str) -> str:
    """What wakes those who wait for a job of a label."""
    return f"jobs/{agent_session}"


def job_topic(job_id: str) -> str:
    """What wakes the worker of a job that was taken away from it."""
    return f"job/{job_id}"
