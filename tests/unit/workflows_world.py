"""Workflows for tests: a store, processes that live and die on request, and the workflows as each
process sees them.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.journal_mirror import swap_log_file
from holdfast.adapters.signal_files import SignalFiles, workflows_in_folder
from holdfast.domains.workflows import Workflows
from holdfast.domains.workflows.ports import SwapLock
from holdfast.domains.workflows.wire import FOLDER, SWAP_LOCK, SWAP_LOG
from holdfast.kernel.holder import Processes
from holdfast.kernel.store import Entry, Store
from holdfast.primitives.journal import Journal
from holdfast.runtime.configuration import PLACES
from holdfast.stores.files.store import FilesStore
from holdfast.system.flock import FlockLock
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import STORES as LOCK_STORES
from tests.harness.stores import ClockedStore, open_store

__all__ = ["STORES", "World", "lock_on", "seen_by", "world_on"]

STORES = [*LOCK_STORES, "files"]


def lock_on(store: Store) -> SwapLock:
    """The swap lock of a store, in plain files too."""
    return (
        FlockLock(store.folders.of(FOLDER) / SWAP_LOCK)
        if isinstance(store, FilesStore)
        else store.session_lock("swap")
    )


def seen_by(
    seat: Processes,
    real: Store,
    store: Any,
    journal: Journal,
    *,
    lock: SwapLock,
    signals: Path,
    label: str = "",
    within: tuple[str, int] | None = None,
) -> Workflows:
    """The workflows of a store as a process sees them; in plain files wired as they are for a
    user.
    """
    if isinstance(real, FilesStore):
        folder = real.folders.of(FOLDER)
        return workflows_in_folder(
            folder,
            signals.parent,
            store,
            journal,
            seat,
            mirror=swap_log_file(folder / SWAP_LOG, signals.parent, journal),
            label=label,
            within=within,
        )
    return Workflows(
        store,
        journal,
        seat,
        swap_lock=lock,
        signals=SignalFiles(signals),
        label=label,
        within=within,
    )


class World:
    """Process 1 exists from the start."""

    def __init__(self, store: Store, clock: ManualClock, folder: Path) -> None:
        self.real_store = store
        self.store: Any = ClockedStore(store, clock)
        self.clock = clock
        self.folder = folder
        self.journal = Journal(self.store, actor="tester")
        self.machine = Machine()
        self.lock = lock_on(store)
        self.workflows = self.process(1)

    def process(
        self, pid: int, machine: Machine | None = None, within: tuple[str, int] | None = None
    ) -> Workflows:
        """The workflows as a new process sees them."""
        seat = (machine or self.machine).begin(pid)
        signals, label = self.folder / "signals", f"p{pid}"
        return seen_by(
            seat,
            self.real_store,
            self.store,
            self.journal,
            lock=self.lock,
            signals=signals,
            label=label,
            within=within,
        )

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
    opened = (
        _files(folder / "files", clock)
        if kind == "files"
        else open_store(kind, folder, clock, request)
    )
    with closing(opened) as store:
        world = World(store, clock, folder)
        yield world
        world.machine.close()


def _files(root: Path, clock: ManualClock) -> FilesStore:
    return FilesStore(root, boot_id="boot-1", clock=clock, folders=PLACES)
