"""Lock managers of several processes, on a store and a clock of the test."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Entry, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Grant, Locks
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.wait import Ahead
from holdfast.stores import listener
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import FailingStore, open_store
from tests.harness.timeouts import NEVER_S, PATIENCE_S
from tests.harness.waiter import Waiter


class Watches:
    """The clocks by which threads measure their time limits: each can be made to jump."""

    def __init__(self) -> None:
        self._jumped_s: dict[int, float] = {}

    def monotonic(self) -> float:
        return time.monotonic() + self._jumped_s.get(threading.get_ident(), 0.0)

    def run_out(self, thread: int | None = None) -> None:
        """Let every time limit of a thread be over, by default of this one."""
        self._jumped_s[threading.get_ident() if thread is None else thread] = 1e6

    def advance(self, seconds: float, thread: int) -> None:
        """Let a thread's time limits come nearer."""
        self._jumped_s[thread] = self._jumped_s.get(thread, 0.0) + seconds


def context_of(locks: Locks) -> LockContext:
    """What a lock manager shares with its background thread. Tests reach into it to let a renewal,
    an expiry or a hand-over happen at a known instant; by itself it happens when the timer fires.
    """
    return locks._context


class World:
    """A store, a machine with processes, and the locks as each process sees them. Process 1 exists
    from the start.
    """

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        settings: LockSettings | None = None,
        actor: str = "tester",
    ) -> None:
        self.store = store
        self.clock = clock
        self.journal = Journal(store, actor=actor)
        self.machine = Machine()
        self._settings = settings
        self._opened: list[Locks] = []
        self.locks = self.process(1)

    def process(self, pid: int, machine: Machine | None = None) -> Locks:
        """The locks as a new process sees them."""
        seat = (machine or self.machine).begin(pid)
        locks = Locks(self.store, self.journal, seat, self._settings, label=f"p{pid}")
        self._opened.append(locks)
        return locks

    def line_up(
        self, names: str | Iterable[str], *, by: str, locks: Locks | None = None, **more: Any
    ) -> Waiter[Grant]:
        """Request held names; return when the request is queued."""
        asked = locks or self.locks
        more = {"timeout_s": PATIENCE_S, **more}
        return Waiter(lambda waits: asked.acquire(names, by=by, on_wait=waits, **more))

    def look(
        self, names: str | Iterable[str], *, by: str, locks: Locks | None = None, **more: Any
    ) -> Waiter[bool]:
        """The same for `wait`."""
        asked = locks or self.locks
        more = {"timeout_s": PATIENCE_S, **more}
        return Waiter(lambda waits: asked.wait(names, by=by, on_wait=waits, **more))

    def leave_in_line(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        pid: int,
        machine: Machine | None = None,
        **more: Any,
    ) -> None:
        """A request as a process leaves it that does nothing more: it only has to be ended to have
        been killed.
        """
        store = FailingStore(self.store)
        locks = Locks(store, self.journal, (machine or self.machine).begin(pid), self._settings)

        def leave(_: Sequence[Ahead]) -> None:
            store.down = True
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            locks.acquire(names, by=by, on_wait=leave, timeout_s=None, **more)
        # Or it would go on trying to withdraw it.
        locks.close()

    def addresses(self) -> list[str]:
        """What wakes those that wait now."""
        return [
            row.record.address
            for row in self.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
        ]

    def nudge(self, addresses: Iterable[str] | None = None) -> None:
        """Make every waiter look again, as after a step of the clock that it cannot notice."""
        nudged = self.addresses() if addresses is None else addresses

        def notify(tx: Tx) -> None:
            for address in nudged:
                tx.notify(address)

        self.store.transact(notify, scope=[LOCK_WAITS])

    def rows(self) -> list[str]:
        """Every row of the lock table, of resources and of requests."""

        def keys(tx: Any) -> list[str]:
            return [
                f"{space.name}/{row.key}"
                for space in (LOCKS, LOCK_WAITS)
                for row in tx.range(space)
            ]

        return self.store.read(keys, scope=[LOCKS, LOCK_WAITS])

    def holders(self, name: str) -> list[str]:
        return [hold.by for hold in self.locks.status(name).holds]

    def queue(self, name: str) -> list[str]:
        return [request.by for request in self.locks.status(name).queue]

    def logged(self, *kinds: str) -> list[Entry]:
        """The journal's entries about locks, of these kinds or of all."""
        # An entry of a database is shown once no transaction that began before it is under way, as
        # one that renews may be.
        mark = self.store.transact(
            lambda tx: self.journal.append(tx, kind="test.asked", subject="x"), scope=[]
        )
        entries: list[Entry] = []
        while not any(entry.revision == mark for entry in entries):
            entries = [entry for batch in self.journal.since() for entry in batch.entries]
        return [
            entry
            for entry in entries
            if entry.kind.startswith("lock.") and (not kinds or entry.kind in kinds)
        ]

    def until_logged(self, kind: str) -> None:
        """Wait until the journal has an entry of this kind."""
        for batch in self.journal.follow(timeout_s=PATIENCE_S):
            if any(entry.kind == kind for entry in batch.entries):
                return
        raise AssertionError(f"no {kind} in the journal")

    def use(self, names: str | Iterable[str], *, by: str, **more: Any) -> None:
        """Take free names, and release them."""
        assert self.locks.release(self.locks.acquire(names, by=by, timeout_s=0, **more))

    def close(self) -> None:
        for locks in self._opened:
            locks.close()
        self.machine.close()
        self.store.close()


@contextmanager
def world_of(
    kind: str, folder: Path, request: pytest.FixtureRequest, settings: LockSettings | None = None
) -> Iterator[World]:
    clock = ManualClock()
    world = World(open_store(kind, folder, clock, request), clock, settings)
    try:
        # No sleeper rechecks by itself, so that a missing wake-up shows.
        with mock.patch.object(listener, "WAIT_RECHECK_S", NEVER_S):
            yield world
    finally:
        world.close()
