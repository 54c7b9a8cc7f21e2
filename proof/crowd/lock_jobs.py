"""A workload of jobs that acquire locks at random, each in a thread of its own. What happens to each
request is recorded: see `lock_history.py`.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import (
    DeadlockDetected,
    HoldfastError,
    LeaseLost,
    LockTimeout,
    StoreUnavailable,
)
from holdfast.primitives.locks import Grant, Locks
from holdfast.runtime.connection import Holdfast
from proof.crowd.plan import Plan
from proof.event_log import EventLog

NAMES = tuple(f"n{number:02d}" for number in range(12))


_TOO_LATE = "no answer within the time limit"


class Job:
    """One thread, which makes all its requests in its own name."""

    def __init__(
        self, plan: Plan, number: int, locks: Locks, tell: Callable[..., None], until: float
    ) -> None:
        self.by = f"job-{plan.process}-{number}"
        self.number = number
        self.plan = plan
        self.until = until
        self.locks = locks
        self.tell = tell
        self.random = random.Random(f"{plan.crowd.seed}/{self.by}")
        self.asked = 0
        self.held: dict[str, Grant] = {}
        self.ended = ""
        """The outcome of its last request that was not granted."""
        self.pause = threading.Event()
        """Never set: waiting for it simulates work."""

    def run(self) -> None:
        while time.monotonic() < self.until:
            HABITS[self.plan.crowd.kind](self)
            for ask_id, grant in reversed(list(self.held.items())):
                self.release(ask_id, grant)

    # The calls it can make, each of which is recorded.

    def ask(
        self,
        names: Sequence[str],
        *,
        mode: str = "exclusive",
        timeout_s: float = 20.0,
        priority: int = 0,
        ttl_s: float | None = None,
        attended: bool = True,
        held: bool = False,
    ) -> tuple[str, Grant] | None:
        self.asked += 1
        ask_id = f"{self.by}#{self.asked}"
        self.tell(
            "asked",
            id=ask_id,
            by=self.by,
            process=self.plan.process,
            names=list(names),
            mode=mode,
            priority=priority,
            timeout_s=timeout_s,
            ttl_s=ttl_s,
            attended=attended,
            alone=not self.held,
        )
        queued = False

        def on_wait(_: object) -> None:
            nonlocal queued
            if not queued:
                queued = True
                self.tell("queued", id=ask_id)

        try:
            if held:
                grant: Grant | None = self.locks.hold(
                    names,
                    by=self.by,
                    mode=mode,
                    timeout_s=timeout_s,
                    priority=priority,
                    ttl_s=ttl_s,
                )
            else:
                ask = self.locks.try_acquire if timeout_s <= 0 else self.locks.acquire
                more: dict[str, Any] = {} if attended else {"process": None}
                grant = ask(
                    names,
                    by=self.by,
                    mode=mode,
                    timeout_s=timeout_s,
                    priority=priority,
                    ttl_s=ttl_s,
                    on_wait=on_wait,
                    **more,
                )
        except LockTimeout as error:
            # The store has a timeout of its own, which says nothing about the queue: so many wanted
            # to change the table at once that none of the request's transactions came in time.
            self._end(
                "timed_out" if "position" in error.fields else "no_turn",
                ask_id,
                message=str(error),
            )
            return None
        except DeadlockDetected as error:
            self._end("deadlock", ask_id, message=error.fields["cycle"])
            return None
        except LeaseLost as error:
            # A short TTL may end before its holder is awake.
            self._end("failed" if ttl_s is None else "lost", ask_id, message=str(error))
            return None
        except HoldfastError as error:
            # A database that is too busy to accept a connection counts as if no turn had come.
            busy = (
                isinstance(error, StoreUnavailable)
                and _TOO_LATE in error.message
                and error.fields["outcome"] == "none"
            )
            self._end("no_turn" if busy else "failed", ask_id, message=repr(error))
            return None
        if grant is None:
            self._end("timed_out", ask_id)
            return None
        self.tell("granted", id=ask_id, tokens=dict(grant.tokens), taken=list(grant.taken))
        self.held[ask_id] = grant
        return ask_id, grant

    def _end(self, how: str, ask_id: str, **fields: object) -> None:
        self.ended = how
        self.tell(how, id=ask_id, **fields)

    def release(self, ask_id: str, grant: Grant) -> None:
        self.held.pop(ask_id, None)
        if not grant.taken:
            assert self.locks.release(grant) is False, (
                "the release of a re-entered grant freed something"
            )
            return
        self.tell("releasing", id=ask_id)
        freed = self.locks.release(grant)
        self.tell("released", id=ask_id, freed=freed)

    def renew(self, ask_id: str, grant: Grant, ttl_s: float) -> None:
        self.tell("renewing", id=ask_id)
        try:
            self.locks.renew(grant, ttl_s)
        except LeaseLost:
            return
        self.tell("renewed", id=ask_id, ttl_s=ttl_s)

    def work(self, most_s: float = 0.02) -> None:
        self.pause.wait(self.random.random() * most_s)

    def some_names(self, most: int = 5) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(1, most))

    def mode(self) -> str:
        return self.random.choice(["exclusive", "exclusive", "shared"])


def mixed(job: Job) -> None:
    """All of it, in random order."""
    draw = job.random
    doing = draw.choices(
        [single, impatient, once, nested, again, upgrade, leased, unattended, held],
        [30, 10, 8, 14, 6, 4, 8, 2, 6],
    )
    doing[0](job)


def single(job: Job) -> None:
    draw = job.random
    names = job.some_names(draw.choice([1, 1, 2, 5]))
    if job.ask(names, mode=job.mode(), priority=draw.choice([0, 0, 0, 0, -1, 1])):
        job.work()


def impatient(job: Job) -> None:
    if job.ask(
        job.some_names(), mode=job.mode(), timeout_s=job.random.choice([0.01, 0.1, 0.5, 2.0])
    ):
        job.work()


def once(job: Job) -> None:
    if job.ask(job.some_names(), mode=job.mode(), timeout_s=0):
        job.work()


def nested(job: Job) -> None:
    """More and more names, one request each, in random order: the others do the same, and cycles
    close.
    """
    for _ in range(job.random.choice([2, 2, 3])):
        if not job.ask(
            job.some_names(2), mode=job.mode(), timeout_s=job.random.choice([0.5, 1.5, 3.0])
        ):
            return
        job.work(0.01)


def again(job: Job) -> None:
    """The same once more, and part of it with something else."""
    first = job.ask(job.some_names(3))
    if first is None:
        return
    inner = job.ask(first[1].names[:1], mode=job.mode())
    if inner is None:
        assert job.ended == "no_turn", f"its own grant did not come back, but {job.ended}"
        return
    assert inner[1].reentered, "its own grant came anew"
    job.release(*inner)
    job.ask([first[1].names[0], *job.some_names(1)], timeout_s=2.0)
    job.work()


def upgrade(job: Job) -> None:
    names = job.some_names(1)
    if job.ask(names, mode="shared"):
        job.work()
        if job.ask(names, mode="exclusive", timeout_s=5.0):
            job.work()


def leased(job: Job) -> None:
    """With a TTL, now and then renewed or kept beyond it."""
    draw = job.random
    ttl_s = draw.choice([0.3, 0.6, 1.0])
    found = job.ask(job.some_names(2), mode=job.mode(), ttl_s=ttl_s)
    if found:
        if draw.random() < 0.2:
            job.renew(*found, draw.choice([0.4, 0.8]))
        job.work()
        if draw.random() < 0.1:
            job.pause.wait(ttl_s * 1.2)


def unattended(job: Job) -> None:
    """Without a process: only its TTL ends it."""
    if job.ask(job.some_names(1), ttl_s=0.3, attended=False):
        job.work(0.1)


def held(job: Job) -> None:
    """By the call for a `with` block; its waiting is not reported."""
    if job.ask(job.some_names(3), mode=job.mode(), held=True):
        job.work()


def large_and_small(job: Job) -> None:
    """A few want nearly all names; the others want one each, the first of which is always free."""
    if job.number == 0 and job.plan.process.endswith("0.0"):
        job.ask(NAMES[:8], timeout_s=5.0)
    elif job.ask(job.random.sample(NAMES[:8], 1)):
        job.work(0.03)


def queue(job: Job) -> None:
    """One name, one mode, one priority."""
    if job.ask(NAMES[:1]):
        job.work(0.005)


HABITS: dict[str, Callable[[Job], None]] = {
    "mixed": mixed,
    "large": large_and_small,
    "nested": nested,
    "queue": queue,
}


def warm(hf: Holdfast) -> None:
    hf.locks.status(NAMES[0])


def threads(plan: Plan, hf: Holdfast, until: float) -> dict[str, Callable[[], None]]:
    log = EventLog(Path(plan.folder) / f"{plan.process}.events")

    def tell(kind: str, **fields: object) -> None:
        log.write({"at": time.monotonic(), "kind": kind, **fields})

    jobs = [Job(plan, number, hf.locks, tell, until) for number in range(plan.crowd.threads)]
    return {job.by: job.run for job in jobs}
