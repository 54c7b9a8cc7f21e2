"""Sleeping until it is one's turn: woken by the one who hands over, by the death of whoever is just
ahead, or by its lease.
"""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import LOCK_WATCHED_MAX
from holdfast.kernel.store import Store
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.records import Hold, Request
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.transaction import Suspect
from holdfast.primitives.steady_clock import steady_clock


class Ahead(NamedTuple):
    """Who stands before a request: a holder, or another waiter."""

    id: str
    by: str
    names: tuple[str, ...]
    process: Holder | None
    lease: Lease
    holds: bool


OnWait = Callable[[Sequence[Ahead]], None]
"""Told who is just ahead when a wait begins, and when that changes."""


def ahead_of(table: Table, request: Request) -> list[Ahead]:
    """Everyone whose death would let a request move up."""
    holds, requests = policy.just_ahead(table, request)
    return [*map(of_hold, holds), *map(of_request, requests)]


def of_hold(hold: Hold) -> Ahead:
    """A holder."""
    return Ahead(hold.id, hold.by, hold.names, hold.process, hold.lease, True)


def of_request(request: Request) -> Ahead:
    """Another waiter."""
    return Ahead(request.id, request.by, request.names, request.process, request.lease, False)


class Watch:
    """Descriptors that tell of the death of those ahead, and when the leases of the others run
    out.
    """

    def __init__(self, ahead: Sequence[Ahead], processes: Processes, store: Store) -> None:
        self._ahead = ahead
        self._processes = processes
        self._store = store
        self._steady = steady_clock(store)
        self._by_fd: dict[int, Ahead] = {}
        self._known: dict[str, Liveness] = {}

    def __enter__(self) -> "Watch":
        try:
            for one in self._ahead:
                self._watch(one)
            return self
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._by_fd:
            os.close(fd)

    @property
    def fds(self) -> list[int]:
        """What becomes readable when one of those ahead dies."""
        return list(self._by_fd)

    def died(self, ready: frozenset[int]) -> None:
        """Take note of the deaths that these descriptors tell of."""
        for fd in ready & self._by_fd.keys():
            one = self._by_fd[fd]
            alone = one.process is None or not one.process.tree
            self._known[one.id] = Liveness.DEAD if alone else self._probe(one)
            if self._known[one.id] is not Liveness.DEAD:
                # Processes of its tree are left that lost the descriptor: another one tells of
                # their end.
                del self._by_fd[fd]
                os.close(fd)
                self._watch(one)

    def suspects(self) -> list[Suspect]:
        """Those that may be reclaimed by now, as far as can be seen from here. Holders without a
        pidfd are probed again.
        """
        now = self._store.now()
        if any(not one.lease.fresh(now) for one in self._ahead):
            self._steady.look()
        watched = {one.id for one in self._by_fd.values()}
        self._known |= {one.id: self._probe(one) for one in self._ahead if one.id not in watched}
        return [
            Suspect(one.id, one.names, one.process, self._known[one.id])
            for one in self._ahead
            if self._steady.reclaimable(one.lease, self._known[one.id], now)
        ]

    def next_look_s(self) -> float | None:
        """How long until the first lease runs out on which something depends; None when nothing
        does.
        """
        now = self._store.now()
        ends = [
            (
                one.lease.expires_at - self._steady.believed(now, since=one.lease.granted_at)
            ).total_seconds()
            for one in self._ahead
            if self._known[one.id] is Liveness.UNKNOWN or one.lease.explicit
        ]
        return max(min(ends), _LATER_S) + _LATER_S if ends else None

    def _watch(self, one: Ahead) -> None:
        watched = one.process is not None and len(self._by_fd) < LOCK_WATCHED_MAX
        fd = self._processes.death(one.process) if watched and one.process is not None else None
        if fd is not None:
            self._by_fd[fd] = one
            self._known[one.id] = Liveness.ALIVE

    def _probe(self, one: Ahead) -> Liveness:
        if one.process is None:
            return Liveness.UNKNOWN
        return probe(one.process, self._processes, embedded=self._store.embedded)


_LATER_S = 0.001
"""A lease is fresh up to and including its last instant, so the look comes after it."""
