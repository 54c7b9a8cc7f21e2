"""`holdfast jobs status`."""

from typing import TYPE_CHECKING

from holdfast.domains.jobs import Job
from holdfast.kernel.codec import to_json
from holdfast.operations.job_status import SetStatus, set_status
from holdfast.operations.operation import Request
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.options import AsJson
from holdfast.surfaces.cli.output import answer, printable
from holdfast.surfaces.cli.quick import quick_command

if TYPE_CHECKING:
    from holdfast.operations.job_views import JobView


class StatusOptions(Request, frozen=True, kw_only=True):
    """How the job is shown."""

    as_json: AsJson = False


@quick_command(of_jobs=True)
def status(request: SetStatus, options: StatusOptions) -> int:
    """Move a job to another status. Without --token you speak as the operator."""
    with connected() as hf:
        job = set_status(hf, request)
        if options.as_json:
            # Loaded here: scripts that call this in loops rarely read the whole job.
            from holdfast.operations.job_views import view_of

            text: str | bytes = to_json(view_of(job))
        else:
            text = printable(job_line(job))
    answer(text)
    return 0


def job_line(job: "Job | JobView") -> str:
    # Without a docstring, which would be the help of the commands that show this.
    token = "" if job.token is None else f", token {job.token}"
    why = "" if job.error is None else f": {job.error}"
    return f"{job.job_id} is {job.status.value}{token}{why}"
