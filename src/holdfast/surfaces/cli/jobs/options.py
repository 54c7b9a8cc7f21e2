"""What several commands of jobs ask for, and keeping the audit log up to date."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import click

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import shown
from holdfast.kernel.codec import to_json
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.jobs import logged
from holdfast.surfaces.cli.connection import connected, registry_option, store_options
from holdfast.surfaces.cli.output import remark

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = [status.value for status in JobStatus]
_TROUBLES: set[str] = set()
"""What went wrong with the audit log when it was last brought up to date: a worker does so after
each job.
"""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
token_option = click.option(
    "--token",
    type=int,
    help="The attempt's token: refused (exit status 4) when another attempt has begun.",
)


class _Unshown(click.Argument):
    """An argument that help does not speak of, since an option says the same."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def job_option(command: F) -> F:
    """Let a command ask for a job with --job; JOB alone does as well, and is not spoken of."""
    named = click.argument("job_id", cls=_Unshown, required=False)
    said = click.option("--job", "said", metavar="ID", help="The job's id.  [required]")
    return said(named(_either(command, required=True)))


def job_argument(metavar: str, *, before: str | None = None) -> Callable[[F], F]:
    """Let a command take a JOB as it is; --job does as well, and is not spoken of. `before` is the
    argument behind it.
    """
    named = click.argument("job_id", metavar=metavar, required=False)
    said = click.option("--job", "said", hidden=True, help="The job's id.")
    return lambda command: said(named(_either(command, before=before)))


def jobs_argument(command: F) -> F:
    """Let a command take some JOBs in the same way."""
    named = click.argument("job_ids", metavar="JOB...", nargs=-1)

    @wraps(command)
    def run(job_ids: tuple[str, ...], said: tuple[str, ...], **more: Any) -> Any:
        return command(job_ids=(*job_ids, *said), **more)

    return cast(
        "F",
        click.option("--job", "said", multiple=True, hidden=True, help="A job's id.")(named(run)),
    )


def _either(command: F, *, required: bool = False, before: str | None = None) -> F:
    """The command, which gets one job whichever way it was said."""

    @wraps(command)
    def run(job_id: str | None, said: str | None, **more: Any) -> Any:
        if said is not None and job_id is not None:
            if before is None or more[before] is not None:
                raise click.UsageError("say the job once: as JOB or with --job")
            more[before], job_id = job_id, None
        if required and said is None and job_id is None:
            raise click.MissingParameter(param_hint="'--job'", param_type="option")
        return command(job_id=job_id if said is None else said, **more)

    return cast("F", run)


def where_options(command: F) -> F:
    """Add --store, --namespace and --registry-dir to a command."""
    return store_options(registry_option(command))


@contextmanager
def changing() -> Iterator[Holdfast]:
    """A connection for a command that changes something; what it changed is in the audit log when
    it ends.
    """
    with connected() as hf:
        try:
            yield hf
        finally:
            mirror(hf)


def mirror(hf: Holdfast, *, wait: bool = False) -> None:
    """Bring the audit log up to date; what goes wrong with it is a remark, made once until it goes
    well, and breaks nothing.
    """
    trouble = logged(hf, wait=wait)
    if trouble is None:
        _TROUBLES.clear()
    elif trouble not in _TROUBLES:
        _TROUBLES.add(trouble)
        remark(
            f"{trouble}. The job itself is not affected; `holdfast jobs logs --rebuild` writes "
            "the log again"
        )


def as_json_line(job: Job) -> bytes:
    """A job on one line, without its secrets."""
    return to_json(shown(job))
