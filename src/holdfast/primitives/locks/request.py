"""A caller's request, checked, and the errors that refuse it."""

import shlex
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.kernel import lease as leases
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import DeadlockDetected, InvalidValue, LeaseLost, LockTimeout
from holdfast.kernel.holder import THIS_PROCESS, Holder, ThisProcess, check_holder
from holdfast.kernel.limits import (
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
    LOCK_SET_BYTES_MAX,
    LOCK_TTL_MAX_S,
)
from holdfast.kernel.names import check_label, check_new_label
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.policy import Obstruction, describe_obstruction
from holdfast.primitives.locks.records import Mode, Waiter


class LockRequest(NamedTuple):
    """What a caller requests, checked: see `check_request`."""

    names: tuple[str, ...]
    by: str
    mode: Mode
    timeout_s: float | None
    priority: int = 0
    ttl_s: float | None = None
    process: Holder | ThisProcess | None = THIS_PROCESS
    wait_only: bool = False
    """It waits until the names are free and takes nothing."""


def check_request(
    names: str | Iterable[str],
    by: str,
    mode: Mode | str,
    timeout_s: float | None,
    priority: int = 0,
    ttl_s: float | None = None,
    process: Holder | ThisProcess | None = THIS_PROCESS,
    *,
    wait_only: bool = False,
) -> LockRequest:
    """The request of a caller. Raises InvalidName and InvalidValue."""
    # What is only waited for may have a name that is not allowed for new resources.
    wanted = check_names(names, new=not wait_only)
    if mode is not Mode.EXCLUSIVE:
        # Most requests are exclusive, and this lookup costs as much as all other checks.
        try:
            mode = Mode(mode)
        except ValueError:
            raise InvalidValue(
                f"{ascii(mode)[:40]} is not a lock mode: use exclusive or shared", field="mode"
            ) from None
    check_new_label(by, "job")
    if timeout_s != timeout_s:
        raise InvalidValue(
            "timeout_s is not a number: give the seconds to wait, or None for no limit",
            field="timeout_s",
        )
    if ttl_s is not None:
        check_ttl(ttl_s)
    else:
        leases.check_claim_end(process, ttl_s)
    if isinstance(process, Holder):
        check_holder(process)
    if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
        raise InvalidValue(
            f"priority is {priority}: use -{LOCK_PRIORITY_MAX} to {LOCK_PRIORITY_MAX}",
            field="priority",
        )
    return LockRequest(wanted, by, mode, timeout_s, priority, ttl_s, process, wait_only)


def check_names(names: str | Iterable[str], *, new: bool = False) -> tuple[str, ...]:
    """The names without duplicates, in their order. `new`: they are to be taken."""
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    check = check_new_label if new else check_label
    for name in wanted:
        check(name, "resource")
    if len(wanted) > 1 and sum(len(name.encode()) for name in wanted) > LOCK_SET_BYTES_MAX:
        raise InvalidValue(
            f"the names of one request may have {LOCK_SET_BYTES_MAX} bytes together: request a "
            "name that stands for many",
            field="names",
            bytes_max=LOCK_SET_BYTES_MAX,
        )
    if len(wanted) > LOCK_NAMES_MAX:
        raise InvalidValue(
            f"one request may have {LOCK_NAMES_MAX} names, not {len(wanted)}: request a name that "
            "stands for many",
            field="names",
            names_max=LOCK_NAMES_MAX,
        )
    return wanted


def check_ttl(ttl_s: float | None) -> None:
    """Raises InvalidValue unless the time to live is positive and within its bound."""
    if ttl_s is not None and not 0 < ttl_s <= LOCK_TTL_MAX_S:
        raise InvalidValue(
            f"ttl_s is {ttl_s}: give more than 0 seconds, and {LOCK_TTL_MAX_S:.0f} at most",
            field="ttl_s",
        )


def make_draft(context: LockContext, request: LockRequest, request_id: str) -> Waiter:
    """The request as a waiter that has no place in the queue yet."""
    now, this = context.store.now(), context.this_process()
    process = this if isinstance(request.process, ThisProcess) else request.process
    return Waiter(
        id=request_id,
        name=request.names[0],
        names=request.names,
        mode=request.mode,
        wait_only=request.wait_only,
        by=request.by,
        priority=request.priority,
        rank=0,
        arrival=0,
        arrived_at=now,
        process=this,
        grantee=None if process == this else process,
        unattended=process is None,
        ttl_s=request.ttl_s,
        lease=leases.grant(now, context.settings.lease_s),
        address="",
    )


def timeout_error(request: LockRequest, why: Obstruction) -> LockTimeout:
    """The time limit passed before the request's turn came."""
    # Of many names, only this one may be blocked.
    resource = why.holders[0].resource if why.holders else request.names[0]
    return LockTimeout(
        f"{_could_not(request)}: {describe_obstruction(why, request.names)}; nothing was taken. "
        f"`holdfast locks explain {shlex.quote(resource)}` shows more",
        resource=resource,
        names=list(request.names),
        by=request.by,
        timeout_s=request.timeout_s,
        holders=to_plain(why.holders),
        position=why.position,
        ahead=to_plain(why.ahead),
        outcome="none",
    )


def store_timeout_error(request: LockRequest, error: LockTimeout) -> LockTimeout:
    """The time limit passed before the store let the request in: another is inside."""
    fields = {"names": list(request.names), "by": request.by, "timeout_s": request.timeout_s}
    return LockTimeout(f"{_could_not(request)}: {error.message}", **{**error.fields, **fields})


def lost_error(request: LockRequest) -> LeaseLost:
    """The grant, or the place in the queue, was gone before the process could wake."""
    return LeaseLost(
        f"{', '.join(request.names)} was granted to {request.by} and taken away before this "
        "process could wake, or its place in the queue was: try again if you still need it. "
        f"`holdfast log --subject {shlex.quote(request.names[0])}` shows what happened",
        names=list(request.names),
        by=request.by,
    )


def deadlock_error(request: LockRequest, cycle: str) -> DeadlockDetected:
    """The request would never have been granted."""
    by = request.by
    return DeadlockDetected(
        f"{by} would wait for ever: {cycle}. Release what {by} holds and try again, or take all "
        "of it in one request",
        by=by,
        names=list(request.names),
        cycle=cycle,
    )


def _could_not(request: LockRequest) -> str:
    limit_s = request.timeout_s
    limit = "before its wait was stopped" if limit_s is None else f"within {limit_s:g} s"
    return f"{request.by} could not acquire {', '.join(request.names)} {limit}"
