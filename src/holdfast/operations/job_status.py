"""A job by its id, and its new status, in a module that loads fast."""

from typing import Annotated

from msgspec.structs import asdict

from holdfast.domains.jobs import Job, JobStatus
from holdfast.operations.fields import JobId, Text, Token
from holdfast.operations.operation import Argument, Flag, Request
from holdfast.runtime.connection import Holdfast

AttemptToken = Annotated[
    Token | None,
    Flag(
        "--token",
        within=None,
        help="The attempt's token: refused (exit status 4) when another attempt has begun.",
    ),
]


class JobKey(Request, frozen=True, kw_only=True):
    """A job."""

    job_id: Annotated[
        JobId,
        Flag("--job", metavar="ID", help="The job's id.  [required]", or_argument=True),
        Argument("The job's id or handle.", handle="job"),
    ]


class SetStatus(JobKey, frozen=True, kw_only=True):
    """A job's new status. Without a token the caller speaks as an operator."""

    status: Annotated[JobStatus, Flag("--set", help="The new status.")]
    token: AttemptToken = None
    result: Annotated[Text | None, Flag("--result", help="What came of it.")] = None
    error: Annotated[Text | None, Flag("--error", help="What went wrong.")] = None


def set_status(hf: Holdfast, request: SetStatus) -> Job:
    """Move a job to another status, and bring the audit log up to date."""
    job = hf.jobs.update_status(**asdict(request))
    hf.catch_up()
    return job
