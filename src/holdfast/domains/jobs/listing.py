"""Jobs in the order they arrived, read from the newest on and no further than asked for."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from holdfast.domains.jobs.record import JOBS, Job, JobStatus
from holdfast.kernel.limits import JOBS_PAGE
from holdfast.kernel.store import Damage, ReadTx


def newest(tx: ReadTx, *, status: JobStatus | None, agent_session: str | None, limit: int, damaged: Damage | None) -> list[Job]:
    """The newest `limit` jobs that match, oldest first. Reads the index of each status in pages, and stops when it has them."""
    streams = [_backwards(tx, one, damaged) for one in ([status] if status else JobStatus)]
    matching = (
        job
        for job in merge(*streams, key=lambda job: (job.arrival, job.job_id), reverse=True)
        if agent_session in (None, job.agent_session)
    )
    return list(islice(matching, limit))[::-1]


def oldest_ended(tx: ReadTx, limit: int) -> list[Job]:
    """The oldest jobs that have ended, by arrival."""
    damaged: Damage = []
    streams = [
        (row.record for row in tx.find(JOBS, "listed", (status.value,), limit=limit, damaged=damaged))
        for status in JobStatus
        if status.ended
    ]
    return list(islice(merge(*streams, key=lambda job: (job.arrival, job.job_id)), limit))


def _backwards(tx: ReadTx, status: JobStatus, damaged: Damage | None) -> Iterator[Job]:
    """The jobs of a status, newest first. Jobs of one arrival come in the order of their ids; a page ends with whole ones."""
    stop: tuple[int, ...] | None = None
    size = JOBS_PAGE
    while True:
        bad: Damage | None = None if damaged is None else []
        page = [
            row.record for row in tx.find(JOBS, "listed", (status.value,), stop=stop, reverse=True, limit=size, damaged=bad)
        ]
        _tell(damaged, bad)
        full = len(page) + len(bad or ()) == size
        last = page[-1].arrival if page else 0
        whole = [job for job in page if job.arrival != last] if full else page
        if full and not whole:
            # More jobs of one arrival than a page holds, as of a folder that another program filled within a second.
            size *= 2
            continue
        yield from whole
        if not full:
            return
        stop, size = (last + 1,), JOBS_PAGE


def _tell(damaged: Damage | None, bad: Damage | None) -> None:
    """Once for each, however often a page is read."""
    if damaged is not None and bad:
        known = {error.fields.get("key") for error in damaged}
        damaged += [error for error in bad if error.fields.get("key") not in known]
