"""A job that this process has claimed: signs of life for it, and what became of it."""

from collections.abc import Iterator

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import TIMED_OUT, beat_every_s, due_at
from holdfast.kernel.errors import HoldfastError, Lost, NotFound, Refused
from holdfast.kernel.limits import JOB_LEASE_S
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.answers import Holding, Notice, NoticeKind

_AGAIN_S = 1.0


def job_handle(job_id: str) -> str:
    """The handle of a claimed job."""
    return f"job:{job_id}"


class JobClaim:
    """One attempt at a job."""

    def __init__(self, hf: Holdfast, job: Job, now_s: float) -> None:
        self._hf = hf
        self.job = job
        self.handle = job_handle(job.job_id)
        self._every_s = beat_every_s(job) or JOB_LEASE_S / 3
        self._beat_s = now_s + self._every_s
        self._gone = False

    @property
    def token(self) -> int:
        """What a verdict must show."""
        return self.job.token or 0

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        return Holding(
            handle=self.handle,
            what=f"job {self.job.job_id} of {self.job.agent_session}",
            state="lost" if self._gone else "held",
        )

    def notices(self) -> Iterator[Notice]:
        """Whether it is still this attempt's."""
        try:
            found = self._hf.jobs.peek(self.job.job_id)
            if found is not None and self._is_mine(found):
                due = due_at(found)
                if due is None or due >= self._hf.store.now():
                    return
                # Nobody may have looked yet.
                found = self._hf.jobs.get_job(self.job.job_id)
        except NotFound:
            found = None
        if found is not None and self._is_mine(found):
            return
        self._gone = True
        yield Notice(kind=_kind(found), handle=self.handle, message=self._words(found))

    def attend(self, now_s: float) -> float | None:
        """A sign of life, so that it does not count as idle while the model thinks."""
        if self._gone:
            return None
        if now_s < self._beat_s:
            return self._beat_s
        try:
            self._hf.jobs.heartbeat(self.job.job_id, token=self.token)
        except (Lost, Refused):
            # Told with the next answer.
            self._gone = True
            return None
        except HoldfastError:
            return now_s + _AGAIN_S
        self._beat_s = now_s + self._every_s
        return self._beat_s

    def let_go(self, within_s: float) -> bool:
        """Put the job back, for the next one who claims it. False when it is another's by now, or
        over.
        """
        try:
            self._hf.jobs.requeue(self.job.job_id, token=self.token)
        except (Lost, Refused):
            return False
        return True

    def _is_mine(self, found: Job) -> bool:
        return found.status is JobStatus.RUNNING and found.token == self.token

    def _words(self, found: Job | None) -> str:
        job_id = self.job.job_id
        if found is None:
            return f"job {job_id} is not there any more: stop working on it"
        if found.status.ended:
            why = f" ({found.error})" if found.error else ""
            return f"job {job_id} is {found.status.value}{why}: stop working on it"
        return (
            f"job {job_id} was taken from you and is {found.status.value} again: stop working on it"
        )


def _kind(found: Job | None) -> NoticeKind:
    if found is not None and found.status is JobStatus.CANCELLED:
        return "job_cancelled"
    return "job_timed_out" if found is not None and found.error_code == TIMED_OUT else "job_lost"
