"""Locks and counted holds."""

from contextlib import ExitStack

from holdfast.kernel.errors import DeadlockDetected, Fenced, LeaseLost, LockTimeout, NotFound
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

NAMES = [f"lock-{number}" for number in range(10)]
SUBJECTS = [f"subject-{number}" for number in range(4)]


def locker(child: Child, hf: Holdfast) -> bool:
    """Sets, shared or not, with priorities: a witness shows the holder, and no other job."""
    if child.draining:
        return False
    draw = child.draw
    mode = draw.choice(["exclusive", "exclusive", "shared"])
    names = sorted(draw.sample(NAMES, draw.choice([1, 1, 2, 4])))
    priority = draw.choice([0, 0, 0, -1, 2])
    try:
        grant = hf.locks.acquire(
            names,
            by=child.name,
            mode=mode,
            priority=priority,
            timeout_s=draw.choice([0.0, 0.5, 5.0]),
        )
    except LockTimeout as error:
        if error.fields.get("by") != child.name:
            raise
        child.count("refused")
        return True
    except DeadlockDetected as error:
        child.wrong(f"one set at a time cannot deadlock: {error.message}")
        return True
    with ExitStack() as seen:
        for name in names:
            if not seen.enter_context(
                child.witness(name, shared=mode == "shared", token=grant.tokens[name])
            ):
                child.wrong(f"{name} is held by another too: {grant}")
        child.pause(0.02)
    if not grant.release():
        child.wrong(f"{grant} was lost by a holder that lives")
    child.did()
    return True


def leaseholder(child: Child, hf: Holdfast) -> bool:
    """With a TTL, at times exceeded: its late write is fenced, and no two write at the same time."""
    if child.draining:
        return False
    name, ttl_s = f"leased-{child.draw.randrange(3)}", child.draw.choice([0.2, 0.5])
    try:
        grant = hf.locks.acquire(name, by=child.name, ttl_s=ttl_s, timeout_s=3.0)
    except LeaseLost:
        child.count("fenced")
        return True
    except LockTimeout as error:
        if error.fields.get("by") != child.name:
            raise
        child.count("refused")
        return True
    child.pause(ttl_s * 1.5)
    try:
        hf.check_token(name, grant.token)
    except Fenced:
        child.count("fenced")
    grant.release()
    child.tell("leased", name=name, token=grant.token)
    child.did()
    return True


def counter(child: Child, hf: Holdfast) -> bool:
    """A count includes its taker, and not the one that dropped it."""
    if child.draining:
        return False
    subject = child.draw.choice(SUBJECTS)
    if hf.holds.take(subject, by=child.name) < 1:
        child.wrong(f"{child.name} took {subject}, and nobody holds it")
    child.pause(0.05)
    if child.name not in {hold.by for hold in hf.holds.holders(subject)}:
        child.wrong(f"{child.name} holds {subject} and does not count")
    try:
        hf.holds.drop(subject, by=child.name)
    except NotFound:
        child.wrong(f"{child.name} holds {subject} and cannot drop it")
    child.did()
    return True
