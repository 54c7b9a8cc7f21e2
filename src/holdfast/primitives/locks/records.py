"""What the lock table keeps: a row for each resource that is held or waited for, and a row for each
name of a waiting request.

A resource that nobody holds or waits for has no row, so that a free one is taken by inserting it.
The row of an uncontended grant is never touched between the grant and the release: its revision is
the grant's token, and whoever comes to wait writes the row anew. So a release that finds the row as
it was knows that nobody waits.
"""

import enum
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from holdfast.kernel.codec import Instant, Plain, Record
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space
from holdfast.kernel.store import Row


class Mode(enum.StrEnum):
    """How a resource is held: many share it, or one has it alone."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Hold(Plain, frozen=True, kw_only=True):
    """One grant as each resource's row shows it. `names` are all that the grant took, in one
    step.
    """

    id: str
    by: str
    mode: Mode
    names: tuple[str, ...]
    lease: Lease
    process: Holder | None
    """Whose death frees it; None: it lives by its lease alone."""
    on_behalf: bool = False
    """Another process asked for it, and looks after it."""
    ttl_s: float | None = None
    """The time to live that was asked for, which a renewal begins anew."""
    token: int = 0
    """0: the revision of the row, which nobody has touched since the grant. `lock_in` fills it in.
    """

    def covers(self, by: str, mode: Mode) -> bool:
        """Does a job need nothing more to have the resource in that mode?"""
        return (self.mode is Mode.EXCLUSIVE or mode is Mode.SHARED) and within(by, self.by)


class Lock(Record, frozen=True, kw_only=True):
    """One resource: who holds it, and whether anybody waits for it."""

    holds: tuple[Hold, ...] = ()
    waited: bool = False
    newest_at: Instant | None = None
    """When the newest waiter came, where that may be another than the last in the queue."""


class Outcome(enum.StrEnum):
    """What a waiting request was told, where it was not granted."""

    AGAIN = "again"
    """Ask again: its job has come to hold everything it asked for, or it is the youngest of a
    cycle.
    """
    FREE = "free"
    """What it only looked for was free."""


class Request(Record, frozen=True, kw_only=True):
    """One job's wait for a set of names, all or nothing. It has a row for each name; the first
    one's is up to date.
    """

    id: str
    name: str
    """The name that this row queues for."""
    names: tuple[str, ...]
    mode: Mode
    look: bool = False
    """It waits until the names are free and takes nothing."""
    by: str
    priority: int = 0
    rank: int
    """Its place: microseconds of arrival, moved forward by its priority."""
    arrival: int
    """A number that grows with each request: it orders equal ranks, and the greatest of a cycle is
    the youngest.
    """
    arrived_at: Instant
    process: Holder
    """Who waits."""
    grantee: Holder | None = None
    """Who will hold, where that is not the one that waits: for a command that asks on behalf of
    another.
    """
    unattended: bool = False
    """No process will hold it."""
    ttl_s: float | None = None
    lease: Lease
    """How long the waiter is believed without a sign of life."""
    address: str
    """What wakes it."""
    passed: int = 0
    """How often a later request was let through that may delay it."""
    outcome: Outcome | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Its order among all requests."""
        return self.rank, self.arrival

    @property
    def holder(self) -> Holder | None:
        """Whose death will free what it is granted."""
        return None if self.unattended else self.grantee or self.process

    @property
    def key(self) -> str:
        """The key of its first row."""
        return request_key(self.id)

    def rows(self) -> list[tuple[str, "Request"]]:
        """A row for each name."""
        if len(self.names) == 1:
            return [(_row_key(self.id, 0), self)]
        return [
            (_row_key(self.id, at), replace(self, name=name)) for at, name in enumerate(self.names)
        ]


def _queue_place(row: Request) -> Parts | None:
    return None if row.outcome else (row.name, *row.place)


def _job_place(row: Request) -> Parts | None:
    return None if row.outcome or row.name != row.names[0] else (root_of(row.by), *row.place)


def _told_place(row: Request) -> Parts | None:
    return (row.arrival,) if row.outcome else None


LOCKS = Space("locks", Lock, volatile=True, rank=30)
LOCK_WAITS = Space(
    "lock_waits",
    Request,
    volatile=True,
    indexes={"queue": _queue_place, "job": _job_place, "told": _told_place},
)


def request_key(request_id: str) -> str:
    """The key of a request's first row."""
    return _row_key(request_id, 0)


def _row_key(request_id: str, at: int) -> str:
    return f"{request_id}.{at}"


def lock_in(row: Row[Lock] | None) -> Lock:
    """The resource that a row, or its absence, stands for, with every token filled in."""
    if row is None:
        return FREE
    lock = row.record
    if len(lock.holds) == 1 and not lock.holds[0].token:
        return replace(lock, holds=(replace(lock.holds[0], token=row.revision),))
    return lock


FREE = Lock()


def within(by: str, job: str) -> bool:
    """Is `by` the job itself, or a part of it?"""
    return by == job or (by.startswith(job) and by[len(job)] == PART)


def self_and_wholes(by: str) -> list[str]:
    """Every job that `by` is within: itself, what it is a part of, and so on."""
    jobs = [by]
    end = by.rfind(PART)
    while end > 0:
        jobs.append(by[:end])
        end = by.rfind(PART, 0, end)
    return jobs


def root_of(by: str) -> str:
    """The job that a part, of a part, is of in the end."""
    end = by.find(PART, 1)
    return by if end < 0 else by[:end]


PART = "/"
"""What stands between a job and its part."""


def conflict(one: Mode, other: Mode) -> bool:
    """Can the two not be had at once, by different jobs?"""
    return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE


def rank_of(arrived_at: datetime, priority: int, age_s: float) -> int:
    """Where in the queue an arrival stands: each step of priority is worth `age_s` seconds of
    having come earlier. So nothing starves: a request is overtaken only by those that came within a
    bounded time after it.
    """
    return _microseconds(arrived_at) - round(priority * age_s * 1_000_000)


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
