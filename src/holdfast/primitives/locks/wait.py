"""What a sleeping waiter watches: the processes and leases just ahead of it."""

import os
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import LOCK_WATCHED_MAX
from holdfast.kernel.store import Store
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.records import LockHold, Waiter
from holdfast.primitives.locks.table import LockTable
from holdfast.primitives.locks.transaction import Suspect
from holdfast.primitives.steady_clock import steady_clock

_LATER_S = 0.001
"""A lease is fresh up to and including its last instant, so the check comes after it."""


class Ahead(Struct, frozen=True):
    """A holder, or another waiter, just ahead of a request."""

    id: str
    by: str
    names: tuple[str, ...]
    process: Holder | None
    lease: Lease
    is_holder: bool


OnWait = Callable[[Sequence[Ahead]], None]
"""Called with those just ahead when a wait begins, and when they change."""


def all_ahead(table: LockTable, waiter: Waiter) -> list[Ahead]:
    """Everyone whose death would let a waiter move up."""
    holds, waiters = policy.nearest_ahead(table, waiter)
    return [*map(as_ahead, holds), *map(as_ahead, waiters)]


def as_ahead(one: LockHold | Waiter) -> Ahead:
    return Ahead(one.id, one.by, one.names, one.process, one.lease, isinstance(one, LockHold))


class AheadWatch:
    """Watches those ahead: a descriptor becomes readable at a death, and a lease ends."""

    def __init__(self, ahead: Sequence[Ahead], processes: Processes, store: Store) -> None:
        self._ahead = ahead
        self._processes = processes
        self._store = store
        self._clock = steady_clock(store)
        self._by_fd: dict[int, Ahead] = {}
        self._liveness: dict[str, Liveness] = {}

    def __enter__(self) -> "AheadWatch":
        try:
            for one in self._ahead:
                self._watch(one)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for fd in self._by_fd:
            os.close(fd)

    @property
    def fds(self) -> list[int]:
        return list(self._by_fd)

    def note_deaths(self, ready: frozenset[int]) -> None:
        """Note the deaths that readable descriptors show."""
        for fd in ready & self._by_fd.keys():
            one = self._by_fd[fd]
            alone = one.process is None or not one.process.tree
            self._liveness[one.id] = Liveness.DEAD if alone else self._probe(one)
            if self._liveness[one.id] is not Liveness.DEAD:
                # Processes of its tree live on that have lost this descriptor. Watch another.
                del self._by_fd[fd]
                os.close(fd)
                self._watch(one)

    def suspects(self) -> list[Suspect]:
        """Those that may be reclaimed by now. Holders without a pidfd are probed again."""
        now = self._store.now()
        if not all(one.lease.fresh(now) for one in self._ahead):
            self._clock.compare()
        watched = {one.id for one in self._by_fd.values()}
        self._liveness |= {one.id: self._probe(one) for one in self._ahead if one.id not in watched}
        return [
            Suspect(one.id, one.names, one.process, self._liveness[one.id])
            for one in self._ahead
            if self._clock.reclaimable(one.lease, self._liveness[one.id], now)
        ]

    def next_expiry_s(self) -> float | None:
        """Seconds until the first lease ends that matters; None when none does."""
        timed = [
            one.lease
            for one in self._ahead
            if self._liveness[one.id] is Liveness.UNKNOWN or one.lease.explicit
        ]
        if not timed:
            return None
        now = self._store.now()
        ends = [
            (
                lease.expires_at - self._clock.without_jump(now, since=lease.granted_at)
            ).total_seconds()
            for lease in timed
        ]
        return max(min(ends), _LATER_S) + _LATER_S

    def _watch(self, one: Ahead) -> None:
        if one.process is not None and len(self._by_fd) < LOCK_WATCHED_MAX:
            fd = self._processes.death(one.process)
            if fd is not None:
                self._by_fd[fd] = one
                self._liveness[one.id] = Liveness.ALIVE

    def _probe(self, one: Ahead) -> Liveness:
        if one.process is None:
            return Liveness.UNKNOWN
        return probe(one.process, self._processes, embedded=self._store.embedded)
