"""`holdfast jobs register`."""

import os
from typing import Any

import click

from holdfast.domains.jobs import Broker
from holdfast.domains.jobs.records import (
    ATTEMPTS_MAX,
    FOLDER_LIMITS,
    HOST,
    PASSWORD_ENV,
    PORT,
    TLS_PORT,
)
from holdfast.surfaces.cli.jobs.options import F, as_json_line, changing, json_option, where_options
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.text_input import STDIN, read_file, read_stdin

_OPTIONS = (
    click.option(
        "--prompt", metavar="TEXT", help="What is to be done; - reads it from standard input."
    ),
    click.option(
        "--prompt-file",
        metavar="FILE",
        help="Read the prompt from a file, as one of more than 128 kB.",
    ),
    click.option(
        "--agent", default="agent", show_default=True, help="The kind of agent it is for."
    ),
    click.option(
        "--agent-session",
        required=True,
        metavar="LABEL",
        help="Whose queue it joins, such as tmux:claude-a.",
    ),
    click.option(
        "--timeout",
        "timeout_sec",
        metavar="SECONDS",
        type=float,
        help="Seconds one attempt may take; then it ends in error.  [default: 86400, a day; "
        f"{FOLDER_LIMITS.timeout_sec:g} with --registry-dir]",
    ),
    click.option(
        "--idle-timeout",
        "idle_timeout_sec",
        metavar="SECONDS",
        type=float,
        help="Seconds it may be without a sign of life; then it ends in error.  [default: no limit; "
        f"{FOLDER_LIMITS.idle_timeout_sec:g} with --registry-dir]",
    ),
    click.option(
        "--artifact",
        "expected_artifacts",
        multiple=True,
        metavar="PATH",
        help=(
            "A file the work must leave, in its working folder; repeatable. `jobs run` looks for "
            "it."
        ),
    ),
    click.option(
        "--workdir",
        metavar="FOLDER",
        help="Where `jobs run` runs its command.  [default: where it runs itself]",
    ),
    click.option(
        "--priority",
        type=click.IntRange(-1000, 1000),
        default=0,
        show_default=True,
        help="Higher goes first.",
    ),
    click.option(
        "--max-attempts",
        type=int,
        default=ATTEMPTS_MAX,
        show_default=True,
        help="How many attempts may end by the worker's death.",
    ),
    click.option("--id", "job_id", metavar="ID", help="An id of your own instead of a random one."),
    click.option(
        "--unsigned",
        is_flag=True,
        help="Give it no key: its events prove nothing, and are not believed.",
    ),
)
_BROKER_OPTIONS = (
    click.option(
        "--broker",
        "host",
        default=HOST,
        show_default=True,
        metavar="HOST",
        help="The MQTT broker of its events.",
    ),
    click.option(
        "--broker-port",
        "port",
        type=int,
        help=f"The broker's port.  [default: {PORT}; {TLS_PORT} with TLS]",
    ),
    click.option("--broker-tls", "tls", is_flag=True, help="Use TLS to the broker."),
    click.option(
        "--broker-username",
        "username",
        metavar="NAME",
        help="The name to log in to the broker with.",
    ),
    click.option(
        "--broker-password-env",
        "password_env",
        default=PASSWORD_ENV,
        show_default=True,
        metavar="VARIABLE",
        help="The variable that holds the password, which is not stored.",
    ),
    click.option(
        "--topic-prefix",
        metavar="TOPIC",
        help="Its events go to TOPIC/events.  [default: holdfast/jobs/ID]",
    ),
)


def _asked(command: F) -> F:
    """Add what is asked about a job, in the order in which the help shows it."""
    for option in reversed((*_OPTIONS, *_BROKER_OPTIONS)):
        command = option(command)
    return command


@click.command()
@_asked
@json_option
@where_options
def register(as_json: bool, **said: Any) -> None:
    """Register work and print its id. Its prompt is --prompt, or in --prompt-file."""
    prompt = _prompt(said.pop("prompt"), said.pop("prompt_file"))
    broker = {name: said.pop(name) for name in ("host", "port", "tls", "username", "password_env")}
    if broker["port"] is None:
        broker["port"] = TLS_PORT if broker["tls"] else PORT
    if said["workdir"] is not None:
        # The worker may run anywhere.
        said["workdir"] = os.path.abspath(said["workdir"])
    with changing() as hf:
        job = hf.jobs.register_job(
            prompt, signed=not said.pop("unsigned"), broker=Broker(**broker), **said
        )
    answer(as_json_line(job) if as_json else job.job_id)


def _prompt(text: str | None, path: str | None) -> str:
    if (text is None) == (path is None):
        raise click.UsageError("say what is to be done, with one of --prompt and --prompt-file")
    if path is not None:
        return read_file(path, "prompt")
    return read_stdin("prompt") if text == STDIN else str(text)
