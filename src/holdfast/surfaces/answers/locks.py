"""Locks: what is answered of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import LeaseLost, NotFound
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.kernel.holder import Holder
from holdfast.kernel.names import check_label
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.policy import Blocker, Obstruction
from holdfast.primitives.locks.records import LockHold
from holdfast.primitives.locks.statistics import LockStatistics
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.claims import claimant, refuse_unseen


class GrantView(Plain, frozen=True, kw_only=True):
    """What was granted. `token` is shown with every write to what it guards; `tokens` has that of
    each name.
    """

    token: int
    names: tuple[str, ...]
    by: str
    mode: Mode
    tokens: dict[str, int]
    ttl_s: float | None
    reentered: bool


class Renewed(Plain, frozen=True, kw_only=True):
    """A grant that goes on."""

    token: int
    names: tuple[str, ...]
    by: str
    mode: Mode
    expires_at: Instant


class Released(Plain, frozen=True, kw_only=True):
    """The token of the grant that was released."""

    released: int


class Freed(Plain, frozen=True, kw_only=True):
    """The names that a job let go of."""

    released: tuple[str, ...]


class KickedHold(Plain, frozen=True, kw_only=True):
    """A grant that was taken away."""

    by: str
    names: tuple[str, ...]
    token: int
    process: Holder | None


class Kicked(Plain, frozen=True, kw_only=True):
    """What was taken away, and from whom."""

    kicked: list[KickedHold]


class Free(Plain, frozen=True, kw_only=True):
    """Whether all the names were free at one moment; if not, `holders` held them when the time was
    over.
    """

    free: bool
    holders: tuple[Blocker, ...] = ()


class InForce(Plain, frozen=True, kw_only=True):
    """A token that is in force."""

    resource: str
    token: int
    in_force: bool = True


class StatisticsView(Plain, frozen=True, kw_only=True):
    """What a resource has been through. Times that half (p50) and nearly all (p95) stayed within
    are bounds of buckets.
    """

    resource: str
    schema_version: int
    grants: int
    waits: int
    timeouts: int
    deaths: int
    expiries: int
    deadlocks: int
    kicks: int
    wait_s: float
    wait_counts: tuple[int, ...]
    hold_s: float
    hold_counts: tuple[int, ...]
    buckets_s: tuple[float, ...]
    wait_mean_s: float | None
    wait_p50_s: float | None
    wait_p95_s: float | None
    hold_mean_s: float | None
    hold_p50_s: float | None
    hold_p95_s: float | None


def acquired(
    hf: Holdfast,
    names: Iterable[str],
    *,
    by: str,
    mode: Mode | str,
    timeout_s: float | None,
    priority: int,
    ttl_s: float | None,
    pid: int | None,
    on_wait: Callable[[Any], None] | None = None,
    stop_fd: int | None = None,
) -> Grant:
    """Take locks for one whose own process is not there to hold them. Raises what `Locks.acquire`
    does.
    """
    refuse_unseen(hf, pid, ttl_s, "lock")
    return hf.locks.acquire(
        names,
        by=by,
        mode=mode,
        timeout_s=timeout_s,
        priority=priority,
        ttl_s=ttl_s,
        process=claimant(hf, pid, by),
        on_wait=on_wait,
        stop_fd=stop_fd,
    )


def grant_view(grant: Grant) -> GrantView:
    """A grant, as it is told to its taker."""
    return GrantView(
        token=grant.token,
        names=grant.names,
        by=grant.by,
        mode=grant.mode,
        tokens=dict(grant.tokens),
        ttl_s=grant.ttl_s,
        reentered=grant.reentered,
    )


def renewed_view(hold: LockHold) -> Renewed:
    """A grant that was renewed."""
    return Renewed(
        token=hold.token,
        names=hold.names,
        by=hold.by,
        mode=hold.mode,
        expires_at=hold.lease.expires_at,
    )


def kicked_view(kicked: Iterable[LockHold]) -> Kicked:
    """Grants that were taken away."""
    return Kicked(
        kicked=[
            KickedHold(by=hold.by, names=hold.names, token=hold.token, process=hold.process)
            for hold in kicked
        ]
    )


def released(hf: Holdfast, token: int) -> Released:
    """Release the grant that has this token. Raises LeaseLost when there is none any more."""
    if not hf.locks.release_token(token):
        raise LeaseLost(
            f"no lock has token {token}: it was released, ran out or was taken away. `holdfast "
            "locks status` shows those that "
            "are held",
            token=token,
        )
    return Released(released=token)


def free_view(why: Obstruction | None) -> Free:
    """How a wait for names to be free has ended."""
    return Free(free=True) if why is None else Free(free=False, holders=why.holders)


def freed(hf: Holdfast, names: Sequence[str], by: str) -> Freed:
    """Let go of what a job holds of some names. Raises NotFound when it holds none of them."""
    found = hf.locks.free(names, by=by)
    if not found:
        raise not_held(names, by)
    return Freed(released=found)


def not_held(names: Sequence[str], by: str) -> NotFound:
    """A job does not hold these."""
    listed = list(dict.fromkeys(names))
    return NotFound(
        f"job {by} does not hold {', '.join(listed)}: `holdfast locks status {' '.join(listed)}` "
        "shows how it stands",
        names=listed,
    )


def chosen(found: Mapping[str, LockStatistics], names: Iterable[str]) -> dict[str, LockStatistics]:
    """The statistics of these names, or of all when there are none. Raises InvalidName."""
    wanted = dict.fromkeys(check_label(name, "resource") for name in names)
    return {name: found.get(name, LockStatistics()) for name in wanted} if wanted else dict(found)


def statistics_view(name: str, one: LockStatistics) -> StatisticsView:
    """What a resource has been through."""
    counts = {field: getattr(one, field) for field in one.__struct_fields__}
    waits, holds = times(one.wait_s, one.wait_counts), times(one.hold_s, one.hold_counts)
    return StatisticsView(
        resource=name,
        buckets_s=tuple(BUCKETS_S),
        wait_mean_s=waits[0],
        wait_p50_s=waits[1],
        wait_p95_s=waits[2],
        hold_mean_s=holds[0],
        hold_p50_s=holds[1],
        hold_p95_s=holds[2],
        **counts,
    )


def times(total_s: float, counts: Sequence[int]) -> tuple[float | None, float | None, float | None]:
    """The mean, and what half and 95 of a hundred stayed within; None where there were none, or
    they were beyond all bounds.
    """
    number = sum(counts)
    return total_s / number if number else None, _within(counts, 0.5), _within(counts, 0.95)


def _within(counts: Sequence[int], part: float) -> float | None:
    number = sum(counts)
    reached = 0
    for bound_s, count in zip(BUCKETS_S, counts, strict=False):
        reached += count
        if number and reached >= part * number:
            return bound_s
    return None
