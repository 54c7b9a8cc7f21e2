"""Stores for tests: one of each kind, one on the clock of the test, one that refuses to answer."""

import threading
from collections.abc import Callable
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.clock import Clock, MonotonicTime
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.store import Store
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.timeouts import PATIENCE_S

STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.prove)]


class FailingStore:
    """A store that does not answer while `down` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Called each time that it does not answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, *arguments: Any, **more: Any) -> Any:
        if self.down:
            self.meanwhile()
            raise StoreUnavailable("it does not answer", outcome="none")
        return self._store.transact(*arguments, **more)


def store_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a new store of the kind that the fixture's parameter names."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return {
        "memory": "memory:",
        "sqlite": f"sqlite:{folder}/store.sqlite",
        "files": f"files:{folder}/state",
    }[request.param]


_namespaces = count(1)


def open_store(
    kind: str, folder: Path, clock: ManualClock, request: pytest.FixtureRequest
) -> Store:
    """A new store of that kind. PostgreSQL's clock is its own."""
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "sqlite":
        return SqliteStore(folder / "store.sqlite", boot_id="boot-1", clock=clock)
    if kind == "files":
        return FilesStore(folder / "state", boot_id="boot-1", clock=clock, retry_delay_s=0.001)
    # Here, so that the other stores' tests need no driver.
    from holdfast.stores.postgres import open_postgres

    return open_postgres(
        request.getfixturevalue("module_database"), namespace=f"t{next(_namespaces)}"
    )


class ClockedStore:
    """A store on the clock of the test, even where the store has its own. It counts the rounds of
    the background thread, and does not answer that thread while `down` is set.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._changed = threading.Condition()
        self._kept = 0
        self._refused = 0
        self.down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> MonotonicTime:
        return self._clock.monotonic()

    def transact(self, body: Callable[[Any], Any], **more: Any) -> Any:
        self._keeper_comes()
        return self._store.transact(lambda tx: body(_AtTime(tx, self._clock.now())), **more)

    def read(self, body: Callable[[Any], Any], **more: Any) -> Any:
        kept = self._keeper_comes()
        result = self._store.read(lambda tx: body(_AtTime(tx, self._clock.now())), **more)
        if kept:
            self._count("_kept")
        return result

    def _keeper_comes(self) -> bool:
        kept = threading.current_thread().name == "holdfast-keeper"
        if kept and self.down:
            self._count("_refused")
            raise StoreUnavailable("it does not answer", outcome="none")
        return kept

    def until_kept(self) -> None:
        """Wait until the background thread has done a whole round. Each round begins with a read:
        one may be under way, the next counts, and the third says that the second is over.
        """
        self._until("_kept", 3)

    def until_refused(self) -> None:
        """Wait until the background thread got no answer."""
        self._until("_refused", 1)

    def _count(self, what: str) -> None:
        with self._changed:
            setattr(self, what, getattr(self, what) + 1)
            self._changed.notify_all()

    def _until(self, what: str, times: int) -> None:
        with self._changed:
            goal = getattr(self, what) + times
            assert self._changed.wait_for(lambda: getattr(self, what) >= goal, PATIENCE_S), (
                "the background thread does nothing"
            )


class _AtTime:
    """A transaction at the time of the test's clock."""

    def __init__(self, tx: Any, now: datetime) -> None:
        self._tx = tx
        self.now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)
