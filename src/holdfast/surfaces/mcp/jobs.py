"""Jobs: created for others, claimed for the agent, and reported."""

import time
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.event_stream import ANSWER_FIELD
from holdfast.domains.jobs.events import EventKind
from holdfast.domains.jobs.records import TIMED_OUT, beat_every_s, due_at
from holdfast.kernel.errors import HoldfastError, InvalidValue, Lost, NotFound, Refused
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.operations import jobs
from holdfast.operations.fields import Label
from holdfast.operations.job_claim import claim_job as claim_next
from holdfast.operations.job_requests import Cancel, PublishEvent, Register, Report
from holdfast.operations.job_status import JobKey
from holdfast.operations.job_views import JobView, view_of
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Holding, Notice, NoticeKind, Session
from holdfast.surfaces.mcp.tool import ToolResult, WaitS, tool

_CANCELLED = "cancelled by the client that requested it"


class JobClaim:
    """One attempt at a job, by this process."""

    def __init__(self, hf: Holdfast, job: Job, now_s: float) -> None:
        self._hf = hf
        self.job = job
        self.token = job.token or 0
        self.handle = f"job:{job.job_id}"
        self._every_s = beat_every_s(job)
        self._beat_s = now_s + self._every_s
        self._gone = False
        self.asked: int | None = None
        """The event by which it asked for a permission, until the agent reports again."""

    def holding(self) -> Holding:
        what = f"job {self.job.job_id} of {self.job.agent_session}"
        return Holding(handle=self.handle, what=what, state="lost" if self._gone else "held")

    def notices(self) -> Iterator[Notice]:
        """Whether it still belongs to this attempt."""
        try:
            found = self._hf.jobs.peek(self.job.job_id)
            if found is not None and self._is_mine(found):
                yield from self._answers()
                due = due_at(found)
                if due is None or due >= self._hf.store.now():
                    return
                # It is overdue, and nobody may have ended it yet: `get_job` does.
                found = self._hf.jobs.get_job(self.job.job_id)
        except NotFound:
            found = None
        if found is not None and self._is_mine(found):
            return
        self._gone = True
        yield Notice(kind=_kind(found), handle=self.handle, message=self._words(found))

    def answer(self) -> ToolResult | None:
        """The answer to the permission that it asked for."""
        if self.asked is None:
            return None
        return self._hf.job_events.answer_to(self.job.job_id, self.asked)

    def wait(self, wait_s: float, call: Call) -> ToolResult:
        """The answer to the permission that it asked for, when there is one or the time is over.

        Raises InvalidValue when it asked for none.
        """
        if self.asked is None:
            raise InvalidValue(
                f"with {self.handle} there is nothing to wait for, as you asked for no permission: "
                "`status` shows its state",
                field="handle",
            )
        end_s = time.monotonic() + wait_s
        with self._hf.store.listen([JOURNAL_TOPIC]) as listener:
            while True:
                answer, left_s = self.answer(), end_s - time.monotonic()
                if answer is not None:
                    return {"state": "answered", "answer": answer, "next": "do as it says"}
                if left_s <= 0 or next(self.notices(), None) is not None:
                    return {"state": "waiting", "answer": None, "next": "call wait again"}
                if call.stop.fd in listener.wait(left_s, also=[call.stop.fd]).ready:
                    return {"state": "waiting", "answer": None, "next": "call wait again"}

    def _answers(self) -> Iterator[Notice]:
        if (answer := self.answer()) is not None:
            words = (
                f"{answer['by']} answers what job {self.job.job_id} asked: {answer[ANSWER_FIELD]}"
            )
            yield Notice(kind="job_answered", handle=self.handle, message=words)

    def renew(self, now_s: float) -> float | None:
        """Send a heartbeat, so that the job does not count as idle while the model thinks."""
        if self._gone:
            return None
        if now_s < self._beat_s:
            return self._beat_s
        try:
            self._hf.jobs.heartbeat(self.job.job_id, token=self.token)
        except (Lost, Refused):
            # The next answer reports it.
            self._gone = True
            return None
        except HoldfastError:
            return now_s + 1.0
        self._beat_s = now_s + self._every_s
        return self._beat_s

    def release(self, within_s: float) -> bool:
        """Put the job back. False when another has it by now, or it is over."""
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
            return f"job {job_id} does not exist any more: stop working on it"
        if found.status.ended:
            why = f" ({found.error})" if found.error else ""
            return f"job {job_id} is {found.status.value}{why}: stop working on it"
        state = found.status.value
        return f"job {job_id} was taken from you and is {state} again: stop working on it"


def _kind(found: Job | None) -> NoticeKind:
    if found is not None and found.status is JobStatus.CANCELLED:
        return "job_cancelled"
    return "job_timed_out" if found is not None and found.error_code == TIMED_OUT else "job_lost"


@tool(jobs.register)
def create_job(session: Session, call: Call, request: Register) -> ToolResult:
    """Delegate work: put a job into the queue of another agent, or of any worker that claims from
    it. Returns its handle at once; status or wait with it shows how it went."""
    job: JobView = jobs.register(session.hf, request)
    call.undo_by(lambda: jobs.cancel(session.hf, Cancel(job_id=job.job_id, reason=_CANCELLED)))
    return _pending(session, job)


@tool(jobs.pick)
def claim_job(
    session: Session,
    call: Call,
    *,
    queue: Annotated[Label, Meta(description="One of yours; by default the first.")] | None = None,
    wait_s: WaitS = 0,
) -> ToolResult:
    """Claim the next job of one of your queues for you alone; with wait_s wait for one. job is null
    when there is none. Do what its prompt says, then call report_job. If you end or are killed, the
    job goes back to the queue."""
    hf, queues = session.hf, session.me.queues
    queue = queues[0] if queue is None else queue
    if queue not in queues:
        raise InvalidValue(
            f"{queue!a} is not a queue of yours: use one of {', '.join(queues)}",
            field="queue",
            queues=list(queues),
        )
    # Before there is a job that would have to be put back.
    session.check_room()
    holder = hf.processes.current(session.me.by)
    job = claim_next(hf, queue, wait_s=wait_s, holder=holder, stop_fd=call.stop.fd)
    if job is None:
        words = "nothing to do in this queue: call again with wait_s, or stop here"
        return {"job": None, "handle": None, "next": words}
    claim = JobClaim(hf, job, time.monotonic())
    session.add(claim)
    call.undo_by(lambda: session.release(claim.handle))
    started = PublishEvent(job_id=job.job_id, event=EventKind.STARTED, token=claim.token)
    running = jobs.keep_event(hf, started).job
    session.job_changed(job.job_id)
    words = "do it, then report_job with completed or error; it goes back when this connection ends"
    return {"job": view_of(running), "handle": claim.handle, "next": words}


@tool(jobs.report)
def report_job(session: Session, call: Call, request: Report) -> ToolResult:
    """Report on a job that you claimed: progress, permission_required (you wait for a person),
    completed with its result, error with the reason, or give_back for another to do. fenced means
    that it is not yours any more: stop."""
    claim = session.claim(f"job:{request.job_id}", JobClaim)
    try:
        job: JobView = jobs.report(session.hf, replace(request, token=claim.token))
    except (Lost, Refused):
        # The agent knows now.
        session.drop(claim.handle)
        raise
    session.job_changed(job.job_id)
    if job.status is not JobStatus.RUNNING:
        session.drop(claim.handle)
        return {"job": job, "handle": None, "next": "claim_job for the next"}
    asks = request.outcome == "permission_required"
    claim.asked = job.last_seq if asks else None
    words = "wait with this handle brings the answer, which pending has too" if asks else "go on"
    return {"job": job, "handle": claim.handle, "next": words}


@tool(jobs.retry)
def retry_job(session: Session, call: Call, request: JobKey) -> ToolResult:
    """Repeat a job that ended in error or was cancelled: it is pending in its queue, with its
    history. A job with another status is refused."""
    return _pending(session, jobs.retry(session.hf, request))


def _pending(session: Session, job: JobView) -> ToolResult:
    session.hf.catch_up(wait=True)
    words = "status with this handle, and wait_s to wait for its end"
    return {"job": job, "handle": f"job:{job.job_id}", "next": words}


def ended_job(session: Session, job_id: str, wait_s: float, call: Call) -> JobView:
    """The job, when it has ended or the time is over."""
    end_s = time.monotonic() + wait_s
    with session.hf.store.listen([JOURNAL_TOPIC]) as listener:
        while True:
            job: JobView = jobs.get(session.hf, JobKey(job_id=job_id))
            left_s = end_s - time.monotonic()
            if job.status.ended or left_s <= 0:
                return job
            if call.stop.fd in listener.wait(left_s, also=[call.stop.fd]).ready:
                return job
