"""Claims whose commit was not confirmed: their worker lives and does not know of them.

Nobody would work on such a job until its time was over, and then it would end in error. So this
process remembers what it may have claimed, and puts it back once the store answers. Only claims
that name a process: any other may be somebody else's by now.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.records import JOBS, Job, JobStatus
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Scope, Store, Tx
from holdfast.primitives.journal import Journal

T = TypeVar("T")


class UnconfirmedClaims:
    """The claims that this process may have made on one store without an answer."""

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
            self._store.transact(body, scope=[rows(JOBS)], timeout_s=timeout_s)
        except BaseException:
            self._claims.append(claim)
            raise
