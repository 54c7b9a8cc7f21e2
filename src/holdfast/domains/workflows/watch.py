"""Watching processes while something waits: the kernel tells of a death at once, and a time to live is reckoned with."""

import os
from collections.abc import Iterable
from types import TracebackType

from holdfast.domains.workflows.record import Workflow
from holdfast.domains.workflows.room import Room
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.limits import SWAP_WATCHED_MAX
from holdfast.kernel.store import Listener

_LATER_S = 0.001
"""A lease is fresh up to and including its last instant, so the look comes after it."""


class Watch:
    """Some processes, of whose death whoever waits is told by the kernel."""

    def __init__(self, room: Room, holders: Iterable[Holder]) -> None:
        self._room = room
        self._holders = list(holders)[:SWAP_WATCHED_MAX]
        self._fds: list[int] = []
        self._too_late = False

    def __enter__(self) -> "Watch":
        for holder in self._holders:
            fd = self._room.death(holder)
            if fd is not None:
                self._fds.append(fd)
            elif self._room.verdicts_on([holder])[holder] is Liveness.DEAD:
                # It died since it was looked at, and nobody will tell of that any more.
                self._too_late = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for fd in self._fds:
            os.close(fd)

    def wait(self, ears: Listener, timeout_s: float | None, stop_fd: int | None = None) -> bool:
        """Sleep until a process dies, a notice comes or the time is over; not at all if one is dead already. False when the
        descriptor `stop_fd` became readable."""
        if self._too_late:
            return True
        stops = [] if stop_fd is None else [stop_fd]
        return ears.wait(timeout_s, also=[*self._fds, *stops]).ready.isdisjoint(stops)


def next_expiry_s(room: Room, workflows: Iterable[Workflow]) -> float | None:
    """How long until the first time to live passes; None when there is none to wait for."""
    now, leases = room.store.now(), [workflow.lease for workflow in workflows if not _lives_on(room, workflow)]
    ends = [(lease.expires_at - room.steady.believed(now, since=lease.granted_at)).total_seconds() for lease in leases]
    return max(min(ends), 0.0) + _LATER_S if ends else None


def _lives_on(room: Room, workflow: Workflow) -> bool:
    """Is it not swept when its time passes? Then a waiter must not wake for that: it would look again at once, for ever."""
    return not workflow.lease.explicit and room.verdicts_on([workflow.owner])[workflow.owner] is Liveness.ALIVE
