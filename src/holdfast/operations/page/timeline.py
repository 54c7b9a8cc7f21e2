"""A timeline of who held and who waited for what, put together from the journal and the lock table.

An uncontended grant is not journalled, nor one after a short wait. So nothing shows one that has
ended, if nobody waited long for it. A hold whose beginning or end is not in the journal is drawn
from its first to its last mention, and says so.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from holdfast.kernel.clock import ago
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.limits import LOCK_JOURNAL_NAMES_MAX, PAGE_JOURNAL_MAX, PAGE_LANES_MAX
from holdfast.kernel.store import Entry, Store
from holdfast.primitives.locks import Locks
from holdfast.primitives.locks.records import within

_HOLD_ENDS = {
    "lock.released": "released",
    "lock.kicked": "kicked",
    "lock.holder_died": "died",
    "lock.holder_ended": "ended",
    "lock.lease_expired": "expired",
}
_WAIT_ENDS = {
    "lock.timed_out": "timed out",
    "lock.withdrawn": "withdrawn",
    "lock.waiter_died": "died",
    "lock.waiter_expired": "expired",
    "lock.deadlock": "deadlock",
}


class Stretch(Plain, frozen=True, kw_only=True):
    """A job held a resource, or waited for it, for a while."""

    resource: str
    job: str
    what: Literal["hold", "wait"]
    begin: Instant
    end: Instant | None
    """None: it still does."""
    how: str = ""
    """How it ended."""
    began_before: bool = False
    """Its beginning is not known."""


class Timeline(Plain, frozen=True, kw_only=True):
    """Stretches by resource, from the oldest that the journal was read for."""

    now: Instant
    since: Instant
    stretches: tuple[Stretch, ...]
    left_out: int
    """How many resources got no lane."""


def timeline(store: Store, locks: Locks) -> Timeline:
    """Who held and who waited for what, as far back as the last entries of the journal go."""
    entries = store.journal(limit=PAGE_JOURNAL_MAX, reverse=True).entries[::-1]
    history = _History()
    for entry in entries:
        history.take(entry)
    now = store.now()
    held = {
        (line.name, hold.by): hold.since
        for line in locks.page(limit=PAGE_LANES_MAX)
        for hold in line.holds
    }
    for name in {key[0] for key in history.holds} - {key[0] for key in held}:
        held |= {(name, hold.by): hold.since for hold in locks.status(name).holds}
    waits = {
        (edge.resource, edge.job) for edge in locks.contention().edges if edge.position is not None
    }
    stretches = history.up_to_now(held, waits)
    names = _lanes(stretches)
    kept = tuple(one for one in stretches if one.resource in names)
    since = min((one.begin for one in kept), default=now)
    return Timeline(
        now=now,
        since=since,
        stretches=kept,
        left_out=len({one.resource for one in stretches}) - len(names),
    )


class _History:
    """The stretches of the entries read so far."""

    def __init__(self) -> None:
        self.over: list[Stretch] = []
        self.holds: dict[tuple[str, str], Stretch] = {}
        self.waits: dict[tuple[str, str], Stretch] = {}
        self._mentioned: dict[tuple[str, str], datetime] = {}

    def take(self, entry: Entry) -> None:
        """The next entry."""
        by = str(entry.data.get("by", ""))
        key = (entry.subject, by)
        if entry.kind == "lock.waiting":
            # A waiter reports a wait only when it has lasted long.
            begin = ago(entry.at, float(entry.data.get("waited_s") or 0))
            self.waits[key] = Stretch(
                resource=entry.subject, job=by, what="wait", begin=begin, end=None
            )
            self._take_holders(entry, by)
        elif entry.kind == "lock.granted":
            self._end(self.waits, key, entry.at, "granted")
            if entry.data.get("mode") == "exclusive":
                for other in [
                    other for other in self.holds if other[0] == entry.subject and other[1] != by
                ]:
                    self._end(self.holds, other, entry.at, "released")
            self.holds[key] = Stretch(
                resource=entry.subject, job=by, what="hold", begin=entry.at, end=None
            )
        elif entry.kind in _HOLD_ENDS:
            self._mention(entry.subject, by, entry.at)
            self._end(self.holds, key, entry.at, _HOLD_ENDS[entry.kind])
        elif entry.kind in _WAIT_ENDS:
            self._take_holders(entry, by)
            self._end(self.waits, key, entry.at, _WAIT_ENDS[entry.kind])

    def up_to_now(
        self, held: dict[tuple[str, str], datetime], waits: set[tuple[str, str]]
    ) -> list[Stretch]:
        """All of it, with what the lock table says of this moment."""
        found = list(self.over)
        for key, since in held.items():
            self.holds.pop(key, None)
            found.append(Stretch(resource=key[0], job=key[1], what="hold", begin=since, end=None))
        for key, hold in self.holds.items():
            # It has ended, and the journal does not say when.
            found.append(replace(hold, end=self._last_mention(key), how="released"))
        found += [wait for key, wait in self.waits.items() if key in waits]
        return sorted(found, key=lambda one: one.begin)

    def _take_holders(self, entry: Entry, by: str) -> None:
        """The holders that an entry names; holds of others ended before it, at their last mention.

        An entry of a set names the holders of all its names, and a long list is cut.
        """
        named = [str(holder) for holder in entry.data.get("held_by") or ()]
        of_this = "names" not in entry.data or entry.data.get("mode") == "exclusive"
        if of_this and 0 < len(named) < LOCK_JOURNAL_NAMES_MAX:
            for key in [key for key in self.holds if key[0] == entry.subject]:
                if key[1] not in named and not within(by, key[1]):
                    self._end(self.holds, key, self._last_mention(key), "released")
        for holder in named:
            self._mention(entry.subject, holder, entry.at)

    def _last_mention(self, key: tuple[str, str]) -> datetime:
        begin = self.holds[key].begin
        return max(begin, self._mentioned.get(key, begin))

    def _mention(self, resource: str, job: str, at: datetime) -> None:
        key = (resource, job)
        self._mentioned[key] = at
        if key not in self.holds:
            self.holds[key] = Stretch(
                resource=resource, job=job, what="hold", begin=at, end=None, began_before=True
            )

    def _end(
        self, which: dict[tuple[str, str], Stretch], key: tuple[str, str], at: datetime, how: str
    ) -> None:
        found = which.pop(key, None)
        if found is not None:
            self.over.append(replace(found, end=at, how=how))


def _lanes(stretches: Iterable[Stretch]) -> set[str]:
    """The resources with the newest stretches, as many as there are lanes."""
    newest: dict[str, datetime] = {}
    for one in stretches:
        newest[one.resource] = max(one.begin, newest.get(one.resource, one.begin))
    return set(sorted(newest, key=lambda name: newest[name], reverse=True)[:PAGE_LANES_MAX])
