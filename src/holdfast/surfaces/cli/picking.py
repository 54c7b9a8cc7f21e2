"""`holdfast jobs pick`: the one command that two parsers share."""

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import shown
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import (
    EXIT_DONE,
    EXIT_NOTHING_TO_TAKE,
    HoldfastError,
    Lost,
    Refused,
    Unavailable,
)
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.output import write


def pick(hf: Holdfast, agent_session: str, *, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim a job; print its id, or all of it as JSON. The process is recorded only if it was
    named.

    Raises Unavailable when the answer cannot be written: nobody would know of the claim, so the job
    is put back.
    """
    holder = None if pid is None else hf.processes.of(pid, agent_session)
    job = hf.jobs.pick_pending(agent_session, wait_s=wait_s, holder=holder)
    if job is None:
        return EXIT_NOTHING_TO_TAKE
    try:
        write(to_json(shown(job)) if as_json else job.job_id)
    except OSError as error:
        raise _untold(hf, job, error) from None
    return EXIT_DONE


def _untold(hf: Holdfast, job: Job, error: OSError) -> Unavailable:
    untold = f"job {job.job_id} was picked, but that could not be written ({error.strerror})"
    try:
        hf.jobs.update_status(job.job_id, JobStatus.PENDING, token=job.token)
    except (Lost, Refused):
        return Unavailable(
            f"{untold}; somebody else has moved it since", job_id=job.job_id, outcome="none"
        )
    except HoldfastError as failed:
        return Unavailable(
            f"{untold}, and it could not be put back ({failed.message}): set it to pending with "
            "`holdfast jobs status --job "
            f"{job.job_id} --set pending`",
            job_id=job.job_id,
            outcome="unknown",
        )
    return Unavailable(f"{untold}: it is pending again", job_id=job.job_id, outcome="none")
