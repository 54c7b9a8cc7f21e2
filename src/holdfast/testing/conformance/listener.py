"""Tests of listening and waiting."""

import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.kernel.store import JOURNAL_TOPIC, Store, Tx
from holdfast.testing.conformance.harness import PATIENCE_S, THINGS, VOLATILE, Suite
from holdfast.testing.conformance.steps import append, heard


class Waiting(Suite):
    """No notice is lost, and none reaches the wrong listener."""

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
