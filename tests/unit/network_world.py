"""A registry on a store of the test's choice, with a clock and processes that the test controls."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.network import Registry
from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
from holdfast.kernel.settings import LockSettings, NetworkSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Entry, Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Locks
from holdfast.stores.files.store import FilesStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import STORES as LOCK_STORES
from tests.harness.stores import ClockedStore, open_store

__all__ = ["STORES", "World", "host", "world_of"]

STORES = [*LOCK_STORES, "files"]
_MARK = "test.asked"


class World:
    """A store, a machine with processes, and the registry as each process sees it. Process 1 exists
    from the start.
    """

    def __init__(
        self, store: Store, clock: ManualClock, settings: NetworkSettings | None = None
    ) -> None:
        self.store: Any = ClockedStore(store, clock)
        self.clock = clock
        self.journal = Journal(self.store, actor="tester")
        self.machine = Machine()
        self._settings = settings or NetworkSettings()
        self._opened: list[tuple[Registry, Locks]] = []
        self.pauses: list[float] = []
        self.registry = self.process(1)

    def process(
        self, pid: int, *, settings: NetworkSettings | None = None, machine: Machine | None = None
    ) -> Registry:
        """The registry as a new process sees it."""
        seat: Any = (machine or self.machine).begin(pid)
        locks = Locks(self.store, self.journal, seat, LockSettings())
        registry = Registry(
            self.store,
            self.journal,
            seat,
            locks,
            settings or self._settings,
            label=f"p{pid}",
            pause=self.pauses.append,
        )
        self._opened.append((registry, locks))
        return registry

    def locks_of(self, registry: Registry) -> Locks:
        """The lock manager behind a registry."""
        return next(locks for other, locks in self._opened if other is registry)

    def kill(self, pid: int) -> None:
        self.machine.end(pid)

    def logged(self) -> list[tuple[str, str]]:
        """The journal: kind and subject of each entry."""
        return [(entry.kind, entry.subject) for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """The journal, but for what this writes into it."""
        # An entry of a database is shown once no transaction that began before it is under way, as
        # one in the background of a process's locks may be.
        mark = None if self.store.embedded else self._mark()
        while True:
            entries = [entry for batch in self.journal.since() for entry in batch.entries]
            if mark is None or any(entry.revision == mark for entry in entries):
                return [entry for entry in entries if entry.kind != _MARK]

    def _mark(self) -> int:
        revision: int = self.store.transact(
            lambda tx: self.journal.append(tx, kind=_MARK, subject="x"), scope=[]
        )
        return revision

    def records(self) -> dict[str, dict[str, Any]]:
        """Everything that is stored."""
        spaces: list[Space[Any]] = [HOSTS, HOST_LEASES, NEIGHBOR_LEASES]
        records: dict[str, dict[str, Any]] = self.store.read(
            lambda tx: {
                space.name: {row.key: row.record for row in tx.range(space)} for space in spaces
            },
            scope=spaces,
        )
        return records

    def close(self) -> None:
        for registry, locks in self._opened:
            registry.close()
            locks.close()
        self.machine.close()
        self.store.close()


@contextmanager
def world_of(
    kind: str, folder: Path, request: pytest.FixtureRequest, settings: NetworkSettings | None = None
) -> Iterator[World]:
    clock = ManualClock()
    made = World(_opened(kind, folder, clock, request), clock, settings)
    try:
        yield made
    finally:
        made.close()


def _opened(kind: str, folder: Path, clock: ManualClock, request: pytest.FixtureRequest) -> Store:
    if kind == "files":
        return FilesStore(folder / "lab", boot_id="boot-1", clock=clock, folders={"network": "."})
    return open_store(kind, folder, clock, request)


def host(number: int, router: str = "router-1") -> dict[str, Any]:
    """The arguments that register a host of that number."""
    return {
        "host_name": f"h{number}",
        "primary_ip": f"10.0.{number // 250}.{number % 250 + 1}/24",
        "connected_to": router,
        "mac_address": f"02:00:00:00:{number // 256:02x}:{number % 256:02x}",
    }
