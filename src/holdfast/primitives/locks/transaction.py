"""One transaction on the lock table: a request arrives or leaves, or a grant ends, and who is next
is decided.

It wakes every waiter that it grants or settles, or that must watch a new neighbour just ahead.
Where sets cross in several ways, a waiter may learn of a new neighbour only within WAIT_RECHECK_S.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count, islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.limits import LOCK_JOURNAL_NAMES_MAX, LOCK_REAPED_MAX
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.policy import CycleStep
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    LockHold,
    Mode,
    Waiter,
    WaitOutcome,
    conflict,
    hold_of,
    rank_of,
    waited_s,
)
from holdfast.primitives.locks.table import WritableLockTable
from holdfast.primitives.steady_clock import SteadyClock

SCOPE = (LOCKS, LOCK_WAITS)


class Suspect(Struct, frozen=True):
    """A hold or a waiter whose process may be gone, and what is known of that process."""

    id: str
    names: tuple[str, ...]
    process: Holder | None
    liveness: Liveness


class Reaped(Struct, frozen=True):
    """A hold that was taken away, or a waiter that was removed, when `hold` is None."""

    names: tuple[str, ...]
    hold: LockHold | None
    dead: bool


class LockTransaction:
    """The steps of the lock table inside a transaction. Its `table` is to be written at the end."""

    def __init__(
        self, tx: Tx, journal: Journal, settings: LockSettings, clock: SteadyClock
    ) -> None:
        self.table = WritableLockTable(tx)
        self._tx = tx
        self._journal = journal
        self._settings = settings
        self._journal_all = settings.journal == "all"
        self._journal_waits_s = 0.0 if self._journal_all else settings.journal_waits_s
        self._clock = clock
        # The state of `hand_over`. Grants inside it call it again, and only add to this.
        self._heap: list[tuple[tuple[int, int], int, str, Iterator[Waiter] | None, Waiter]] = []
        """Waiters to try, in queue order: place, number, name, the rest of its queue, waiter."""
        self._numbers = count()
        """They break ties, as iterators cannot be compared."""
        self._handing_over = False
        self._refused = ""
        """The id of the waiter that was tried last, if it must still wait."""
        self._tried_names: set[str] = set()
        """Names whose queue is in the heap, or was tried to its end."""
        self._may_close_cycle: dict[str, None] = {}
        """Jobs that got a grant while they wait elsewhere: that may have closed a cycle."""

    @property
    def now(self) -> datetime:
        return self._tx.now

    def is_expired(self, hold: LockHold) -> bool:
        """True when the requested time to live is over, though the holder may live."""
        return self._clock.reclaimable(hold.lease, Liveness.ALIVE, self._tx.now)

    def own_holds(self, draft: Waiter) -> dict[str, LockHold]:
        """By name, the holds by which the job has what it requests already."""
        if draft.wait_only:
            return {}
        own: dict[str, LockHold] = {}
        for name in draft.names:
            hold = self.table.covering_hold(name, draft.by, draft.mode)
            if hold is not None:
                own[name] = hold
        return own

    def grant_or_queue(self, draft: Waiter) -> LockHold | list[CycleStep] | Waiter | None:
        """The grant of a request now (None when it takes nothing), the cycle that waiting would
        close (nothing is changed), or the queued waiter. The job must not hold all names already.
        """
        waiter = self._with_place(draft)
        blocking = list(policy.blocking_holds(self.table, waiter))
        overtaken = None if blocking else policy.overtaken_in_queue(self.table, waiter)
        if overtaken is not None:
            return None if waiter.wait_only else self._grant(waiter, overtaken)
        holders = {one.hold.by for one in blocking}
        # Without a holder that waits itself there is no cycle, and no overtaking below.
        holders_wait = any(self.table.waits_of_job(holder) for holder in holders)
        if holders_wait and (steps := policy.find_cycle(self.table, waiter)):
            return steps
        if not waiter.wait_only:
            lasts = [last for name in waiter.names if (last := self.table.last(name)) is not None]
            if any(last.place > waiter.place for last in lasts):
                # It is queued before others, which have a new neighbour then.
                self._wake_behind(waiter)
        self.table.enqueue(waiter)
        if self._settings.report_waits_s is None:
            self._journal_wait(waiter, holders)
        if holders_wait:
            # Now that it waits, those that it waits for may overtake those that wait for it.
            self.hand_over((), policy.waits_behind(self.table, holders))
        return waiter

    def grant_or_refuse(self, draft: Waiter) -> LockHold | Waiter | None:
        """The grant now (None when it takes nothing), or the waiter if it had to queue."""
        waiter = self._with_place(draft)
        overtaken = policy.overtaken_if_granted(self.table, waiter)
        if overtaken is None:
            return waiter
        return None if waiter.wait_only else self._grant(waiter, overtaken)

    def refuse(self, steps: Sequence[CycleStep]) -> str:
        """Journal that a request would have closed this cycle; return the cycle as text."""
        text = policy.describe_cycle(steps)
        waiter = steps[0].waiter
        self._append(waiter.names, "lock.deadlock", by=waiter.by, cycle=text)
        return text

    def report_wait(self, waiter: Waiter) -> None:
        """Journal a wait that has become long enough for it."""
        holders = {one.hold.by for one in policy.blocking_holds(self.table, waiter)}
        self._journal_wait(waiter, holders, waited_s=self._waited_s(waiter))

    def refresh(self, waiter: Waiter) -> None:
        lease = leases.renew(waiter.lease, self._tx.now, self._settings.lease_s)
        self.table.update(replace(waiter, lease=lease))

    def release(self, hold: LockHold) -> None:
        """End a grant for its holder, and hand over."""
        self.table.remove_hold(hold)
        if self._journal_all:
            self._append(hold.names, "lock.released", by=hold.by, token=hold.token)
        self.hand_over(hold.names)

    def release_if_held(self, hold_id: str, names: Sequence[str]) -> bool:
        """Release a grant that may be gone; False when it is, or when its time to live was over."""
        hold = self.table.find_hold(hold_id, names)
        if hold is not None:
            self.release(hold)
        return hold is not None and not self.is_expired(hold)

    def withdraw(self, request_id: str, names: Sequence[str]) -> LockHold | None:
        """Remove all that is left of a request; return its grant, if it had one."""
        waiter, hold = self.table.waiter(request_id), self.table.find_hold(request_id, names)
        if waiter is not None and waiter.outcome is None:
            self.leave(waiter, "lock.withdrawn")
        elif waiter is not None:
            self.table.delete_outcome(waiter)
        elif hold is not None:
            self.release(hold)
        return hold

    def free(self, names: Sequence[str], by: str) -> tuple[tuple[str, ...], list[LockHold]]:
        """Take names from all grants of a job. Returns the names that it held, and each grant
        with the names that are left.
        """
        freed: dict[str, bool] = {}
        remaining: dict[str, LockHold] = {}
        for name in names:
            for hold in self.table.lock(name).holds:
                if hold.by == by:
                    freed[name] = freed.get(name, False) or not self.is_expired(hold)
                    kept = tuple(other for other in hold.names if other != name)
                    remaining[hold.id] = replace(hold, names=kept)
                    self.table.remove_hold(replace(hold, names=(name,)))
                    self.table.replace_hold(remaining[hold.id])
                    if self._journal_all:
                        self._append([name], "lock.released", by=hold.by, token=hold.token)
        self.hand_over(freed)
        return tuple(name for name, held in freed.items() if held), list(remaining.values())

    def transfer(self, hold: LockHold, process: Holder | None) -> LockHold:
        """Give a grant to the process on whose behalf another waited."""
        given = replace(hold, process=process)
        self.table.replace_hold(given)
        for name in hold.names:
            self._wake(self.table.queue(name), hold.mode)
        return given

    def renew(self, hold: LockHold, ttl_s: float | None) -> LockHold:
        """Renew a grant's lease from now: by `ttl_s`, else as it was granted."""
        ttl_s = hold.ttl_s if ttl_s is None else ttl_s
        length_s = self._settings.lease_s if ttl_s is None else ttl_s
        lease = leases.renew(hold.lease, self._tx.now, length_s, explicit=ttl_s is not None)
        renewed = replace(hold, lease=lease, ttl_s=ttl_s)
        self.table.replace_hold(renewed)
        return renewed

    def renew_or_reap(
        self, hold_id: str, names: Sequence[str], ttl_s: float | None
    ) -> tuple[LockHold | None, list[Reaped]]:
        """Renew a grant that may be gone. If its time to live is over, reap it."""
        hold = self.table.find_hold(hold_id, names)
        if hold is None:
            return None, []
        if self.is_expired(hold):
            return None, self.reap([Suspect(hold.id, hold.names, hold.process, Liveness.ALIVE)])
        return self.renew(hold, ttl_s), []

    def kick(self, name: str, by: str | None, why: str) -> list[LockHold]:
        """Take a resource away from its holders, or from one job; return the holds."""
        holds = [hold for hold in self.table.lock(name).holds if by in (None, hold.by)]
        for hold in holds:
            self.revoke(hold, "lock.kicked", why=why)
        self.hand_over([other for hold in holds for other in hold.names])
        return holds

    def revoke(self, hold: LockHold, kind: str, **data: object) -> None:
        """Take a grant away, and notify its process. Does not hand over."""
        self.table.remove_hold(hold)
        self._append(hold.names, kind, by=hold.by, token=hold.token, **data)
        self._tx.notify(lost_topic(requester_of(hold.id)))

    def leave(self, waiter: Waiter, kind: str, **data: object) -> None:
        self._remove(waiter, kind, **data)
        self.hand_over(waiter.names)

    def time_out(self, waiter: Waiter) -> None:
        """Remove a waiter whose time limit passed; the journal names the holders."""
        holders = {one.hold.by for one in policy.blocking_holds(self.table, waiter)}
        self.leave(waiter, "lock.timed_out", held_by=sorted(holders)[:LOCK_JOURNAL_NAMES_MAX])

    def reap(self, suspects: Iterable[Suspect]) -> list[Reaped]:
        """Remove those grants and waiters that may be reclaimed by now, and hand over."""
        reaped: list[Reaped] = []
        for suspect in suspects:
            dead = suspect.liveness is Liveness.DEAD
            hold = self.table.find_hold(suspect.id, suspect.names)
            waiter = self.table.waiter(suspect.id) if hold is None else None
            found = hold or waiter
            if found is None or found.process != suspect.process:
                # Gone, or meanwhile transferred to a process that was not probed.
                continue
            if not self._clock.reclaimable(found.lease, suspect.liveness, self._tx.now):
                continue
            if hold is not None:
                # A command that ends before its wrapper can release its grant did not die.
                end = "lock.holder_ended" if hold.on_behalf else "lock.holder_died"
                kind = end if dead else "lock.lease_expired"
                self.revoke(hold, kind, process=_short(hold.process))
                reaped.append(Reaped(hold.names, hold, dead))
            elif waiter is not None:
                gone = [waiter, *self._neighbours_of_process(waiter)] if dead else [waiter]
                kind = "lock.waiter_died" if dead else "lock.waiter_expired"
                for one in gone:
                    self._remove(one, kind, process=_short(one.process))
                reaped += [Reaped(one.names, None, dead) for one in gone]
        self.hand_over([name for gone in reaped for name in gone.names])
        return reaped

    def _neighbours_of_process(self, waiter: Waiter) -> list[Waiter]:
        """The waiters just ahead of the same process: one transaction reaps them all."""
        found: dict[str, Waiter] = {}
        for name in waiter.names:
            before = islice(self.table.before(waiter, name), LOCK_REAPED_MAX)
            same = takewhile(lambda one: one.process == waiter.process, before)
            found |= {one.id: one for one in same}
        return list(found.values())

    def hand_over(self, names: Collection[str], waiters: Iterable[Waiter] = ()) -> None:
        """Grant what can be granted now to the waiters for these names, and to these waiters.
        Waiters are tried in queue order, also those that a grant here affects, so that no waiter is
        overtaken that can be granted.
        """
        for name in dict.fromkeys(names):
            self._tried_names.add(name)
            self._push_next(name, self.table.queue(name))
        for waiter in waiters:
            heapq.heappush(self._heap, (waiter.place, next(self._numbers), "", None, waiter))
        if self._handing_over:
            return
        self._handing_over = True
        self._refused = ""
        while self._heap or self._end_a_cycle():
            _, _, name, queue, waiter = heapq.heappop(self._heap)
            if waiter.id == self._refused:
                # A waiter comes once for each of its names, in a row, and is refused once.
                pass
            elif self._try_waiter(waiter):
                self._refused = ""
                # The waiters behind it may move up in its other queues too, except where they were
                # tried: it blocked them as a waiter and now blocks them as a holder.
                for other in set(waiter.names) - self._tried_names:
                    self._tried_names.add(other)
                    self._push_next(other, self.table.queue(other))
            else:
                self._refused = waiter.id
            if queue is not None:
                self._push_next(name, queue)
        self._handing_over = False
        self._tried_names.clear()

    def _push_next(self, name: str, queue: Iterator[Waiter]) -> None:
        if self.table.hold_index(name).exclusive:
            # No waiter can be granted behind an exclusive holder.
            return
        for waiter in queue:
            heapq.heappush(self._heap, (waiter.place, next(self._numbers), name, queue, waiter))
            return

    def _try_waiter(self, waiter: Waiter) -> bool:
        """Grant a queued waiter, or settle it, if its turn has come."""
        current = self.table.waiter(waiter.id)
        if current is None or current.outcome is not None:
            return False
        overtaken = policy.overtaken_if_granted(self.table, current)
        if overtaken is None:
            return False
        if current.wait_only:
            self.table.settle(replace(current, outcome=WaitOutcome.FREE))
        elif not policy.names_to_take(self.table, current):
            self.table.settle(replace(current, outcome=WaitOutcome.AGAIN))
        else:
            self.table.dequeue(current)
            self._grant(current, overtaken, waited=True)
            self._tx.notify(current.address)
        return True

    def _end_a_cycle(self) -> bool:
        """Settle the youngest waiter of a cycle that a grant closed, if there is one."""
        while self._may_close_cycle:
            by = next(iter(self._may_close_cycle))
            cycles = (policy.find_cycle(self.table, one) for one in self.table.waits_of_job(by))
            steps = next((steps for steps in cycles if steps), None)
            if steps is None:
                del self._may_close_cycle[by]
                continue
            youngest = max((step.waiter for step in steps), key=lambda one: one.arrival)
            # It learns of the cycle when it requests again.
            self.table.settle(replace(youngest, outcome=WaitOutcome.AGAIN))
            self._refused = ""
            self.hand_over(youngest.names)
            if self._heap:
                return True
        return False

    def _grant(
        self, waiter: Waiter, overtaken: Iterable[Waiter], *, waited: bool = False
    ) -> LockHold:
        names = tuple(policy.names_to_take(self.table, waiter))
        locks = [self.table.lock(name) for name in names]
        waits_elsewhere = bool(self.table.waits_of_job(waiter.by))
        data: dict[str, object] = {"by": waiter.by, "mode": waiter.mode.value}
        if waited:
            data["waited_s"] = seconds = self._waited_s(waiter)
            journalled = seconds >= self._journal_waits_s
        else:
            contended = waits_elsewhere or any(lock.holds or lock.waited for lock in locks)
            journalled = contended or self._journal_all
        token = self._append(names, "lock.granted", **data) if journalled else self._tx.token()
        # A process that waited on behalf of another gives it the grant when it wakes: see
        # `transfer`.
        process = waiter.process if waited else waiter.holder
        hold = hold_of(waiter, names, process, self._tx.now, self._settings.lease_s, token)
        for other in overtaken:
            self.table.update(replace(other, overtaken=other.overtaken + 1))
        self.table.add_hold(hold)
        for name in names:
            if not waited:
                # The first in the queue does not know this holder.
                self._wake(self.table.queue(name), waiter.mode)
                continue
            # The waiters behind it watch it. But if it overtook some, those are just ahead of them
            # from now on.
            before = takewhile(lambda one: one.place < waiter.place, self.table.queue(name))
            if self._wake(before, waiter.mode):
                self._wake(self.table.after(waiter, name), waiter.mode)
        if waits_elsewhere:
            # A job that waits with another thread now holds more: others may overtake the waiters
            # that now wait for it, or it has closed a cycle.
            self._may_close_cycle[waiter.by] = None
            self.hand_over((), policy.waits_behind(self.table, {waiter.by}))
        return hold

    def _remove(self, waiter: Waiter, kind: str, **data: object) -> None:
        if not waiter.wait_only:
            self._wake_behind(waiter)
        self.table.dequeue(waiter)
        self._append(waiter.names, kind, by=waiter.by, waited_s=self._waited_s(waiter), **data)

    def _wake_behind(self, waiter: Waiter) -> None:
        """Wake those that will have another neighbour when the waiter leaves or is queued."""
        for name in waiter.names:
            self._wake(self.table.after(waiter, name), waiter.mode)

    def _wake(self, queue: Iterable[Waiter], mode: Mode) -> int:
        """Wake the next that conflicts with a mode, and more while they share or take nothing."""
        woken = 0
        for other in queue:
            if conflict(other.mode, mode):
                self._tx.notify(other.address)
                woken += 1
                if other.mode is Mode.EXCLUSIVE and not other.wait_only:
                    break
        return woken

    def _with_place(self, draft: Waiter) -> Waiter:
        """The draft with its place. A clock that was set back does not let it overtake others."""
        now = arrived_at = self._tx.now
        for name in draft.names:
            last, newest_at = self.table.last(name), self.table.lock(name).newest_at
            if last is not None and last.arrived_at > arrived_at:
                arrived_at = last.arrived_at
            if newest_at is not None and newest_at > arrived_at:
                arrived_at = newest_at
        return replace(
            draft,
            arrived_at=arrived_at,
            arrival=self._tx.revision,
            rank=rank_of(arrived_at, draft.priority, self._settings.priority_age_s),
            lease=leases.grant(now, self._settings.lease_s),
        )

    def _waited_s(self, waiter: Waiter) -> float:
        return waited_s(waiter, self._tx.now)

    def _journal_wait(self, waiter: Waiter, holders: Iterable[str], **data: object) -> None:
        self._append(
            waiter.names,
            "lock.waiting",
            by=waiter.by,
            mode=waiter.mode.value,
            held_by=sorted(holders)[:LOCK_JOURNAL_NAMES_MAX],
            **data,
        )

    def _append(self, names: Sequence[str], kind: str, **data: object) -> int:
        """Journal an event under each name; return the revision of the first entry."""
        if len(names) > 1:
            data["names"] = list(names[:LOCK_JOURNAL_NAMES_MAX])
        revisions = [
            self._journal.append(self._tx, kind=kind, subject=name, data=data) for name in names
        ]
        return revisions[0]


def _short(process: Holder | None) -> str:
    return "none" if process is None else f"{process.host_id[:12]}/{process.pid}"


def requester_of(request_id: str) -> str:
    """The requester that made a request: all ids of its requests begin with it."""
    return request_id.rpartition("-")[0]


def lost_topic(requester: str) -> str:
    """The topic that notifies a requester of lost grants."""
    return f"locks.lost/{requester}"
