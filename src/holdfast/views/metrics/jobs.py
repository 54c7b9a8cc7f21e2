"""Jobs by status, and events that wait for a broker."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.domains.jobs import JobStatus
from holdfast.views.metrics.text import gauge, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric


def of_jobs(counts: Mapping[JobStatus, int], unsent: int, *, sendable: bool) -> "Iterator[Metric]":
    """The samples of jobs."""
    numbers = (([status.value], float(number)) for status, number in counts.items())
    yield gauges("holdfast_jobs", "Jobs that are kept, by status.", ["status"], numbers)
    yield gauge("holdfast_job_events_unsent", "Events of jobs that wait for a message broker.", unsent)
    yield gauge("holdfast_job_events_sendable", "Whether anybody chose a broker for those.", sendable)
