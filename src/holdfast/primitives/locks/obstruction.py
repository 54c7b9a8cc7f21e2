"""What keeps a request waiting: who holds what it needs, since when, and who is in line before
it.
"""

from datetime import datetime

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import LOCK_AHEAD_COUNTED_MAX, LOCK_AHEAD_TOLD_MAX
from holdfast.kernel.text import counted
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.records import Mode, Request
from holdfast.primitives.locks.table import Table


class Blocker(Plain, frozen=True, kw_only=True):
    """A holder of something that the request needs. `until` is the end of its time to live, None
    where it has none.
    """

    resource: str
    by: str
    mode: Mode
    since: Instant
    until: Instant | None
    process: Holder | None


class EarlierWaiter(Plain, frozen=True, kw_only=True):
    """A request that is in line before it and that it conflicts with."""

    by: str
    names: tuple[str, ...]
    since: Instant
    process: Holder


class Obstruction(Plain, frozen=True, kw_only=True):
    """What kept a request waiting, as it was at one moment."""

    at: Instant
    holders: tuple[Blocker, ...]
    """At most LOCK_AHEAD_TOLD_MAX of them."""
    holders_count: int
    ahead: tuple[EarlierWaiter, ...]
    """The first in line, at most LOCK_AHEAD_TOLD_MAX of them."""
    position: int | None
    """Its place in line, 1 for the next; None when more than LOCK_AHEAD_COUNTED_MAX are before
    it.
    """


def obstruction_of(table: Table, request: Request, now: datetime) -> Obstruction:
    """What keeps a request waiting that has its place in line, or would have it."""
    held = list(policy.held_against(table, request))
    before: dict[str, Request] = {}
    for other in policy.queued_against(table, request):
        before[other.id] = other
        if len(before) > LOCK_AHEAD_COUNTED_MAX:
            # To count further would hold up everybody else at the table.
            break
    first = sorted(before.values(), key=lambda other: other.place)[:LOCK_AHEAD_TOLD_MAX]
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
            for name, hold in held[:LOCK_AHEAD_TOLD_MAX]
        ),
        holders_count=len(held),
        ahead=tuple(
            EarlierWaiter(by=one.by, names=one.names, since=one.arrived_at, process=one.process)
            for one in first
        ),
        position=None if len(before) > LOCK_AHEAD_COUNTED_MAX else len(before) + 1,
    )


def described(found: Obstruction, names: tuple[str, ...]) -> str:
    """An obstruction in words. Where several names were asked for, each holder comes with what
    it holds.
    """
    parts = [
        _held(blocker, found.at, named=len(names) > 1) for blocker in found.holders[:_HOLDERS_SHOWN]
    ]
    if found.holders_count > len(parts):
        parts.append(f"and by {found.holders_count - len(parts)} more")
    if not found.holders:
        parts.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} free")
    if found.position is None:
        parts.append(f"more than {LOCK_AHEAD_COUNTED_MAX} waiters ahead")
    elif found.position > 1:
        who = "" if found.holders else f", {found.ahead[0].by} first"
        parts.append(f"{counted(found.position - 1, 'waiter')} ahead{who}")
    return ", ".join(parts)


_HOLDERS_SHOWN = 3


def _held(blocker: Blocker, now: datetime, *, named: bool) -> str:
    process = "" if blocker.process is None else f" (process {blocker.process.pid})"
    until = "" if blocker.until is None else f" until {clock_time(blocker.until, now)}"
    what = f"{blocker.resource} is held" if named else "held"
    return f"{what} by {blocker.by}{process} since {clock_time(blocker.since, now)}{until}"


def clock_time(at: datetime, now: datetime) -> str:
    """An instant in UTC to the minute, with its date unless that is today's."""
    return at.strftime("%H:%MZ" if at.date() == now.date() else "%Y-%m-%d %H:%MZ")
