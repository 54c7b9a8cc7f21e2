"""A crowd of jobs that acquire locks, and its history."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.kernel.store import Row
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.runtime.connection import Holdfast
from proof.crowd import crowd as crowds
from proof.crowd.lock_history import Event, History
from proof.crowd.lock_jobs import NAMES
from proof.crowd.plan import Crowd
from proof.event_log import events_in

_SWEEP_S = 60.0


class Ran(NamedTuple):
    """What a crowd left behind."""

    history: History
    granted_at: dict[int, float]
    """When each contended token was granted, by the store's clock, as a time of the history. Those
    after a short wait are here only if a process handed over that journals each of them.
    """
    left: list[str]
    """Rows that nobody cleared away."""


def run(store: str, folder: Path, crowd: Crowd) -> Ran:
    """Run a crowd on a store to its end. Raises AssertionError if a process failed."""
    with holdfast.connect(store) as hf:
        # The very first acquire creates the store, which is not measured here.
        hf.locks.release(hf.locks.acquire(NAMES, by="first"))
        done = crowds.run(store, folder, crowd)
        assert not done.failed, done.failed
        left = _sweep(hf)
        granted_at = _grants(hf)
    events: list[Event] = [blow._asdict() for blow in done.blows]
    for path in sorted(folder.glob("*.events")):
        events += events_in(path, torn=path.stem not in done.processes)
    return Ran(History(events), granted_at, left)


def _sweep(hf: Holdfast) -> list[str]:
    """Acquire everything, as the next job would, until the rows of dead processes are removed;
    return those that remain.
    """
    for _ in range(1000):
        hf.locks.release(hf.locks.acquire(NAMES, by="sweeper", timeout_s=_SWEEP_S))
        rows: list[Row[Any]] = hf.store.read(
            lambda tx: [*tx.range(LOCKS), *tx.range(LOCK_WAITS)], scope=[LOCKS, LOCK_WAITS]
        )
        if not rows:
            break
    return [f"{row.key}: {row.record}" for row in rows]


def _grants(hf: Holdfast) -> dict[int, float]:
    if not hf.store.embedded:
        # A database dates a change by the start of its transaction, which may have waited long for
        # its turn.
        return {}
    ahead_s = time.time() - time.monotonic()
    return {
        entry.revision: entry.at.timestamp() - ahead_s
        for batch in hf.log.since()
        for entry in batch.entries
        if entry.kind == "lock.granted" and "waited_s" in entry.data
    }
