"""Faults of the program, to be planted into a soak: it must find each of them."""

import contextlib
import random
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar
from zlib import crc32

from msgspec import UNSET

from holdfast.domains.jobs.reaper import Reaper
from holdfast.domains.jobs.registry import Jobs
from holdfast.kernel.holder import Liveness
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.holds import Holds
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from proof.crowd.bugs import blind

T = TypeVar("T")


class _Undone(Exception):
    pass


class _Undoing:
    """A store that takes back whatever is done in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now

    def transact(self, body: Callable[[Tx], T], **how: Any) -> T:
        done: list[T] = []

        def undone(tx: Tx) -> None:
            done.append(body(tx))
            raise _Undone

        with contextlib.suppress(_Undone):
            self._store.transact(undone, **how)
        return done[-1]


def hasty(draw: random.Random) -> None:
    """The workers of some jobs are judged dead while they live, and their jobs are given to
    others.
    """
    real = Reaper._verdict

    def verdict(self: Reaper, job: Any, worker: Any, now: Any) -> Any:
        dead = worker._replace(liveness=Liveness.DEAD)
        return real(self, job, worker if crc32(job.job_id.encode()) % 3 else dead, now)

    Reaper._verdict = verdict  # type: ignore[method-assign]


def silent(draw: random.Random) -> None:
    """Now and then the journal is not told of a change."""
    real = Journal.append

    def append(self: Journal, tx: Tx, **told: Any) -> int:
        return 0 if draw.random() < 0.3 else real(self, tx, **told)

    Journal.append = append  # type: ignore[method-assign]


def forgetful(draw: random.Random) -> None:
    """Now and then a job is answered as if it were registered, and is not stored."""
    real = Jobs.register_job

    def register_job(self: Jobs, prompt: str, **more: Any) -> Any:
        if draw.random() < 0.3:
            self = copy(self)
            self._store = _Undoing(self._store)  # type: ignore[assignment]
        return real(self, prompt, **more)

    Jobs.register_job = register_job  # type: ignore[method-assign]


def faithful(draw: random.Random) -> None:
    """The holds of the dead are kept for them."""
    Holds._verdicts_on = lambda self, holds: {}  # type: ignore[method-assign]


def headless(draw: random.Random) -> None:
    """A claim of a command names its first process and not its tree."""
    real = Procfs.of
    Procfs.of = lambda self, pid, label="", tree=UNSET: real(self, pid, label)  # type: ignore[method-assign]


_FAULTS: dict[str, Callable[[random.Random], None]] = {
    fault.__name__: fault for fault in (blind, hasty, silent, forgetful, faithful, headless)
}


def plant(name: str, draw: random.Random) -> None:
    """Plant a fault by its name."""
    _FAULTS[name](draw)
