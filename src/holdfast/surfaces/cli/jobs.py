"""`holdfast jobs`: delegated work."""

import json
import math
import os
from collections.abc import Callable
from typing import Any, NoReturn

import click

from holdfast.domains.jobs import JobStatus
from holdfast.domains.jobs.records import LateResult
from holdfast.kernel.clock import render
from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import (
    STATUS,
    HoldfastError,
    InvalidName,
    InvalidValue,
    Refused,
    status_of,
)
from holdfast.kernel.holder import survivors_named
from holdfast.kernel.store import Damage
from holdfast.kernel.text import clipped, counted
from holdfast.operations import job_requests as requests
from holdfast.operations import jobs as operations
from holdfast.operations.job_status import JobKey
from holdfast.operations.job_views import JobView, Pruned, Sent
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.command import CommandGroup, click_command, json_option, request_options
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.job_pick import pick
from holdfast.surfaces.cli.job_run import run
from holdfast.surfaces.cli.job_status import job_line, status
from holdfast.surfaces.cli.job_watch import jobs_argument, watch
from holdfast.surfaces.cli.output import (
    STDIN,
    answer,
    printable,
    read_file,
    remark,
    report_damage,
)
from holdfast.surfaces.cli.render import json_document, pairs, short_moment, table, value_text
from holdfast.surfaces.cli.store_options import job_store_options


class _NoStatus(click.BadParameter):
    """No such status: exit status 1, as scripts of other registries know it."""

    exit_code = STATUS["impossible_transition"].exit


class _Status(click.Choice[str]):
    """A status."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise _NoStatus(error.message, ctx, param) from None


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Delegated work: each job is picked by one worker at a time.

    \b
        holdfast jobs register --prompt 'say hello' --queue tmux:me
        holdfast jobs run --queue tmux:me -- ./agent.sh
        holdfast jobs watch JOB
    """


@jobs.command()
@click.option(
    "--prompt", metavar="TEXT", help="What is to be done; - reads it from standard input."
)
@click.option(
    "--prompt-file",
    metavar="FILE",
    help="Read the prompt from a file; needed above 128 kB.",
)
@request_options(requests.Register)
@json_option
@job_store_options
def register(
    request: Callable[..., requests.Register],
    prompt: str | None,
    prompt_file: str | None,
    as_json: bool,
) -> None:
    """Register work and print its id. Its prompt is --prompt, or in --prompt-file."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("say what is to be done, with one of --prompt and --prompt-file")
    if prompt_file is not None or prompt == STDIN:
        prompt = read_file(prompt_file or STDIN, "prompt")
    whole = request(prompt=prompt)
    if whole.workdir is not None:
        # The worker may run anywhere.
        whole = request(prompt=prompt, workdir=os.path.abspath(whole.workdir))
    with connected() as hf:
        job = operations.register(hf, whole)
    answer(to_json(job) if as_json else job.job_id)


@jobs.operation(operations.list_, where=job_store_options)
def list_(found: list[JobView]) -> None:
    """List jobs in the order they arrived.

    Exit status 7 if there are damaged ones, which are named on stderr.
    """
    table(
        ["job", "status", "label", "prio", "try", "created", "prompt"],
        [_row(job) for job in found],
        elastic=["label", "prompt"],
        empty="No jobs. Register one: holdfast jobs register --prompt 'say hello' --queue tmux:me",
    )


def _row(job: JobView) -> list[str]:
    late = "" if job.late_result is None else f", late: {job.late_result.status.value}"
    facts = [job.job_id, f"{job.status.value}{late}", job.agent_session, str(job.priority)]
    return [*facts, str(job.attempt), short_moment(job.created_at), clipped(job.prompt)]


@jobs.operation(operations.get, where=job_store_options)
def get(job: JobView, hf: Holdfast) -> None:
    """Show one job."""
    survivors = hf.jobs.survivors(hf.jobs.get_job(job.job_id))
    facts = to_plain(job)
    facts["broker"] = f"{job.broker.host}:{job.broker.port}" + (" by TLS" if job.broker.tls else "")
    if (by := job.claimed_by) is not None:
        label = f" ({by.label})" if by.label else ""
        facts["claimed_by"] = f"pid {by.pid} on {by.host_id}{label}"
    if job.late_result is not None:
        facts["late_result"] = _late(job.late_result)
    facts["past_attempts"] = "; ".join(
        f"{past.attempt} {past.outcome}" + (f" ({past.error})" if past.error else "")
        for past in job.past_attempts
    )
    if survivors:
        left = survivors_named(survivors)
        facts["waits_for"] = f"{left}, which an earlier attempt left; the next pick here ends them"
    pairs([(name, value_text(value)) for name, value in facts.items()])


def _late(late: LateResult) -> str:
    detail = late.result if late.status is JobStatus.COMPLETED else late.error
    words = f"{late.status.value}, attempt {late.attempt}, at {render(late.at)}, by {late.by}"
    return f"{words}: {detail}" if detail else words


jobs.add_command(click_command(pick))
jobs.add_command(click_command(status, types={"status": _Status([one.value for one in JobStatus])}))
jobs.operation(operations.cancel, "cancel", where=job_store_options)(job_line)
jobs.operation(operations.requeue, "requeue", where=job_store_options)(job_line)


@jobs.command()
@jobs_argument
@request_options(requests.RetryAll)
@json_option
@job_store_options
def retry(job_ids: tuple[str, ...], request: requests.RetryAll, as_json: bool) -> int:
    """Put jobs that ended in error or were cancelled back into their queues.

    Each is pending in its old place, with its history, and may be begun as often as a new one. Of
    several jobs each that can be retried is; exit status 1 if one cannot.
    """
    every = request.status is not None
    if every == bool(job_ids):
        raise click.UsageError("say which jobs, or --status")
    if request.agent_session is not None and not every:
        raise click.UsageError("--queue goes with --status")
    damaged: Damage = []
    refused: list[HoldfastError] = []
    found: list[JobView] = []
    with connected() as hf:
        if every:
            found = operations.retry_all(hf, request, damaged=damaged)
        for job_id in job_ids:
            try:
                found.append(operations.retry(hf, JobKey(job_id=job_id)))
            except (InvalidName, Refused) as error:
                refused.append(error)
    if as_json:
        answer(to_json(found))
    elif found or every:
        answer("\n".join(map(job_line, found)) or f"no job is {request.status}")
    for one in refused:
        remark(one.message)
    return status_of(refused[0]).exit if refused else report_damage(damaged)


@jobs.operation(operations.heartbeat, where=job_store_options)
def heartbeat(_: JobView) -> None:
    """Give a sign of life for a job, so that it does not count as idle.

    Exit status 4 when it is another's by now.
    """


jobs.add_command(run)


@jobs.command()
@click.argument("words", metavar="[JOB EVENT]", nargs=-1)
@click.option("--job", "job_id", hidden=True, help="The job's id.")
@request_options(requests.PublishEvent)
@click.option("--data", metavar="JSON", help="What there is to say, for programs.")
@click.option(
    "--unsent",
    is_flag=True,
    help="Send the events of all jobs that their brokers have not had yet.",
)
@json_option
@job_store_options
def publish(
    request: Callable[..., requests.PublishEvent],
    words: tuple[str, ...],
    job_id: str | None,
    data: str | None,
    unsent: bool,
    as_json: bool,
) -> None:
    """Publish an event of a job, change the job's status to match, and print the event's number.

    EVENT is started, permission_required, progress, completed, error or cancelled. The event is
    kept before it is sent: if the broker is away (exit status 6), it goes out with the next one, or
    with `publish --unsent`. Exit status 2 is also for a job whose topic nothing can be sent to.
    """
    given = words if job_id is None else (job_id, *words)
    if job_id is not None and len(words) == 2:
        raise click.UsageError("say the job once: as JOB or with --job")
    if len(given) != (0 if unsent else 2):
        raise click.UsageError("say JOB and EVENT, or --unsent")
    if unsent:
        new = request(job_id="", event="")
        if new.detail or data is not None or new.token is not None:
            raise click.UsageError(
                "--unsent sends what is stored, and nothing new: leave out --detail, --data and "
                "--token"
            )
        _send_all(as_json)
        return
    content = None if data is None else _decoded(data)
    with connected() as hf:
        publication = request(job_id=given[0], event=given[1], data=content)
        event = operations.keep_event(hf, publication).event
        answer(to_json(event) if as_json else str(event.seq))
        hf.send_events(event)


def _send_all(as_json: bool) -> None:
    with connected() as hf:
        try:
            sent = operations.send(hf).sent
            failed = None
        except InvalidValue as error:
            sent, failed = error.fields.get("sent", 0), error
        line = f"{counted(sent, 'event')} sent"
        answer(to_json(Sent(sent=sent)) if as_json else line)
        if failed is not None:
            raise failed


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="--data") from None


def _number(text: str) -> float:
    # A greater one would arrive as null.
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no JSON number, or too great for one")


jobs.add_command(watch)


@jobs.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--job", "same_id", hidden=True, help="The job's id.")
@request_options(requests.ReadJobLog)
@click.option("--list", "listed", is_flag=True, help="Every job that is logged, with its status.")
@click.option("--rebuild", is_flag=True, help="Write the log again from the journal.")
@json_option
@job_store_options
def logs(
    request: Callable[..., requests.ReadJobLog],
    job_id: str | None,
    same_id: str | None,
    listed: bool,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Show the audit log of a job: what happened to it, as plain files that survive the registry.

    DELEGATE_JOB_LOGS_DIR, or jobs.logs in holdfast.toml, says where it lies; otherwise it is beside
    the store.
    """
    if job_id is not None and same_id is not None:
        raise click.UsageError("say the job once: as JOB or with --job")
    job_id = same_id if job_id is None else job_id
    if [job_id is not None, listed, rebuild].count(True) != 1:
        raise click.UsageError("say one of: a JOB, --list, --rebuild")
    if job_id is None and request(job_id="").tail is not None:
        raise click.UsageError("--tail is for the log of one JOB")
    with connected(create=False) as hf:
        if job_id is not None:
            for line in operations.log(hf, request(job_id=job_id)):
                text = printable(_log_line(line).replace("\n", " "))
                click.echo(to_json(line) if as_json else text)
        elif hf.job_log is None:
            raise operations.no_log()
        elif rebuild:
            number = hf.job_log.rebuild(hf.log, hf.jobs.peek)
            folder = printable(str(hf.job_log.folder))
            words = f"the log of {counted(number, 'job')} is written again: {folder}"
            answer(to_json({"jobs": number, "folder": folder}) if as_json else words)
        else:
            hf.catch_up(wait=True)
            unknown = {"status": "unknown"}
            found = [(one, hf.job_log.status(one)) for one in hf.job_log.jobs()]
            _show_logged([status or {"job_id": one, **unknown} for one, status in found], as_json)


def _show_logged(logged: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        json_document(logged)
        return
    rows = [[one["job_id"], one["status"], str(one.get("updated_at", "-"))] for one in logged]
    table(["job", "status", "since"], rows, empty="No job is logged yet.")


def _log_line(line: dict[str, Any]) -> str:
    """One line of a log for people. Another program's lines may lack what ours have."""

    def if_there(words: str, name: str) -> str:
        return "" if line.get(name) is None else f"{words} {line[name]}"

    payload = line.get("payload")
    if isinstance(payload, dict):
        what = f"{payload.get('event')} #{payload.get('seq')} {payload.get('detail') or ''}"
    elif line.get("event") == "status_changed":
        why = f" ({line['why']})" if line.get("why") else ""
        what = f"{line.get('from')} -> {line.get('to')}{why}" + if_there(", attempt", "attempt")
    elif line.get("event") == "late_result":
        what = f"{line.get('wanted')} came too late" + if_there(", attempt", "attempt")
    elif line.get("event") == "removed":
        what = f"from the registry, {line.get('status')}"
    else:
        what = if_there("for", "agent_session")
    at, event = line.get("timestamp") or "-", line.get("event") or "?"
    return f"{at!s:<27}  {event!s:<15} {what.strip()}{if_there('  by', 'actor')}".rstrip()


@jobs.operation(operations.reap, where=job_store_options)
def reap(reaped: list[JobView]) -> str:
    """Put back the jobs of dead workers, and end those past their time limits.

    Every pick, list, get and watch does so too.
    """
    return "\n".join(map(job_line, reaped)) or "nothing to reap"


@jobs.operation(operations.prune, where=job_store_options)
def prune(done: Pruned) -> str:
    return f"{counted(done.removed, 'job')} removed"
