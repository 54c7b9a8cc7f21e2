"""Jobs. The audit log has what an operation changed when it returns, if it can be written."""

import logging
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.domains.jobs import Broker, Job, JobStatus
from holdfast.domains.jobs.events import Event, EventKind
from holdfast.domains.jobs.records import (
    ATTEMPTS_MAX,
    FOLDER_LIMITS,
    HOST,
    PASSWORD_ENV,
    PORT,
    TLS_PORT,
    LateResult,
    PastAttempt,
    shown,
)
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import (
    BrokerUnavailable,
    Collision,
    Corrupt,
    Fenced,
    ImpossibleTransition,
    InvalidValue,
    NotFound,
)
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import JOB_ATTEMPTS_MAX, JOB_TIMEOUT_MAX_S, LIST_MAX
from holdfast.kernel.names import check_job_id
from holdfast.kernel.store import Damage
from holdfast.operations.claims import claimant
from holdfast.operations.fields import (
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
    WaitSeconds,
    described,
)
from holdfast.operations.job_claim import claim_job, unclaim_job
from holdfast.operations.operation import Flag, Request, Wait, operation
from holdfast.runtime.connection import Holdfast

_log = logging.getLogger("holdfast.jobs")

DAY_S = 86400.0
_TROUBLES: set[str] = set()
"""What went wrong with the audit log the last times: a worker updates it after each job."""
_Prompt = Annotated[str, described("What is to be done.", pattern=r"\S", min_length=1)]
_TimeLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds that one attempt may take; then it ends in error. A day by default.",
    ),
]
_IdleLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds without a sign of life; then it ends in error. No limit by default.",
    ),
]
_Attempts = Annotated[
    int,
    Meta(ge=1, le=JOB_ATTEMPTS_MAX, description="How often it is begun when its workers die."),
]
_Variable = Annotated[
    str, described("A variable's name.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)
]
_Ending = Literal["completed", "error", "cancelled"]
_Job = Annotated[
    JobId, Flag("--job", metavar="ID", help="The job's id.  [required]", or_argument=True)
]
_Token = Annotated[
    Token | None,
    Flag(
        "--token",
        within=None,
        help="The attempt's token: refused (exit status 4) when another attempt has begun.",
    ),
]


class BrokerAsked(Request, frozen=True, kw_only=True):
    """The MQTT broker of a job's events. The sender has the password in an environment variable."""

    host: Annotated[
        Label,
        Flag("--broker", metavar="HOST", show_default=True, help="The MQTT broker of its events."),
    ] = HOST
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Flag(
            "--broker-port",
            within=None,
            help=f"The broker's port.  [default: {PORT}; {TLS_PORT} with TLS]",
        ),
    ] = None
    tls: Annotated[bool, Flag("--broker-tls", help="Use TLS to the broker.")] = False
    username: Annotated[
        Label | None,
        Flag("--broker-username", metavar="NAME", help="The name to log in to the broker with."),
    ] = None
    password_env: Annotated[
        _Variable,
        Flag(
            "--broker-password-env",
            metavar="VARIABLE",
            show_default=True,
            help="The variable that holds the password, which is not stored.",
        ),
    ] = PASSWORD_ENV


class Register(Request, frozen=True, kw_only=True):
    """Work to be done."""

    prompt: _Prompt
    agent: Annotated[
        Label, Flag("--agent", show_default=True, help="The kind of agent it is for.")
    ] = "agent"
    agent_session: Annotated[
        Label,
        Flag(
            "--agent-session", metavar="LABEL", help="Whose queue it joins, such as tmux:claude-a."
        ),
    ]
    timeout_sec: Annotated[
        _TimeLimit | None,
        Flag(
            "--timeout",
            within=None,
            help="Seconds one attempt may take; then it ends in error.  [default: 86400, a day; "
            f"{FOLDER_LIMITS.timeout_sec:g} with --registry-dir]",
        ),
    ] = None
    idle_timeout_sec: Annotated[
        _IdleLimit | None,
        Flag(
            "--idle-timeout",
            within=None,
            help="Seconds it may be without a sign of life; then it ends in error.  "
            f"[default: no limit; {FOLDER_LIMITS.idle_timeout_sec:g} with --registry-dir]",
        ),
    ] = None
    expected_artifacts: Annotated[
        tuple[PathText, ...],
        Flag(
            "--artifact",
            metavar="PATH",
            help="A file the work must leave, in its working folder; repeatable. "
            "`jobs run` looks for it.",
        ),
    ] = ()
    workdir: Annotated[
        PathText | None,
        Flag(
            "--workdir",
            metavar="FOLDER",
            help="Where `jobs run` runs its command.  [default: where it runs itself]",
        ),
    ] = None
    priority: Annotated[
        Priority, Flag("--priority", show_default=True, help="Higher goes first.")
    ] = 0
    max_attempts: Annotated[
        _Attempts,
        Flag(
            "--max-attempts",
            within=None,
            show_default=True,
            help="How many attempts may end by the worker's death.",
        ),
    ] = ATTEMPTS_MAX
    job_id: Annotated[
        Id | None, Flag("--id", metavar="ID", help="An id of your own instead of a random one.")
    ] = None
    signed: Annotated[
        bool,
        Flag(
            "--unsigned",
            choose=(True, False),
            help="Give it no key: its events prove nothing, and are not believed.",
        ),
    ] = True
    broker: BrokerAsked = BrokerAsked()
    topic_prefix: Annotated[
        Label | None,
        Flag(
            "--topic-prefix",
            metavar="TOPIC",
            help="Its events go to TOPIC/events.  [default: holdfast/jobs/ID]",
        ),
    ] = None


class Pick(Request, frozen=True, kw_only=True):
    """Whose queue to pick from, how long to wait, and the process that will work on the job."""

    agent_session: Annotated[
        Label, Flag("--agent-session", metavar="LABEL", help="Whose queue to pick from.")
    ]
    wait_s: Annotated[WaitSeconds, Flag("--wait", help="Seconds to wait for a job.")] = 0.0
    pid: Annotated[
        Pid | None,
        Flag(
            "--pid",
            help="The process that will work on it: when it dies, the job is pending again.",
        ),
    ] = None


class SetStatus(Request, frozen=True, kw_only=True):
    """A job's new status. Without a token the caller speaks as an operator."""

    job_id: _Job
    status: Annotated[JobStatus, Flag("--set", help="The new status.")]
    token: _Token = None
    result: Annotated[Text | None, Flag("--result", help="What came of it.")] = None
    error: Annotated[Text | None, Flag("--error", help="What went wrong.")] = None


class FinishAndPick(Request, frozen=True, kw_only=True):
    """How a job ended, and the queue to pick the next one from: the job's own by default."""

    job_id: JobId
    status: _Ending
    token: Token
    agent_session: Label | None = None
    result: Text | None = None
    error: Text | None = None
    pid: Pid | None = None


class Cancel(Request, frozen=True, kw_only=True):
    """The job to cancel, and why."""

    job_id: _Job
    reason: Annotated[Text | None, Flag("--reason", help="Why.")] = None


class Requeue(Request, frozen=True, kw_only=True):
    """The job to put back. Without a token the caller speaks as an operator."""

    job_id: _Job
    token: _Token = None


class RetryAll(Request, frozen=True, kw_only=True):
    """Which jobs to retry: those that ended in error, or were cancelled; of one queue or of all."""

    status: Literal["error", "cancelled"] = "error"
    agent_session: Label | None = None


class Heartbeat(Request, frozen=True, kw_only=True):
    """The job that goes on, and its attempt's token."""

    job_id: _Job
    token: Annotated[Token, Flag("--token", within=None, help="The attempt's token.")]


class OfJob(Request, frozen=True, kw_only=True):
    """A job."""

    job_id: _Job


class ListJobs(Request, frozen=True, kw_only=True):
    """Which jobs."""

    status: Annotated[JobStatus | None, Flag("--status", help="Only those with this status.")] = (
        None
    )
    agent_session: Annotated[
        Label | None, Flag("--agent-session", metavar="LABEL", help="Only those of this queue.")
    ] = None
    limit: Annotated[
        Limit,
        Flag("--limit", within=(0, None), show_default=True, help="At most this many, the newest."),
    ] = LIST_MAX


class Log(Request, frozen=True, kw_only=True):
    """A job, and how many of the last lines; all by default."""

    job_id: JobId
    tail: Annotated[
        Limit | None,
        Flag("-n", "--tail", within=(0, None), help="How many of the last lines.  [default: all]"),
    ] = None


class OfEvents(Request, frozen=True, kw_only=True):
    """A job, and the number of the event after which to begin."""

    job_id: JobId
    after_seq: Count = 0


class PublishEvent(Request, frozen=True, kw_only=True):
    """An event of a job: what there is to say, for people and for programs."""

    job_id: JobId
    event: EventKind
    detail: Annotated[Text, Flag("--detail", help="What there is to say, for people.")] = ""
    data: Any = None
    token: _Token = None


class Prune(Request, frozen=True, kw_only=True):
    """How many finished jobs to keep, and for how long; the configured bounds by default."""

    keep_finished: Annotated[
        Count | None,
        Flag(
            "--keep",
            within=(0, None),
            help="How many finished jobs to keep.  [default: jobs.keep_finished]",
        ),
    ] = None
    keep_s: Annotated[
        Seconds | None,
        Flag(
            "--keep-days",
            unit_s=DAY_S,
            help="For how many days to keep them.  [default: jobs.keep_s]",
        ),
    ] = None
    adopted: Annotated[
        bool, Flag("--adopted", help="Those too that another program registered.")
    ] = False


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


def mirror(hf: Holdfast, *, wait: bool = False) -> None:
    """Bring the audit log up to date. A failure is warned of once, and breaks nothing."""
    trouble = next(iter(hf.catch_up(wait=wait)), None)
    if trouble is None:
        _TROUBLES.clear()
    elif trouble not in _TROUBLES:
        _TROUBLES.add(trouble)
        _log.warning(
            "%s. The job itself is not affected; `holdfast jobs logs --rebuild` writes the log "
            "again",
            trouble,
        )


def peek_job(hf: Holdfast, job_id: str) -> Job | None:
    """The job as it is; None when it is gone or damaged."""
    try:
        return hf.jobs.peek(job_id)
    except Corrupt:
        return None


def _mirrored(hf: Holdfast, job: Job) -> JobView:
    mirror(hf)
    return view_of(job)


@operation("POST /v1/jobs", cli="jobs register", errors=(Collision,))
def register(hf: Holdfast, request: Register) -> JobView:
    """Register work, and return the job, pending."""
    asked = request.broker
    job = hf.jobs.register_job(
        request.prompt,
        agent=request.agent,
        agent_session=request.agent_session,
        timeout_sec=request.timeout_sec,
        idle_timeout_sec=request.idle_timeout_sec,
        expected_artifacts=request.expected_artifacts,
        workdir=request.workdir,
        priority=request.priority,
        max_attempts=request.max_attempts,
        broker=Broker(
            host=asked.host,
            port=(TLS_PORT if asked.tls else PORT) if asked.port is None else asked.port,
            tls=asked.tls,
            username=asked.username,
            password_env=asked.password_env,
        ),
        topic_prefix=request.topic_prefix,
        signed=request.signed,
        job_id=request.job_id,
    )
    return _mirrored(hf, job)


def _unpick(hf: Holdfast, job: JobView | None, _: Wait) -> None:
    if job is not None:
        unclaim_job(hf, job.job_id, job.token)


@operation("POST /v1/queue/pick", cli="jobs pick", errors=(NotFound,), undo=_unpick)
def pick(hf: Holdfast, request: Pick, wait: Wait) -> JobView | None:
    """Claim the next pending job of a label, and wait for one up to `wait_s`; 204 without one.

    Its token is what a verdict must show. Without `pid` the claim has no process that could die:
    it lives until a verdict, or until the job's time limits. A client that disconnects while it
    waits claims nothing.
    """
    job = claim_job(
        hf,
        request.agent_session,
        wait_s=request.wait_s,
        pid=request.pid,
        stop_fd=wait.stop_fd,
    )
    return None if job is None else _mirrored(hf, job)


@operation(
    "POST /v1/jobs/{job_id}/status",
    cli="jobs status",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def status(hf: Holdfast, request: SetStatus) -> JobView:
    """Move a job to another status. A worker shows its attempt's token, an operator none."""
    job = hf.jobs.update_status(
        request.job_id,
        request.status,
        token=request.token,
        result=request.result,
        error=request.error,
    )
    return _mirrored(hf, job)


@operation(
    "POST /v1/jobs/{job_id}/finish-and-pick", errors=(NotFound, ImpossibleTransition, Fenced)
)
def finish_and_pick(hf: Holdfast, request: FinishAndPick) -> FinishedView:
    """End a job and claim the next one of its queue, in one step: both or neither."""
    finished = hf.jobs.finish_and_pick(
        request.job_id,
        request.status,
        token=request.token,
        agent_session=request.agent_session,
        result=request.result,
        error=request.error,
        holder=claimant(hf, request.pid, request.agent_session or ""),
    )
    picked = None if finished.picked is None else view_of(finished.picked)
    return FinishedView(done=_mirrored(hf, finished.done), picked=picked)


@operation(
    "POST /v1/jobs/{job_id}/cancel", cli="jobs cancel", errors=(NotFound, ImpossibleTransition)
)
def cancel(hf: Holdfast, request: Cancel) -> JobView:
    """End a pending or running job as cancelled; a worker that has it stops.

    Or give up a job that ended in error.
    """
    return _mirrored(hf, hf.jobs.cancel(request.job_id, reason=request.reason))


@operation(
    "POST /v1/jobs/{job_id}/requeue",
    cli="jobs requeue",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def requeue(hf: Holdfast, request: Requeue) -> JobView:
    """Put a running job back for the next pick; a worker that has it stops."""
    return _mirrored(hf, hf.jobs.requeue(request.job_id, token=request.token))


@operation(
    "POST /v1/jobs/{job_id}/retry", cli="jobs retry", errors=(NotFound, ImpossibleTransition)
)
def retry(hf: Holdfast, request: OfJob) -> JobView:
    """Retry a job that ended in error or was cancelled: it is pending in its old place."""
    return _mirrored(hf, hf.jobs.retry(request.job_id))


@operation("POST /v1/upkeep/jobs/retry", cli="jobs retry")
def retry_all(hf: Holdfast, request: RetryAll, damaged: Damage) -> list[JobView]:
    """Retry all jobs that ended in error, or all that were cancelled, of one queue or of all.

    Returns those jobs.
    """
    retried = hf.jobs.retry_all(
        status=request.status, agent_session=request.agent_session, damaged=damaged
    )
    mirror(hf)
    return [view_of(job) for job in retried]


@operation(
    "POST /v1/jobs/{job_id}/heartbeat",
    cli="jobs heartbeat",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def heartbeat(hf: Holdfast, request: Heartbeat) -> JobView:
    """Give a sign of life for a running job, so that it does not count as idle."""
    return view_of(hf.jobs.heartbeat(request.job_id, token=request.token))


@operation("GET /v1/jobs", cli="jobs list")
def list_(hf: Holdfast, request: ListJobs, damaged: Damage) -> list[JobView]:
    """Jobs in the order they arrived, the newest of those that match."""
    found = hf.jobs.list_jobs(
        status=request.status,
        agent_session=request.agent_session,
        limit=request.limit,
        damaged=damaged,
    )
    return [view_of(job) for job in found]


@operation("GET /v1/jobs/{job_id}", cli="jobs get", errors=(NotFound,))
def get(hf: Holdfast, request: OfJob) -> JobView:
    """One job."""
    return view_of(hf.jobs.get_job(request.job_id))


@operation("GET /v1/jobs/{job_id}/log", cli="jobs logs", errors=(NotFound,))
def log(hf: Holdfast, request: Log) -> list[dict[str, Any]]:
    """The audit log of a job: what happened to it, oldest first."""
    mirror(hf, wait=True)
    if hf.job_log is None:
        raise no_log()
    lines = list(hf.job_log.events(check_job_id(request.job_id)))
    if not lines:
        raise NotFound(
            f"no job {request.job_id} is logged in {hf.job_log.folder}: "
            "`holdfast jobs logs --list` shows those that are"
        )
    return lines if request.tail is None else lines[len(lines) - min(request.tail, len(lines)) :]


def no_log() -> NotFound:
    """The error for a store in memory."""
    return NotFound("this store keeps nothing, so there is no log of its jobs: use another --store")


@operation("GET /v1/jobs/{job_id}/events", errors=(NotFound,))
def events(hf: Holdfast, request: OfEvents) -> list[Event]:
    """The events of a job that are kept, after a number."""
    hf.jobs.get_job(request.job_id)
    return hf.job_events.of_job(request.job_id, after_seq=request.after_seq)


@operation(
    "POST /v1/jobs/{job_id}/events",
    cli="jobs publish",
    errors=(NotFound, ImpossibleTransition, Fenced),
    outside=True,
)
def publish(hf: Holdfast, request: PublishEvent) -> Event:
    """Publish an event of a job, and move the job as it says.

    The event is kept before it is sent: if the broker is away, that is the error, and the event
    goes out with the next one.
    """
    event = keep_event(hf, request)
    send_events(hf, event)
    return event


def keep_event(hf: Holdfast, request: PublishEvent) -> Event:
    """Keep an event, and move the job as it says. It is not sent yet."""
    published = hf.job_events.publish(
        request.job_id,
        request.event,
        detail=request.detail,
        data=request.data,
        token=request.token,
    )
    mirror(hf)
    return published.event


@operation("POST /v1/upkeep/jobs/send", cli="jobs publish", outside=True)
def send(hf: Holdfast) -> Sent:
    """Send the events of all jobs that their brokers have not received yet."""
    return Sent(sent=send_events(hf))


def send_events(hf: Holdfast, event: Event | None = None) -> int:
    """Send the kept events of an event's job, or of all jobs; return how many were sent.

    Raises BrokerUnavailable, and InvalidValue for a topic that nothing can be sent to. What is not
    sent stays kept.
    """
    from holdfast.adapters.event_sender import EventSender

    unsent = ""
    if event is not None:
        unsent = f"event {event.seq} of job {event.job_id} is kept and not sent yet: "
    courier = EventSender(hf.job_events)
    try:
        return courier.send(None if event is None else [event.job_id])
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{unsent}{error.message}. `holdfast jobs publish --unsent` sends what is kept",
            **error.fields,
        ) from None
    except InvalidValue as error:
        raise InvalidValue(f"{unsent}{error.message}", **error.fields) from None
    finally:
        courier.close()


@operation("POST /v1/upkeep/jobs/reap", cli="jobs reap")
def reap(hf: Holdfast) -> list[JobView]:
    """Put back the jobs of dead workers, and end those past their time limits.

    Every pick, list, get and watch does so too, and `holdfast serve` by itself.
    """
    reaped = hf.jobs.reap()
    mirror(hf)
    return [view_of(job) for job in reaped]


@operation("POST /v1/upkeep/jobs/prune", cli="jobs prune")
def prune(hf: Holdfast, request: Prune) -> Pruned:
    """Remove finished jobs beyond the bounds. The audit log keeps what it has of them."""
    # Before they are gone: the log says more of a job that is still there.
    mirror(hf, wait=True)
    removed = hf.jobs.prune(
        keep_finished=request.keep_finished, keep_s=request.keep_s, adopted=request.adopted
    )
    mirror(hf)
    return Pruned(removed=removed)


OPERATIONS = [
    *(register, pick, status, finish_and_pick, cancel, requeue, retry, heartbeat, list_, get, log),
    *(events, publish, send, reap, prune, retry_all),
]
