"""Ending what nobody works on: running jobs whose worker died, or whose time is over.

A job whose recorded process is dead goes back to pending until as many workers died as it may have attempts, and then ends in
error; attempts that were given back do not count. One past its time limit, or without a sign for too long, ends in error. A
claim without a recorded process is ended by its limits alone.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.domains.jobs import steps
from holdfast.domains.jobs.record import JOBS, Job, JobStatus, due_at, due_place
from holdfast.domains.jobs.writing import write
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.limits import JOBS_SWEEP_EVERY_S, JOBS_SWEPT_MAX, JOBS_WATCHED_MAX
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Store, Tx
from holdfast.kernel.wording import counted
from holdfast.primitives.journal import Journal

TIMED_OUT = "timed_out"
WORKER_DIED = "worker_died"


class Sweep(NamedTuple):
    """What a look at the running jobs came to: those that were ended or put back, and the processes that others have."""

    reaped: list[Job]
    alive: list[Holder]


class Watched(NamedTuple):
    """Processes that are watched: descriptors of which one becomes readable when one of them dies, and whether one had died
    before it could be watched."""

    fds: list[int]
    died: bool


class Reaper:
    """Reaps the jobs of one store."""

    def __init__(self, store: Store, journal: Journal, processes: Processes) -> None:
        self._store = store
        self._journal = journal
        self._processes = processes
        self._next_s = 0.0

    def sweep_if_due(self) -> bool:
        """Sweep, unless this process did so a moment ago; say whether it did. A busy worker need not look at every pick."""
        if time.monotonic() < self._next_s:
            return False
        self.sweep()
        return True

    def sweep(self) -> Sweep:
        """Look at the running jobs, page by page, and reap what must be."""
        self._next_s = time.monotonic() + JOBS_SWEEP_EVERY_S
        reaped: list[Job] = []
        alive: list[Holder] = []
        for page in self._pages():
            suspects, liveness = self._looked(page)
            reaped += self._reap(suspects, liveness) if suspects else []
            alive += [job.claimed_by for job in page.jobs if job.claimed_by and liveness[job.job_id] is Liveness.ALIVE]
        return Sweep(reaped, alive)

    def due(self) -> list[Job]:
        """The running jobs that the next sweep would reap. Changes nothing."""
        return [job for page in self._pages() for job in self._looked(page)[0]]

    def _pages(self) -> "Iterator[_Page]":
        """The running jobs, as they are when their page is asked for."""
        start: Parts | None = ()
        size = JOBS_SWEPT_MAX
        while start is not None:
            page = self._store.read(partial(_running, start=start, limit=size), scope=[JOBS])
            # More of one moment than a page holds would be looked at for ever.
            size = 2 * size if page.following == start else JOBS_SWEPT_MAX
            start = page.following
            yield page

    def _looked(self, page: "_Page") -> tuple[list[Job], dict[str, Liveness]]:
        """Those of a page that must be reaped, and what is known of the workers of all."""
        liveness = {job.job_id: self._liveness(job) for job in page.jobs}
        return [job for job in page.jobs if _verdict(job, liveness[job.job_id], page.now) is not None], liveness

    @contextmanager
    def watching(self, holders: Sequence[Holder]) -> Iterator[Watched]:
        """Watch processes that were alive a moment ago, for the block."""
        import os

        watched = holders[:JOBS_WATCHED_MAX]
        fds = [self._processes.death(holder) for holder in watched]
        # Whoever cannot be watched may have died since: nothing would tell of that any more.
        unwatched = [holder for holder, fd in zip(watched, fds, strict=True) if fd is None]
        died = any(self._probe(holder) is Liveness.DEAD for holder in unwatched)
        try:
            yield Watched([fd for fd in fds if fd is not None], died)
        finally:
            for fd in fds:
                if fd is not None:
                    os.close(fd)

    def _liveness(self, job: Job) -> Liveness:
        return Liveness.UNKNOWN if job.claimed_by is None else self._probe(job.claimed_by)

    def _probe(self, holder: Holder) -> Liveness:
        return probe(holder, self._processes, embedded=self._store.embedded)

    def _reap(self, suspects: Sequence[Job], liveness: Mapping[str, Liveness]) -> list[Job]:
        # In the order of their keys, as everybody who latches several records does.
        dead = {job.job_id: job for job in sorted(suspects, key=lambda job: job.job_id)}

        def body(tx: Tx) -> list[Job]:
            reaped = []
            for job_id, seen in dead.items():
                row = tx.get(JOBS, job_id)
                if row is None or row.record.token != seen.token or row.record.status is not JobStatus.RUNNING:
                    continue
                after = _verdict(row.record, liveness[job_id], tx.now)
                if after is not None:
                    write(tx, self._journal, row.record, after, told={"why": after.error_code or WORKER_DIED})
                    reaped.append(after)
            return reaped

        return self._store.transact(body, scope=[rows(JOBS)])


class _Page(NamedTuple):
    """Some running jobs, and where to go on; None when these were the last."""

    now: datetime
    jobs: list[Job]
    following: Parts | None


def _running(tx: ReadTx, *, start: Parts, limit: int) -> _Page:
    damaged: Damage = []
    jobs = [row.record for row in tx.find(JOBS, "running", start=start or None, limit=limit, damaged=damaged)]
    last = due_place(jobs[-1]) if jobs else start
    return _Page(tx.now, jobs, last if len(jobs) + len(damaged) == limit else None)


def _verdict(job: Job, liveness: Liveness, now: datetime) -> Job | None:
    """What becomes of a running job; None when it goes on."""
    if liveness is Liveness.DEAD:
        return _bereft(job, now)
    due = due_at(job)
    if due is None or now <= due:
        return None
    begun = job.started_at or job.updated_at
    if (now - begun).total_seconds() > job.timeout_sec:
        return _failed(job, now, TIMED_OUT, f"no verdict came within {job.timeout_sec:g} s")
    return _failed(job, now, TIMED_OUT, f"no sign of it came for {job.idle_timeout_sec:g} s")


def _bereft(job: Job, now: datetime) -> Job:
    deaths = job.deaths + 1
    if deaths < job.max_attempts:
        return steps.put_back(job, now, deaths=1)
    ended = _failed(
        job,
        now,
        WORKER_DIED,
        f"its worker died: {counted(deaths, 'attempt')} ended so, and no more than {job.max_attempts} may",
    )
    return replace(ended, deaths=deaths)


def _failed(job: Job, now: datetime, code: str, why: str) -> Job:
    return steps.ended(job, JobStatus.ERROR, now, error=why, error_code=code)
