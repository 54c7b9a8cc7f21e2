"""Commands that move a job: `pick`, `status`, `cancel`, `requeue`, `retry`, `heartbeat`, `reap`,
`prune`.
"""

from typing import Any

import click

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import shown
from holdfast.domains.jobs.transitions import RETRIED
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import STATUS, HoldfastError, InvalidName, Refused, status_of
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.jobs import Pruned
from holdfast.surfaces.cli import picking
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.jobs.options import (
    STATUSES,
    as_json_line,
    changing,
    job_option,
    jobs_argument,
    json_option,
    mirror,
    token_option,
    where_options,
)
from holdfast.surfaces.cli.output import answer, damage_told, remark
from holdfast.surfaces.cli.quick import PID_MAX


class _NoStatus(click.BadParameter):
    """Refused as a status that cannot be, which scripts of other registries know as exit status
    1.
    """

    exit_code = STATUS["impossible_transition"].exit


class _Status(click.Choice[str]):
    """A status."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise _NoStatus(error.message, ctx, param) from None


@click.command()
@click.option("--agent-session", required=True, metavar="LABEL", help="Whose queue to pick from.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=0,
    help="Seconds to wait for a job.",
)
@click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    help="The process that will work on it: when it dies, the job is pending again.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the whole job, with the token that a verdict must show.",
)
@where_options
def pick(agent_session: str, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim the next pending job and print its id; exit status 3 when there is none.

    Without --pid the claim has no process that could die: it lives until a verdict, or until the
    job's time limits.
    """
    with connected() as hf:
        return picking.pick(hf, agent_session, wait_s=wait_s, pid=pid, as_json=as_json)


@click.command()
@job_option
@click.option("--set", "status", type=_Status(STATUSES), required=True, help="The new status.")
@token_option
@click.option("--result", help="What came of it.")
@click.option("--error", help="What went wrong.")
@json_option
@where_options
def status(
    job_id: str,
    status: str,
    token: int | None,
    result: str | None,
    error: str | None,
    as_json: bool,
) -> None:
    """Move a job to another status. Without --token you speak as the operator."""
    with changing() as hf:
        job = hf.jobs.update_status(
            job_id, JobStatus(status), token=token, result=result, error=error
        )
    _tell(job, as_json)


@click.command()
@job_option
@click.option("--reason", help="Why.")
@json_option
@where_options
def cancel(job_id: str, reason: str | None, as_json: bool) -> None:
    """End a pending or running job as cancelled; a worker that has it stops. Or give up a job that
    ended in error.
    """
    with changing() as hf:
        job = hf.jobs.cancel(job_id, reason=reason)
    _tell(job, as_json)


@click.command()
@job_option
@token_option
@json_option
@where_options
def requeue(job_id: str, token: int | None, as_json: bool) -> None:
    """Put a running job back for the next pick; a worker that has it stops."""
    with changing() as hf:
        job = hf.jobs.requeue(job_id, token=token)
    _tell(job, as_json)


@click.command()
@jobs_argument
@click.option(
    "--status",
    type=click.Choice(sorted(one.value for one in RETRIED)),
    help="All jobs with this status.",
)
@click.option("--agent-session", metavar="LABEL", help="Only those of this queue; with --status.")
@json_option
@where_options
def retry(
    job_ids: tuple[str, ...], status: str | None, agent_session: str | None, as_json: bool
) -> int:
    """Put jobs that ended in error or were cancelled back into their queues.

    Each is pending in its old place, with its history, and may be begun as often as a new one. Of
    several jobs each that can be retried is; exit status 1 if one cannot.
    """
    if (status is None) != bool(job_ids):
        raise click.UsageError("say which jobs, or --status")
    if agent_session is not None and status is None:
        raise click.UsageError("--agent-session goes with --status")
    damaged: Damage = []
    refused: list[HoldfastError] = []
    with changing() as hf:
        if status is not None:
            jobs = hf.jobs.retry_all(status=status, agent_session=agent_session, damaged=damaged)
        else:
            jobs = _retried(hf, job_ids, refused)
    if as_json:
        answer(to_json([shown(job) for job in jobs]))
    elif jobs or status is not None:
        answer("\n".join(_line(job) for job in jobs) or f"no job is {status}")
    for error in refused:
        remark(error.message)
    return status_of(refused[0]).exit if refused else damage_told(damaged)


def _retried(hf: Holdfast, job_ids: tuple[str, ...], refused: list[HoldfastError]) -> list[Job]:
    jobs = []
    for job_id in job_ids:
        try:
            jobs.append(hf.jobs.retry(job_id))
        except (InvalidName, Refused) as error:
            refused.append(error)
    return jobs


@click.command()
@job_option
@click.option("--token", type=int, required=True, help="The attempt's token.")
@json_option
@where_options
def heartbeat(job_id: str, token: int, as_json: bool) -> None:
    """Give a sign of life for a job, so that it does not count as idle; exit status 4 when it is
    another's by now.
    """
    with connected() as hf:
        job = hf.jobs.heartbeat(job_id, token=token)
    if as_json:
        answer(as_json_line(job))


@click.command()
@json_option
@where_options
def reap(as_json: bool) -> None:
    """Put back the jobs of dead workers, and end those past their time limits.

    Every pick, list, get and watch does so too.
    """
    with changing() as hf:
        reaped = hf.jobs.reap()
    if as_json:
        answer(to_json([shown(job) for job in reaped]))
    else:
        answer("\n".join(_line(job) for job in reaped) or "nothing to reap")


@click.command()
@click.option(
    "--keep",
    type=click.IntRange(0),
    help="How many finished jobs to keep.  [default: jobs.keep_finished]",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0),
    help="For how many days to keep them.  [default: jobs.keep_s]",
)
@click.option("--adopted", is_flag=True, help="Those too that another program registered.")
@json_option
@where_options
def prune(keep: int | None, keep_days: float | None, adopted: bool, as_json: bool) -> None:
    """Remove finished jobs beyond the bounds. The audit log keeps what it has of them."""
    with changing() as hf:
        # Before they are gone: the log tells more of a job that is still there.
        mirror(hf, wait=True)
        keep_s = None if keep_days is None else keep_days * 86400
        removed = hf.jobs.prune(keep_finished=keep, keep_s=keep_s, adopted=adopted)
    answer(to_json(Pruned(removed=removed)) if as_json else f"{counted(removed, 'job')} removed")


def _tell(job: Job, as_json: bool) -> None:
    answer(as_json_line(job) if as_json else _line(job))


def _line(job: Job) -> str:
    token = "" if job.token is None else f", token {job.token}"
    why = "" if job.error is None else f": {job.error}"
    return f"{job.job_id} is {job.status.value}{token}{why}"
