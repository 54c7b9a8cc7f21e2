"""What several commands of jobs ask for, and keeping the audit log up to date."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.record import shown
from holdfast.kernel.codec import to_json
from holdfast.surfaces.answers.jobs import logged
from holdfast.surfaces.cli.connection import connected, registry_option, store_options
from holdfast.surfaces.cli.output import remark

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = [status.value for status in JobStatus]
_TROUBLES: set[str] = set()
"""What went wrong with the audit log when it was last brought up to date: a worker does so after each job."""

job_option = click.option("--job", "job_id", required=True, metavar="ID", help="The job's id.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
token_option = click.option("--token", type=int, help="The attempt's token: refused (exit 4) when another attempt has begun.")


def where_options(command: F) -> F:
    """Add --store, --namespace and --registry-dir to a command."""
    return store_options(registry_option(command))


@contextmanager
def changing() -> Iterator[Holdfast]:
    """A connection for a command that changes something; what it changed is in the audit log when it ends."""
    with connected() as hf:
        try:
            yield hf
        finally:
            mirror(hf)


def mirror(hf: Holdfast, *, wait: bool = False) -> None:
    """Bring the audit log up to date; what goes wrong with it is a remark, made once until it goes well, and breaks nothing."""
    trouble = logged(hf, wait=wait)
    if trouble is None:
        _TROUBLES.clear()
    elif trouble not in _TROUBLES:
        _TROUBLES.add(trouble)
        remark(f"{trouble}. The job itself is not affected; `holdfast jobs logs --rebuild` writes the log again")


def as_json_line(job: Job) -> bytes:
    """A job on one line, without its secrets."""
    return to_json(shown(job))
