"""Claims whose commit was not answered: their worker lives and does not know of them.

Nobody would work on such a job until its time was over, and then it would end in error. So what this process may have claimed
is remembered, and put back once the store answers. Only what names a process: any other claim may be somebody else's by now.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.domains.jobs import steps
from holdfast.domains.jobs.record import JOBS, Job, JobStatus
from holdfast.domains.jobs.writing import write
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Scope, Store, Tx
from holdfast.primitives.journal import Journal

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
        """Run a transaction that claims a job, which `claimed` finds in what it returns; before it, put back what earlier ones
        may have. See `Store.transact` for what it raises."""
        self._put_back(timeout_s)
        ran: list[T] = []

        def run(tx: Tx) -> T:
            ran[:] = [body(tx)]
            return ran[0]

        try:
            return self._store.transact(run, scope=scope, timeout_s=timeout_s)
        except StoreUnavailable as error:
            if error.fields.get("outcome") == "unknown":
                self._claims += [job for one in ran if (job := claimed(one)) is not None and job.claimed_by is not None]
            raise

    def _put_back(self, timeout_s: float) -> None:
        while self._claims:
            job = self._claims.popleft()
            try:
                self._store.transact(lambda tx, job=job: self._put_back_one(tx, job), scope=[rows(JOBS)], timeout_s=timeout_s)  # type: ignore[misc]
            except BaseException:
                self._claims.append(job)
                raise

    def _put_back_one(self, tx: Tx, claim: Job) -> None:
        row = tx.get(JOBS, claim.job_id)
        # A claim that was not committed has given its token to the next one, which may be another's.
        if row is None or row.record.status is not JobStatus.RUNNING:
            return
        if (row.record.token, row.record.claimed_by) == (claim.token, claim.claimed_by):
            after = steps.put_back(row.record, tx.now, outcome="unanswered")
            write(tx, self._journal, row.record, after, told={"why": "unanswered"})
