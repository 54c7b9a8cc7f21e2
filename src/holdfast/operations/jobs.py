"""Jobs. The audit log has what an operation changed when it returns, if it can be written."""

from typing import Any

from msgspec.structs import asdict, replace

from holdfast.domains.jobs import Broker, Job
from holdfast.domains.jobs.event_stream import Published
from holdfast.domains.jobs.events import Event
from holdfast.domains.jobs.records import PORT, TLS_PORT
from holdfast.kernel.errors import Collision, Fenced, ImpossibleTransition, NotFound
from holdfast.kernel.names import check_job_id
from holdfast.kernel.store import Damage
from holdfast.operations import job_requests as requests
from holdfast.operations.claims import claimant
from holdfast.operations.job_claim import Pick, claim_job, unclaim_job
from holdfast.operations.job_status import JobKey, SetStatus, set_status
from holdfast.operations.job_views import FinishedView, JobView, Pruned, Sent, view_of
from holdfast.operations.operation import Wait, operation
from holdfast.runtime.connection import Holdfast


def _logged(hf: Holdfast, job: Job) -> JobView:
    hf.catch_up()
    return view_of(job)


@operation("POST /v1/jobs", cli="jobs register", mcp="create_job", errors=(Collision,))
def register(hf: Holdfast, request: requests.Register) -> JobView:
    """Register work, and return the job, pending."""
    chosen = request.broker
    port = (TLS_PORT if chosen.tls else PORT) if chosen.port is None else chosen.port
    broker = Broker(**asdict(replace(chosen, port=port)))
    return _logged(hf, hf.jobs.register_job(**asdict(replace(request, broker=broker))))


def _unpick(hf: Holdfast, job: JobView | None, _: Wait) -> None:
    if job is not None:
        unclaim_job(hf, job.job_id, job.token)


@operation(
    "POST /v1/queue/pick", cli="jobs pick", mcp="claim_job", errors=(NotFound,), undo=_unpick
)
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
    return None if job is None else _logged(hf, job)


@operation(
    "POST /v1/jobs/{job_id}/status",
    cli="jobs status",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def status(hf: Holdfast, request: SetStatus) -> JobView:
    """Move a job to another status. A worker shows its attempt's token, an operator none."""
    return view_of(set_status(hf, request))


@operation(mcp="report_job", errors=(NotFound, ImpossibleTransition, Fenced))
def report(hf: Holdfast, request: requests.Report) -> JobView:
    """Report how the work on a job goes, as an event of the job, or how it ended.

    An ending and its event are one step. With `give_back` the job is pending again.
    """
    if request.outcome == "give_back":
        return _logged(hf, hf.jobs.requeue(request.job_id, token=request.token))
    published = hf.job_events.publish(
        request.job_id, request.outcome, detail=request.detail, token=request.token
    )
    return _logged(hf, published.job)


@operation(
    "POST /v1/jobs/{job_id}/finish-and-pick", errors=(NotFound, ImpossibleTransition, Fenced)
)
def finish_and_pick(hf: Holdfast, request: requests.FinishAndPick) -> FinishedView:
    """End a job and claim the next one of its queue, in one step: both or neither."""
    fields = asdict(request)
    holder = claimant(hf, fields.pop("pid"), request.agent_session or "")
    finished = hf.jobs.finish_and_pick(**fields, holder=holder)
    picked = None if finished.picked is None else view_of(finished.picked)
    return FinishedView(done=_logged(hf, finished.done), picked=picked)


@operation(
    "POST /v1/jobs/{job_id}/cancel", cli="jobs cancel", errors=(NotFound, ImpossibleTransition)
)
def cancel(hf: Holdfast, request: requests.Cancel) -> JobView:
    """End a pending or running job as cancelled; its worker stops.

    Or give up a job that ended in error.
    """
    return _logged(hf, hf.jobs.cancel(**asdict(request)))


@operation(
    "POST /v1/jobs/{job_id}/requeue",
    cli="jobs requeue",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def requeue(hf: Holdfast, request: requests.Requeue) -> JobView:
    """Put a running job back for the next pick; its worker stops."""
    return _logged(hf, hf.jobs.requeue(request.job_id, token=request.token))


@operation(
    "POST /v1/jobs/{job_id}/retry",
    cli="jobs retry",
    mcp="retry_job",
    errors=(NotFound, ImpossibleTransition),
)
def retry(hf: Holdfast, request: JobKey) -> JobView:
    """Retry a job that ended in error or was cancelled: it is pending in its old place."""
    return _logged(hf, hf.jobs.retry(request.job_id))


@operation("POST /v1/upkeep/jobs/retry", cli="jobs retry")
def retry_all(hf: Holdfast, request: requests.RetryAll, damaged: Damage) -> list[JobView]:
    """Retry all jobs that ended in error, or all that were cancelled, of one queue or of all.

    Returns those jobs.
    """
    retried = hf.jobs.retry_all(**asdict(request), damaged=damaged)
    hf.catch_up()
    return [view_of(job) for job in retried]


@operation(
    "POST /v1/jobs/{job_id}/heartbeat",
    cli="jobs heartbeat",
    errors=(NotFound, ImpossibleTransition, Fenced),
)
def heartbeat(hf: Holdfast, request: requests.Heartbeat) -> JobView:
    """Give a sign of life for a running job, so that it does not count as idle."""
    return view_of(hf.jobs.heartbeat(request.job_id, token=request.token))


@operation("GET /v1/jobs", cli="jobs list")
def list_(hf: Holdfast, request: requests.ListJobs, damaged: Damage) -> list[JobView]:
    """Jobs in the order they arrived, the newest of those that match."""
    return [view_of(job) for job in hf.jobs.list_jobs(**asdict(request), damaged=damaged)]


@operation("GET /v1/jobs/{job_id}", cli="jobs get", errors=(NotFound,))
def get(hf: Holdfast, request: JobKey) -> JobView:
    """One job."""
    return view_of(hf.jobs.get_job(request.job_id))


@operation("GET /v1/jobs/{job_id}/log", cli="jobs logs", errors=(NotFound,))
def log(hf: Holdfast, request: requests.ReadJobLog) -> list[dict[str, Any]]:
    """The audit log of a job: what happened to it, oldest first."""
    hf.catch_up(wait=True)
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
def events(hf: Holdfast, request: requests.EventsAfter) -> list[Event]:
    """The events of a job that are kept, after a number."""
    hf.jobs.get_job(request.job_id)
    return hf.job_events.of_job(request.job_id, after_seq=request.after_seq)


@operation(
    "POST /v1/jobs/{job_id}/events",
    cli="jobs publish",
    errors=(NotFound, ImpossibleTransition, Fenced),
    outside=True,
)
def publish(hf: Holdfast, request: requests.PublishEvent) -> Event:
    """Publish an event of a job, and move the job as it says.

    The event is kept before it is sent: if the broker is away, that is the error, and the event
    goes out with the next one.
    """
    event = keep_event(hf, request).event
    hf.send_events(event)
    return event


def keep_event(hf: Holdfast, request: requests.PublishEvent) -> Published:
    """Keep an event, and move the job as it says. It is not sent yet."""
    published = hf.job_events.publish(**asdict(request))
    hf.catch_up()
    return published


@operation("POST /v1/upkeep/jobs/send", cli="jobs publish", outside=True)
def send(hf: Holdfast) -> Sent:
    """Send the events of all jobs that their brokers have not received yet."""
    return Sent(sent=hf.send_events())


@operation("POST /v1/upkeep/jobs/reap", cli="jobs reap")
def reap(hf: Holdfast) -> list[JobView]:
    """Put back the jobs of dead workers, and end those past their time limits.

    Every pick, list, get and watch does so too, and `holdfast serve` by itself.
    """
    reaped = hf.jobs.reap()
    hf.catch_up()
    return [view_of(job) for job in reaped]


@operation("POST /v1/upkeep/jobs/prune", cli="jobs prune")
def prune(hf: Holdfast, request: requests.Prune) -> Pruned:
    """Remove finished jobs beyond the bounds. The audit log keeps what it has of them."""
    # Before they are gone: the log says more of a job that is still there.
    hf.catch_up(wait=True)
    removed = hf.jobs.prune(**asdict(request))
    hf.catch_up()
    return Pruned(removed=removed)


OPERATIONS = [
    *(register, pick, status, report, finish_and_pick, cancel, requeue, retry, heartbeat),
    *(list_, get, log),
    *(events, publish, send, reap, prune, retry_all),
]
