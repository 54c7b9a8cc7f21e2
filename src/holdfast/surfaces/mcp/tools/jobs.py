"""`create_job`, `claim_job`, `report_job` and `retry_job`: delegated work."""

import os
import time
from typing import Annotated, Literal

from msgspec import Meta

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.events import EventKind
from holdfast.domains.jobs.records import ATTEMPTS_MAX
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue, Lost, Refused
from holdfast.kernel.limits import (
    ID_CHARS_MAX,
    JOB_ATTEMPTS_MAX,
    JOB_PROMPT_BYTES_MAX,
    JOB_TIMEOUT_MAX_S,
    LABEL_CHARS_MAX,
    PATH_CHARS_MAX,
)
from holdfast.operations.jobs import mirror
from holdfast.surfaces.mcp.answers import JobAnswer, job_view
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand
from holdfast.surfaces.mcp.job_claim import JobClaim, job_handle
from holdfast.surfaces.mcp.tool import Tool, WaitS

_DETAIL_CHARS_MAX = 8000
_ARTIFACTS_MAX = 64

Seconds = Annotated[float, Meta(gt=0, le=JOB_TIMEOUT_MAX_S)]
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_CHARS_MAX)]
PathText = Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)]


class CreateArguments(Plain, frozen=True, kw_only=True):
    """What is to be done, and by whom."""

    prompt: Annotated[
        str,
        # A schema counts characters, and registering counts bytes: a character has one or more. So
        # this bound only tells.
        Meta(
            min_length=1,
            extra_json_schema={"maxLength": JOB_PROMPT_BYTES_MAX},
            description=f"What is to be done, in at most {JOB_PROMPT_BYTES_MAX} bytes of JSON in "
            "UTF-8. Put longer input into a file and pass its path.",
        ),
    ]
    queue: Annotated[Label, Meta(description="Whose queue it joins, such as tmux:claude-a.")]
    agent: Annotated[Label, Meta(description="The kind of agent it is for.")] = "agent"
    timeout_s: (
        Annotated[Seconds, Meta(description="How long one attempt may take; a day unless told.")]
        | None
    ) = None
    idle_timeout_s: (
        Annotated[
            Seconds,
            Meta(description="How long it may be without a sign of life; any time unless told."),
        ]
        | None
    ) = None
    expected_artifacts: Annotated[tuple[PathText, ...], Meta(max_length=_ARTIFACTS_MAX)] = ()
    workdir: Annotated[PathText, Meta(description="An absolute path.")] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000, description="Higher goes first.")] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=JOB_ATTEMPTS_MAX)] = ATTEMPTS_MAX


class ClaimArguments(Plain, frozen=True, kw_only=True):
    """One of the caller's queues."""

    queue: (
        Annotated[
            Label,
            Meta(description="One of the queues that whoami lists; the first of them if left out."),
        ]
        | None
    ) = None
    wait_s: WaitS = 0


class ReportArguments(Plain, frozen=True, kw_only=True):
    """How the work on a claimed job goes."""

    job_id: Annotated[
        str, Meta(min_length=1, max_length=ID_CHARS_MAX, description="A job that you have claimed.")
    ]
    outcome: Literal["progress", "permission_required", "completed", "error", "give_back"]
    detail: Annotated[
        str, Meta(max_length=_DETAIL_CHARS_MAX, description="The result, or what there is to say.")
    ] = ""


class RetryArguments(Plain, frozen=True, kw_only=True):
    """A job that failed."""

    job_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=ID_CHARS_MAX,
            description="A job that ended in error or was cancelled.",
        ),
    ]


def create_job(hand: Hand, asked: CreateArguments, call: Call) -> JobAnswer:
    """Register work."""
    if asked.workdir is not None and not os.path.isabs(asked.workdir):
        raise InvalidValue(
            f"workdir is {asked.workdir[:80]!a}, which is not absolute: give the whole path",
            field="workdir",
        )
    job = hand.hf.jobs.register_job(
        asked.prompt,
        agent=asked.agent,
        agent_session=asked.queue,
        timeout_sec=asked.timeout_s,
        idle_timeout_sec=asked.idle_timeout_s,
        expected_artifacts=asked.expected_artifacts,
        workdir=asked.workdir,
        priority=asked.priority,
        max_attempts=asked.max_attempts,
    )
    call.undo_by(
        lambda: hand.hf.jobs.cancel(job.job_id, reason="taken back by the client that asked for it")
    )
    mirror(hand.hf, wait=True)
    return JobAnswer(
        job=job_view(job), next="status with its job_id, and wait_s to wait for its end"
    )


def claim_job(hand: Hand, asked: ClaimArguments, call: Call) -> JobAnswer:
    """Take the next job of a queue."""
    queue = hand.me.queues[0] if asked.queue is None else asked.queue
    if queue not in hand.me.queues:
        known = ", ".join(hand.me.queues)
        raise InvalidValue(
            f"{queue!a} is not a queue of yours: use one of {known}",
            field="queue",
            queues=list(hand.me.queues),
        )
    # Before there is a job that would have to be put back.
    hand.check_room()
    holder = hand.hf.processes.current(hand.me.by)
    job = hand.hf.jobs.pick_pending(queue, wait_s=asked.wait_s, holder=holder, stop_fd=call.stop.fd)
    if job is None:
        return JobAnswer(
            job=None, next="nothing to do in this queue: call again with wait_s, or stop here"
        )
    hand.add(JobClaim(hand.hf, job, time.monotonic()))
    call.undo_by(lambda: hand.let_go(job_handle(job.job_id)))
    hand.hf.job_events.publish(job.job_id, EventKind.STARTED, token=job.token)
    hand.errand.wake(job.job_id)
    mirror(hand.hf, wait=True)
    return JobAnswer(
        job=job_view(job),
        handle=job_handle(job.job_id),
        next=(
            "do it, then report_job with completed or error; it is put back when this connection "
            "ends"
        ),
    )


def report_job(hand: Hand, asked: ReportArguments, call: Call) -> JobAnswer:
    """Tell how a claimed job goes, or how it ended."""
    claim = hand.of(job_handle(asked.job_id), JobClaim)
    try:
        job = _reported(hand, claim, asked)
    except (Lost, Refused):
        # The agent knows now.
        hand.drop(claim.handle)
        raise
    over = job.status is not JobStatus.RUNNING
    if over:
        hand.drop(claim.handle)
    hand.errand.wake(job.job_id)
    mirror(hand.hf, wait=True)
    words = (
        "ask a person, and go on when you may"
        if asked.outcome == "permission_required"
        else "go on"
    )
    return JobAnswer(
        job=job_view(job),
        handle=None if over else claim.handle,
        next="claim_job for the next" if over else words,
    )


def _reported(hand: Hand, claim: JobClaim, asked: ReportArguments) -> Job:
    hf = hand.hf
    if asked.outcome == "give_back":
        return hf.jobs.requeue(asked.job_id, token=claim.token)
    kind = EventKind(asked.outcome)
    if asked.outcome not in ("completed", "error"):
        return hf.job_events.publish(asked.job_id, kind, detail=asked.detail, token=claim.token).job
    completed = asked.outcome == "completed"
    return hf.jobs.update_status(
        asked.job_id,
        JobStatus.COMPLETED if completed else JobStatus.ERROR,
        token=claim.token,
        result=(asked.detail or None) if completed else None,
        error=None if completed else asked.detail,
        also=hf.job_events.with_step(kind, detail=asked.detail),
    )


def retry_job(hand: Hand, asked: RetryArguments, call: Call) -> JobAnswer:
    """Have a failed job done again."""
    job = hand.hf.jobs.retry(asked.job_id)
    mirror(hand.hf, wait=True)
    return JobAnswer(
        job=job_view(job), next="status with its job_id, and wait_s to wait for its end"
    )


JOB_TOOLS = (
    Tool(
        "create_job",
        "Delegates work: puts a job into the queue of another agent, or of any worker that claims "
        "from it. Comes back with "
        "the job_id at once. Use status with that job_id to see how it went.",
        CreateArguments,
        JobAnswer,
        create_job,
    ),
    Tool(
        "claim_job",
        "Takes the next job of one of your queues for you alone; with wait_s it waits for one. "
        "Comes back with the job, or "
        "with job null when there is none. Do what its prompt says, then call report_job. If you "
        "end or are killed, the job "
        "goes back to the queue.",
        ClaimArguments,
        JobAnswer,
        claim_job,
    ),
    Tool(
        "report_job",
        "Tells how a job that you claimed goes: progress, permission_required (you wait for a "
        "person), completed with its "
        "result, error with the reason, or give_back for another to do. fenced means that it is "
        "not yours any more: stop.",
        ReportArguments,
        JobAnswer,
        report_job,
    ),
    Tool(
        "retry_job",
        "Has a job done again that ended in error or was cancelled: it is pending in its queue, "
        "with its history. A job with "
        "another status is refused.",
        RetryArguments,
        JobAnswer,
        retry_job,
    ),
)
