"""The rows of the lock table.

A `Lock` is a resource that is held or waited for. A free resource has no row, so one insert takes
it. A `Waiter` is a queued request, with one row for each of its names.

The row of an uncontended grant is inserted once and then left alone: its revision is the grant's
token. The first waiter changes the row. So a release that finds that revision knows that nobody
waits.
"""

import enum
from datetime import UTC, datetime, timedelta

from msgspec import field
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Instant, Plain, Record
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space
from holdfast.kernel.store import Row

PART = "/"
"""Separates a job from its part: `a/b` is a part of job `a`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Mode(enum.StrEnum):
    """Shared by many holders, or held by one alone."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class LockHold(Plain, frozen=True, kw_only=True):
    """One grant, as the row of each of its names shows it. `names` are all names of the grant."""

    id: str
    by: str
    mode: Mode
    names: tuple[str, ...]
    lease: Lease
    process: Holder | None
    """Its death ends the grant; None: only the lease does."""
    on_behalf: bool = False
    """Another process requested the grant and renews it."""
    ttl_s: float | None = None
    """The requested time to live, which a renewal starts again."""
    token: int = 0
    """0: the token is the revision of the row, which has not changed since the grant. `lock_in`
    fills it in.
    """

    def covers(self, by: str, mode: Mode) -> bool:
        """True when the hold gives job `by` the resource in that mode."""
        return (self.mode is Mode.EXCLUSIVE or mode is Mode.SHARED) and within(by, self.by)


class Lock(Record, frozen=True, kw_only=True):
    """One resource: its holds, and whether it has waiters."""

    holds: tuple[LockHold, ...] = ()
    waited: bool = False
    newest_at: Instant | None = None
    """When the newest waiter arrived. None while the newest is also the last in the queue, as it is
    unless priorities differ.
    """


class WaitOutcome(enum.StrEnum):
    """The end of a wait without a grant, kept in the waiter's first row until it is read."""

    AGAIN = "again"
    """Request again: the job now holds all the names, or this is the youngest wait of a cycle."""
    FREE = "free"
    """The names were free, for a waiter that takes nothing."""


class Waiter(Record, frozen=True, kw_only=True):
    """One job's wait for a set of names, all or nothing. Only its first row is kept up to date."""

    id: str
    name: str
    """The name that this row queues for."""
    names: tuple[str, ...]
    mode: Mode
    wait_only: bool = field(default=False, name="look")
    """It waits until the names are free and takes nothing."""
    by: str
    priority: int = 0
    rank: int
    """Its place in the queue: microseconds of arrival, moved forward by its priority."""
    arrival: int
    """Grows with each request. It orders equal ranks; the greatest of a cycle is the youngest."""
    arrived_at: Instant
    process: Holder
    """The process that waits."""
    grantee: Holder | None = None
    """The process that will hold, when it is not the one that waits."""
    unattended: bool = False
    """No process will hold it."""
    ttl_s: float | None = None
    lease: Lease
    """When it ends, a waiter that cannot be probed is removed."""
    address: str
    """The topic that wakes it."""
    overtaken: int = field(default=0, name="passed")
    """How many later requests that may delay it were granted first."""
    outcome: WaitOutcome | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Its order among all waiters; no two have the same, and it never changes."""
        return self.rank, self.arrival

    @property
    def holder(self) -> Holder | None:
        """The process that will hold what is granted."""
        return None if self.unattended else self.grantee or self.process

    @property
    def key(self) -> str:
        """The key of its first row."""
        return waiter_key(self.id)

    def rows(self) -> list[tuple[str, "Waiter"]]:
        """The key and row of each name."""
        if len(self.names) == 1:
            return [(f"{self.id}.0", self)]
        return [(f"{self.id}.{at}", replace(self, name=name)) for at, name in enumerate(self.names)]


def waiter_key(waiter_id: str) -> str:
    """The key of a waiter's first row."""
    return f"{waiter_id}.0"


def _queue_index(row: Waiter) -> Parts | None:
    return None if row.outcome else (row.name, *row.place)


def _job_index(row: Waiter) -> Parts | None:
    return None if row.outcome or row.name != row.names[0] else (root_of(row.by), *row.place)


def _outcome_index(row: Waiter) -> Parts | None:
    return (row.arrival,) if row.outcome else None


_FREE = Lock()
LOCKS = Space("locks", Lock, volatile=True, rank=30)
LOCK_WAITS = Space(
    "lock_waits",
    Waiter,
    volatile=True,
    indexes={"queue": _queue_index, "job": _job_index, "told": _outcome_index},
)


def lock_in(row: Row[Lock] | None) -> Lock:
    """The resource of a row, or of none. The revision of an unwritten row is its grant's token."""
    if row is None:
        return _FREE
    lock = row.record
    if len(lock.holds) == 1 and not lock.holds[0].token:
        return replace(lock, holds=(replace(lock.holds[0], token=row.revision),))
    return lock


def within(by: str, job: str) -> bool:
    """True when `by` is the job itself, or a part of it."""
    return by == job or (by.startswith(job) and by[len(job)] == PART)


def job_and_parents(by: str) -> list[str]:
    """The job, the job that it is a part of, and so on."""
    jobs = [by]
    end = by.rfind(PART)
    while end > 0:
        jobs.append(by[:end])
        end = by.rfind(PART, 0, end)
    return jobs


def root_of(by: str) -> str:
    """The outermost job that `by` is a part of."""
    end = by.find(PART, 1)
    return by if end < 0 else by[:end]


def conflict(one: Mode, other: Mode) -> bool:
    """True when two jobs cannot hold a resource in these modes at once."""
    return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE


def hold_of(
    waiter: Waiter,
    names: tuple[str, ...],
    process: Holder | None,
    now: datetime,
    lease_s: float,
    token: int,
) -> LockHold:
    """The grant of a waiter's names to a process."""
    ttl_s = waiter.ttl_s
    explicit = ttl_s is not None
    return LockHold(
        id=waiter.id,
        by=waiter.by,
        mode=waiter.mode,
        names=names,
        lease=leases.grant(now, lease_s if ttl_s is None else ttl_s, explicit=explicit),
        process=process,
        on_behalf=waiter.grantee is not None,
        ttl_s=ttl_s,
        token=token,
    )


def waited_s(waiter: Waiter, now: datetime) -> float:
    """How long a waiter has waited by the store's clock."""
    return round(max((now - waiter.arrived_at).total_seconds(), 0.0), 6)


def rank_of(arrived_at: datetime, priority: int, age_s: float) -> int:
    """The rank of an arrival: a step of priority counts as `age_s` seconds of earlier arrival."""
    # Nothing starves: a priority is worth a bounded time.
    microseconds = (arrived_at - _EPOCH) // timedelta(microseconds=1)
    return microseconds - round(priority * age_s * 1_000_000)
