"""Why a request was not granted, as errors that name what to do next."""

import shlex

from holdfast.kernel.errors import DeadlockDetected, LeaseLost, LockTimeout
from holdfast.primitives.locks.asking import Deadlocked, Over
from holdfast.primitives.locks.waiting import Ahead
from holdfast.primitives.locks.wish import Wish


def timed_out(wish: Wish, over: Over) -> LockTimeout:
    """Its time was over before its turn came."""
    who = ", ".join(sorted({_who(one) for one in over.ahead})) or "another job"
    # Without a limit, whoever waited was told to stop.
    when = "before the wait was ended" if wish.timeout_s is None else f"within {wish.timeout_s:g} s"
    return LockTimeout(
        f"{', '.join(wish.names)} could not be had by {wish.by} {when}: {who} is ahead; nothing was taken. "
        f"`holdfast locks explain {shlex.quote(wish.names[0])}` tells more",
        resource=wish.names[0],
        names=list(wish.names),
        by=wish.by,
        ahead=[one.by for one in over.ahead],
        outcome="none",
    )


def taken_away(wish: Wish) -> LeaseLost:
    """It was gone before its process could wake."""
    return LeaseLost(
        f"{', '.join(wish.names)} was granted to {wish.by} and taken away before this process could wake, or its place in line "
        f"was: ask again if it is still needed. `holdfast log --subject {shlex.quote(wish.names[0])}` tells more",
        names=list(wish.names),
        by=wish.by,
    )


def deadlocked(wish: Wish, answer: Deadlocked) -> DeadlockDetected:
    """It would never have been granted."""
    return DeadlockDetected(
        f"{wish.by} would wait for ever: {answer.words}. Release what {wish.by} holds and try again, or take all of it in one "
        "request",
        by=wish.by,
        names=list(wish.names),
        cycle=answer.words,
    )


def _who(one: Ahead) -> str:
    verb = "holds it" if one.holds else "is in line"
    return f"{one.by} ({'no process' if one.process is None else f'process {one.process.pid}'}, {verb})"
