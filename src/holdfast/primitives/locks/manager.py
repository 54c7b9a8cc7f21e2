"""The lock manager: the calls on locks, over one store."""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence

from holdfast.kernel.errors import Fenced, HoldfastError, LeaseLost, NotFound, StillRunning
from holdfast.kernel.holder import THIS_PROCESS, Holder, Liveness, Processes, ThisProcess
from holdfast.kernel.lease import check_detached
from holdfast.kernel.limits import LOCK_TIMEOUT_S, TREE_GRACE_S
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.acquisition import Acquisition
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.grant import Grant, SavedGrant, Suspended, lost
from holdfast.primitives.locks.inspect import (
    Explanation,
    Graph,
    Inspector,
    LockCounts,
    LockLine,
    LockStatus,
    Purpose,
)
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.records import LOCKS, LockHold, Mode, lock_in
from holdfast.primitives.locks.request import check_names, check_request, check_ttl
from holdfast.primitives.locks.statistics import LOCK_STATISTICS, LockStatistics
from holdfast.primitives.locks.transaction import lost_topic, requester_of
from holdfast.primitives.locks.wait import OnWait

# How long `close` tries to write the counts, which are all that is lost if the store is away.
_CLOSE_S = 1.0


class Locks:
    """Locks on resources of any name.

    Promised: two jobs never hold one resource, unless both share it; a set is taken whole or not at
    all; grants go by arrival and priority, and nothing starves; the next waiter gets a dead
    holder's grants at once (on another machine, when the lease runs out); a wait that could never
    end raises DeadlockDetected. Not promised: that work stops when its lock is lost; see `Grant`.

    Every thread and process that names the same job, `by`, is the same holder, and the job waits
    when one of them waits. A job `a/b` is a part of job `a`: it has what `a` holds, and `a` waits
    when it waits; two parts of a job exclude each other.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        settings: LockSettings | None = None,
        *,
        label: str = "",
        behind: Purpose = lambda _: (),
    ) -> None:
        self._store = store
        self._processes = processes
        self._context = LockContext(store, journal, processes, settings or LockSettings(), label)
        self._inspector = Inspector(self._context, behind)

    # --- acquire and wait

    def acquire(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        priority: int = 0,
        ttl_s: float | None = None,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
        detached: bool = False,
    ) -> Grant:
        """Hold all the names, and return the grant. A `with` block releases it at its end, and
        raises LeaseLost if it was lost.

        Names that the job holds already are not waited for; if it holds all of them, its own grant
        comes back, and releasing that frees nothing. `timeout_s` None waits without a limit; a wait
        also ends, like a timeout, when `stop_fd` becomes readable. With `ttl_s` the grant ends
        after so long unless renewed; without, it lives as long as `process`. `process` None needs a
        `ttl_s`. A grant for another process needs one too if other machines use the store and the
        caller may end before the grant (`detached`).

        Raises LockTimeout (nothing is held; its fields name the holders and the position in the
        queue), DeadlockDetected (waiting would never end), LeaseLost (it was taken away again
        before this process could wake), InvalidName and InvalidValue.
        """
        if detached:
            check_detached(process, ttl_s, embedded=self._store.embedded)
        request = check_request(names, by, mode, timeout_s, priority, ttl_s, process)
        acquisition = Acquisition(self._context, self, request, on_wait, stop_fd)
        # Do nothing after this call: an exception there, such as Ctrl-C, would lose the grant.
        return acquisition.acquire()  # type: ignore[return-value]

    def try_acquire(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = 0,
        priority: int = 0,
        ttl_s: float | None = None,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> Grant | None:
        """`acquire`, but None after a timeout; by default it does not wait at all."""
        request = check_request(names, by, mode, timeout_s, priority, ttl_s, process)
        acquisition = Acquisition(self._context, self, request, on_wait, stop_fd, explain=False)
        return acquisition.acquire()

    hold = acquire
    """`acquire`, by the name that reads well in `with locks.hold("router-1", by="job-7"):`."""

    def wait(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> bool:
        """Wait until the names are free in that mode, and take nothing; False after a timeout, or
        when `stop_fd` became readable.

        Promised: at some moment between call and return no other job held them, or their turn had
        come. Not promised: that it is still so. Raises DeadlockDetected when the job holds what the
        others wait for.
        """
        free = self.wait_free(
            names, by=by, mode=mode, timeout_s=timeout_s, on_wait=on_wait, stop_fd=stop_fd
        )
        return free is None

    def wait_free(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> Obstruction | None:
        """`wait`, but None when the names were free; after a timeout, what blocked them."""
        request = check_request(names, by, mode, timeout_s, wait_only=True)
        return Acquisition(self._context, self, request, on_wait, stop_fd).wait_until_free()

    def obstruction(
        self, names: str | Iterable[str], *, by: str, mode: Mode | str = Mode.EXCLUSIVE
    ) -> Obstruction:
        """What blocks the job's request for these names now, or would block a new one."""
        return self._inspector.obstruction(check_request(names, by, mode, 0))

    # --- grants of this process

    def release(self, grant: Grant) -> bool:
        """End a grant, and hand over to the next waiter in the same step. False, and nothing is
        changed, for a second release, a re-entered grant and a lost one.
        """
        if grant.gone == "released" or grant.pid != os.getpid():
            # A forked child has a copy of its parent's grant, not the grant.
            return False
        context = self._context
        kept = context.keeper.discard(grant)
        if not grant.taken or (not kept and not grant.gone):
            # Re-entered, or another thread is releasing it at this moment.
            return False
        try:
            freed = 0
            if grant.untouched and grant.ttl_s is None:
                # With a time to live, the store's clock decides whether the grant is still there.
                freed = self._store.delete_if(LOCKS, grant.taken, grant.token)
            if freed < len(grant.taken):
                freed += context.release(grant.id, grant.taken)
            if grant.unattended:
                context.lasting.delete(grant.id)
        except BaseException:
            context.keeper.add(grant)
            raise
        if not freed:
            grant.lose()
            return False
        context.counters.count_hold(grant.taken, time.monotonic() - grant.since_s)
        grant.gone = "released"
        return True

    def abandon(self, grant: Grant) -> None:
        """Release a grant that nobody will use again, now or when the store answers again."""
        if grant.pid == os.getpid() and grant.taken and self._context.keeper.discard(grant):
            grant.gone = "released"
            self._context.withdraw(grant.id, grant.taken)

    def leave(self, grant: Grant, *, raising: bool) -> None:
        """The end of a `with` block: release. Raises LeaseLost if nothing was left to release."""
        if grant.pid != os.getpid():
            return
        if grant.reentered and raising:
            self.check(grant)
        if not self.release(grant) and grant.gone == "lost" and raising:
            raise lost(grant)

    def free(self, names: str | Iterable[str], *, by: str) -> tuple[str, ...]:
        """Release these names from all grants of a job; return those that it held."""
        wanted = check_names(names)
        check_label(by, "job")
        if not wanted:
            return ()
        context = self._context
        context.begin_process()
        context.lasting.restore()
        keeper = context.keeper
        # The grants keep their other names. The keeper must not watch them meanwhile: it would
        # count the freed names as lost.
        mine = [
            grant
            for grant in keeper.kept()
            if grant.by == by and not set(grant.taken).isdisjoint(wanted) and keeper.discard(grant)
        ]
        try:
            freed, remaining = context.transact(lambda transaction: transaction.free(wanted, by))
            for grant in mine:
                grant.drop_names(wanted)
        finally:
            for grant in mine:
                if not grant.gone:
                    keeper.add(grant)
        for hold in remaining:
            if hold.names:
                context.lasting.put(hold)
            else:
                context.lasting.end(hold)
        return freed

    def renew(self, grant: Grant, ttl_s: float | None = None) -> None:
        """Renew the lease from now; `ttl_s` may give it another length. A re-entered grant is only
        checked: the grant that took its names has the lease. Raises LeaseLost.
        """
        check_ttl(ttl_s)
        if grant.gone:
            # A holder that noticed the loss has stopped, though by the store's clock the time may
            # not be over yet.
            raise lost(grant)
        if not grant.taken:
            self.check(grant)
            return
        hold = self._renew_hold(grant.id, grant.taken, ttl_s or grant.ttl_s)
        if hold is None:
            self._context.keeper.discard(grant)
            grant.lose()
            raise lost(grant)
        grant.ttl_s = ttl_s or grant.ttl_s
        grant.untouched = False
        grant.ends_s = self._context.ends_s(hold)
        self._context.keeper.add(grant)

    def check(self, grant: Grant) -> None:
        """Ask the store whether a grant is in force. Raises LeaseLost when it is not."""
        try:
            if grant.gone:
                raise lost(grant)
            for name, token in grant.tokens.items():
                self.check_token(name, token)
        except Fenced:
            # Still kept: its remaining names stay held until their holder releases them.
            grant.lose()
            raise lost(grant) from None

    def suspend(self, grant: Grant) -> Suspended | None:
        """Stop keeping a grant, so that this process can `resume` it after execve(2). Nobody renews
        it in between: only its process keeps it alive. Raises LeaseLost.

        None, and the grant is kept as before, if it lives by its lease, if another grant of the job
        holds some of it, and if the store cannot notify the program that is executed.
        """
        if not self._store.embedded or grant.ttl_s is not None or grant.taken != grant.names:
            return None
        kept = self._context.keeper.discard(grant)
        try:
            listener = self._store.listen([lost_topic(requester_of(grant.id))])
            # After `listen`: a loss is seen here, or notified.
            self.check(grant)
            fds = listener.outlive()
            if not fds:
                listener.__exit__(None, None, None)
                return None
            kept = False
            return Suspended(grant.saved(), listener, fds)
        finally:
            if kept:
                self._context.keeper.add(grant)

    def resume(self, saved: SavedGrant) -> Grant:
        """The grant that an earlier program of this process suspended. A loss shows soon."""
        self._context.begin_process()
        self._context.resume_ids(saved.id)
        grant = Grant(
            self,
            id=saved.id,
            by=saved.by,
            mode=saved.mode,
            names=saved.names,
            taken=saved.names,
            token=saved.token,
        )
        grant.since_s = saved.since_s
        self._context.keeper.add(grant)
        return grant

    def close(self) -> None:
        """Stop renewing in the background, and write the counts. Grants are not released."""
        context = self._context
        if not context.is_forked():
            context.keeper.close()
            context.retry_withdrawals()
            with contextlib.suppress(HoldfastError):
                context.counters.flush(_CLOSE_S)
                if context.has_transacted:
                    context.clear_outcomes(_CLOSE_S)

    # --- tokens, for programs that got one from a holder

    def check_token(self, name: str, token: int) -> None:
        """Raises Fenced unless this is the token of a grant in force on the name."""
        check_label(name, "resource")
        self._context.lasting.restore(read_only=True)
        holds = lock_in(self._store.get(LOCKS, name)).holds
        clock, now = self._context.clock, self._store.now()
        if any(
            hold.token == token and not clock.reclaimable(hold.lease, Liveness.ALIVE, now)
            for hold in holds
        ):
            return
        current = [hold.token for hold in holds]
        if token in current:
            why = "its time to live has ended"
        else:
            why = f"it is held with token {current[0]}" if current else "nobody holds it"
        raise Fenced(
            f"token {token} is not in force on {name}: {why}. Stop the work that uses this token",
            resource=name,
            token=token,
            current=current,
        )

    def release_token(self, token: int) -> bool:
        """Release the grant with this token; False when there is none any more."""
        hold = self._find_token(token)
        if hold is None:
            return False
        freed = self._context.transact(
            lambda transaction: transaction.release_if_held(hold.id, hold.names)
        )
        self._context.lasting.end(hold)
        return freed

    def renew_token(self, token: int, ttl_s: float | None = None) -> LockHold:
        """Renew the grant with this token, and return it. Raises LeaseLost."""
        check_ttl(ttl_s)
        found = self._find_token(token)
        hold = None if found is None else self._renew_hold(found.id, found.names, ttl_s)
        if hold is None:
            raise LeaseLost(
                f"no grant has token {token} any more: stop work on what it guarded. `holdfast "
                "log` shows what happened to it",
                token=token,
            )
        return hold

    def _find_token(self, token: int) -> LockHold | None:
        return self._context.read(lambda table: self._context.tokens.find(table, token))

    def _renew_hold(
        self, hold_id: str, names: Sequence[str], ttl_s: float | None
    ) -> LockHold | None:
        hold, reaped = self._context.transact(
            lambda transaction: transaction.renew_or_reap(hold_id, names, ttl_s)
        )
        if hold is not None:
            self._context.lasting.put(hold)
        self._context.count_reaped(reaped)
        return hold

    # --- operators

    def kick(
        self, name: str, *, why: str, by: str | None = None, end_tree: bool = False
    ) -> list[LockHold]:
        """Take a resource away from its holders (from one job, with `by`), with all that the same
        grants hold. Their tokens are stale from then on, and their processes are notified.

        With `end_tree` the processes of the commands that hold it are ended first. Raises NotFound,
        and StillRunning, without taking anything away, when processes cannot be ended from here.
        """
        check_label(name, "resource")
        check_label(why, "reason")
        context = self._context
        context.begin_process()
        context.lasting.restore()
        ended = self._end_trees(name, by) if end_tree else []
        kicked = context.transact(lambda transaction: transaction.kick(name, by, why))
        if not kicked and not ended:
            refusal = "nobody holds" if by is None else f"job {by} does not hold"
            raise NotFound(
                f"{refusal} {name}: `holdfast locks status {name}` shows its state", resource=name
            )
        for hold in kicked:
            context.counters.count(hold.names, "kicks")
            context.lasting.end(hold)
        # A live wrapper releases the grant itself as soon as its tree has ended.
        return kicked or ended

    def _end_trees(self, name: str, by: str | None) -> list[LockHold]:
        """End the processes of a resource's holders; return the grants that they had."""
        holds = lock_in(self._store.get(LOCKS, name)).holds
        held = [hold for hold in holds if by in (None, hold.by)]
        for process in [hold.process for hold in held if hold.process is not None]:
            if not process.tree or not self._processes.end_tree(process.tree, TREE_GRACE_S):
                raise StillRunning(
                    f"the processes of {name}'s holder cannot be ended from here: end process "
                    f"{process.pid} on host {process.host_id}, or take the lock away without "
                    "--end-tree",
                    resource=name,
                    pid=process.pid,
                )
        return held

    # --- inspection

    def status(self, name: str) -> LockStatus:
        """Who holds a resource and who waits for it."""
        return self._inspector.status(name)

    def list_held(self) -> list[LockStatus]:
        """The status of every resource that is held or waited for."""
        return self._inspector.list_held()

    def counts(self) -> LockCounts:
        """How many resources are held or waited for, and how many requests wait."""
        return self._inspector.counts()

    def page(self, *, after: str = "", limit: int = 100) -> list[LockLine]:
        """Up to `limit` resources that are held or waited for, by name, behind `after`."""
        return self._inspector.page(after=after, limit=limit)

    def contention(self, *, limit: int = 100) -> Graph:
        """`graph` of the first `limit` waiters, by job. Reads little, however much is held."""
        return self._inspector.contention(limit=limit)

    def explain(self, name: str) -> Explanation:
        """Why a resource is not free, what its holders wait for in turn, and what can be done."""
        return self._inspector.explain(name)

    def graph(self) -> Graph:
        """Who waits for whom, over all resources."""
        return self._inspector.graph()

    def statistics(self, *, own: bool = True) -> dict[str, LockStatistics]:
        """The counts of each resource. `own` first writes this process's latest counts."""
        self._context.begin_process()
        if own:
            self._context.counters.flush()
        rows = self._store.read(lambda tx: tx.range(LOCK_STATISTICS), scope=[LOCK_STATISTICS])
        return {row.key: row.record for row in rows}

    def clear_unread(self) -> int:
        """Delete the outcomes of waits whose processes died, as the keeper does now and then."""
        return self._context.clear_outcomes()
