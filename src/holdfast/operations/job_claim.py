"""Claiming a job: one function for every surface, in a module that loads fast."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domains.jobs import Job
    from holdfast.kernel.holder import Holder
    from holdfast.runtime.connection import Holdfast


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
