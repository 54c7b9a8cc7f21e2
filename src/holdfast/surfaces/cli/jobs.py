"""`holdfast jobs`: delegated work."""

import click

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.record import IDLE_TIMEOUT_S, TIMEOUT_S
from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import status_of
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.store import Damage
from holdfast.surfaces.cli import picking
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import answer, printable
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import clipped, json_document, pairs, short_moment, table

_job_option = click.option("--job", "job_id", required=True, metavar="ID", help="The job's id.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_STATUSES = [status.value for status in JobStatus]


@click.group()
def jobs() -> None:
    """Delegated work: each job is picked by one worker at a time."""


@jobs.command()
@click.option("--prompt", required=True, help="What is to be done.")
@click.option("--agent", default="agent", show_default=True, help="The kind of agent it is for.")
@click.option("--agent-session", required=True, metavar="LABEL", help="Whose queue it joins, such as tmux:claude-a.")
@click.option(
    "--timeout",
    "timeout_sec",
    type=float,
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds one attempt should take. Recorded; nothing acts on it yet.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_sec",
    type=float,
    default=IDLE_TIMEOUT_S,
    show_default=True,
    help="Seconds it should be without a sign. Recorded; nothing acts on it yet.",
)
@click.option(
    "--artifact",
    "artifacts",
    multiple=True,
    metavar="PATH",
    help="A file the work should leave; repeatable. Recorded; nothing looks for it yet.",
)
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="Higher goes first.")
@click.option("--id", "job_id", metavar="ID", help="An id of your own instead of a random one.")
@_json_option
@store_options
def register(
    prompt: str,
    agent: str,
    agent_session: str,
    timeout_sec: float,
    idle_timeout_sec: float,
    artifacts: tuple[str, ...],
    priority: int,
    job_id: str | None,
    as_json: bool,
) -> None:
    """Register work and print its id."""
    with connected() as hf:
        job = hf.jobs.register_job(
            prompt,
            agent=agent,
            agent_session=agent_session,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
            expected_artifacts=artifacts,
            priority=priority,
            job_id=job_id,
        )
    answer(to_json(job) if as_json else job.job_id)


@jobs.command()
@click.option("--agent-session", required=True, metavar="LABEL", help="Whose queue to pick from.")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=0, help="Seconds to wait for a job.")
@click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    help="The process that will work on it. Recorded; nothing acts on its death yet.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole job, with the token that a verdict must show.")
@store_options
def pick(agent_session: str, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim the next pending job and print its id; exit 3 when there is none.

    The claim has no end of its own yet: put a dead worker's job back with `holdfast jobs status --job ID --set pending`.
    """
    with connected() as hf:
        return picking.pick(hf, agent_session, wait_s=wait_s, pid=pid, as_json=as_json)


@jobs.command()
@_job_option
@click.option("--set", "status", type=click.Choice(_STATUSES), required=True, help="The new status.")
@click.option("--token", type=int, help="The attempt's token: refused (exit 4) when another attempt has begun.")
@click.option("--result", help="What came of it.")
@click.option("--error", help="What went wrong.")
@_json_option
@store_options
def status(job_id: str, status: str, token: int | None, result: str | None, error: str | None, as_json: bool) -> None:
    """Move a job to another status."""
    with connected() as hf:
        job = hf.jobs.update_status(job_id, JobStatus(status), token=token, result=result, error=error)
    token_shown = "" if job.token is None else f", token {job.token}"
    answer(to_json(job) if as_json else f"{job.job_id} is {job.status.value}{token_shown}")


@jobs.command()
@_job_option
@_json_option
@store_options
def get(job_id: str, as_json: bool) -> None:
    """Show one job."""
    with connected(create=False) as hf:
        job = hf.jobs.get_job(job_id)
    if as_json:
        json_document(job)
    else:
        facts = {**to_plain(job), "claimed_by": None if job.claimed_by is None else _process(job.claimed_by)}
        pairs([(name, _shown(value)) for name, value in facts.items()])


@jobs.command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those.")
@click.option("--agent-session", metavar="LABEL", help="Only those.")
@click.option("--limit", type=click.IntRange(0), default=LIST_MAX, show_default=True, help="At most so many, the newest.")
@_json_option
@store_options
def list_(status: str | None, agent_session: str | None, limit: int, as_json: bool) -> int:
    """List jobs in the order they arrived; exit 7 if there are damaged ones, which are told on stderr."""
    damaged: Damage = []
    with connected(create=False) as hf:
        found = hf.jobs.list_jobs(
            status=None if status is None else JobStatus(status), agent_session=agent_session, limit=limit, damaged=damaged
        )
    if as_json:
        json_document(found)
    else:
        table(
            ["job", "status", "label", "priority", "attempt", "created", "prompt"],
            [_row(job) for job in found],
            elastic=["label", "prompt"],
            empty="No jobs. Register one: holdfast jobs register --prompt 'say hello' --agent-session tmux:me",
        )
    for error in damaged:
        click.echo(f"holdfast: {printable(error.message)}", err=True)
    return status_of(damaged[0]).exit if damaged else 0


def _row(job: Job) -> list[str]:
    facts = [job.job_id, job.status.value, job.agent_session, str(job.priority), str(job.attempt)]
    return [*facts, short_moment(job.created_at), clipped(job.prompt)]


def _process(holder: Holder) -> str:
    return f"pid {holder.pid} on {holder.host_id}" + (f" ({holder.label})" if holder.label else "")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
