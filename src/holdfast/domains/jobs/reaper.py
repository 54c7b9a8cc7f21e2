"""The reaper: ends or puts back running jobs whose worker died or whose time is over.

- A job whose worker died is pending again. After `max_attempts` deaths it ends in error; attempts
  that were given back do not count.
- A worker is dead if its recorded process is. Where that cannot be seen, as on another machine, it
  is dead if it gave no sign of life for its lease.
- A job past its time limit or its idle limit ends in error. Only these limits end a claim without a
  recorded process.
- A dead worker may leave processes of its command. Its job is put back when the last of them is
  gone. The reaper ends them as `leftovers` does, outside of transactions. Their end wakes a waiting
  pick, and so does the end of the grace.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.leftovers import Leftovers
from holdfast.domains.jobs.records import (
    JOBS,
    TIMED_OUT,
    WORKER_DIED,
    Job,
    JobStatus,
    due_at,
    due_place,
    last_sign,
    lease_ends_at,
    moment,
)
from holdfast.kernel.clock import render
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder, Liveness, Processes, attempt_tree, probe, visible_prefix
from holdfast.kernel.limits import (
    JOBS_OF_WORKERS_READ,
    JOBS_SWEEP_EVERY_S,
    JOBS_SWEPT_MAX,
    JOBS_WATCHED_MAX,
    RETENTION_JUMP_IGNORED_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.order import Parts
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock


class Sweep(Struct, frozen=True):
    """The running jobs that were ended or put back, the live processes whose death would change the
    others, and after how many seconds to check a tree that was asked to end.
    """

    reaped: list[Job]
    alive: list[Holder]
    again_s: float | None = None


class Watched(Struct, frozen=True):
    """Processes that are watched: a descriptor becomes readable when one of them dies. `died` is
    true if one had died before it could be watched.
    """

    fds: list[int]
    died: bool


class _Worker(Struct, frozen=True):
    """What is known of a worker: whether it lives, whose death changes that, whether it is dead and
    its tree is being ended, and after how many seconds to check that tree.
    """

    liveness: Liveness
    watched: Holder
    ending: bool = False
    again_s: float | None = None


_NO_PROCESS = _Worker(
    Liveness.UNKNOWN, Holder(host_id="", boot_id="", pid_ns=0, pid=0, start_ticks=0)
)

ProbedWorkers = dict[Holder, _Worker]
"""Each worker is probed once in a sweep."""


class Reaper:
    """Reaps the jobs of one store."""

    def __init__(
        self, store: Store, journal: Journal, processes: Processes, leftovers: Leftovers
    ) -> None:
        self._store = store
        self._journal = journal
        self._processes = processes
        self._leftovers = leftovers
        self._steady = steady_clock(store)
        self._next_s = 0.0

    def sweep_if_due(self) -> bool:
        """Sweep, unless this process did so a moment ago; return whether it did."""
        if time.monotonic() < self._next_s:
            return False
        self.sweep()
        return True

    def sweep(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> Sweep:
        """Find running jobs that must be reaped, and reap them in steps of about JOBS_SWEPT_MAX,
        each within `timeout_s`. Reads the overdue jobs, all jobs of dead processes, and only a few
        of each live process, which may have many.
        """
        self._next_s = time.monotonic() + JOBS_SWEEP_EVERY_S
        known: ProbedWorkers = {}
        found: dict[str, Job] = {}
        reaped: list[Job] = []
        # Not page by page: the jobs of one worker may begin on one page and end on the next. If
        # they came back in two steps, other workers would pick them out of order in between.
        for suspects in self._suspects(known):
            found |= {job.job_id: job for job in suspects}
            if len(found) >= JOBS_SWEPT_MAX:
                reaped += self._reap(found, known, timeout_s)
                found.clear()
        if found:
            reaped += self._reap(found, known, timeout_s)
        alive = [worker.watched for worker in known.values() if worker.liveness is Liveness.ALIVE]
        again = [worker.again_s for worker in known.values() if worker.again_s is not None]
        return Sweep(reaped, alive, min(again, default=None))

    def due(self) -> list[Job]:
        """The running jobs that the next sweep would reap. Changes nothing."""
        suspects = chain.from_iterable(self._suspects({}, ends=False))
        return list({job.job_id: job for job in suspects}.values())

    @contextmanager
    def watching(self, holders: Sequence[Holder], trees: Sequence[str] = ()) -> Iterator[Watched]:
        """Watch processes and trees that were alive a moment ago, for the block."""
        watched = holders[: max(JOBS_WATCHED_MAX - len(trees), 0)]
        fds = [self._processes.death(holder) for holder in watched]
        tree_fds = [self._processes.watch_tree(tree) for tree in trees[:JOBS_WATCHED_MAX]]
        # One that cannot be watched may have died since: no descriptor would show it.
        died = any(
            self._probe(holder) is Liveness.DEAD
            for holder, fd in zip(watched, fds, strict=True)
            if fd is None
        )
        gone = any(
            fd is None and self._processes.tree_liveness(tree, in_sight=True) is not Liveness.ALIVE
            for tree, fd in zip(trees, tree_fds, strict=False)
        )
        open_fds = [fd for fd in (*fds, *tree_fds) if fd is not None]
        try:
            yield Watched(open_fds, died or gone)
        finally:
            for fd in open_fds:
                os.close(fd)

    def _suspects(self, known: ProbedWorkers, *, ends: bool = True) -> Iterator[list[Job]]:
        """Running jobs that must be reaped, page by page; a job may come twice. With `ends`, the
        trees of dead workers are asked to end, and killed after the grace.
        """
        match = visible_prefix(self._processes, embedded=self._store.embedded)
        worker_of = partial(self._worker_of, known=known, ends=ends)

        def behind(job: Job) -> Parts:
            """Where the next page begins. All jobs of a dead process are read. Of a live one this
            page was enough: only its death matters.
            """
            assert job.claimed_by is not None
            *place, ticks = job.claimed_by.parts[len(match) :]
            worker = worker_of(job)
            all_wanted = worker.liveness is Liveness.DEAD or worker.ending
            return (*place, ticks if all_wanted else int(ticks) + 1)

        def found_dead(jobs: list[Job]) -> bool:
            """Probe the workers of these jobs; say whether one was found dead only now."""
            before = set(known)
            for job in jobs:
                worker_of(job)
            new = (known[holder] for holder in known.keys() - before)
            return any(worker.liveness is Liveness.DEAD or worker.ending for worker in new)

        by_worker = self._pages("worker", match, JOBS_OF_WORKERS_READ, behind, found_dead)
        overdue = self._pages("running", (), JOBS_SWEPT_MAX, due_place, found_dead)
        for now, jobs in chain(by_worker, overdue):
            if any(_is_late(job, worker_of(job).liveness, now) for job in jobs):
                self._steady.compare()
            suspects = [job for job in jobs if self._verdict(job, worker_of(job), now)]
            if suspects:
                yield suspects

    def _pages(
        self,
        index: str,
        match: Parts,
        size: int,
        behind: Callable[[Job], Parts],
        found_dead: Callable[[list[Job]], bool],
    ) -> Iterator[tuple[datetime, list[Job]]]:
        """Running jobs in the order of an index, in pages, each with the store's time when it was
        read. The index "running" is in the order of due times and is read only up to that time.
        """
        start: Parts | None = None
        limit = size
        full = True

        def read(tx: ReadTx) -> tuple[datetime, list[Job], bool]:
            damaged: Damage = []
            stop = moment(tx.now) if index == "running" else None
            found = tx.find(
                JOBS, index, match, start=start, stop=stop, limit=limit, damaged=damaged
            )
            # An older program on the same store does not know the index "worker": jobs that it
            # ended stay in that index.
            jobs = [row.record for row in found if index != "worker" or row.record.claimed_by]
            return tx.now, jobs, len(found) + len(damaged) == limit

        while full:
            now, jobs, full = self._store.read(read, scope=[JOBS])
            while found_dead(jobs):
                # It may have claimed more between the read and its death; now it claims no more.
                # Without those, its jobs would come back in two steps, and out of order.
                now, jobs, full = self._store.read(read, scope=[JOBS])
            yield now, jobs
            following = behind(jobs[-1]) if jobs else start
            # A place with more jobs than a page holds would be read again for ever.
            limit = 2 * limit if following == start else size
            start = following

    def _worker_of(self, job: Job, known: ProbedWorkers, *, ends: bool = False) -> _Worker:
        holder = job.claimed_by
        if holder is None:
            return _NO_PROCESS
        if holder not in known:
            known[holder] = self._probe_worker(holder, ends=ends)
        return known[holder]

    def _probe_worker(self, holder: Holder, *, ends: bool) -> _Worker:
        if not holder.tree:
            return _Worker(self._probe(holder), holder)
        leader = self._probe(holder.leader)
        if leader is Liveness.ALIVE:
            # Watch the leader and not the whole tree: when the leader dies, what it leaves behind
            # must be ended at once.
            return _Worker(leader, holder.leader)
        whole = self._probe(holder)
        if leader is not Liveness.DEAD or whole is not Liveness.ALIVE:
            return _Worker(whole, holder)
        if not ends:
            return _Worker(whole, holder, ending=True)
        again_s = self._leftovers.ask_or_kill(holder.tree)
        if again_s is None:
            # Nothing more can be done about the tree: if it lives, only time limits end the job.
            return _Worker(self._probe(holder), holder)
        return _Worker(Liveness.ALIVE, holder, ending=True, again_s=again_s)

    def _probe(self, holder: Holder) -> Liveness:
        return probe(holder, self._processes, embedded=self._store.embedded)

    def _reap(
        self, suspects: Mapping[str, Job], known: ProbedWorkers, timeout_s: float
    ) -> list[Job]:
        reaped: list[Job] = []

        def body(tx: Tx) -> None:
            reaped.clear()
            # In the order of their keys, as every transaction that latches several records.
            for job_id, suspect in sorted(suspects.items()):
                row = tx.get(JOBS, job_id)
                if row is None or row.record.status is not JobStatus.RUNNING:
                    continue
                job = row.record
                if job.token != suspect.token:
                    continue
                after = self._verdict(job, self._worker_of(suspect, known), tx.now)
                if after is None:
                    continue
                facts = {"why": after.error_code or WORKER_DIED}
                # A job that an earlier version registered too large may have no room for its end.
                # It must not hold up the others.
                with contextlib.suppress(InvalidValue):
                    reaped.append(transitions.write(tx, self._journal, job, after, facts=facts))

        self._store.transact(body, scope=[rows(JOBS)], timeout_s=timeout_s)
        for job in reaped:
            if job.error_code == TIMED_OUT:
                self._ask_attempt(suspects[job.job_id])
        return reaped

    def _ask_attempt(self, job: Job) -> None:
        """Ask the processes of an attempt to end. Only these: its worker may be at its next job."""
        holder = job.claimed_by
        if holder is not None and holder.tree and holder.place[:2] == self._processes.here()[:2]:
            self._processes.terminate_tree(attempt_tree(holder.tree, job.token or 0))

    def _verdict(self, job: Job, worker: _Worker, now: datetime) -> Job | None:
        """What becomes of a running job; None when it goes on. A clock that was just set forward
        ends no job. While its tree is being ended, the job waits for that, whatever its limits.
        """
        if worker.ending:
            return None
        if worker.liveness is Liveness.DEAD:
            return _after_death(job, now, "its worker died")
        if not _is_late(job, worker.liveness, now):
            return None
        without_jump, sign = self._steady.without_jump, last_sign(job)
        if worker.liveness is Liveness.UNKNOWN:
            lease_end = lease_ends_at(job)
            if lease_end is not None and lease_end < without_jump(now, since=sign):
                why = f"its worker gave no sign of life since {render(sign)} and cannot be seen"
                return _after_death(job, now, f"{why} from here")
        # A time limit may be long, and nothing renews it: so a jump of the clock is left out for
        # longer here than for a lease.
        started = job.started_at or job.updated_at
        limit_now = without_jump(now, since=started, after_s=RETENTION_JUMP_IGNORED_S)
        if (limit_now - started).total_seconds() > job.timeout_sec:
            return _failed(job, now, TIMED_OUT, f"no verdict came within {job.timeout_sec:g} s")
        due = due_at(job)
        if due is None or without_jump(now, since=sign) <= due:
            return None
        why = f"no sign of it came for {job.idle_timeout_sec:g} s"
        return _failed(job, now, TIMED_OUT, why)


def _is_late(job: Job, liveness: Liveness, now: datetime) -> bool:
    """Has a running job passed a limit by the store's clock?"""
    ends = [due_at(job), lease_ends_at(job) if liveness is Liveness.UNKNOWN else None]
    return any(end is not None and end < now for end in ends)


def _after_death(job: Job, now: datetime, why: str) -> Job:
    deaths = job.deaths + 1
    if deaths < job.max_attempts:
        return transitions.put_back(
            job, now, outcome=WORKER_DIED, error=why, deaths=1, taken_away=True
        )
    bound = f"{counted(deaths, 'attempt')} ended so, and no more than {job.max_attempts} may"
    return replace(_failed(job, now, WORKER_DIED, f"{why}: {bound}"), deaths=deaths)


def _failed(job: Job, now: datetime, code: str, why: str) -> Job:
    verdict = transitions.Verdict(JobStatus.ERROR, error=why, error_code=code)
    return transitions.ended(job, verdict, now, taken_away=True)
