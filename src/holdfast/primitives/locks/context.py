"""What all lock calls of a process share: its store, its grants, and requests to withdraw."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import count
from typing import TypeVar

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt, HoldfastError
from holdfast.kernel.holder import Holder, Liveness, Processes, check_holder, probe
from holdfast.kernel.limits import LOCK_STATISTICS_EVERY_S, TRANSACT_TIMEOUT_S
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import hot_path
from holdfast.primitives.locks.grant import Grant, LastingGrants
from holdfast.primitives.locks.records import LOCK_WAITS, LockHold
from holdfast.primitives.locks.statistics import LockCounters
from holdfast.primitives.locks.table import LockTable
from holdfast.primitives.locks.tokens import KnownTokens
from holdfast.primitives.locks.transaction import SCOPE, LockTransaction, Reaped, lost_topic
from holdfast.primitives.log import warn
from holdfast.primitives.renewal import Keeper, begin_after_fork
from holdfast.primitives.steady_clock import steady_clock

T = TypeVar("T")

_CONTENDED_MAX = 1024
_WITHDRAW_S = 1.0
_OUTCOMES_MAX = 100


class LockContext:
    """The state of the lock manager in one process, which `begin_process` resets after a fork."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        settings: LockSettings,
        label: str,
    ) -> None:
        self.store = store
        self.journal = journal
        self.processes = processes
        self.settings = settings
        self.clock = steady_clock(store)
        self.counters = LockCounters(store)
        self.lasting = LastingGrants(store)
        self.tokens = KnownTokens()
        self.keeper: Keeper[Grant] = Keeper(
            store,
            topic=lambda: lost_topic(self.requester),
            renew=self.renew_grants,
            tick=self._tick,
            unfinished=lambda: bool(self.withdrawals),
            renew_every_s=leases.renew_every_s(settings.lease_s),
            tick_every_s=LOCK_STATISTICS_EVERY_S,
        )
        self.withdrawals: dict[str, tuple[str, ...]] = {}
        """The names of requests that could not be withdrawn yet, as the store did not answer."""
        self._label = label
        self._start_process()
        begin_after_fork(self)

    def _start_process(self) -> None:
        self._contended: dict[str, None] = {}
        self.withdrawals.clear()
        self.has_transacted = False
        """True once the single statements for free names were not enough: only then may this
        process have left outcomes for waiters.
        """
        self.process: Holder | None = None
        """This process, once it has requested something."""
        self.requester = os.urandom(6).hex()
        """The prefix of the ids of its requests, so that a grant shows which process to notify."""
        self._numbers = count(1)
        # Last: another thread continues as soon as it sees this.
        self._pid = os.getpid()

    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def begin_process(self) -> None:
        """In a forked child, start again: grants, counts and requests are its parent's."""
        if self._pid != os.getpid():
            self.keeper.begin_process()
            self.counters.begin_process()
            self._start_process()

    def resume_ids(self, request_id: str) -> None:
        """Continue as the requester of a request of this process's earlier program."""
        self.requester, _, number = request_id.rpartition("-")
        self._numbers = count(int(number, 16) + 1)

    def new_id(self) -> str:
        return f"{self.requester}-{next(self._numbers):x}"

    def this_process(self) -> Holder:
        """This process as a holder. Raises InvalidValue when its label is too long."""
        if self.process is None:
            self.process = check_holder(self.processes.current(self._label))
        return self.process

    def is_contended(self, names: Sequence[str]) -> bool:
        """True when the last request for any of the names had to wait: it is probably held."""
        return bool(self._contended) and not self._contended.keys().isdisjoint(names)

    def note_contention(self, names: Sequence[str], *, contended: bool) -> None:
        if contended:
            if len(self._contended) > _CONTENDED_MAX:
                self._contended = {}
            self._contended |= dict.fromkeys(names)
        elif self._contended:
            for name in names:
                self._contended.pop(name, None)

    def transact(
        self,
        body: Callable[[LockTransaction], T],
        shortcut: Callable[[Tx], T | None] | None = None,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Run `body` in a transaction on the lock table, and write what it changed. Where
        `shortcut` has an answer, it has done what `body` would do.
        """
        self.has_transacted = True

        def run(tx: Tx) -> T:
            if shortcut is not None and (answer := shortcut(tx)) is not None:
                return answer
            transaction = LockTransaction(tx, self.journal, self.settings, self.clock)
            result = body(transaction)
            transaction.table.write()
            return result

        return self.store.transact(run, scope=SCOPE, timeout_s=timeout_s)

    def read(self, body: Callable[[LockTable], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Read the lock table as of now."""
        self.lasting.restore(read_only=True)
        return self.store.read(lambda tx: body(LockTable(tx)), scope=SCOPE, timeout_s=timeout_s)

    def ends_s(self, hold: LockHold) -> float:
        """When a grant ends by itself, on this process's monotonic clock; infinite without a time
        to live, because a lease that ran out is renewed if nobody took the grant.
        """
        if not hold.lease.explicit:
            return math.inf
        # By the store's clock: it may have been granted long before this process woke.
        return time.monotonic() + (hold.lease.expires_at - self.store.now()).total_seconds()

    def count_reaped(self, reaped: Sequence[Reaped]) -> None:
        """Count what was reaped, and delete its durable copies."""
        for gone in reaped:
            if gone.hold is not None:
                self.lasting.end(gone.hold)
                if not gone.dead:
                    self.counters.count(gone.names, "expiries")
                elif not gone.hold.on_behalf:
                    self.counters.count(gone.names, "deaths")

    def release(self, hold_id: str, names: tuple[str, ...]) -> bool:
        """Release a grant that may be gone; False when it is, or its time to live was over."""
        return self.transact(
            lambda transaction: transaction.release_if_held(hold_id, names),
            lambda tx: hot_path.release(
                tx, self.journal, self.settings, self.clock, hold_id, names
            ),
        )

    def withdraw(self, request_id: str, names: tuple[str, ...], *, later: bool = False) -> None:
        """Remove all that is left of a request: its waiter, outcome or grant. While the store does
        not answer, as a moment ago if `later`, the keeper's thread retries.
        """
        try:
            if later:
                self.withdrawals.setdefault(request_id, names)
            elif request_id not in self.withdrawals:
                self._withdraw(request_id, names)
        except HoldfastError as error:
            warn("could not withdraw request %s yet: %s", request_id, error.message)
        except BaseException:
            # Out of memory or of stack.
            self.withdrawals[request_id] = names
            raise
        finally:
            if self.withdrawals:
                self.keeper.wake()

    def retry_withdrawals(self) -> bool:
        """Withdraw what could not be withdrawn before; False while the store does not answer."""
        for request_id, names in list(self.withdrawals.items()):
            try:
                self._withdraw(request_id, names)
            except HoldfastError:
                return False
        return True

    def finish_withdrawals(self, names: tuple[str, ...], deadline: Deadline) -> None:
        """Withdraw earlier requests for any of these names, before a new one. What they left would
        count as the job's own grant, and be withdrawn while the job relies on it.
        """
        for request_id, left in list(self.withdrawals.items()):
            if not set(names).isdisjoint(left):
                deadline.retry(partial(self._withdraw, request_id, left))

    def _withdraw(
        self, request_id: str, names: tuple[str, ...], timeout_s: float = _WITHDRAW_S
    ) -> None:
        try:
            hold = self.transact(
                lambda transaction: transaction.withdraw(request_id, names), timeout_s=timeout_s
            )
            if hold is not None:
                self.lasting.end(hold, timeout_s)
            self.withdrawals.pop(request_id, None)
        except BaseException:
            # Not before the attempt: another thread would withdraw it too, and by then a request
            # with the same id may have been made again.
            self.withdrawals[request_id] = names
            raise

    def _tick(self) -> None:
        if not self.retry_withdrawals():
            # Any other wait for a store that does not answer would delay the next retry, and
            # meanwhile a request that nobody wants may be granted.
            return
        self.clear_outcomes()
        self.counters.flush()

    def clear_outcomes(self, timeout_s: float = TRANSACT_TIMEOUT_S) -> int:
        """Delete outcomes whose waiters died before they could read them; return how many."""
        found = self.store.read(
            lambda tx: tx.find(LOCK_WAITS, "told", limit=_OUTCOMES_MAX),
            scope=[LOCK_WAITS],
            timeout_s=timeout_s,
        )
        self.clock.compare()
        now = self.store.now()
        gone = [
            row
            for row in found
            if self.clock.reclaimable(row.record.lease, self._probe(row.record.process), now)
        ]
        if not gone:
            return 0

        def clear(tx: Tx) -> int:
            # A waiter that could not be probed may have read its outcome, and wait again under the
            # same key.
            unread = [
                row.key
                for row in gone
                if (found := tx.get(LOCK_WAITS, row.key)) and found.revision == row.revision
            ]
            return sum(tx.delete(LOCK_WAITS, key) for key in unread)

        return self.store.transact(clear, scope=[LOCK_WAITS], timeout_s=timeout_s)

    def renew_grants(self, grants: Sequence[Grant]) -> list[Grant]:
        """Renew the due leases of grants without a time to live; return the grants that are gone.

        A grant that lost some names is lost, unless its holder is releasing those itself; the names
        that are left are renewed all the same.
        """
        now = self.store.now()
        tokens = {grant.id: grant.tokens for grant in grants}

        # Reads first, as most of the time nothing is due and a read blocks nobody.
        def inspect(table: LockTable) -> tuple[list[tuple[Grant, bool]], set[Holder | None]]:
            incomplete = [
                (grant, _is_left(table, grant))
                for grant in grants
                if _lacks_names(table, tokens[grant.id])
            ]
            return incomplete, {hold.process for _, hold in self._due(table, grants, now)}

        def renew(transaction: LockTransaction) -> list[Grant]:
            due = self._due(transaction.table, grants, transaction.now)
            living = [(grant, hold) for grant, hold in due if hold.process in alive]
            for _, hold in living:
                transaction.renew(hold, None)
            return [grant for grant, _ in living]

        incomplete, due = self.read(inspect)
        for grant, left in incomplete:
            # Names that the holder is releasing, or has just released, were not taken away.
            if left and self.keeper.keeps(grant) and grant.tokens == tokens[grant.id]:
                grant.lose()
        # A grant on behalf of a dead process is not renewed: other machines cannot see the death.
        alive = {one for one in due if one is not None and self._probe(one) is not Liveness.DEAD}
        if alive:
            for grant in self.transact(renew):
                grant.untouched = False
        return [grant for grant, left in incomplete if not left]

    def _due(
        self, table: LockTable, grants: Sequence[Grant], now: datetime
    ) -> list[tuple[Grant, LockHold]]:
        """The grants, with their holds, whose lease must be renewed."""
        due = []
        for grant in grants:
            try:
                hold = table.find_hold(grant.id, grant.taken)
            except Corrupt:
                continue
            # Not by the grant: another process may have given it a time to live by its token.
            if hold is None or hold.lease.explicit:
                continue
            if leases.due(hold.lease, now, self.settings.lease_s):
                due.append((grant, hold))
        return due

    def _probe(self, process: Holder) -> Liveness:
        return probe(process, self.processes, embedded=self.store.embedded)


def _lacks_names(table: LockTable, tokens: Mapping[str, int]) -> bool:
    """True when some names of a grant were taken away. A damaged record proves nothing."""
    try:
        return any(
            all(hold.token != token for hold in table.lock(name).holds)
            for name, token in tokens.items()
        )
    except Corrupt:
        return False


def _is_left(table: LockTable, grant: Grant) -> bool:
    """True when the table still has some of what a grant took, or is damaged there."""
    try:
        return table.find_hold(grant.id, grant.taken) is not None
    except Corrupt:
        return True
