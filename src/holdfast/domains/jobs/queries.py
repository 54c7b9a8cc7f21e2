"""Jobs in the order they arrived, read from the newest on and no further than needed.

No index has all jobs: it would be written three times in a job's life. Pending jobs are indexed by
label and priority, ended jobs by group; within each of these the order is that of arrival. So a
list merges a few streams, each read backwards in pages.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

from holdfast.domains.jobs.draft import has_room
from holdfast.domains.jobs.records import JOBS, Job, JobStatus, ended_group
from holdfast.kernel.limits import JOBS_PAGE
from holdfast.kernel.order import Parts
from holdfast.kernel.store import Damage, ReadTx

_LAST = (1 << 63) - 1
"""The lowest of all priorities, as the index has it."""

_FIRST_PAGE = 4
"""How many jobs each stream reads at first: there may be a stream for each of many queues."""

Arrival = tuple[int, str]
"""The place of a job among all: its arrival, then its id."""


def place_of(job: Job) -> Arrival:
    return (job.arrival, job.job_id)


def newest(
    tx: ReadTx,
    *,
    status: JobStatus | None,
    agent_session: str | None,
    limit: int,
    damaged: Damage | None,
    before: Arrival | None = None,
) -> list[Job]:
    """The newest `limit` jobs that match, of those before a place, oldest first."""
    streams: list[Iterator[Job]] = []
    stop = None if before is None else (before[0] + 1,)
    for one in [status] if status else JobStatus:
        if one is JobStatus.PENDING:
            label = () if agent_session is None else (agent_session,)
            streams += _pending(tx, label, damaged, stop)
        elif one is JobStatus.RUNNING:
            streams.append(_sorted(tx, "running", (), damaged))
        else:
            groups = (ended_group(one, adopted=False), ended_group(one, adopted=True))
            streams += [_backwards(tx, "ended", (group,), damaged, stop) for group in groups]
    matching = (
        job
        for job in merge(*streams, key=place_of, reverse=True)
        if agent_session in (None, job.agent_session) and (before is None or place_of(job) < before)
    )
    return list(islice(matching, limit))[::-1]


def counts(tx: ReadTx) -> dict[JobStatus, int]:
    """How many jobs have each status. Each job is in one index, so none of them is read."""
    found = {
        JobStatus.PENDING: tx.count(JOBS, "turn"),
        JobStatus.RUNNING: tx.count(JOBS, "running"),
    }
    for status in JobStatus:
        if status.ended:
            groups = (ended_group(status, adopted=adopted) for adopted in (False, True))
            found[status] = sum(tx.count(JOBS, "ended", (group,)) for group in groups)
    return found


def oldest_ended(tx: ReadTx, groups: Sequence[str], limit: int) -> list[Job]:
    """The oldest jobs of these groups that have ended, by arrival."""
    damaged: Damage = []
    streams = [
        (row.record for row in tx.find(JOBS, "ended", (group,), limit=limit, damaged=damaged))
        for group in groups
    ]
    return list(islice(merge(*streams, key=place_of), limit))


def pending_without_room(tx: ReadTx, damaged: Damage) -> list[Job]:
    """Return the pending jobs whose record has no room for a claim, in queue order. Damaged records
    go into `damaged`.
    """
    found: list[Job] = []
    seen: set[str] = set()
    start: Parts | None = None
    size = JOBS_PAGE
    while True:
        bad: Damage = []
        page = [row.record for row in tx.find(JOBS, "turn", start=start, limit=size, damaged=bad)]
        _add_damage(damaged, bad)
        found += [job for job in page if job.job_id not in seen and not has_room(job)]
        if len(page) + len(bad) < size:
            return found
        following = start
        if page:
            following = (page[-1].agent_session, -page[-1].priority, page[-1].arrival)
        # A place may have more jobs than a page holds, and a page may be all damaged.
        size = 2 * size if following == start else JOBS_PAGE
        seen, start = {job.job_id for job in page}, following


def _pending(
    tx: ReadTx, match: Parts, damaged: Damage | None, stop: Parts | None
) -> list[Iterator[Job]]:
    """A stream for each label and priority that pending jobs have."""
    groups: list[Parts] = []
    start: Parts | None = None
    while True:
        bad: Damage = []
        found = tx.find(JOBS, "turn", match, start=start, limit=1, damaged=bad)
        if not bad and not found:
            return [_backwards(tx, "turn", group, damaged, stop) for group in groups]
        # The group of a damaged job is unknown, and behind the lowest priority the index has no
        # place to go on from. In both cases all jobs are read and sorted.
        if bad or -found[0].record.priority == _LAST:
            return [_sorted(tx, "turn", match, damaged)]
        group = (found[0].record.agent_session, -found[0].record.priority)
        groups.append(group)
        start = (group[0], group[1] + 1)[len(match) :]


def _sorted(tx: ReadTx, index: str, match: Parts, damaged: Damage | None) -> Iterator[Job]:
    bad: Damage | None = None if damaged is None else []
    found = [row.record for row in tx.find(JOBS, index, match, damaged=bad)]
    _add_damage(damaged, bad)
    return iter(sorted(found, key=place_of, reverse=True))


def _backwards(
    tx: ReadTx, index: str, match: Parts, damaged: Damage | None, stop: Parts | None = None
) -> Iterator[Job]:
    """Jobs whose place behind `match` is their arrival, newest first. A page ends with whole
    arrivals.
    """
    size = _FIRST_PAGE
    while True:
        bad: Damage | None = None if damaged is None else []
        found = tx.find(JOBS, index, match, stop=stop, reverse=True, limit=size, damaged=bad)
        _add_damage(damaged, bad)
        page = [row.record for row in found]
        full = len(page) + len(bad or ()) == size
        last = page[-1].arrival if page else 0
        whole = [job for job in page if job.arrival != last] if full else page
        if full and not whole:
            # One arrival has more jobs than a page holds: another program filled the folder within
            # a second.
            size *= 2
            continue
        yield from whole
        if not full:
            return
        stop, size = (last + 1,), min(4 * size, JOBS_PAGE)


def _add_damage(damaged: Damage | None, bad: Damage | None) -> None:
    """Add each damaged record once, although a page may be read again."""
    if damaged is not None and bad:
        known = {error.fields.get("key") for error in damaged}
        damaged += [error for error in bad if error.fields.get("key") not in known]
