"""Jobs over HTTP. What they do is in the audit log when the answer is given, as far as that can be
written.
"""

import contextlib
import logging
from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast.domains.jobs import Broker, Job, JobStatus
from holdfast.domains.jobs.events import Event, EventKind
from holdfast.domains.jobs.records import ATTEMPTS_MAX, HOST, PASSWORD_ENV, PORT, TLS_PORT
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import JOB_ATTEMPTS_MAX, JOB_TIMEOUT_MAX_S, LIST_MAX
from holdfast.kernel.store import Damage
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import jobs as answers
from holdfast.surfaces.answers.claims import claimant
from holdfast.surfaces.answers.jobs import JobView, view_of
from holdfast.surfaces.http.server.desk import Turn
from holdfast.surfaces.http.server.fields import (
    Count,
    Id,
    JobId,
    Label,
    Limit,
    PathText,
    Pid,
    Priority,
    Seconds,
    Text,
    Token,
    Wait,
    told,
)
from holdfast.surfaces.http.server.operation import operation

_log = logging.getLogger("holdfast.http")

_Prompt = Annotated[str, told("What is to be done.", pattern=r"\S", min_length=1)]
_TimeLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds that one attempt may take; then it ends in error. A day unless told.",
    ),
]
_IdleLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds without a sign of life; then it ends in error. No limit unless told.",
    ),
]
_Attempts = Annotated[
    int, Meta(ge=1, le=JOB_ATTEMPTS_MAX, description="How often it is begun when its workers die.")
]
_Ending = Literal["completed", "error", "cancelled"]


class BrokerAsked(Plain, frozen=True, kw_only=True):
    """The MQTT broker of a job's events. The password is in a variable of whoever sends them."""

    host: Label = HOST
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    tls: bool = False
    username: Label | None = None
    password_env: Annotated[
        str, told("A variable's name.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)
    ] = PASSWORD_ENV


class Register(Plain, frozen=True, kw_only=True):
    """Work to be done."""

    prompt: _Prompt
    agent_session: Label
    agent: Label = "agent"
    timeout_sec: _TimeLimit | None = None
    idle_timeout_sec: _IdleLimit | None = None
    expected_artifacts: tuple[PathText, ...] = ()
    workdir: PathText | None = None
    priority: Priority = 0
    max_attempts: _Attempts = ATTEMPTS_MAX
    broker: BrokerAsked = BrokerAsked()
    topic_prefix: Label | None = None
    signed: bool = True
    job_id: Id | None = None


class Pick(Plain, frozen=True, kw_only=True):
    """Whose queue to pick from, how long to wait, and the process that will work on it."""

    agent_session: Label
    wait_s: Wait = 0.0
    pid: Pid | None = None


class SetStatus(Plain, frozen=True, kw_only=True):
    """A job's new status. Without a token the caller speaks as an operator."""

    job_id: JobId
    status: JobStatus
    token: Token | None = None
    result: Text | None = None
    error: Text | None = None


class FinishAndPick(Plain, frozen=True, kw_only=True):
    """How a job ended, and whose queue to pick the next one from: the job's own unless told."""

    job_id: JobId
    status: _Ending
    token: Token
    agent_session: Label | None = None
    result: Text | None = None
    error: Text | None = None
    pid: Pid | None = None


class Cancel(Plain, frozen=True, kw_only=True):
    """The job to cancel, and why."""

    job_id: JobId
    reason: Text | None = None


class Requeue(Plain, frozen=True, kw_only=True):
    """The job to put back. Without a token the caller speaks as an operator."""

    job_id: JobId
    token: Token | None = None


class RetryAll(Plain, frozen=True, kw_only=True):
    """Which jobs to try again: those that ended in error, or those that were cancelled; of one
    queue or of all.
    """

    status: Literal["error", "cancelled"] = "error"
    agent_session: Label | None = None


class Heartbeat(Plain, frozen=True, kw_only=True):
    """The job that goes on, and its attempt's token."""

    job_id: JobId
    token: Token


class OfJob(Plain, frozen=True, kw_only=True):
    """A job."""

    job_id: JobId


class ListJobs(Plain, frozen=True, kw_only=True):
    """Which jobs."""

    status: JobStatus | None = None
    agent_session: Label | None = None
    limit: Limit = LIST_MAX


class Log(Plain, frozen=True, kw_only=True):
    """A job, and how many of the last lines; all unless told."""

    job_id: JobId
    tail: Limit | None = None


class OfEvents(Plain, frozen=True, kw_only=True):
    """A job, and behind which of its events."""

    job_id: JobId
    after_seq: Count = 0


class PublishEvent(Plain, frozen=True, kw_only=True):
    """An event of a job: what there is to say, for people and for programs."""

    job_id: JobId
    event: EventKind
    detail: Text = ""
    data: Any = None
    token: Token | None = None


class Prune(Plain, frozen=True, kw_only=True):
    """How many finished jobs to keep, and for how long; the configured bounds unless told."""

    keep_finished: Count | None = None
    keep_s: Seconds | None = None
    adopted: bool = False


def _told(hf: Holdfast, job: Job) -> JobView:
    """A job that was changed, once the audit log tells of it."""
    _mirror(hf)
    return view_of(job)


def _mirror(hf: Holdfast) -> None:
    if trouble := answers.logged(hf):
        _log.warning("%s", trouble)


@operation("POST", "/v1/jobs", problems=(409,))
def register(hf: Holdfast, asked: Register) -> JobView:
    """Register work, and answer with the job, pending."""
    port = asked.broker.port or (TLS_PORT if asked.broker.tls else PORT)
    broker = Broker(
        host=asked.broker.host,
        port=port,
        tls=asked.broker.tls,
        username=asked.broker.username,
        password_env=asked.broker.password_env,
    )
    job = hf.jobs.register_job(
        asked.prompt,
        agent=asked.agent,
        agent_session=asked.agent_session,
        timeout_sec=asked.timeout_sec,
        idle_timeout_sec=asked.idle_timeout_sec,
        expected_artifacts=asked.expected_artifacts,
        workdir=asked.workdir,
        priority=asked.priority,
        max_attempts=asked.max_attempts,
        broker=broker,
        topic_prefix=asked.topic_prefix,
        signed=asked.signed,
        job_id=asked.job_id,
    )
    return _told(hf, job)


def _put_back(hf: Holdfast, job: JobView | None, _: Turn) -> None:
    """Nobody knows of the claim."""
    if job is not None:
        with contextlib.suppress(HoldfastError):
            # Another has moved it since, or its time limits end the claim.
            hf.jobs.update_status(job.job_id, JobStatus.PENDING, token=job.token)


@operation("POST", "/v1/queue/pick", problems=(404,), undo=_put_back)
def pick(hf: Holdfast, asked: Pick, turn: Turn) -> JobView | None:
    """Claim the next pending job of a label, and wait for one up to `wait_s`; 204 when there is
    none.

    Its token is what a verdict must show. Without `pid` the claim has no process that could die: it
    lives until a verdict, or until the job's time limits. A client that hangs up while it waits
    claims nothing.
    """
    holder = claimant(hf, asked.pid, asked.agent_session)
    job = hf.jobs.pick_pending(
        asked.agent_session, wait_s=asked.wait_s, holder=holder, stop_fd=turn.stop_fd
    )
    return None if job is None else _told(hf, job)


@operation("POST", "/v1/jobs/{job_id}/status", problems=(404, 409, 412))
def status(hf: Holdfast, asked: SetStatus) -> JobView:
    """Move a job to another status. A worker shows its attempt's token, an operator none."""
    job = hf.jobs.update_status(
        asked.job_id, asked.status, token=asked.token, result=asked.result, error=asked.error
    )
    return _told(hf, job)


@operation("POST", "/v1/jobs/{job_id}/finish-and-pick", problems=(404, 409, 412))
def finish_and_pick(hf: Holdfast, asked: FinishAndPick) -> answers.FinishedView:
    """End a job and claim the next one of its queue, in one step: both or neither."""
    finished = hf.jobs.finish_and_pick(
        asked.job_id,
        asked.status,
        token=asked.token,
        agent_session=asked.agent_session,
        result=asked.result,
        error=asked.error,
        holder=claimant(hf, asked.pid, asked.agent_session or ""),
    )
    picked = None if finished.picked is None else view_of(finished.picked)
    return answers.FinishedView(done=_told(hf, finished.done), picked=picked)


@operation("POST", "/v1/jobs/{job_id}/cancel", problems=(404, 409))
def cancel(hf: Holdfast, asked: Cancel) -> JobView:
    """End a pending or running job as cancelled; a worker that has it stops. Or give up a job that
    ended in error.
    """
    return _told(hf, hf.jobs.cancel(asked.job_id, reason=asked.reason))


@operation("POST", "/v1/jobs/{job_id}/requeue", problems=(404, 409, 412))
def requeue(hf: Holdfast, asked: Requeue) -> JobView:
    """Put a running job back for the next pick; a worker that has it stops."""
    return _told(hf, hf.jobs.requeue(asked.job_id, token=asked.token))


@operation("POST", "/v1/jobs/{job_id}/retry", problems=(404, 409))
def retry(hf: Holdfast, asked: OfJob) -> JobView:
    """Have a job that ended in error or was cancelled done again: it is pending in its old
    place.
    """
    return _told(hf, hf.jobs.retry(asked.job_id))


@operation("POST", "/v1/upkeep/jobs/retry")
def retry_all(hf: Holdfast, asked: RetryAll) -> list[JobView]:
    """Retry all jobs that ended in error, or all that were cancelled, of one queue or of all;
    answers with them.
    """
    retried = hf.jobs.retry_all(status=asked.status, agent_session=asked.agent_session, damaged=[])
    _mirror(hf)
    return [view_of(job) for job in retried]


@operation("POST", "/v1/jobs/{job_id}/heartbeat", problems=(404, 409, 412))
def heartbeat(hf: Holdfast, asked: Heartbeat) -> JobView:
    """Give a sign of life for a running job, so that it does not count as idle."""
    return view_of(hf.jobs.heartbeat(asked.job_id, token=asked.token))


@operation("GET", "/v1/jobs")
def list_(hf: Holdfast, asked: ListJobs, damaged: Damage) -> list[JobView]:
    """Jobs in the order they arrived, the newest of those that match."""
    found = hf.jobs.list_jobs(
        status=asked.status, agent_session=asked.agent_session, limit=asked.limit, damaged=damaged
    )
    return [view_of(job) for job in found]


@operation("GET", "/v1/jobs/{job_id}", problems=(404,))
def get(hf: Holdfast, asked: OfJob) -> JobView:
    """One job."""
    return view_of(hf.jobs.get_job(asked.job_id))


@operation("GET", "/v1/jobs/{job_id}/log", problems=(404,))
def log(hf: Holdfast, asked: Log) -> list[dict[str, Any]]:
    """The audit log of a job: what happened to it, oldest first."""
    if trouble := answers.logged(hf, wait=True):
        _log.warning("%s", trouble)
    return answers.timeline(hf, asked.job_id, asked.tail)


@operation("GET", "/v1/jobs/{job_id}/events", problems=(404,))
def events(hf: Holdfast, asked: OfEvents) -> list[Event]:
    """The events of a job that are kept, behind a number."""
    hf.jobs.get_job(asked.job_id)
    return hf.job_events.of_job(asked.job_id, after_seq=asked.after_seq)


@operation("POST", "/v1/jobs/{job_id}/events", problems=(404, 409, 412), outside=True)
def publish(hf: Holdfast, asked: PublishEvent) -> Event:
    """Tell an event of a job, and move the job as it says.

    It is kept before it is sent: if the broker is away, that is the error, and the event goes out
    with the next one.
    """
    published = hf.job_events.publish(
        asked.job_id, asked.event, detail=asked.detail, data=asked.data, token=asked.token
    )
    _mirror(hf)
    answers.sent(hf, published.event)
    return published.event


@operation("POST", "/v1/upkeep/jobs/send", outside=True)
def send(hf: Holdfast) -> answers.Sent:
    """Send the events of all jobs that their brokers have not had yet."""
    return answers.Sent(sent=answers.sent(hf))


@operation("POST", "/v1/upkeep/jobs/reap")
def reap(hf: Holdfast) -> list[JobView]:
    """Put back the jobs of dead workers, and end those past their time limits. Every pick, list and
    get does so too, and `holdfast serve` by itself.
    """
    reaped = hf.jobs.reap()
    _mirror(hf)
    return [view_of(job) for job in reaped]


@operation("POST", "/v1/upkeep/jobs/prune")
def prune(hf: Holdfast, asked: Prune) -> answers.Pruned:
    """Remove finished jobs beyond the bounds. The audit log keeps what it has of them."""
    # Before they are gone: the log tells more of a job that is still there.
    _mirror(hf)
    return answers.Pruned(
        removed=hf.jobs.prune(
            keep_finished=asked.keep_finished, keep_s=asked.keep_s, adopted=asked.adopted
        )
    )


OPERATIONS = [
    *(register, pick, status, finish_and_pick, cancel, requeue, retry, heartbeat, list_, get, log),
    *(events, publish, send, reap, prune, retry_all),
]
