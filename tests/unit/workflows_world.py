"""Workflows for tests: a store, processes that live and die when told to, and the workflows as each process sees them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.signal_files import SignalFiles
from holdfast.domains.workflows import Workflows
from holdfast.kernel.store import Entry, Store
from holdfast.places import swap_lock_of
from holdfast.primitives.journal import Journal
from holdfast.testing.clock import ManualClock
from tests.unit.test_holds import Clocked
from tests.unit.test_locks import STORES, Machine, lock_database, open_store

__all__ = ["STORES", "World", "lock_database", "world_on"]


class World:
    """Process 1 is there from the beginning."""

    def __init__(self, store: Store, clock: ManualClock, folder: Path) -> None:
        self.real_store = store
        self.store: Any = Clocked(store, clock)
        self.clock = clock
        self.folder = folder
        self.journal = Journal(self.store, actor="tester")
        self.machine = Machine()
        self.lock = swap_lock_of(store)
        self.signals = SignalFiles(folder / "signals")
        self.workflows = self.process(1)

    def process(self, pid: int, machine: Machine | None = None) -> Workflows:
        """The workflows as a new process sees them."""
        seat = (machine or self.machine).begin(pid)
        return Workflows(self.store, self.journal, seat, swap_lock=self.lock, signals=self.signals, label=f"p{pid}")

    def entries(self) -> list[Entry]:
        return [entry for batch in self.journal.since() for entry in batch.entries]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.entries()]

    def events(self) -> list[str]:
        return [event.event for event in self.workflows.swap_log()]

    def signal_files(self) -> list[str]:
        folder = self.folder / "signals"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def current(self) -> str | None:
        current = self.workflows.swap_status().current
        return None if current is None else current.recipe


@contextmanager
def world_on(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    clock = ManualClock()
    with closing(open_store(kind, folder, clock, request)) as store:
        world = World(store, clock, folder)
        yield world
        world.machine.close()
