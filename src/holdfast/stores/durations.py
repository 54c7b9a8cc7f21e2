"""How long the calls of a store take in this process. Attached to one store object on request, so
that no other store pays for it.
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
"""The timed calls: those that reach the disk or the database."""


class Times:
    """The measurements so far. Safe for threads; a forked child starts without any."""

    def __init__(self) -> None:
        self._start()

    def _start_after_fork(self) -> None:
        if os.getpid() != self._pid:
            # A thread that does not exist in this child may have held the mutex.
            self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._counts = {operation: [0] * (len(BUCKETS_S) + 1) for operation in OPERATIONS}
        self._totals_s = dict.fromkeys(OPERATIONS, 0.0)

    def add(self, operation: str, took_s: float) -> None:
        self._start_after_fork()
        with self._mutex:
            self._counts[operation][bisect_left(BUCKETS_S, took_s)] += 1
            self._totals_s[operation] += took_s

    def taken(self) -> dict[str, Histogram]:
        """The measurements by operation."""
        self._start_after_fork()
        with self._mutex:
            return {
                name: Histogram(tuple(counts), self._totals_s[name])
                for name, counts in self._counts.items()
            }


def measured(store: Store) -> Times:
    """Measure every call of this store object from now on, failed ones included. Return the
    measurements; a second call for the same object returns the same.
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
        started_s = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            times.add(operation, time.perf_counter() - started_s)

    return timed
