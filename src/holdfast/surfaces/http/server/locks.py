"""Locks over HTTP. A caller has no process here: what it holds ends by time, or with a process of
the server's machine.
"""

import contextlib
import secrets
import time

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import SERVER_WAIT_MAX_S
from holdfast.primitives.locks.inspect import Explanation, Graph, LockStatus
from holdfast.primitives.locks.records import Mode
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers import locks as answers
from holdfast.surfaces.http.server.desk import Turn
from holdfast.surfaces.http.server.fields import (
    By,
    Label,
    Names,
    Pid,
    Priority,
    Resource,
    Token,
    Ttl,
    Wait,
)
from holdfast.surfaces.http.server.operation import operation


class Acquire(Plain, frozen=True, kw_only=True):
    """Locks to take, all or none; `ttl_s` or `pid` says what ends them."""

    names: Names
    by: By
    mode: Mode = Mode.EXCLUSIVE
    timeout_s: Wait = SERVER_WAIT_MAX_S
    priority: Priority = 0
    ttl_s: Ttl | None = None
    pid: Pid | None = None


class Renew(Plain, frozen=True, kw_only=True):
    """The grant that is to go on, and for how long from now."""

    token: Token
    ttl_s: Ttl | None = None


class Release(Plain, frozen=True, kw_only=True):
    """The grant that is to end."""

    token: Token


class FreeNames(Plain, frozen=True, kw_only=True):
    """What a job is to let go of."""

    names: Names
    by: By


class WaitFor(Plain, frozen=True, kw_only=True):
    """What is to be free; what the job `by` holds itself is not waited for."""

    names: Names
    by: By | None = None
    mode: Mode = Mode.EXCLUSIVE
    timeout_s: Wait = SERVER_WAIT_MAX_S


class Kick(Plain, frozen=True, kw_only=True):
    """What is to be taken away, why, from which job alone, and whether its processes are ended
    first.
    """

    name: Resource
    why: Label
    by: By | None = None
    end_tree: bool = False


class OfName(Plain, frozen=True, kw_only=True):
    """A resource."""

    name: Resource


class CheckToken(Plain, frozen=True, kw_only=True):
    """A token that somebody shows for a resource."""

    name: Resource
    token: Token


class Statistics(Plain, frozen=True, kw_only=True):
    """One resource, or all."""

    name: Resource | None = None


def taken(
    hf: Holdfast,
    names: list[str],
    turn: Turn,
    *,
    by: str,
    mode: Mode,
    timeout_s: float,
    priority: int,
    ttl_s: float | None,
    pid: int | None,
) -> answers.GrantView:
    """Take locks. What the job holds by a request that is just being given back is not entered: it
    is taken anew.
    """
    began_s, left_s = time.monotonic(), timeout_s
    while True:
        grant = answers.acquired(
            hf,
            names,
            by=by,
            mode=mode,
            timeout_s=left_s,
            priority=priority,
            ttl_s=ttl_s,
            pid=pid,
            stop_fd=turn.stop_fd,
        )
        gone = turn.told.tell(
            token for name, token in grant.tokens.items() if name not in grant.taken
        )
        if not gone:
            return answers.grant_view(grant)
        for token in gone | ({grant.token} if grant.taken else set()):
            hf.locks.release_token(token)
        left_s = max(0.0, timeout_s - (time.monotonic() - began_s))


def give_back(hf: Holdfast, grant: answers.GrantView, turn: Turn) -> None:
    """Nobody knows of the grant, unless the same job has entered it since."""
    if not grant.reentered and turn.told.take_back(grant.token):
        with contextlib.suppress(HoldfastError):
            # It ends by its time or process all the same.
            hf.locks.release_token(grant.token)


@operation("POST", "/v1/locks/acquire", problems=(404, 409, 504), undo=give_back)
def acquire(hf: Holdfast, asked: Acquire, turn: Turn) -> answers.GrantView:
    """Take locks, all or none, and wait for them up to `timeout_s`.

    Something must end a lock if its release never comes: time with `ttl_s`, or a process of the
    server's machine with `pid`. On a store of several machines `pid` needs a `ttl_s` too. A client
    that hangs up while it waits leaves the queue. A job that holds all of it already gets its token
    again, and no more time: renew it.
    """
    return taken(
        hf,
        asked.names,
        turn,
        by=asked.by,
        mode=asked.mode,
        timeout_s=asked.timeout_s,
        priority=asked.priority,
        ttl_s=asked.ttl_s,
        pid=asked.pid,
    )


@operation("POST", "/v1/locks/renew", problems=(409,))
def renew(hf: Holdfast, asked: Renew) -> answers.Renewed:
    """Let the lock that has a token go on from now. It never ends earlier for it."""
    return answers.renewed_view(hf.locks.renew_token(asked.token, asked.ttl_s))


@operation("POST", "/v1/locks/release", problems=(409,))
def release(hf: Holdfast, asked: Release) -> answers.Released:
    """Release the lock that has a token; the next in line gets it at once."""
    return answers.released(hf, asked.token)


@operation("POST", "/v1/locks/free", problems=(404,))
def free(hf: Holdfast, asked: FreeNames) -> answers.Freed:
    """Let go of what a job holds of some names; answers with those that it did hold."""
    return answers.freed(hf, asked.names, asked.by)


@operation("POST", "/v1/locks/wait", problems=(409,))
def wait(hf: Holdfast, asked: WaitFor, turn: Turn) -> answers.Free:
    """Wait until all the names are free at one moment, and take nothing. Another may take them in
    the next instant.
    """
    by = f"wait-{secrets.token_hex(6)}" if asked.by is None else asked.by
    why = hf.locks.wait_free(
        asked.names, by=by, mode=asked.mode, timeout_s=asked.timeout_s, stop_fd=turn.stop_fd
    )
    return answers.free_view(why)


@operation("POST", "/v1/locks/kick", problems=(404,))
def kick(hf: Holdfast, asked: Kick) -> answers.Kicked:
    """Take a resource away from whoever holds it, with all that was taken together with it.
    Journalled with the reason.
    """
    return answers.kicked_view(
        hf.locks.kick(asked.name, why=asked.why, by=asked.by, end_tree=asked.end_tree)
    )


@operation("GET", "/v1/locks")
def list_(hf: Holdfast) -> list[LockStatus]:
    """Everything that is held or waited for, with who holds and who waits."""
    return hf.locks.list_held()


@operation("GET", "/v1/locks/{name}/status")
def status(hf: Holdfast, asked: OfName) -> LockStatus:
    """Who holds a resource and who waits for it."""
    return hf.locks.status(asked.name)


@operation("GET", "/v1/locks/{name}/explain")
def explain(hf: Holdfast, asked: OfName) -> Explanation:
    """Why a resource is not free: who holds it, what that one waits for in turn, who is in line,
    and what to do.
    """
    return hf.locks.explain(asked.name)


@operation("GET", "/v1/locks/{name}/check", problems=(412,))
def check_token(hf: Holdfast, asked: CheckToken) -> answers.InForce:
    """Is a token in force on a resource? For programs downstream that are shown one with each
    write.
    """
    hf.check_token(asked.name, asked.token)
    return answers.InForce(resource=asked.name, token=asked.token)


@operation("GET", "/v1/locks/graph")
def graph(hf: Holdfast) -> Graph:
    """Who waits for whom, over all resources."""
    return hf.locks.graph()


@operation("GET", "/v1/locks/statistics")
def statistics(hf: Holdfast, asked: Statistics) -> list[answers.StatisticsView]:
    """What each resource has been through: counts, waits and holds."""
    found = answers.chosen(hf.locks.statistics(), [] if asked.name is None else [asked.name])
    return [answers.statistics_view(name, one) for name, one in found.items()]


OPERATIONS = [
    *(
        acquire,
        renew,
        release,
        free,
        wait,
        kick,
        list_,
        status,
        explain,
        check_token,
        graph,
        statistics,
    ),
]
