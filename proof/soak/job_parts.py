"""Delegated work: producers, workers, and the courier of their events."""

import contextlib

from holdfast.adapters.event_sender import EventSender
from holdfast.domains.jobs import Job, JobStatus
from holdfast.kernel.errors import BrokerUnavailable, Collision, Fenced, ImpossibleTransition
from holdfast.kernel.holder import Holder
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

LABELS = ["label-0", "label-1"]
_PENDING_MAX = 200


def producer(child: Child, hf: Holdfast) -> bool:
    """A registration is logged. One whose answer was lost is repeated with its id."""
    if child.draining:
        return False
    label = child.draw.choice(LABELS)
    if full(hf, label):
        child.pause(0.5)
        return True
    number = child.board.of(child.slot, "operations")
    job_id = f"{child.name}-{number}"
    # The call before may have registered it, and its answer was lost.
    with contextlib.suppress(Collision):
        hf.jobs.register_job(
            "work",
            agent="a",
            agent_session=label,
            job_id=job_id,
            max_attempts=1000,
            timeout_sec=3600,
        )
    child.tell("registered", job=job_id)
    child.did()
    child.pause(0.1)
    return True


def worker(child: Child, hf: Holdfast) -> bool:
    """One job at a time, with a witness that nobody else works on it. At times it is put back, at
    times it ends together with the next pick.
    """
    label, me = child.draw.choice(LABELS), hf.processes.current()
    _put_back_unheard(hf, me)
    job = hf.jobs.pick_pending(label, wait_s=0.0 if child.draining else 0.3, holder=me)
    if job is None:
        child.pause(0.1)
        return left(hf) or not child.draining
    while job is not None and job.token is not None:
        with child.witness(f"job-{job.job_id}", token=job.token) as alone:
            if not alone:
                child.wrong(
                    f"{job.job_id} was claimed twice: attempt {job.attempt}, token {job.token}"
                )
            child.pause(0.02)
            if child.draw.random() < 0.1:
                hf.jobs.heartbeat(job.job_id, token=job.token)
        job = _ended(child, hf, job.job_id, job.token)
        child.did()
    return True


def full(hf: Holdfast, label: str) -> bool:
    """Are there enough jobs in the queue?"""
    return (
        len(hf.jobs.list_jobs(status="pending", agent_session=label, limit=_PENDING_MAX))
        >= _PENDING_MAX
    )


def left(hf: Holdfast) -> bool:
    """Is any job pending or running? Both are counted in one step: between two, a job could go from
    one to the other unseen.
    """
    counts = hf.jobs.counts()
    return bool(counts[JobStatus.PENDING] or counts[JobStatus.RUNNING])


def _put_back_unheard(hf: Holdfast, me: Holder) -> None:
    """A claim whose answer was lost with the connection belongs to this worker. Otherwise nobody
    would work on it.
    """
    for job in hf.jobs.list_jobs(status="running"):
        if job.claimed_by == me and job.token is not None:
            with contextlib.suppress(Fenced):
                hf.jobs.requeue(job.job_id, token=job.token)


def _ended(child: Child, hf: Holdfast, job_id: str, token: int) -> Job | None:
    """Report the result of a job; return the next one that came with it."""
    how = child.draw.choice(
        ["finish", "finish", "finish", "requeue", "finish_and_pick", "finish_and_pick"]
    )
    try:
        if how == "requeue" and not child.draining:
            hf.jobs.requeue(job_id, token=token)
            return None
        if how == "finish_and_pick" and not child.draining:
            ended = hf.jobs.finish_and_pick(
                job_id, "completed", token=token, holder=hf.processes.current()
            )
            child.tell("done", job=job_id, token=token)
            return ended.picked
        hf.jobs.update_status(job_id, "completed", token=token)
        child.tell("done", job=job_id, token=token)
    except Fenced as error:
        # Only its own call, whose answer was lost, can have done it: a live worker keeps its job.
        now = hf.jobs.peek(job_id)
        if now is None or (
            now.status.value != "completed" and child.board.of(child.slot, "unsure") == 0
        ):
            child.wrong(f"a worker that lives lost {job_id}: {error.message}")
        child.count("fenced")
    return None


def courier(child: Child, hf: Holdfast) -> bool:
    """Events of jobs go to a broker that is restarted now and then; none delays a job."""
    sender = EventSender(hf.job_events)
    try:
        if not child.draining:
            for job in hf.jobs.list_jobs(status="running", limit=3):
                # It may have ended since.
                with contextlib.suppress(ImpossibleTransition):
                    hf.job_events.publish(job.job_id, "progress", detail=child.name)
        if sender.send():
            child.did()
        elif child.draining:
            return False
    except BrokerUnavailable:
        child.count("unsure")
    finally:
        sender.close()
    child.pause(0.4)
    return True
