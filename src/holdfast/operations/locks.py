"""Locks. A caller has no process here: a lock ends by time, or with a named process."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from msgspec import convert
from msgspec.structs import asdict

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import DeadlockDetected, Fenced, LeaseLost, LockTimeout, NotFound
from holdfast.kernel.histogram import BUCKETS_S, Histogram
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import LOCK_TIMEOUT_S, SERVER_WAIT_MAX_S
from holdfast.operations.claims import CLAIM_ENDS, ClaimPid, claimant
from holdfast.operations.fields import By, Label, Names, Priority, Resource, Token, Ttl, WaitSeconds
from holdfast.operations.lock_flags import NAMES, ModeSwitch, priority_flag, timeout_flag
from holdfast.operations.operation import Argument, Flag, Positional, Request, Wait, operation
from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.inspect import Explanation, Graph, LockStatus
from holdfast.primitives.locks.policy import Blocker, Obstruction
from holdfast.primitives.locks.records import LockHold, Mode
from holdfast.primitives.locks.statistics import LockStatistics, chosen_statistics
from holdfast.runtime.connection import Holdfast

_Name = Annotated[Resource, Positional()]


class AcquireRequest(Request, frozen=True, kw_only=True):
    """The fields of every request for locks; `ttl_s` or `pid` says what ends it."""

    one_of = CLAIM_ENDS
    names: Annotated[Names, NAMES, Argument("Everything you need at the same time, in any order.")]
    by: Annotated[By, Flag("--by", metavar="JOB", help="The job that holds it.")]
    mode: Annotated[ModeSwitch, Argument(name="shared", choose=(Mode.EXCLUSIVE, Mode.SHARED))] = (
        Mode.EXCLUSIVE
    )
    timeout_s: Annotated[WaitSeconds, timeout_flag(LOCK_TIMEOUT_S)] = SERVER_WAIT_MAX_S
    ttl_s: Annotated[
        Ttl | None,
        Flag("--ttl", help="It ends after this long, unless renewed."),
        Argument("It ends after this many seconds, whatever you do."),
    ] = None
    pid: ClaimPid = None


class Acquire(AcquireRequest, frozen=True, kw_only=True):
    """Locks to take, all or none; `ttl_s` or `pid` says what ends them."""

    priority: Annotated[Priority, priority_flag] = 0


class Renew(Request, frozen=True, kw_only=True):
    """The grant that is to go on, and for how long from now."""

    token: Annotated[Token, Positional()]
    ttl_s: Annotated[
        Ttl | None,
        Flag("--ttl", help="How long from now.  [default: the time it was taken for]"),
    ] = None


class Release(Request, frozen=True, kw_only=True):
    """The grant that is to end."""

    token: Token


class FreeNames(Request, frozen=True, kw_only=True):
    """What a job is to release."""

    names: Annotated[Names, NAMES]
    by: Annotated[By, Flag("--by", metavar="JOB", help="The job that holds them.")]


class WaitFor(Request, frozen=True, kw_only=True):
    """What is to be free; what the job `by` holds itself is not waited for."""

    names: Annotated[Names, NAMES]
    by: Annotated[
        By | None,
        Flag(
            "--by",
            metavar="JOB",
            help="Who asks: what this job holds itself is not waited for.  [default: nobody]",
        ),
    ] = None
    mode: ModeSwitch = Mode.EXCLUSIVE
    timeout_s: Annotated[WaitSeconds, timeout_flag(None)] = SERVER_WAIT_MAX_S


class Kick(Request, frozen=True, kw_only=True):
    """What to take away, why, from which job alone, and whether its processes are ended first."""

    name: _Name
    why: Annotated[
        Label,
        Flag("--why", metavar="TEXT", help="The reason, for the journal and for the holder."),
    ]
    by: Annotated[
        By | None,
        Flag("--by", metavar="JOB", help="Take it from this job alone, of several that share it."),
    ] = None
    end_tree: Annotated[
        bool,
        Flag(
            "--end-tree",
            help="End every process of the command that holds it first, by SIGTERM and SIGKILL.",
        ),
    ] = False


class ResourceName(Request, frozen=True, kw_only=True):
    """A resource."""

    name: _Name


class CheckToken(Request, frozen=True, kw_only=True):
    """A token that somebody shows for a resource."""

    name: Annotated[Resource, Positional("RESOURCE")]
    token: Annotated[Token, Positional()]


class Statistics(Request, frozen=True, kw_only=True):
    """One resource, or all."""

    name: Resource | None = None


class GrantView(Plain, frozen=True, kw_only=True):
    """A grant. `token` is shown with every guarded write; `tokens` has that of each name."""

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
    """The names that a job released."""

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
    """Whether all names were free at one moment; if not, `holders` held them when time ran out."""

    free: bool
    holders: tuple[Blocker, ...] = ()


class InForce(Plain, frozen=True, kw_only=True):
    """A token that is in force."""

    resource: str
    token: int
    in_force: bool = True


class StatisticsView(Plain, frozen=True, kw_only=True):
    """What a resource has been through.

    p50 and p95 are upper bounds of histogram buckets that half and 95% of the times stayed within.
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


def granted(
    hf: Holdfast, wait: Wait, timeout_s: float | None, acquire: Callable[[float | None], Grant]
) -> GrantView:
    """Acquire within a time limit, and return the grant for a caller that may have gone by then.

    A grant that an earlier request of the same job is giving back just now is not re-entered: its
    locks are released and acquired again.
    """
    began_s, left_s = time.monotonic(), timeout_s
    while True:
        grant = acquire(left_s)
        entered = [token for name, token in grant.tokens.items() if name not in grant.taken]
        withdrawn = wait.issue(entered)
        if not withdrawn:
            return convert(grant, GrantView, from_attributes=True)
        for token in withdrawn | ({grant.token} if grant.taken else set()):
            hf.locks.release_token(token)
        if timeout_s is not None:
            left_s = max(0.0, timeout_s - (time.monotonic() - began_s))


def give_back(hf: Holdfast, grant: GrantView, wait: Wait) -> None:
    """Release a grant that never reached its caller, unless its job has re-entered it since."""
    if not grant.reentered and wait.take_back(grant.token):
        hf.locks.release_token(grant.token)


@operation(
    "POST /v1/locks/acquire",
    cli="locks acquire",
    mcp="acquire",
    errors=(NotFound, DeadlockDetected, LockTimeout),
    undo=give_back,
)
def acquire(hf: Holdfast, request: Acquire, wait: Wait) -> GrantView:
    """Take locks, all or none, and wait for them up to `timeout_s`.

    Something must end a lock if its release never comes: time with `ttl_s`, or a process of the
    server's machine with `pid`. On a store of several machines `pid` needs a `ttl_s` too. A client
    that disconnects while it waits leaves the queue. A job that holds all of it already gets its
    token again, and no more time: renew it.
    """
    fields = asdict(request)
    limit_s, process = fields.pop("timeout_s"), claimant(hf, fields.pop("pid"), request.by)
    claim = partial(hf.locks.acquire, **fields, process=process, **wait.fields, detached=True)
    return granted(hf, wait, limit_s, lambda left_s: claim(timeout_s=left_s))


@operation("POST /v1/locks/renew", cli="locks renew", errors=(LeaseLost,))
def renew(hf: Holdfast, request: Renew) -> Renewed:
    """Let the lock that has a token go on from now. It never ends earlier for it."""
    hold: LockHold = hf.locks.renew_token(request.token, request.ttl_s)
    return Renewed(
        token=hold.token,
        names=hold.names,
        by=hold.by,
        mode=hold.mode,
        expires_at=hold.lease.expires_at,
    )


@operation("POST /v1/locks/release", cli="locks release", errors=(LeaseLost,))
def release(hf: Holdfast, request: Release) -> Released:
    """Release the lock that has a token; the next in line gets it at once."""
    if not hf.locks.release_token(request.token):
        raise LeaseLost(
            f"no lock has token {request.token}: it was released, has expired or was taken away. "
            "`holdfast locks status` shows the locks that are held",
            token=request.token,
        )
    return Released(released=request.token)


@operation("POST /v1/locks/free", cli="locks release", errors=(NotFound,))
def free(hf: Holdfast, request: FreeNames) -> Freed:
    """Release what a job holds of some names; returns those that it did hold."""
    found = hf.locks.free(request.names, by=request.by)
    if not found:
        raise not_held(request.names, request.by)
    return Freed(released=found)


def not_held(names: Sequence[str], by: str) -> NotFound:
    """The error for names that a job does not hold."""
    listed = list(dict.fromkeys(names))
    return NotFound(
        f"job {by} does not hold {', '.join(listed)}: `holdfast locks status {' '.join(listed)}` "
        "shows how it stands",
        names=listed,
    )


@operation("POST /v1/locks/wait", cli="locks wait", errors=(DeadlockDetected,))
def wait(hf: Holdfast, request: WaitFor, wait: Wait) -> Free:
    """Wait until all names are free at one moment, and take nothing.

    Another may take them in the next instant.
    """
    return free_view(wait_for(hf, request, wait))


def wait_for(hf: Holdfast, request: WaitFor, wait: Wait) -> Obstruction | None:
    """Wait as requested; return what blocked the names when time ran out, or None."""
    return hf.locks.wait_free(
        request.names,
        by=f"wait-{os.urandom(6).hex()}" if request.by is None else request.by,
        mode=request.mode,
        timeout_s=request.timeout_s,
        **wait.fields,
    )


def free_view(why: Obstruction | None) -> Free:
    """How a wait has ended."""
    return Free(free=True) if why is None else Free(free=False, holders=why.holders)


@operation("POST /v1/locks/kick", cli="locks kick", errors=(NotFound,))
def kick(hf: Holdfast, request: Kick) -> Kicked:
    """Take a resource away from its holder, with all that was taken together with it.

    The reason goes into the journal.
    """
    return convert({"kicked": hf.locks.kick(**asdict(request))}, Kicked, from_attributes=True)


@operation("GET /v1/locks", cli="locks status")
def list_(hf: Holdfast) -> list[LockStatus]:
    """Everything that is held or waited for, with its holders and its waiters."""
    return hf.locks.list_held()


@operation("GET /v1/locks/{name}/status", cli="locks status")
def status(hf: Holdfast, request: ResourceName) -> LockStatus:
    """Who holds a resource and who waits for it."""
    return hf.locks.status(request.name)


@operation("GET /v1/locks/{name}/explain", cli="locks explain")
def explain(hf: Holdfast, request: ResourceName) -> Explanation:
    """Why a resource is not free: its holder, what that waits for, the queue, and what to do."""
    return hf.locks.explain(request.name)


@operation("GET /v1/locks/{name}/check", cli="token check", errors=(Fenced,))
def check_token(hf: Holdfast, request: CheckToken) -> InForce:
    """Is a token in force on a resource? For programs that are shown one with each write."""
    hf.check_token(request.name, request.token)
    return InForce(resource=request.name, token=request.token)


@operation("GET /v1/locks/graph", cli="locks graph")
def graph(hf: Holdfast) -> Graph:
    """Who waits for whom, over all resources."""
    return hf.locks.graph()


@operation("GET /v1/locks/statistics", cli="locks stats")
def statistics(hf: Holdfast, request: Statistics) -> list[StatisticsView]:
    """What each resource has been through: counts, waits and holds."""
    return statistics_of(hf, [] if request.name is None else [request.name])


def statistics_of(hf: Holdfast, names: Sequence[str]) -> list[StatisticsView]:
    """The statistics of these names, or of all when there are none. Raises InvalidName."""
    found = hf.locks.statistics()
    chosen = chosen_statistics(names, found) if names else found
    return [_statistics_view(name, one) for name, one in chosen.items()]


def _statistics_view(name: str, one: LockStatistics) -> StatisticsView:
    waits, holds = Histogram(one.wait_counts, one.wait_s), Histogram(one.hold_counts, one.hold_s)
    return StatisticsView(
        resource=name,
        buckets_s=BUCKETS_S,
        **asdict(one),
        wait_mean_s=waits.mean_s,
        wait_p50_s=waits.within_s(50),
        wait_p95_s=waits.within_s(95),
        hold_mean_s=holds.mean_s,
        hold_p50_s=holds.within_s(50),
        hold_p95_s=holds.within_s(95),
    )


OPERATIONS = [
    *(acquire, renew, release, free, wait, kick, list_, status, explain, check_token, graph),
    statistics,
]
