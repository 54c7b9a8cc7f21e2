"""Claiming a job: one function for every surface, in a module that loads fast."""

from typing import TYPE_CHECKING, Annotated

from holdfast.operations.fields import QUEUE, Label, Pid, WaitSeconds
from holdfast.operations.operation import Flag, Request

if TYPE_CHECKING:
    from holdfast.domains.jobs import Job
    from holdfast.kernel.holder import Holder
    from holdfast.runtime.connection import Holdfast


class Pick(Request, frozen=True, kw_only=True):
    """Whose queue to pick from, how long to wait, and the process that will work on the job."""

    agent_session: Annotated[Label, Flag(*QUEUE, metavar="LABEL", help="The queue to pick from.")]
    wait_s: Annotated[WaitSeconds, Flag("--wait", help="Seconds to wait for a job.")] = 0.0
    pid: Annotated[
        Pid | None,
        Flag(
            "--pid",
            help="The process that will work on it: when it dies, the job is pending again.",
        ),
    ] = None


def claim_job(
    hf: "Holdfast",
    queue: str,
    *,
    wait_s: float = 0.0,
    pid: int | None = None,
    holder: "Holder | None" = None,
    stop_fd: int | None = None,
) -> "Job | None":
    """Claim the next pending job of a queue; None when there is none within `wait_s`.

    It ends with the process of `pid`, or with `holder`. Without either the claim belongs to no
    process that could die. Raises NotFound for a process that is not there.
    """
    if pid is not None:
        holder = hf.processes.of(pid, queue)
    return hf.jobs.pick_pending(queue, wait_s=wait_s, holder=holder, stop_fd=stop_fd)


def unclaim_job(hf: "Holdfast", job_id: str, token: int | None) -> None:
    """Put back a job whose claim never reached its caller. Raises Lost or Refused if another has
    moved it.
    """
    from holdfast.domains.jobs import JobStatus

    hf.jobs.update_status(job_id, JobStatus.PENDING, token=token)
