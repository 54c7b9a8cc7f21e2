"""Ending what nobody works on: running jobs whose worker died, or whose time is over.

A job whose worker died goes back to pending until as many workers died as it may have attempts, and
then ends in error; attempts that were given back do not count. A worker died if its recorded
process is dead. Where that cannot be seen, as on another machine, it died if it gave no sign of
life for its lease. A job past its time limit, or without a sign for longer than its idle limit,
ends in error. A claim without a recorded process is ended by these limits alone.

A dead worker may leave processes of its command behind. Its job is put back only when the last of
them is gone, and the reaper ends them as `leftovers` does, outside of transactions. A waiting pick
is woken by their end, and at the end of the grace.

Claims whose commit was not answered: their worker lives and does not know of them.

Nobody would work on such a job until its time was over, and then it would end in error. So what
this process may have claimed is remembered, and put back once the store answers. Only what names a
process: any other claim may be somebody else's by now.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.change import write
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
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.holder import Holder, Liveness, Processes, attempt_tree, in_sight, probe
from holdfast.kernel.limits import (
    JOBS_OF_WORKERS_READ,
    JOBS_SWEEP_EVERY_S,
    JOBS_SWEPT_MAX,
    JOBS_WATCHED_MAX,
    RETENTION_JUMP_BELIEVED_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.order import Parts
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Scope, Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import SteadyClock, steady_clock


class Sweep(NamedTuple):
    """What a look at the running jobs came to: those that were ended or put back, whose death
    changes what becomes of the others, and after how many seconds a tree must be looked at again
    that was asked to end.
    """

    reaped: list[Job]
    alive: list[Holder]
    again_s: float | None = None


class Watched(NamedTuple):
    """Processes that are watched: descriptors of which one becomes readable when one of them dies,
    and whether one had died before it could be watched.
    """

    fds: list[int]
    died: bool


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
        """Sweep, unless this process did so a moment ago; say whether it did. A busy worker need
        not look at every pick.
        """
        if time.monotonic() < self._next_s:
            return False
        self.sweep()
        return True

    def sweep(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> Sweep:
        """Look for running jobs that must be reaped, page by page, and reap them, each page within
        `timeout_s`. Reads those that are overdue, those of dead processes, and a few of each live
        one: the others may be many.
        """
        self._next_s = time.monotonic() + JOBS_SWEEP_EVERY_S
        known: Known = {}
        reaped = [
            job
            for suspects in self._suspects(known)
            for job in self._reap(suspects, known, timeout_s)
        ]
        alive = [seen.watched for seen in known.values() if seen.liveness is Liveness.ALIVE]
        return Sweep(
            reaped,
            alive,
            min(
                (seen.again_s for seen in known.values() if seen.again_s is not None), default=None
            ),
        )

    def due(self) -> list[Job]:
        """The running jobs that the next sweep would reap. Changes nothing."""
        return list(
            {
                job.job_id: job for suspects in self._suspects({}, ends=False) for job in suspects
            }.values()
        )

    def _suspects(self, known: "Known", *, ends: bool = True) -> Iterator[list[Job]]:
        """Running jobs that must be reaped, as they are when they are asked for; perhaps one of
        them twice, if it is not. With `ends`, the trees of dead workers are asked to end, and
        killed after the grace.
        """
        match = in_sight(self._processes, embedded=self._store.embedded)

        def behind(job: Job) -> Parts:
            """Where the next page begins: of a dead process all jobs are wanted, of any other no
            more.
            """
            assert job.claimed_by is not None
            *place, ticks = job.claimed_by.parts[len(match) :]
            seen = look(job)
            return (
                *place,
                ticks if seen.liveness is Liveness.DEAD or seen.ending else int(ticks) + 1,
            )

        def look(job: Job) -> _Seen:
            return self._look(job, known, ends=ends)

        by_worker = self._pages(partial(_by_worker, match=match), JOBS_OF_WORKERS_READ, behind)
        for page in chain(by_worker, self._pages(_overdue, JOBS_SWEPT_MAX, due_place)):
            if any(_is_late(job, look(job).liveness, page.now) for job in page.jobs):
                self._steady.look()
            suspects = [
                job for job in page.jobs if self._verdict(job, look(job), page.now) is not None
            ]
            if suspects:
                yield suspects

    def _pages(self, look: "_Look", size: int, behind: Callable[[Job], Parts]) -> "Iterator[_Page]":
        start: Parts | None = None
        limit = size
        full = True
        while full:
            page = self._store.read(partial(look, start=start, limit=limit), scope=[JOBS])
            yield page
            full, following = page.full, behind(page.jobs[-1]) if page.jobs else start
            # More in one place than a page holds would be looked at for ever.
            limit = 2 * limit if following == start else size
            start = following

    @contextmanager
    def watching(self, holders: Sequence[Holder], trees: Sequence[str] = ()) -> Iterator[Watched]:
        """Watch processes and trees that were alive a moment ago, for the block."""
        import os

        watched = holders[: max(JOBS_WATCHED_MAX - len(trees), 0)]
        fds = [self._processes.death(holder) for holder in watched]
        tree_fds = [self._processes.watch_tree(tree) for tree in trees[:JOBS_WATCHED_MAX]]
        # Whoever cannot be watched may have died since: nothing would tell of that any more.
        unwatched = [holder for holder, fd in zip(watched, fds, strict=True) if fd is None]
        died = any(self._probe(holder) is Liveness.DEAD for holder in unwatched)
        gone = any(
            fd is None and self._processes.tree_liveness(tree, in_sight=True) is not Liveness.ALIVE
            for tree, fd in zip(trees, tree_fds, strict=False)
        )
        try:
            yield Watched([fd for fd in (*fds, *tree_fds) if fd is not None], died or gone)
        finally:
            for fd in (*fds, *tree_fds):
                if fd is not None:
                    os.close(fd)

    def _look(self, job: Job, known: "Known", *, ends: bool = False) -> "_Seen":
        """Look at the job's process, once for all its jobs."""
        holder = job.claimed_by
        if holder is None:
            return _UNSEEN
        if holder not in known:
            known[holder] = self._seen(holder, ends=ends)
        return known[holder]

    def _seen(self, holder: Holder, *, ends: bool) -> "_Seen":
        if not holder.tree:
            return _Seen(self._probe(holder), holder)
        leader = self._probe(holder.leader)
        if leader is Liveness.ALIVE:
            # Its own death is watched, not that of the whole tree: what it leaves must be ended at
            # once.
            return _Seen(leader, holder.leader)
        whole = self._probe(holder)
        if leader is not Liveness.DEAD or whole is not Liveness.ALIVE:
            return _Seen(whole, holder)
        return self._ended(holder, holder.tree) if ends else _Seen(whole, holder, ending=True)

    def _ended(self, holder: Holder, tree: str) -> "_Seen":
        """Bring the tree of a dead worker nearer to its end. If nothing more can be done, only the
        job's time limits end it.
        """
        again_s = self._leftovers.ask_or_kill(tree)
        if again_s is None:
            return _Seen(self._probe(holder), holder)
        return _Seen(Liveness.ALIVE, holder, ending=True, again_s=again_s)

    def _verdict(self, job: Job, seen: "_Seen", now: datetime) -> Job | None:
        # Where its tree is being ended, the job is put back when that is done, and not ended by its
        # limits in between.
        return None if seen.ending else _verdict(job, seen.liveness, now, self._steady)

    def _probe(self, holder: Holder) -> Liveness:
        return probe(holder, self._processes, embedded=self._store.embedded)

    def _reap(self, suspects: Sequence[Job], known: "Known", timeout_s: float) -> list[Job]:
        # In the order of their keys, as everybody who latches several records does.
        dead = {job.job_id: job for job in sorted(suspects, key=lambda job: job.job_id)}
        reaped: list[Job] = []

        def body(tx: Tx) -> None:
            reaped.clear()
            for job_id, seen in dead.items():
                row = tx.get(JOBS, job_id)
                if (
                    row is None
                    or row.record.token != seen.token
                    or row.record.status is not JobStatus.RUNNING
                ):
                    continue
                after = self._verdict(row.record, self._look(seen, known), tx.now)
                if after is None:
                    continue
                # One that an earlier version registered too large may have no room for its end: it
                # must not keep the others.
                with contextlib.suppress(InvalidValue):
                    reaped.append(
                        write(
                            tx,
                            self._journal,
                            row.record,
                            after,
                            told={"why": after.error_code or WORKER_DIED},
                        )
                    )

        self._store.transact(body, scope=[rows(JOBS)], timeout_s=timeout_s)
        for job in reaped:
            if job.error_code == TIMED_OUT:
                self._ask_attempt(dead[job.job_id])
        return reaped

    def _ask_attempt(self, job: Job) -> None:
        """Ask the processes of an attempt to end whose time is over. Only these: a live worker may
        be at its next job.
        """
        holder = job.claimed_by
        if holder is not None and holder.tree and holder.place[:2] == self._processes.here()[:2]:
            self._processes.ask_tree(attempt_tree(holder.tree, job.token or 0))


class _Seen(NamedTuple):
    """What is known of a worker: whose death changes that, whether it is dead and what it left is
    being ended, and when to look again at that.
    """

    liveness: Liveness
    watched: Holder
    ending: bool = False
    again_s: float | None = None


Known = dict[Holder, _Seen]
"""What one look came to know of processes."""


class _Page(NamedTuple):
    """Some running jobs, and whether there may be more behind them."""

    now: datetime
    jobs: list[Job]
    full: bool


class _Look(Protocol):
    def __call__(self, tx: ReadTx, *, start: Parts | None, limit: int) -> _Page: ...


def _by_worker(tx: ReadTx, *, match: Parts, start: Parts | None, limit: int) -> _Page:
    """Those of some processes."""
    damaged: Damage = []
    found = tx.find(JOBS, "worker", match, start=start, limit=limit, damaged=damaged)
    # An older program that still runs on the same store does not know the index, and leaves in it
    # what it ended.
    jobs = [row.record for row in found if row.record.claimed_by is not None]
    return _Page(tx.now, jobs, len(found) + len(damaged) == limit)


def _overdue(tx: ReadTx, *, start: Parts | None, limit: int) -> _Page:
    """Those past their limits."""
    damaged: Damage = []
    found = tx.find(JOBS, "running", start=start, stop=moment(tx.now), limit=limit, damaged=damaged)
    return _Page(tx.now, [row.record for row in found], len(found) + len(damaged) == limit)


def _is_late(job: Job, liveness: Liveness, now: datetime) -> bool:
    """Has a running job passed a limit by the store's clock?"""
    ends = [due_at(job), lease_ends_at(job) if liveness is Liveness.UNKNOWN else None]
    return any(end is not None and end < now for end in ends)


def _verdict(job: Job, liveness: Liveness, now: datetime, steady: SteadyClock) -> Job | None:
    """What becomes of a running job; None when it goes on. A clock that was just set forward ends
    none.
    """
    if liveness is Liveness.DEAD:
        return _bereft(job, now, "its worker died")
    if not _is_late(job, liveness, now):
        return None
    sign, lease_end = last_sign(job), lease_ends_at(job)
    if (
        liveness is Liveness.UNKNOWN
        and lease_end is not None
        and lease_end < steady.believed(now, since=sign)
    ):
        return _bereft(
            job,
            now,
            f"its worker gave no sign of life since {render(sign)} and cannot be seen from here",
        )
    # A time limit may be long, and nothing renews it: what the clock was set forward by is left out
    # for as long.
    begun = job.started_at or job.updated_at
    limit_now = steady.believed(now, since=begun, after_s=RETENTION_JUMP_BELIEVED_S)
    if (limit_now - begun).total_seconds() > job.timeout_sec:
        return _failed(job, now, TIMED_OUT, f"no verdict came within {job.timeout_sec:g} s")
    due = due_at(job)
    if due is None or steady.believed(now, since=sign) <= due:
        return None
    return _failed(job, now, TIMED_OUT, f"no sign of it came for {job.idle_timeout_sec:g} s")


_NOBODY = Holder(host_id="", boot_id="", pid_ns=0, pid=0, start_ticks=0)
_UNSEEN = _Seen(Liveness.UNKNOWN, _NOBODY)


def _bereft(job: Job, now: datetime, why: str) -> Job:
    deaths = job.deaths + 1
    if deaths < job.max_attempts:
        return transitions.put_back(
            job, now, outcome=WORKER_DIED, error=why, deaths=1, taken_away=True
        )
    bound = f"{counted(deaths, 'attempt')} ended so, and no more than {job.max_attempts} may"
    return replace(_failed(job, now, WORKER_DIED, f"{why}: {bound}"), deaths=deaths)


def _failed(job: Job, now: datetime, code: str, why: str) -> Job:
    return transitions.ended(job, JobStatus.ERROR, now, error=why, error_code=code, taken_away=True)


T = TypeVar("T")


class Unanswered:
    """The claims that this process may have made on one store, and was not told of."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._claims: deque[Job] = deque()

    def claim(
        self,
        body: Callable[[Tx], T],
        claimed: Callable[[T], Job | None],
        *,
        scope: Scope,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Run a transaction that claims a job, which `claimed` finds in what it returns; before it,
        put back what earlier ones may have. See `Store.transact` for what it raises.
        """
        self._put_back(timeout_s)
        ran: list[T] = []

        def run(tx: Tx) -> T:
            ran[:] = [body(tx)]
            return ran[0]

        try:
            return self._store.transact(run, scope=scope, timeout_s=timeout_s)
        except StoreUnavailable as error:
            if error.fields.get("outcome") == "unknown":
                self._claims += [
                    job
                    for one in ran
                    if (job := claimed(one)) is not None and job.claimed_by is not None
                ]
            raise

    def _put_back(self, timeout_s: float) -> None:
        while self._claims:
            job = self._claims.popleft()
            try:
                self._store.transact(
                    lambda tx, job=job: self._put_back_one(tx, job),  # type: ignore[misc]
                    scope=[rows(JOBS)],
                    timeout_s=timeout_s,
                )
            except BaseException:
                self._claims.append(job)
                raise

    def _put_back_one(self, tx: Tx, claim: Job) -> None:
        row = tx.get(JOBS, claim.job_id)
        # A claim that was not committed has given its token to the next one, which may be
        # another's.
        if row is None or row.record.status is not JobStatus.RUNNING:
            return
        if (row.record.token, row.record.claimed_by) == (claim.token, claim.claimed_by):
            after = transitions.put_back(row.record, tx.now, outcome="unanswered")
            write(tx, self._journal, row.record, after, told={"why": "unanswered"})
