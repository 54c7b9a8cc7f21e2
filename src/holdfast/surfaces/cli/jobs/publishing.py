"""`holdfast jobs publish`."""

import json
import math
from typing import Any, NoReturn

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.jobs import Sent, sent
from holdfast.surfaces.cli.jobs.options import (
    changing,
    job_argument,
    json_option,
    token_option,
    where_options,
)
from holdfast.surfaces.cli.output import answer


@click.command()
@job_argument("[JOB", before="event")
@click.argument("event", metavar="EVENT]", required=False)
@click.option("--detail", default="", help="What there is to say, for people.")
@click.option("--data", metavar="JSON", help="What there is to say, for programs.")
@token_option
@click.option(
    "--unsent",
    is_flag=True,
    help="Send the events of all jobs that their brokers have not had yet.",
)
@json_option
@where_options
def publish(
    job_id: str | None,
    event: str | None,
    detail: str,
    data: str | None,
    token: int | None,
    unsent: bool,
    as_json: bool,
) -> None:
    """Publish an event of a job, and move the job accordingly; print the event's number.

    EVENT is started, permission_required, progress, completed, error or cancelled. The event is
    kept before it is sent: if the broker is away (exit status 6), it goes out with the next one, or
    with `publish --unsent`. Exit status 2 is also for a job whose topic nothing can be sent to.
    """
    if unsent == (job_id is not None) or (job_id is not None and event is None):
        raise click.UsageError("say JOB and EVENT, or --unsent")
    if unsent and (detail or data is not None or token is not None):
        raise click.UsageError(
            "--unsent sends what is kept, and tells nothing new: leave out --detail, --data and "
            "--token"
        )
    content = None if data is None else _decoded(data)
    with changing() as hf:
        if job_id is None or event is None:
            _send_all(hf, as_json)
            return
        published = hf.job_events.publish(job_id, event, detail=detail, data=content, token=token)
        answer(to_json(published.event) if as_json else str(published.event.seq))
        sent(hf, published.event)


def _send_all(hf: Holdfast, as_json: bool) -> None:
    try:
        number = sent(hf)
    except InvalidValue as error:
        answer(_sent(error.fields.get("sent", 0), as_json))
        raise
    answer(_sent(number, as_json))


def _sent(number: int, as_json: bool) -> str | bytes:
    return to_json(Sent(sent=number)) if as_json else f"{counted(number, 'event')} sent"


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="--data") from None


def _number(text: str) -> float:
    # Of a greater one nothing but null would arrive.
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no JSON number, or too great for one")
