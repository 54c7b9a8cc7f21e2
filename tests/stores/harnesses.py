"""Harnesses: each opens one kind of store on one place, in this process and in others."""

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.layout import FilePerRecord, Layout, OneFile, Wire
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.files.store import FilesStore
from holdfast.stores.files.transaction import scope_of
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.harness import OTHERS, THINGS, THINGS_V2

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
"""Where files cost no disk, for tests that make many and lose no power; None: where temporary files
are.
"""


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self._last: MemoryStore | None = None

    def open(self, *, namespace: str = "default") -> Store:
        self._last = MemoryStore(namespace=namespace, clock=self.clock)
        return self._last

    def damage(self, space: str, key: str, data: bytes) -> None:
        assert self._last is not None
        records = self._last._state.tables[space].records
        records[key] = records[key]._replace(data=data)


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


class FilesHarness:
    """Files, with none of the suite's spaces laid out: everything goes to the inner store."""

    things: Callable[[Space[Any]], Layout | None] = staticmethod(lambda space: None)
    others: Callable[[Space[Any]], Layout | None] = staticmethod(lambda space: None)

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.root = folder / "state"

    def open(self, *, namespace: str = "default") -> Store:
        for space, layout in (
            (THINGS, self.things),
            (THINGS_V2, self.things),
            (OTHERS, self.others),
        ):
            space.layout = layout(space)
        scope_of.cache_clear()
        return FilesStore(
            self.root, boot_id="boot-1", namespace=namespace, clock=self.clock, retry_delay_s=0.001
        )

    def damage(self, space: str, key: str, data: bytes) -> None:
        connection = sqlite3.connect(self.root / ".holdfast" / "store.sqlite")
        with connection:
            connection.execute(f"UPDATE s_{space} SET value = ? WHERE key = ?", (data, key))
        connection.close()


def whole(space: Space[Any]) -> Wire[Any]:
    """A record in a file as it is stored elsewhere."""
    return Wire(to_plain, lambda key, document: space.decode(key, to_json(document)))


class SheetHarness(FilesHarness):
    """Two spaces that share one file."""

    things = staticmethod(lambda space: OneFile("lab", "all.json", whole(space), part="things"))
    others = staticmethod(lambda space: OneFile("lab", "all.json", whole(space), part="others"))

    def damage(self, space: str, key: str, data: bytes) -> None:
        path = self.root / "lab" / "all.json"
        document = json.loads(path.read_text())
        try:
            document["things"][key] = json.loads(data)
        except (ValueError, RecursionError):
            # What is no JSON would damage the whole file; a text where an object should be does
            # not.
            document["things"][key] = data.decode()
        path.write_text(json.dumps(document))


class CardsHarness(FilesHarness):
    """One space with a file for each record, in a folder for each, and another in one file."""

    things = staticmethod(
        lambda space: FilePerRecord("lab", "things/{key}/record.json", whole(space))
    )
    others = staticmethod(lambda space: OneFile("lab", "others.json", whole(space)))

    def damage(self, space: str, key: str, data: bytes) -> None:
        (self.root / "lab" / "things" / key / "record.json").write_bytes(data)
