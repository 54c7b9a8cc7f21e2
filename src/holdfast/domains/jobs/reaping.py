"""Ending what nobody works on: running jobs whose worker died, or whose time is over.

A job whose recorded process is dead goes back to pending, up to its number of attempts, and then ends in error. One past its
time limit, or without a sign for too long, ends in error. A claim without a recorded process is ended by its limits alone.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from holdfast.domains.jobs import steps
from holdfast.domains.jobs.record import JOBS, Job, JobStatus, due_at
from holdfast.domains.jobs.writing import write
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.limits import JOBS_SWEEP_EVERY_S, JOBS_SWEPT_MAX, JOBS_WATCHED_MAX
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal

TIMED_OUT = "timed_out"
WORKER_DIED = "worker_died"


class Sweep(NamedTuple):
    """What a look at the running jobs came to: those that were ended or put back, and the processes that others have."""

    reaped: list[Job]
    alive: list[Holder]


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
        """Look at the running jobs and reap what must be."""
        self._next_s = time.monotonic() + JOBS_SWEEP_EVERY_S
        suspects, running, liveness = self._looked()
        alive = [job.claimed_by for job in running if job.claimed_by and liveness[job.job_id] is Liveness.ALIVE]
        return Sweep(self._reap(suspects) if suspects else [], alive)

    def due(self) -> list[Job]:
        """The running jobs that the next sweep would reap. Changes nothing."""
        return self._looked()[0]

    def _looked(self) -> tuple[list[Job], list[Job], dict[str, Liveness]]:
        """Those to be reaped, all that run, and what is known of the workers of these."""
        now, running = self._store.read(_running, scope=[JOBS])
        liveness = {job.job_id: self._liveness(job) for job in running}
        return [job for job in running if _verdict(job, liveness[job.job_id], now) is not None], running, liveness

    @contextmanager
    def watching(self, holders: Sequence[Holder]) -> Iterator[list[int]]:
        """Descriptors of which one becomes readable when one of these processes dies, for the block."""
        import os

        fds = [fd for holder in holders[:JOBS_WATCHED_MAX] if (fd := self._processes.death(holder)) is not None]
        try:
            yield fds
        finally:
            for fd in fds:
                os.close(fd)

    def _liveness(self, job: Job) -> Liveness:
        if job.claimed_by is None:
            return Liveness.UNKNOWN
        return probe(job.claimed_by, self._processes, embedded=self._store.embedded)

    def _reap(self, suspects: Sequence[Job]) -> list[Job]:
        # In the order of their keys, as everybody who latches several records does.
        dead = {job.job_id: job for job in sorted(suspects, key=lambda job: job.job_id)}

        def body(tx: Tx) -> list[Job]:
            reaped = []
            for job_id, seen in dead.items():
                row = tx.get(JOBS, job_id)
                if row is None or row.record.token != seen.token or row.record.status is not JobStatus.RUNNING:
                    continue
                after = _verdict(row.record, self._liveness(seen), tx.now)
                if after is not None:
                    write(tx, self._journal, row.record, after, told={"why": after.error_code or WORKER_DIED})
                    reaped.append(after)
            return reaped

        return self._store.transact(body, scope=[rows(JOBS)])


def _running(tx: ReadTx) -> tuple[datetime, list[Job]]:
    damaged: Damage = []
    return tx.now, [row.record for row in tx.find(JOBS, "running", limit=JOBS_SWEPT_MAX, damaged=damaged)]


def _verdict(job: Job, liveness: Liveness, now: datetime) -> Job | None:
    """What becomes of a running job; None when it goes on."""
    if liveness is Liveness.DEAD:
        if job.attempt < job.max_attempts:
            return steps.put_back(job, now)
        tried = f"{job.attempt} attempt" + ("s" if job.attempt != 1 else "")
        return _failed(job, now, WORKER_DIED, f"its worker died, and {tried} were made of {job.max_attempts}")
    due = due_at(job)
    if due is None or now <= due:
        return None
    begun = job.started_at or job.updated_at
    if (now - begun).total_seconds() > job.timeout_sec:
        return _failed(job, now, TIMED_OUT, f"no verdict came within {job.timeout_sec:g} s")
    return _failed(job, now, TIMED_OUT, f"no sign of it came for {job.idle_timeout_sec:g} s")


def _failed(job: Job, now: datetime, code: str, why: str) -> Job:
    return steps.ended(job, JobStatus.ERROR, now, error=why, error_code=code)
