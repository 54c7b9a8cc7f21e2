"""Why a request was not granted, as errors that name what to do next."""

import shlex

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import DeadlockDetected, LeaseLost, LockTimeout
from holdfast.primitives.locks.obstruction import described
from holdfast.primitives.locks.request import Deadlocked, Over, Wish


def timed_out(wish: Wish, over: Over) -> LockTimeout:
    """Its time was over before its turn came: who held what it needed, since when, and where it
    stood in line.
    """
    why = over.obstruction
    assert why is not None
    # The one to look at first: who asks for many may have nothing but one of them in the way.
    resource = why.holders[0].resource if why.holders else wish.names[0]
    return LockTimeout(
        f"{wish.by} could not acquire {', '.join(wish.names)} {_when(wish)}: "
        f"{described(why, wish.names)}; nothing was taken. "
        f"`holdfast locks explain {shlex.quote(resource)}` tells more",
        resource=resource,
        names=list(wish.names),
        by=wish.by,
        timeout_s=wish.timeout_s,
        holders=to_plain(why.holders),
        position=why.position,
        ahead=to_plain(why.ahead),
        outcome="none",
    )


def shut_out(wish: Wish, error: LockTimeout) -> LockTimeout:
    """Its time was over before the store let it in: another writer is inside a transaction, and
    may be stopped there.
    """
    return LockTimeout(
        f"{wish.by} could not acquire {', '.join(wish.names)} {_when(wish)}: {error.message}",
        **{
            **error.fields,
            "names": list(wish.names),
            "by": wish.by,
            "timeout_s": wish.timeout_s,
        },
    )


def _when(wish: Wish) -> str:
    # Without a limit, whoever waited was told to stop.
    return "before the wait was ended" if wish.timeout_s is None else f"within {wish.timeout_s:g} s"


def taken_away(wish: Wish) -> LeaseLost:
    """It was gone before its process could wake."""
    return LeaseLost(
        f"{', '.join(wish.names)} was granted to {wish.by} and taken away before this process "
        "could wake, or its place in line "
        "was: ask again if it is still needed. `holdfast log --subject "
        f"{shlex.quote(wish.names[0])}` tells more",
        names=list(wish.names),
        by=wish.by,
    )


def deadlocked(wish: Wish, answer: Deadlocked) -> DeadlockDetected:
    """It would never have been granted."""
    return DeadlockDetected(
        f"{wish.by} would wait for ever: {answer.words}. Release what {wish.by} holds and try "
        "again, or take all of it in one "
        "request",
        by=wish.by,
        names=list(wish.names),
        cycle=answer.words,
    )
