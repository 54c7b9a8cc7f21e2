"""Whose turn it is: the rules of the lock table, as functions of a `LockTable`.

Two kinds of obstacle keep a waiter waiting: conflicting holds of other jobs, and conflicting
waiters ahead of it in a queue. Only holds are absolute. A waiter ahead is no obstacle

- if it waits, directly or not, for this very job: queueing behind it would close a cycle; or
- if later requests overtook it fewer than BACKFILL_MAX times: it cannot go now, and this one can.

By the first exception a place in a queue is never part of a cycle: deadlocks are of holds alone.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct

from holdfast.kernel.codec import Instant, Plain, to_json
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import (
    BACKFILL_MAX,
    LOCK_AHEAD_COUNTED_MAX,
    LOCK_AHEAD_NAMED_MAX,
    LOCK_HOLDS_BYTES_MAX,
    LOCK_SHARERS_MAX,
)
from holdfast.kernel.text import counted
from holdfast.primitives.locks.records import LockHold, Mode, Waiter, conflict, within
from holdfast.primitives.locks.table import LockTable

_STEPS_SHOWN_MAX = 16
_HOLDERS_SHOWN_MAX = 3


class BlockingHold(NamedTuple):
    """A hold on a name that a waiter must wait for."""

    name: str
    hold: LockHold


class CycleStep(Struct, frozen=True):
    """One step of a cycle: the waiter waits for a name that the next step's job holds."""

    waiter: Waiter
    name: str
    hold: LockHold


def names_to_take(table: LockTable, waiter: Waiter) -> list[str]:
    """The names that the waiter's job does not hold yet in the requested mode."""
    if waiter.wait_only:
        return list(waiter.names)
    by, mode = waiter.by, waiter.mode
    return [name for name in waiter.names if table.covering_hold(name, by, mode) is None]


def blocking_holds(table: LockTable, waiter: Waiter) -> Iterator[BlockingHold]:
    """The holds of other jobs that the waiter must wait for."""
    by, mode = waiter.by, waiter.mode
    for name in waiter.names:
        holds = table.lock(name).holds
        if not holds:
            continue
        covered = table.covering_hold(name, by, mode) is not None
        if covered and not waiter.wait_only:
            continue
        # Sharers block exclusive requests only.
        for hold in holds if mode is Mode.EXCLUSIVE else table.hold_index(name).exclusive:
            if not within(by, hold.by):
                yield BlockingHold(name, hold)
        if mode is Mode.SHARED and not covered and _is_full(table, name, waiter):
            # Any sharer that leaves makes room, and one stands for all. Prefer one that waits for
            # nothing: a cycle through another sharer would not last.
            idle = (hold for hold in holds if not table.waits_of_job(hold.by))
            yield BlockingHold(name, next(idle, holds[0]))


def _is_full(table: LockTable, name: str, waiter: Waiter) -> bool:
    """True when one more sharer must wait until another leaves."""
    index = table.hold_index(name)
    # A waiter's row is longer than its hold would be.
    return (
        index.count >= LOCK_SHARERS_MAX
        or index.size() + len(to_json(waiter)) > LOCK_HOLDS_BYTES_MAX
    )


def conflicting_ahead(table: LockTable, waiter: Waiter) -> Iterator[Waiter]:
    """The conflicting waiters ahead, obstacles or not. One may come more than once."""
    if waiter.wait_only:
        return
    place = waiter.place
    for name in names_to_take(table, waiter):
        if not table.lock(name).waited:
            continue
        for other in table.queue(name):
            if other.place >= place:
                break
            if (
                not other.wait_only
                and conflict(other.mode, waiter.mode)
                and not within(waiter.by, other.by)
            ):
                yield other


def overtaken_if_granted(table: LockTable, waiter: Waiter) -> list[Waiter] | None:
    """The waiters ahead that a grant now may delay; None when the waiter must wait."""
    for _ in blocking_holds(table, waiter):
        return None
    return overtaken_in_queue(table, waiter)


def overtaken_in_queue(table: LockTable, waiter: Waiter) -> list[Waiter] | None:
    """As `overtaken_if_granted`, for a waiter that no hold blocks."""
    overtaken: dict[str, Waiter] = {}
    unrelated: set[str] = set()
    for other in conflicting_ahead(table, waiter):
        if other.id in overtaken or waits_for_job(table, other, waiter.by, unrelated):
            continue
        if other.overtaken >= BACKFILL_MAX:
            return None
        overtaken[other.id] = other
    return list(overtaken.values())


def waits_for_job(table: LockTable, waiter: Waiter, by: str, unrelated: set[str]) -> bool:
    """True when the waiter waits, directly or not, for something that job `by` holds. `unrelated`
    collects the ids of waiters that do not, for the next call about the same job.
    """
    pending = [waiter]
    visited: set[str] = set()
    while pending:
        waiting = pending.pop()
        if waiting.id in unrelated or waiting.id in visited:
            continue
        visited.add(waiting.id)
        holders = {blocking.hold.by for blocking in blocking_holds(table, waiting)}
        if any(within(by, holder) for holder in holders):
            return True
        for holder in holders:
            pending += table.waits_of_job(holder)
        pending += conflicting_ahead(table, waiting)
    unrelated |= visited
    return False


def waits_behind(table: LockTable, jobs: set[str]) -> list[Waiter]:
    """All waits of these jobs, of the jobs that they wait for, and so on, in queue order."""
    found: dict[str, Waiter] = {}
    pending = [waiter for by in jobs for waiter in table.waits_of_job(by)]
    while pending:
        waiter = pending.pop()
        if waiter.id not in found:
            found[waiter.id] = waiter
            for blocking in blocking_holds(table, waiter):
                pending += table.waits_of_job(blocking.hold.by)
            pending += conflicting_ahead(table, waiter)
    return sorted(found.values(), key=lambda waiter: waiter.place)


def find_cycle(table: LockTable, waiter: Waiter) -> list[CycleStep]:
    """The cycle of holds that the waiter is part of, from its own step on; empty without one."""
    led_by: dict[str, CycleStep | None] = {waiter.id: None}
    pending = deque([waiter])
    while pending:
        waiting = pending.popleft()
        for name, hold in blocking_holds(table, waiting):
            step: CycleStep | None = CycleStep(waiting, name, hold)
            if within(waiter.by, hold.by):
                steps = []
                while step is not None:
                    steps.append(step)
                    step = led_by[step.waiter.id]
                return steps[::-1]
            for next_one in table.waits_of_job(hold.by):
                if next_one.id not in led_by:
                    led_by[next_one.id] = step
                    pending.append(next_one)
    return []


def describe_cycle(steps: Sequence[CycleStep]) -> str:
    """A cycle as text; a long one is cut."""
    text = "; ".join(
        f"{step.waiter.by} waits for {step.name}, held by {step.hold.by}"
        for step in steps[:_STEPS_SHOWN_MAX]
    )
    more = len(steps) - _STEPS_SHOWN_MAX
    return text if more <= 0 else f"{text}; and {more} more"


def nearest_ahead(table: LockTable, waiter: Waiter) -> tuple[list[LockHold], list[Waiter]]:
    """The holds and waiters whose death would let this waiter move up: for each name the nearest
    waiter ahead, or the holders. All sharers ahead of an exclusive request count.
    """
    holds: dict[str, LockHold] = {}
    waiters: dict[str, Waiter] = {}
    by, mode = waiter.by, waiter.mode
    for name in names_to_take(table, waiter):
        nearest: list[Waiter] = []
        # Waiters of the same job count too. This one does not wait for them, but the waiters
        # behind it rely on it to watch them.
        for other in table.before(waiter, name):
            if other.wait_only or not conflict(other.mode, mode):
                continue
            if other.mode is not Mode.EXCLUSIVE or not nearest:
                nearest.append(other)
            if other.mode is Mode.EXCLUSIVE:
                break
        waiters.update({other.id: other for other in nearest})
        # An exclusive waiter ahead watches the holders, except those of its own job.
        watching = {other.by for other in nearest if other.mode is Mode.EXCLUSIVE}
        full = (
            mode is Mode.SHARED
            and table.covering_hold(name, by, mode) is None
            and _is_full(table, name, waiter)
        )
        for hold in table.lock(name).holds:
            blocks = (full or conflict(hold.mode, mode)) and not within(by, hold.by)
            if blocks and (not watching or any(within(job, hold.by) for job in watching)):
                holds[hold.id] = hold
    return list(holds.values()), list(waiters.values())


class Blocker(Plain, frozen=True, kw_only=True):
    """A holder of what the request needs. `until` is the end of its time to live, if any."""

    resource: str
    by: str
    mode: Mode
    since: Instant
    until: Instant | None
    process: Holder | None


class EarlierWaiter(Plain, frozen=True, kw_only=True):
    """A conflicting waiter ahead of the request."""

    by: str
    names: tuple[str, ...]
    since: Instant
    process: Holder


class Obstruction(Plain, frozen=True, kw_only=True):
    """What kept a request waiting at one moment."""

    at: Instant
    holders: tuple[Blocker, ...]
    """At most LOCK_AHEAD_NAMED_MAX of them."""
    holders_count: int
    ahead: tuple[EarlierWaiter, ...]
    """The first in the queue, at most LOCK_AHEAD_NAMED_MAX of them."""
    position: int | None
    """Its position in the queue, 1 for the next; None behind more than LOCK_AHEAD_COUNTED_MAX."""


def obstruction_of(table: LockTable, waiter: Waiter, now: datetime) -> Obstruction:
    """What keeps a waiter waiting that has, or would have, its place in the queue."""
    blocking = list(blocking_holds(table, waiter))
    ahead: dict[str, Waiter] = {}
    for other in conflicting_ahead(table, waiter):
        ahead[other.id] = other
        if len(ahead) > LOCK_AHEAD_COUNTED_MAX:
            # Counting further would hold up all others at the table.
            break
    first = sorted(ahead.values(), key=lambda other: other.place)[:LOCK_AHEAD_NAMED_MAX]
    return Obstruction(
        at=now,
        holders=tuple(
            Blocker(
                resource=name,
                by=hold.by,
                mode=hold.mode,
                since=hold.lease.granted_at,
                until=hold.lease.expires_at if hold.lease.explicit else None,
                process=hold.process,
            )
            for name, hold in blocking[:LOCK_AHEAD_NAMED_MAX]
        ),
        holders_count=len(blocking),
        ahead=tuple(
            EarlierWaiter(by=one.by, names=one.names, since=one.arrived_at, process=one.process)
            for one in first
        ),
        position=None if len(ahead) > LOCK_AHEAD_COUNTED_MAX else len(ahead) + 1,
    )


def describe_obstruction(found: Obstruction, names: tuple[str, ...]) -> str:
    """An obstruction as text. With several names, each holder comes with what it holds."""
    parts = []
    for blocker in found.holders[:_HOLDERS_SHOWN_MAX]:
        held = f"{blocker.resource} is held" if len(names) > 1 else "held"
        process = "" if blocker.process is None else f" (process {blocker.process.pid})"
        until = "" if blocker.until is None else f" until {clock_time(blocker.until, found.at)}"
        since = clock_time(blocker.since, found.at)
        parts.append(f"{held} by {blocker.by}{process} since {since}{until}")
    if found.holders_count > len(parts):
        parts.append(f"and by {found.holders_count - len(parts)} more")
    if not found.holders:
        parts.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} free")
    if found.position is None:
        parts.append(f"more than {LOCK_AHEAD_COUNTED_MAX} waiters ahead")
    elif found.position > 1:
        first = "" if found.holders else f", {found.ahead[0].by} first"
        parts.append(f"{counted(found.position - 1, 'waiter')} ahead{first}")
    return ", ".join(parts)


def clock_time(at: datetime, now: datetime) -> str:
    """An instant in UTC to the minute, with its date unless that is today."""
    return at.strftime("%H:%MZ" if at.date() == now.date() else "%Y-%m-%d %H:%MZ")
