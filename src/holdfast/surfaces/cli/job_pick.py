"""`holdfast jobs pick`: the one command that two parsers share."""

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
from holdfast.operations.job_claim import claim_job, unclaim_job
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.output import write


def pick_job(hf: Holdfast, queue: str, *, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim a job; print its id, or all of it as JSON. Returns the exit status.

    Raises Unavailable when the output cannot be written: nobody would know of the claim, so the
    job is put back.
    """
    job = claim_job(hf, queue, wait_s=wait_s, pid=pid)
    if job is None:
        return EXIT_NOTHING_TO_TAKE
    try:
        write(to_json(shown(job)) if as_json else job.job_id)
    except OSError as error:
        job_id = job.job_id
        untold = f"job {job_id} was picked, but that could not be written ({error.strerror})"
        try:
            unclaim_job(hf, job_id, job.token)
            then, outcome = ": it is pending again", "none"
        except (Lost, Refused):
            then, outcome = "; somebody else has moved it since", "none"
        except HoldfastError as failed:
            then, outcome = f", and it could not be put back ({failed.message})", "unknown"
            then += f": `holdfast jobs status --job {job_id} --set pending` does it"
        raise Unavailable(f"{untold}{then}", job_id=job_id, outcome=outcome) from None
    return EXIT_DONE
