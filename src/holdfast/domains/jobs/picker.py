"""The pick: claims the next pending job of a label, at once or when one comes.

A pick skips a damaged job, a job whose record has no room for a claim, and a job whose past
attempts left live processes on this machine. None of these delays the jobs behind it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from msgspec import Struct

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.draft import no_room, too_large
from holdfast.domains.jobs.leftovers import Leftovers, LiveTree
from holdfast.domains.jobs.reaper import Reaper
from holdfast.domains.jobs.records import JOBS, TOO_LARGE, Job, JobStatus
from holdfast.domains.jobs.transitions import Verdict
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Scope, Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock

T = TypeVar("T")

JOBS_ALONE: Scope = [rows(JOBS)]


class NoRoom(Struct, frozen=True):
    """A pending job whose record has no room for a claim: an earlier version registered it."""

    job: Job


class HasOldTrees(Struct, frozen=True):
    """A pending job whose past attempts may have left live processes on this machine. They were
    not probed yet.
    """

    job: Job


PickStep = Job | NoRoom | HasOldTrees


class UnconfirmedClaims:
    """The claims that this process may have made on one store without an answer to their commit.

    The worker lives and does not know of such a claim, so its job would wait until its time limit.
    This process puts the job back once the store answers. It does so only for claims that name a
    process: a job claimed without one may be another worker's by now.
    """

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
        """Run a transaction that claims the job that `claimed` finds in its result. Before it, put
        back what earlier ones may have claimed. Raises as `Store.transact`.
        """
        while self._claims:
            self._put_back(self._claims.popleft(), timeout_s)
        last: list[T] = []

        def run(tx: Tx) -> T:
            last[:] = [body(tx)]
            return last[0]

        try:
            return self._store.transact(run, scope=scope, timeout_s=timeout_s)
        except StoreUnavailable as error:
            job = claimed(last[0]) if last else None
            if error.fields.get("outcome") == "unknown" and job is not None and job.claimed_by:
                self._claims.append(job)
            raise

    def _put_back(self, claim: Job, timeout_s: float) -> None:
        def body(tx: Tx) -> None:
            row = tx.get(JOBS, claim.job_id)
            if row is None or row.record.status is not JobStatus.RUNNING:
                return
            # A claim that was not committed has given its token to the next one, which may be
            # another process's.
            if (row.record.token, row.record.claimed_by) == (claim.token, claim.claimed_by):
                after = transitions.put_back(row.record, tx.now, outcome="unanswered")
                transitions.write(tx, self._journal, row.record, after, facts={"why": "unanswered"})

        try:
            self._store.transact(body, scope=JOBS_ALONE, timeout_s=timeout_s)
        except BaseException:
            self._claims.append(claim)
            raise


class Picker:
    """Picks jobs of one store."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        leftovers: Leftovers,
        reaper: Reaper,
        *,
        lease_s: float,
        warn: Callable[[str], None],
    ) -> None:
        self._store = store
        self._journal = journal
        self._leftovers = leftovers
        self._reaper = reaper
        self._lease_s = lease_s
        self._warn = warn
        self.claims = UnconfirmedClaims(store, journal)

    def pick_now(self, agent_session: str, holder: Holder | None) -> Job | None:
        """Claim the next job, also one that must be reaped first; None when there is none."""
        steady_clock(self._store).compare()
        swept = self._reaper.sweep_if_due()
        job = self.pick(agent_session, holder, [])
        if job is None and not swept and self._reaper.sweep().reaped:
            return self.pick(agent_session, holder, [])
        return job

    def wait(
        self, agent_session: str, holder: Holder | None, wait_s: float, stop_fd: int | None
    ) -> Job | None:
        """Claim the next job when there is one; None when the time is up, or `stop_fd` became
        readable.
        """
        deadline = Deadline(wait_s)
        stops = [] if stop_fd is None else [stop_fd]
        with self._store.listen([transitions.queue_topic(agent_session)]) as listener:
            while True:
                swept = deadline.retry(self._reaper.sweep, stop_fd=stop_fd)
                old: list[LiveTree] = []
                job = deadline.retry(
                    partial(self.pick, agent_session, holder, old), stop_fd=stop_fd
                )
                left_s = deadline.left_s()
                if job is not None or deadline.passed():
                    return job
                # A worker that took a job since the sweep is not watched: the next sweep notices
                # its death, a little later.
                ends = [left_s, swept.again_s, *(tree.again_s for tree in old)]
                sleep_s = min((seconds for seconds in ends if seconds is not None), default=None)
                with self._reaper.watching(swept.alive, [tree.id for tree in old]) as watched:
                    woken = listener.wait(
                        0 if watched.died else sleep_s, also=[*watched.fds, *stops]
                    )
                if stop_fd in woken.ready:
                    return None

    def pick(
        self,
        agent_session: str,
        holder: Holder | None,
        old: list[LiveTree],
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> Job | None:
        """Claim the next job. `old` is filled with the live trees of past attempts that made this
        pick skip a job.
        """
        old.clear()
        damaged: Damage = []
        skipped: set[str] = set()
        gone: set[str] = set()

        def body(tx: Tx) -> PickStep | None:
            damaged.clear()
            row = tx.take_first(JOBS, "turn", (agent_session,), but_for=skipped, damaged=damaged)
            return None if row is None else self.begin(tx, row.record, holder, gone)

        while True:
            step = self.claims.claim(body, claimed, scope=JOBS_ALONE, timeout_s=timeout_s)
            if isinstance(step, NoRoom):
                skipped.add(step.job.job_id)
                self._end_without_room(step.job)
            elif isinstance(step, HasOldTrees):
                if living := self._leftovers.end_old(step.job):
                    skipped.add(step.job.job_id)
                    old += living
                else:
                    gone.update(tree.id for tree in self._leftovers.old_trees(step.job))
            else:
                self.warn_of(damaged)
                return step

    def begin(
        self, tx: Tx, pending: Job, holder: Holder | None, gone: Collection[str] = ()
    ) -> PickStep:
        """Claim a job, inside a transaction. Changes nothing if its record has no room, or if
        processes of a past attempt may live. The trees in `gone` are known to have ended.
        """
        if any(tree.id not in gone for tree in self._leftovers.old_trees(pending)):
            return HasOldTrees(pending)
        job = transitions.started(pending, tx.now, tx.revision, holder, self._lease_s)
        try:
            return transitions.write(tx, self._journal, pending, job)
        except InvalidValue:
            if not too_large(job):
                raise
            return NoRoom(pending)

    def warn_of(self, damaged: Damage) -> None:
        for error in damaged:
            self._warn(f"skipped space=jobs key={error.fields.get('key')}: {error.message}")

    def _end_without_room(self, pending: Job) -> None:
        """End a job in error that can never be claimed, so that people see why. If even that has
        no room, the job stays: each pick skips it, and `holdfast doctor` names it.
        """

        def body(tx: Tx) -> None:
            row = tx.get(JOBS, pending.job_id)
            if row is not None and row.record == pending:
                verdict = Verdict(JobStatus.ERROR, error=no_room(pending), error_code=TOO_LARGE)
                failed = transitions.ended(pending, verdict, tx.now)
                transitions.write(tx, self._journal, pending, failed, facts={"why": TOO_LARGE})

        with contextlib.suppress(InvalidValue):
            self._store.transact(body, scope=JOBS_ALONE)
        self._warn(f"skipped space=jobs key={pending.job_id}: {no_room(pending)}")


def claimed(step: PickStep | None) -> Job | None:
    return step if isinstance(step, Job) else None
