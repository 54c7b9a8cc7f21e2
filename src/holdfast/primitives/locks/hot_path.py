"""The usual turn at a contended lock, in a straight line: one name, held by one job alone, and
waited for by jobs that each want just that.

Each function decides as `LockTransaction` does, and returns None, before it changes anything, where
the case is not the usual one: a set of names, sharers, priorities, requests that take nothing, jobs
that wait in two places (only these can close a cycle), a journal of everything. A differential test
compares both ways: answers, rows, revisions, notices and journal.
"""

from typing import NamedTuple

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Liveness
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    Lock,
    LockHold,
    Mode,
    Waiter,
    hold_of,
    lock_in,
    rank_of,
    root_of,
    waited_s,
    within,
)
from holdfast.primitives.steady_clock import SteadyClock


class Queued(NamedTuple):
    """A queued request, and the hold or the waiter just ahead of it."""

    waiter: Waiter
    ahead: LockHold | Waiter


def grant_or_queue(tx: Tx, settings: LockSettings, draft: Waiter) -> LockHold | Queued | None:
    """Grant a name that is free, or queue behind those that are there."""
    name, by = draft.name, draft.by
    if (
        len(draft.names) > 1
        or draft.mode is not Mode.EXCLUSIVE
        or draft.wait_only
        or draft.priority
        or settings.report_waits_s is None
    ):
        return None
    row = tx.get(LOCKS, name)
    if row is None:
        if tx.count(LOCK_WAITS, "job", (root_of(by),)):
            return None
        hold = hold_of(draft, draft.names, draft.holder, tx.now, settings.lease_s, tx.token())
        tx.put(LOCKS, name, Lock(holds=(hold,)))
        return hold
    lock = row.record
    if len(lock.holds) != 1 or lock.newest_at is not None:
        return None
    held = lock.holds[0]
    if held.mode is not Mode.EXCLUSIVE or within(by, held.by):
        return None
    if tx.count(LOCK_WAITS, "job", (root_of(held.by),)):
        # A holder that waits itself: queueing may close a cycle.
        return None
    now = arrived_at = tx.now
    last: Waiter | None = None
    if lock.waited:
        lasts = tx.find(LOCK_WAITS, "queue", (name,), reverse=True, limit=1)
        if not lasts:
            # Somebody has removed a damaged waiter from the store.
            return None
        last = lasts[0].record
        if (
            len(last.names) > 1
            or last.mode is not Mode.EXCLUSIVE
            or last.wait_only
            or last.priority
            # Such a waiter does not wait for this holder, so that the next one must watch both.
            or within(last.by, held.by)
        ):
            return None
        if last.arrived_at > arrived_at:
            arrived_at = last.arrived_at
    waiter = replace(
        draft,
        arrived_at=arrived_at,
        arrival=tx.revision,
        rank=rank_of(arrived_at, 0, settings.priority_age_s),
        lease=leases.grant(now, settings.lease_s),
    )
    tx.put(LOCK_WAITS, waiter.key, waiter)
    if last is None:
        tx.put(LOCKS, name, replace(lock_in(row), waited=True))
    return Queued(waiter, last or held)


def release(
    tx: Tx,
    journal: Journal,
    settings: LockSettings,
    clock: SteadyClock,
    hold_id: str,
    names: tuple[str, ...],
) -> bool | None:
    """End the only grant of a name, and grant it to the first in the queue. True unless its time to
    live was over.
    """
    if len(names) > 1 or settings.journal == "all":
        return None
    name = names[0]
    row = tx.get(LOCKS, name)
    if row is None:
        return False
    lock = row.record
    held = lock.holds[0] if len(lock.holds) == 1 else None
    if held is None or held.id != hold_id or len(held.names) > 1:
        return None
    if not lock.waited:
        tx.delete(LOCKS, name)
    elif not _hand_over(tx, journal, settings, lock, name):
        return None
    return not (held.lease.explicit and clock.reclaimable(held.lease, Liveness.ALIVE, tx.now))


def _hand_over(tx: Tx, journal: Journal, settings: LockSettings, lock: Lock, name: str) -> bool:
    """Grant the name to the first in its queue; False, and nothing is changed, where that is not
    the usual case.
    """
    found = tx.find(LOCK_WAITS, "queue", (name,), limit=2)
    if not found:
        return False
    waiter, others = found[0].record, len(found) > 1
    if len(waiter.names) > 1 or waiter.mode is not Mode.EXCLUSIVE or waiter.wait_only:
        return False
    if tx.count(LOCK_WAITS, "job", (root_of(waiter.by),)) > 1:
        # A job that waits in two places: its grant may let others overtake, or close a cycle.
        return False
    tx.delete(LOCK_WAITS, found[0].key)
    now = tx.now
    seconds = waited_s(waiter, now)
    if seconds < settings.journal_waits_s:
        token = tx.token()
    else:
        data = {"by": waiter.by, "mode": waiter.mode.value, "waited_s": seconds}
        token = journal.append(tx, kind="lock.granted", subject=name, data=data)
    granted = hold_of(waiter, waiter.names, waiter.process, now, settings.lease_s, token)
    newest_at = lock.newest_at if others else None
    tx.put(LOCKS, name, Lock(holds=(granted,), waited=others, newest_at=newest_at))
    tx.notify(waiter.address)
    return True
