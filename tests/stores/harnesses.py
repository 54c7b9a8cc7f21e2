"""Harnesses: each opens one kind of store on one place, in this process and in others."""

import sqlite3
from pathlib import Path

from holdfast.kernel.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self._last: MemoryStore | None = None

    def open(self, *, namespace: str = "default") -> Store:
        self._last = MemoryStore(namespace=namespace, clock=self.clock)
        return self._last

    def damage(self, space: str, key: str, data: bytes) -> None:
        assert self._last is not None
        shelf = self._last._world.shelves[space]
        shelf[key] = shelf[key]._replace(data=data)


class SqliteHarness:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.path = folder / "store.sqlite"

    def open(self, *, namespace: str = "default") -> Store:
        return SqliteStore(self.path, boot_id="boot-1", namespace=namespace, clock=self.clock)

    def damage(self, space: str, key: str, data: bytes) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(f"UPDATE s_{space} SET value = ? WHERE key = ?", (data, key))
        connection.close()
