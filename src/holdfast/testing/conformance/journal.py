"""Tests of the journal, and of listening and waiting."""

import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.kernel.clock import after, ago
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOURNAL_READ_MAX, JOURNAL_TRIM_MAX
from holdfast.kernel.space import Space
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Store, Tx
from holdfast.testing.conformance.harness import (
    CLOCKED,
    PATIENCE_S,
    THINGS,
    VOLATILE,
    Harness,
    Suite,
    Thing,
    append,
    heard,
    needs,
    put,
)


class JournalSuite(Suite):
    """The journal skips and repeats no entry. No notice is lost, and none reaches the wrong
    listener.
    """

    def test_the_journal_is_read_from_a_cursor_without_gaps_or_repeats(self, store: Store) -> None:
        for i in range(7):
            append(store, f"s{i}", {"i": i})
        seen, cursor = [], BEGINNING
        while True:
            batch = store.journal(cursor, limit=3)
            if not batch.entries:
                break
            seen += batch.entries
            cursor = batch.cursor
        assert [entry.subject for entry in seen] == [f"s{i}" for i in range(7)]
        assert [entry.data for entry in seen] == [{"i": i} for i in range(7)]
        assert [entry.revision for entry in seen] == sorted({entry.revision for entry in seen})
        assert store.journal(cursor).entries == []
        append(store, "later")
        assert [entry.subject for entry in store.journal(cursor).entries] == ["later"]

    def test_the_journal_can_be_read_from_its_end(self, store: Store) -> None:
        for i in range(5):
            append(store, f"s{i}")
        batch = store.journal(limit=2, reverse=True)
        assert [entry.subject for entry in batch.entries] == ["s4", "s3"]
        append(store, "later")
        assert [entry.subject for entry in store.journal(batch.cursor).entries] == ["later"]

    def test_volatile_changes_are_journalled_too(self, store: Store) -> None:
        append(store, "durable")
        cursor = store.journal().cursor
        append(store, "volatile", space=VOLATILE)
        append(store, "durable again")
        batch = store.journal(cursor)
        assert {entry.subject for entry in batch.entries} == {"volatile", "durable again"}
        assert store.journal(batch.cursor).entries == []

    def test_several_entries_of_one_transaction_keep_their_order(self, store: Store) -> None:
        def body(tx: Tx) -> list[int]:
            first = tx.revision
            given = [tx.append(actor="t", kind="k", subject=str(i)) for i in range(3)]
            assert given[0] == first == tx.revision
            return given

        given = store.transact(body, scope=[THINGS])
        assert [(e.subject, e.revision) for e in store.journal().entries] == [
            (str(i), given[i]) for i in range(3)
        ]
        assert put(store, "a") > given[-1]

    @pytest.mark.parametrize("space", [THINGS, VOLATILE], ids=lambda space: space.name)
    def test_tokens_and_entries_of_one_transaction_share_no_number(
        self, store: Store, space: Space[Thing]
    ) -> None:
        def body(tx: Tx) -> list[int]:
            first = tx.revision
            given = [
                tx.token(),
                tx.append(actor="t", kind="k", subject="s"),
                *(tx.token() for _ in range(4)),
            ]
            assert given[0] == first
            return given

        tokens = [token for _ in range(3) for token in store.transact(body, scope=[space])]
        assert tokens == sorted(set(tokens))
        assert put(store, "a", space=space) > tokens[-1]

    @needs(CLOCKED)
    def test_trim_keeps_what_is_asked_and_the_newest(self, harness: Harness, store: Store) -> None:
        for i in range(10):
            append(store, f"s{i}")
            harness.clock.advance(1)

        def trim(keep: int, age_s: float) -> int:
            return store.transact(
                lambda tx: tx.trim(keep=keep, before=after(tx.now, -age_s)), scope=[THINGS]
            )

        assert trim(100, 1000) == 0
        assert trim(6, 1000) == 4
        assert [e.subject for e in store.journal().entries] == [f"s{i}" for i in range(4, 10)]
        assert trim(100, 3) == 3
        assert [e.subject for e in store.journal().entries] == ["s7", "s8", "s9"]
        last = store.journal().entries[-1].revision
        assert trim(1, 0.5) == 2
        assert put(store, "a") > last

    def test_trim_takes_any_age(self, store: Store) -> None:
        append(store, "a")
        append(store, "b")
        assert (
            store.transact(lambda tx: tx.trim(keep=100, before=ago(tx.now, 1e300)), scope=[]) == 0
        )
        assert [entry.subject for entry in store.journal().entries] == ["a", "b"]

    def test_a_trim_is_bounded(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            for i in range(JOURNAL_TRIM_MAX + 5):
                tx.append(actor="t", kind="k", subject=str(i))

        def trim() -> int:
            return store.transact(
                lambda tx: tx.trim(keep=2, before=ago(tx.now, 1000)), scope=[THINGS]
            )

        store.transact(body, scope=[THINGS])
        assert [trim(), trim(), trim()] == [JOURNAL_TRIM_MAX, 3, 0]
        last = [str(JOURNAL_TRIM_MAX + i) for i in (3, 4)]
        assert [entry.subject for entry in store.journal().entries] == last
        for i in range(3):
            append(store, f"s{i}")
        assert trim() == 3
        assert [entry.subject for entry in store.journal().entries] == ["s1", "s2"]

    def test_a_read_of_the_journal_is_bounded(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            for i in range(JOURNAL_READ_MAX + 5):
                tx.append(actor="t", kind="k", subject=str(i))

        store.transact(body, scope=[THINGS])
        batch = store.journal()
        assert len(batch.entries) == JOURNAL_READ_MAX
        with pytest.raises(InvalidValue):
            store.journal(limit=-1)
        assert len(store.journal(batch.cursor).entries) == 5

    def test_a_notice_sent_before_the_wait_is_not_lost(self, store: Store) -> None:
        with store.listen(["topic"]) as listener:
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            assert heard(listener)

    def test_a_notice_wakes_a_sleeper(self, store: Store) -> None:
        with store.listen(["topic"]) as listener, ThreadPoolExecutor(1) as pool:
            woken = pool.submit(heard, listener)
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            assert woken.result(PATIENCE_S)

    def test_an_address_reaches_one_listener(self, store: Store) -> None:
        with store.listen() as one, store.listen() as two:
            assert one.address != two.address
            store.transact(lambda tx: tx.notify(one.address), scope=[VOLATILE])
            assert heard(one)
            assert not two.wait(0).notified

    def test_other_topics_do_not_wake(self, store: Store) -> None:
        with store.listen(["mine"]) as listener, store.listen(["other"]) as others:
            store.transact(lambda tx: tx.notify("other"), scope=[THINGS])
            assert heard(others)
            assert not listener.wait(0).notified

    def test_a_failed_transaction_wakes_no_one(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            tx.notify("topic")
            raise KeyError

        with store.listen(["topic"]) as listener:
            with pytest.raises(KeyError):
                store.transact(body, scope=[THINGS])
            assert not listener.wait(0).notified

    def test_an_entry_notifies_the_journal_topic(self, store: Store) -> None:
        with store.listen([JOURNAL_TOPIC]) as listener:
            append(store, "s")
            assert heard(listener)

    def test_a_descriptor_that_outlives_the_program_is_readable_at_a_notice(
        self, store: Store
    ) -> None:
        with store.listen(["topic"]) as listener:
            for fd in (kept := listener.outlive())[:1]:
                assert not select.select([fd], [], [], 0)[0]
                store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
                assert select.select([fd], [], [], PATIENCE_S)[0]
            for fd in kept[1:]:
                os.close(fd)

    def test_a_wait_also_watches_descriptors(self, store: Store) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        pidfd = os.pidfd_open(child)
        try:
            with store.listen(["topic"]) as listener:
                assert listener.wait(0, also=[pidfd]).ready == frozenset()
                os.kill(child, signal.SIGKILL)
                while not (woken := listener.wait(PATIENCE_S, also=[pidfd])).ready:
                    assert not woken.notified
                assert woken.ready == {pidfd}
        finally:
            os.close(pidfd)
            os.waitpid(child, 0)
