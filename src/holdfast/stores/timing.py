"""How long the calls of a store take, in this process.

Attached to one store object when somebody asks, so that a store that nobody asks about pays nothing
at all.
"""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from holdfast.kernel.histogram import BUCKETS_S, Histogram
from holdfast.kernel.store import Store

P = ParamSpec("P")
T = TypeVar("T")

OPERATIONS = ("transact", "read", "get", "put_new", "delete_if", "journal")
"""The calls that are timed: those that reach the disk or the database."""


class Times:
    """What was measured so far. Safe for threads; a forked child begins with nothing."""

    def __init__(self) -> None:
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._counts = {operation: [0] * (len(BUCKETS_S) + 1) for operation in OPERATIONS}
        self._totals_s = dict.fromkeys(OPERATIONS, 0.0)

    def add(self, operation: str, took_s: float) -> None:
        """One more call that took so long."""
        if os.getpid() != self._pid:
            # The mutex may have been held by a thread that this child does not have.
            self._begin_process()
        with self._mutex:
            self._counts[operation][bisect_left(BUCKETS_S, took_s)] += 1
            self._totals_s[operation] += took_s

    def taken(self) -> dict[str, Histogram]:
        """The measurements by operation."""
        if os.getpid() != self._pid:
            self._begin_process()
        with self._mutex:
            return {
                name: Histogram(tuple(counts), self._totals_s[name])
                for name, counts in self._counts.items()
            }


def measured(store: Store) -> Times:
    """Measure every call of this store object from now on, those that fail included; return where
    the times gather.

    Asked again of the same object, it returns the same.
    """
    found = getattr(store, "_times", None)
    if isinstance(found, Times):
        return found
    times = Times()
    for operation in OPERATIONS:
        setattr(store, operation, _timed(getattr(store, operation), operation, times))
    store._times = times  # type: ignore[attr-defined]
    return times


def _timed(call: Callable[P, T], operation: str, times: Times) -> Callable[P, T]:
    @wraps(call)
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        begun_s = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            times.add(operation, time.perf_counter() - begun_s)

    return timed
