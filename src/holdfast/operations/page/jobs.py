"""Jobs for the page: what waits, runs and has ended, how far it is, and why."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.events import Event
from holdfast.domains.jobs.records import TRANSITIONS, due_at
from holdfast.domains.jobs.transitions import RETRIED
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.holder import Holder, Liveness, probe
from holdfast.kernel.limits import LIST_MAX, PAGE_LINES
from holdfast.operations.page.explanation import Action, Fact, Tone, Verb, Why, known, matching
from holdfast.operations.page.questions import question_of_job
from holdfast.primitives.journal import redacted
from holdfast.runtime.connection import Holdfast

PROMPT_CHARS = 200
"""How much of a prompt a line has."""

_TEXT_CHARS = 20_000
_EVENTS = 100
_TONES: dict[JobStatus, Tone] = {
    JobStatus.PENDING: "idle",
    JobStatus.RUNNING: "busy",
    JobStatus.COMPLETED: "good",
    JobStatus.ERROR: "bad",
    JobStatus.CANCELLED: "idle",
}


class JobLine(Plain, frozen=True, kw_only=True):
    """One job in a list."""

    job_id: str
    status: str
    tone: Tone
    state: str
    prompt: str
    agent: str
    agent_session: str
    priority: int
    attempt: int
    max_attempts: int
    arrival: int
    at: Instant
    """When it came into its present state, as far as that is known."""


class JobPage(Plain, frozen=True, kw_only=True):
    """A stretch of the list, newest first. `next` is where the following one begins; None at its
    end.
    """

    counts: dict[str, int]
    lines: tuple[JobLine, ...]
    next: tuple[int, str] | None


class Progress(Plain, frozen=True, kw_only=True):
    """One event of a job."""

    at: Instant
    event: str
    seq: int
    detail: str
    data: Any = None


class JobDetails(Plain, frozen=True, kw_only=True):
    """A job with all that is shown of it. Its key and its broker's password are not."""

    why: Why
    prompt: str
    result: str
    error: str
    late: str
    """The words of a verdict that came too late."""
    progress: tuple[Progress, ...]


def job_page(
    hf: Holdfast,
    counts: Mapping[JobStatus, int],
    *,
    status: str | None = None,
    before: tuple[int, str] | None = None,
    limit: int = PAGE_LINES,
    words: str = "",
) -> JobPage:
    """A stretch of the jobs, newest first; with `words`, of those in whose line they occur, among
    the next LIST_MAX.
    """
    read = LIST_MAX if words else limit
    found = hf.jobs.list_jobs(status=status, before=before, limit=read, damaged=[])[::-1]

    def searched(job: Job) -> tuple[JobLine, str]:
        line = line_of(job)
        return line, f"{job.job_id} {job.agent} {job.agent_session} {line.state} {job.prompt}"

    matched = matching(found, searched, words, limit)
    last = found[-1] if len(found) == read else None
    if len(matched) == limit:
        last = matched[-1][0]
    return JobPage(
        counts={status.value: number for status, number in counts.items()},
        lines=tuple(line for _, line in matched),
        next=None if last is None else (last.arrival, last.job_id),
    )


def line_of(job: Job) -> JobLine:
    """A job in a list."""
    tone, state = _state(job)
    late = "" if job.late_result is None else f", late: {job.late_result.status.value}"
    return JobLine(
        job_id=job.job_id,
        status=job.status.value,
        tone=tone,
        state=f"{state}{late}",
        prompt=" ".join(job.prompt[:PROMPT_CHARS].split()),
        agent=job.agent,
        agent_session=job.agent_session,
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        arrival=job.arrival,
        at=job.waiting_since or job.finished_at or job.started_at or job.created_at,
    )


def job_details(hf: Holdfast, job_id: str) -> JobDetails:
    """A job, why it is as it is, and its last events."""
    job = hf.jobs.get_job(job_id)
    last = hf.job_events.of_job(job_id, after_seq=max(job.last_seq - _EVENTS, 0))
    return JobDetails(
        why=_why(hf, job),
        prompt=job.prompt[:_TEXT_CHARS],
        result=(job.result or "")[:_TEXT_CHARS],
        error=(job.error or "")[:_TEXT_CHARS],
        late=_late_words(job)[:_TEXT_CHARS],
        progress=tuple(_progress(one) for one in last),
    )


def _progress(event: Event) -> Progress:
    data = None if event.data is msgspec.UNSET else redacted(event.data)
    return Progress(
        at=event.timestamp, event=event.event.value, seq=event.seq, detail=event.detail, data=data
    )


def _why(hf: Holdfast, job: Job) -> Why:
    tone, state = _state(job)
    worker = ""
    if job.claimed_by is not None:
        worker = f"process {job.claimed_by.pid}, {_state_of(hf, job.claimed_by)}"
    return Why(
        kind="job",
        name=job.job_id,
        title=f"job {job.job_id}",
        state=state,
        tone=tone,
        words=(_words(job, worker),),
        facts=known(
            Fact(name="registered", at=job.created_at),
            Fact(name="started", at=job.started_at),
            Fact(name="last sign of life", at=job.last_event_at),
            Fact(name="waits for a permission since", at=job.waiting_since),
            Fact(name="ends in error", at=due_at(job) if job.status is JobStatus.RUNNING else None),
            Fact(name="finished", at=job.finished_at),
            Fact(name="worker", text=worker),
            Fact(name="for", text=f"{job.agent}, {job.agent_session}"),
            Fact(name="attempt", text=str(job.attempt)),
            Fact(
                name="workers that died",
                text=f"{job.deaths}; at {job.max_attempts} it ends in error" if job.deaths else "",
            ),
            Fact(
                name="attempts before",
                text="; ".join(f"{past.attempt} {past.outcome}" for past in job.past_attempts),
            ),
            Fact(
                name="a late verdict came",
                at=None if job.late_result is None else job.late_result.at,
            ),
            Fact(name="priority", text=str(job.priority) if job.priority else ""),
            Fact(name="folder", text=job.workdir or ""),
            Fact(name="code", text=job.error_code or ""),
        ),
        advice=_advice(job),
        actions=_actions(job),
        questions=question_of_job(hf, job.job_id) if job.waiting_since is not None else (),
    )


def _state_of(hf: Holdfast, worker: Holder) -> str:
    whole, alone = (
        probe(one, hf.processes, embedded=hf.store.embedded) for one in (worker, worker.leader)
    )
    if (whole, alone) == (Liveness.ALIVE, Liveness.DEAD):
        return "dead, and processes of its command live"
    return whole.value


def _state(job: Job) -> tuple[Tone, str]:
    if job.status is JobStatus.RUNNING and job.waiting_since is not None:
        return "wait", "waits for a permission"
    if job.status is JobStatus.ERROR and job.error_code:
        return "bad", job.error_code.replace("_", " ")
    return _TONES[job.status], job.status.value


def _words(job: Job, worker: str) -> str:
    if job.status is JobStatus.PENDING:
        again = " It was begun before, and put back." if job.attempt else ""
        return f"It waits until a worker with the label {job.agent_session} picks it.{again}"
    if job.status is JobStatus.RUNNING:
        if job.waiting_since is not None:
            return "Its agent has asked for a permission, and goes on when somebody gives it."
        return (
            f"A worker has it ({worker})."
            if worker
            else "A worker without a recorded process has it."
        )
    how = {
        "completed": "It is done.",
        "cancelled": "It was cancelled.",
        "error": "It ended in error.",
    }[job.status.value]
    late = (
        f" A verdict came too late: {job.late_result.status.value}."
        if job.late_result is not None
        else ""
    )
    return f"{how} {job.error}{late}" if job.error else f"{how}{late}"


def _advice(job: Job) -> tuple[str, ...]:
    if job.status is JobStatus.PENDING:
        return (
            "if nothing picks it, start a worker: holdfast jobs run --queue "
            f"{job.agent_session} -- COMMAND",
        )
    if job.status is JobStatus.RUNNING:
        if job.waiting_since is not None:
            return ("answer what it asks; its worker reads the answer as an event of the job",)
        return (
            "when its worker dies it is put back by itself; requeue it only if the worker lives "
            "and is stuck",
        )
    if job.status is JobStatus.ERROR:
        return (
            "its progress is below; retry it when the cause is gone",
            "give it up once it is dealt with otherwise",
        )
    return ("nothing to do",)


def _late_words(job: Job) -> str:
    late = job.late_result
    if late is None:
        return ""
    words = late.result if late.status is JobStatus.COMPLETED else late.error
    return f"{late.status.value}, attempt {late.attempt}" + (f": {words}" if words else "")


def _actions(job: Job) -> tuple[Action, ...]:
    offered: list[tuple[Verb, str, str]] = []
    if JobStatus.PENDING in TRANSITIONS[job.status]:
        refused = "The worker that has it now is refused from then on."
        offered.append(("requeue_job", "Requeue", f"waits again for the next pick. {refused}"))
    if JobStatus.CANCELLED in TRANSITIONS[job.status]:
        refused = "A worker that has it is refused from then on."
        offered.append(("cancel_job", "Cancel", f"ends as cancelled. {refused}"))
    if job.status in RETRIED:
        offered.append(("retry_job", "Retry", "waits again for the next pick, in its old place."))
    if job.status is JobStatus.ERROR:
        kept = "for everybody, and needs nobody any more. Its error stays."
        offered.append(("cancel_job", "Give up", f"counts as cancelled from now on, {kept}"))
    return tuple(
        Action(
            verb=verb,
            subject=job.job_id,
            label=label,
            effect=f"{job.job_id} {effect}",
            token=job.token if verb == "requeue_job" else None,
        )
        for verb, label, effect in offered
    )
