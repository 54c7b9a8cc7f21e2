"""Tests with threads, processes, forks and reopening."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.store import Store, Tx
from holdfast.testing.conformance.harness import (
    LATCHED,
    OTHERS,
    PATIENCE_S,
    PERSISTENT,
    SHARED,
    THINGS,
    VOLATILE,
    Harness,
    Suite,
    Thing,
    append,
    heard,
    increment,
    needs,
    put,
    run_processes,
    take_all,
)


class Concurrency(Suite):
    """No concurrent change is lost or done twice."""

    def test_threads_lose_no_update(self, store: Store) -> None:
        put(store, "sum")

        def work(_: int) -> None:
            for _ in range(25):
                increment(store)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 200

    def test_threads_take_each_record_once(self, store: Store) -> None:
        def fill(tx: Tx) -> None:
            for i in range(60):
                tx.put(THINGS, f"k{i:03}", Thing(owner="x", rank=i))

        store.transact(fill, scope=[THINGS])
        with ThreadPoolExecutor(6) as pool:
            taken = list(pool.map(lambda _: take_all(store), range(6)))
        assert sorted(key for keys in taken for key in keys) == [f"k{i:03}" for i in range(60)]
        for keys in taken:
            assert keys == sorted(keys)

    def test_only_one_thread_puts_new(self, store: Store) -> None:
        barrier = threading.Barrier(6)

        def race(_: int) -> int | None:
            barrier.wait(PATIENCE_S)
            return store.put_new(VOLATILE, [("a", Thing()), ("b", Thing())])

        with ThreadPoolExecutor(6) as pool:
            assert len([token for token in pool.map(race, range(6)) if token]) == 1

    def test_a_reader_sees_whole_transactions(self, store: Store) -> None:
        def write(value: int) -> None:
            def body(tx: Tx) -> None:
                tx.put(THINGS, "one", Thing(rank=value))
                tx.put(OTHERS, "two", Thing(rank=value))

            store.transact(body, scope=[THINGS, OTHERS])

        write(0)
        done = threading.Event()

        def look() -> int:
            looks = 0
            while not done.is_set() or not looks:
                pair = store.read(
                    lambda tx: (tx.get(THINGS, "one"), tx.get(OTHERS, "two")),
                    scope=[THINGS, OTHERS],
                )
                assert pair[0] and pair[1] and pair[0].record.rank == pair[1].record.rank
                looks += 1
            return looks

        with ThreadPoolExecutor(2) as pool:
            looking = pool.submit(look)
            for value in range(1, 50):
                write(value)
            done.set()
            assert looking.result(PATIENCE_S) > 0

    @needs(LATCHED)
    def test_a_writer_without_a_turn_gets_a_lock_timeout(self, store: Store) -> None:
        inside, leave = threading.Event(), threading.Event()

        def be_slow(tx: Tx) -> None:
            # A store over a network may latch at its first read, and not before.
            tx.count(THINGS)
            inside.set()
            leave.wait(PATIENCE_S)
            tx.put(THINGS, "slow", Thing())

        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(store.transact, be_slow, scope=[THINGS])
            assert inside.wait(PATIENCE_S)
            with pytest.raises(LockTimeout) as caught:
                store.transact(
                    lambda tx: tx.put(THINGS, "a", Thing()), scope=[THINGS], timeout_s=0.05
                )
            assert caught.value.fields["outcome"] == "none"
            assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 0
            leave.set()
            slow.result(PATIENCE_S)
        assert put(store, "b") > 0
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 2

    @needs(SHARED)
    def test_processes_lose_no_update(self, harness: Harness, store: Store) -> None:
        put(store, "sum")
        assert run_processes(4, _increment_much, harness) == [None] * 4
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 80

    @needs(SHARED)
    def test_processes_take_each_record_once(self, harness: Harness, store: Store) -> None:
        for i in range(40):
            put(store, f"k{i:03}", Thing(owner="x", rank=i))
        taken = run_processes(4, _take_everything, harness)
        assert sorted(key for keys in taken for key in keys) == [f"k{i:03}" for i in range(40)]

    @needs(SHARED)
    def test_a_notice_reaches_another_process(self, harness: Harness, store: Store) -> None:
        with store.listen(["topic"]) as listener:
            run_processes(1, _notify, harness)
            assert heard(listener)

    @needs(SHARED)
    def test_an_address_reaches_its_listener_from_another_process(
        self, harness: Harness, store: Store
    ) -> None:
        with store.listen() as listener:
            put(store, "address", Thing(owner=listener.address))
            run_processes(1, _notify_address, harness)
            assert heard(listener)

    @needs(SHARED)
    def test_a_killed_process_leaves_all_or_nothing_and_no_one_waiting(
        self, harness: Harness, store: Store
    ) -> None:
        context = multiprocessing.get_context("fork")
        ready, started = context.Pipe(duplex=False)
        process = context.Process(target=_die_inside, args=(harness, started))
        process.start()
        started.close()
        assert ready.recv() == "inside"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE_S)
        assert put(store, "after") > 0
        assert store.get(THINGS, "half") is None

    @needs(SHARED)
    def test_a_store_works_on_after_fork_in_parent_and_child(self, store: Store) -> None:
        put(store, "sum")
        put(store, "vol", space=VOLATILE)
        with store.listen(["warm"]):
            pass
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(10):
                    increment(store)
                put(store, "vol2", space=VOLATILE)
                with store.listen(["topic"]) as listener:
                    store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
                    status = 0 if heard(listener) else 2
                store.close()
            finally:
                os._exit(status)
        for _ in range(10):
            increment(store)
        assert os.waitpid(child, 0)[1] == 0
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 20
        assert store.get(VOLATILE, "vol2") is not None

    @needs(PERSISTENT)
    def test_records_outlive_the_store_object(self, harness: Harness, store: Store) -> None:
        revision = put(store, "a")
        append(store, "told")
        token = store.put_new(VOLATILE, [("lock", Thing())])
        store.close()
        again = harness.open()
        try:
            assert again.get(THINGS, "a") is not None
            assert again.get(VOLATILE, "lock") is not None
            assert [entry.subject for entry in again.journal().entries] == ["told"]
            assert put(again, "b") > revision
            later = again.put_new(VOLATILE, [("lock2", Thing())])
            assert token is not None and later is not None and later > token
        finally:
            again.close()

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.get(THINGS, "a")
        with pytest.raises(StoreUnavailable, match="closed"):
            put(store, "a")
        with pytest.raises(StoreUnavailable, match="closed"):
            store.listen(["topic"])


def _increment_much(harness: Harness) -> None:
    store = harness.open()
    for _ in range(20):
        increment(store)
    store.close()


def _take_everything(harness: Harness) -> list[str]:
    store = harness.open()
    taken = take_all(store)
    store.close()
    return taken


def _notify(harness: Harness) -> None:
    store = harness.open()
    store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
    store.close()


def _notify_address(harness: Harness) -> None:
    store = harness.open()
    row = store.get(THINGS, "address")
    assert row is not None
    store.transact(lambda tx: tx.notify(row.record.owner), scope=[THINGS])
    store.close()


def _die_inside(harness: Harness, started: Any) -> None:
    store = harness.open()

    def body(tx: Tx) -> None:
        tx.put(THINGS, "half", Thing())
        started.send("inside")
        signal.pause()

    store.transact(body, scope=[THINGS])
