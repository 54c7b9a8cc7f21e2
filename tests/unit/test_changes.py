"""The changes that a server's coroutines wait for: listened for only while somebody watches."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.stores.listener import FdListener
from holdfast.stores.memory import MemoryStore
from holdfast.surfaces.http import events
from holdfast.surfaces.http.events import Changes
from tests.harness.timeouts import PATIENCE_S


class CountedStore(MemoryStore):
    """Counts its open listeners, and refuses as many as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.refusals = 0
        self.ended = threading.Semaphore(0)

    def listen(self, topics: object = ()) -> FdListener:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the store is away", outcome="none")
        self.begun += 1
        listener = super().listen([JOURNAL_TOPIC])
        close = listener._close
        assert close is not None

        def end() -> None:
            close()
            self.ended.release()

        listener._close = end
        return listener


@asynccontextmanager
async def served(store: CountedStore) -> AsyncIterator[Changes]:
    changes = Changes(store, [JOURNAL_TOPIC])
    changes.start()
    try:
        yield changes
    finally:
        changes.close()
        store.close()


def change(store: CountedStore) -> None:
    store.transact(lambda tx: tx.append(actor="me", kind="it.happened", subject="it"), scope=[])


async def see_a_change(store: CountedStore, changes: Changes) -> bool:
    async with changes.watched():
        mark = changes.mark
        change(store)
        return await changes.wait(mark, PATIENCE_S)


def test_nobody_listens_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HTTP_LISTEN_ON_S", 0.0)
    store = CountedStore()

    async def watch() -> None:
        async with served(store) as changes:
            change(store)
            assert store.begun == 0
            for times in (1, 2):
                assert await see_a_change(store, changes)
                assert store.begun == times
                assert await asyncio.to_thread(store.ended.acquire, timeout=PATIENCE_S)

    asyncio.run(watch())


def test_watchers_share_a_listener_and_the_next_one_finds_it_open() -> None:
    store = CountedStore()

    async def watch() -> None:
        async with served(store) as changes:
            seen = (see_a_change(store, changes) for _ in range(3))
            assert await asyncio.gather(*seen) == [True, True, True]
            assert await see_a_change(store, changes)
            assert store.begun == 1

    asyncio.run(watch())
    assert store.ended.acquire(timeout=PATIENCE_S)


def test_a_store_that_is_away_holds_no_watcher_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_AGAIN_S", 0.01)
    store = CountedStore()
    store.refusals = 3

    async def watch() -> None:
        async with served(store) as changes:
            assert await see_a_change(store, changes)

    asyncio.run(watch())
    assert store.refusals < 3


def test_a_server_that_stops_ends_the_waits() -> None:
    store = CountedStore()

    async def watch() -> None:
        async with served(store) as changes, changes.watched():
            waiting = asyncio.create_task(changes.wait(changes.mark, PATIENCE_S))
            await asyncio.sleep(0)
            changes.end_waits()
            assert not await waiting

    asyncio.run(watch())
