"""Commands that look at jobs: `list`, `get`, `logs`."""

from typing import Any

import click

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import LateResult, PastAttempt, shown
from holdfast.kernel.clock import render
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import NotFound
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.jobs import found, timeline
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.jobs.options import (
    STATUSES,
    job_argument,
    job_option,
    json_option,
    mirror,
    where_options,
)
from holdfast.surfaces.cli.output import answer, damage_told, printable
from holdfast.surfaces.cli.render import clipped, json_document, pairs, short_moment, table


@click.command()
@job_option
@json_option
@where_options
def get(job_id: str, as_json: bool) -> None:
    """Show one job."""
    with connected(create=False) as hf:
        job = hf.jobs.get_job(job_id)
        survivors = hf.jobs.survivors(job)
    if as_json:
        json_document(shown(job))
    else:
        broker = f"{job.broker.host}:{job.broker.port}" + (" by TLS" if job.broker.tls else "")
        facts = {
            **shown(job),
            "broker": broker,
            "claimed_by": None if job.claimed_by is None else _process(job.claimed_by),
        }
        facts["late_result"] = None if job.late_result is None else _late(job.late_result)
        facts["past_attempts"] = "; ".join(map(_past, job.past_attempts)) or None
        if survivors:
            facts["waits_for"] = (
                f"{survivors_named(survivors)}, which an earlier attempt left; the next pick here "
                "ends them"
            )
        pairs([(name, _shown(value)) for name, value in facts.items()])


@click.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only those with this status.")
@click.option("--agent-session", metavar="LABEL", help="Only those of this queue.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=LIST_MAX,
    show_default=True,
    help="At most this many, the newest.",
)
@json_option
@where_options
def list_(status: str | None, agent_session: str | None, limit: int, as_json: bool) -> int:
    """List jobs in the order they arrived; exit status 7 if there are damaged ones, which are named
    on stderr.
    """
    damaged: Damage = []
    with connected(create=False) as hf:
        jobs = hf.jobs.list_jobs(
            status=None if status is None else JobStatus(status),
            agent_session=agent_session,
            limit=limit,
            damaged=damaged,
        )
    if as_json:
        json_document([shown(job) for job in jobs])
    else:
        table(
            ["job", "status", "label", "prio", "try", "created", "prompt"],
            [_row(job) for job in jobs],
            elastic=["label", "prompt"],
            empty=(
                "No jobs. Register one: holdfast jobs register --prompt 'say hello' "
                "--agent-session tmux:me"
            ),
        )
    return damage_told(damaged)


@click.command()
@job_argument("[JOB]")
@click.option(
    "-n", "--tail", type=click.IntRange(0), help="How many of the last lines.  [default: all]"
)
@click.option("--list", "listed", is_flag=True, help="Every job that is logged, with its status.")
@click.option("--rebuild", is_flag=True, help="Write the log again from the journal.")
@json_option
@where_options
def logs(job_id: str | None, tail: int | None, listed: bool, rebuild: bool, as_json: bool) -> None:
    """Show the audit log of a job: what happened to it, as plain files that outlive the registry.

    DELEGATE_JOB_LOGS_DIR, or jobs.logs in holdfast.toml, says where it lies; otherwise it is beside
    the store.
    """
    if [job_id is not None, listed, rebuild].count(True) != 1:
        raise click.UsageError("say one of: a JOB, --list, --rebuild")
    if tail is not None and job_id is None:
        raise click.UsageError("--tail is for the log of one JOB")
    with connected(create=False) as hf:
        if hf.job_log is None:
            raise NotFound(
                "this store keeps nothing, so there is no log of its jobs: use another --store"
            )
        if rebuild:
            _rebuild(hf, as_json)
            return
        mirror(hf, wait=True)
        if job_id is None:
            _list(hf, as_json)
        else:
            _timeline(hf, job_id, tail, as_json)


def _rebuild(hf: Holdfast, as_json: bool) -> None:
    assert hf.job_log is not None
    jobs = hf.job_log.rebuild(hf.log, lambda job_id: found(hf, job_id))
    told = {"jobs": jobs, "folder": str(hf.job_log.folder)}
    answer(
        to_json(told)
        if as_json
        else printable(f"the log of {counted(jobs, 'job')} is written again: {told['folder']}")
    )


def _list(hf: Holdfast, as_json: bool) -> None:
    assert hf.job_log is not None
    logged = [
        hf.job_log.status(job_id) or {"job_id": job_id, "status": "unknown"}
        for job_id in hf.job_log.jobs()
    ]
    if as_json:
        json_document(logged)
        return
    rows = [[one["job_id"], one["status"], str(one.get("updated_at", "-"))] for one in logged]
    table(["job", "status", "since"], rows, empty="No job is logged yet.")


def _timeline(hf: Holdfast, job_id: str, tail: int | None, as_json: bool) -> None:
    for line in timeline(hf, job_id, tail):
        click.echo(to_json(line) if as_json else printable(_told(line).replace("\n", " ")))


def _told(line: dict[str, Any]) -> str:
    """One line of a log for people. Another program's lines may lack what ours have."""
    payload = line.get("payload")
    if isinstance(payload, dict):
        what = f"{payload.get('event')} #{payload.get('seq')} {payload.get('detail') or ''}"
    elif line.get("event") == "status_changed":
        why = f" ({line['why']})" if line.get("why") else ""
        what = f"{line.get('from')} -> {line.get('to')}{why}" + _if_there(
            ", attempt", line, "attempt"
        )
    elif line.get("event") == "late_result":
        what = f"{line.get('wanted')} came too late" + _if_there(", attempt", line, "attempt")
    elif line.get("event") == "removed":
        what = f"from the registry, {line.get('status')}"
    else:
        what = _if_there("for", line, "agent_session")
    by = _if_there("  by", line, "actor")
    return f"{line.get('timestamp') or '-'!s:<27}  {line.get('event') or '?'!s:<15} {what.strip()}{by}".rstrip()


def _if_there(words: str, line: dict[str, Any], name: str) -> str:
    return "" if line.get(name) is None else f"{words} {line[name]}"


def _row(job: Job) -> list[str]:
    late = "" if job.late_result is None else f", late: {job.late_result.status.value}"
    facts = [
        job.job_id,
        f"{job.status.value}{late}",
        job.agent_session,
        str(job.priority),
        str(job.attempt),
    ]
    return [*facts, short_moment(job.created_at), clipped(job.prompt)]


def _late(late: LateResult) -> str:
    said = late.result if late.status is JobStatus.COMPLETED else late.error
    return f"{late.status.value}, attempt {late.attempt}, at {render(late.at)}, by {late.by}" + (
        f": {said}" if said else ""
    )


def _past(past: PastAttempt) -> str:
    return f"{past.attempt} {past.outcome}" + (f" ({past.error})" if past.error else "")


def _process(holder: Holder) -> str:
    return f"pid {holder.pid} on {holder.host_id}" + (f" ({holder.label})" if holder.label else "")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
