"""`holdfast jobs pick`."""

from typing import Annotated

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
from holdfast.operations.job_claim import Pick, claim_job, unclaim_job
from holdfast.operations.operation import Flag, Request
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.output import write
from holdfast.surfaces.cli.quick import collect_garbage, quick_command


class PickOptions(Request, frozen=True, kw_only=True):
    """How the job is shown."""

    as_json: Annotated[
        bool,
        Flag("--json", help="Print the whole job, with the token that a verdict must show."),
    ] = False


@quick_command(of_jobs=True)
def pick(request: Pick, options: PickOptions) -> int:
    """Claim the next pending job and print its id; exit status 3 when there is none.

    Without --pid the claim has no process that could die: it lives until a verdict, or until the
    job's time limits.
    """
    with connected() as hf:
        if request.wait_s:
            collect_garbage()
        job = claim_job(hf, request.agent_session, wait_s=request.wait_s, pid=request.pid)
        if job is None:
            return EXIT_NOTHING_TO_TAKE
        try:
            write(to_json(shown(job)) if options.as_json else job.job_id)
        except OSError as error:
            # Nobody would know of the claim.
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
