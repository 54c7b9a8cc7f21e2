"""The writing ends of FIFOs that a notifier keeps: of listeners that died, left or sleep on, in
forked processes and in several threads.
"""

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.stores.sqlite import fifos as fifos_
from holdfast.stores.sqlite.fifos import Fifos
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import PRIVATE
from holdfast.testing.conformance.harness import heard
from tests.harness.descriptors import open_below
from tests.harness.timeouts import PATIENCE_S


@pytest.fixture
def wake(tmp_path: Path) -> Path:
    return tmp_path / "wake"


@pytest.fixture
def listening(wake: Path) -> Iterator[Fifos]:
    made = Fifos(wake, "default", PRIVATE)
    yield made
    made.close()


@pytest.fixture
def notifier(wake: Path) -> Iterator[Fifos]:
    made = Fifos(wake, "default", PRIVATE)
    yield made
    made.close()


def test_one_writing_end_serves_all_notices_to_a_listener(
    wake: Path, listening: Fifos, notifier: Fifos
) -> None:
    with listening.listen([]) as ears:
        before = len(open_below(wake))
        for _ in range(20):
            notifier.notify(ears.address)
            assert heard(ears)
        assert len(open_below(wake)) == before + 1
    notifier.close()
    listening.close()
    assert open_below(wake) == []


def test_a_listener_that_died_is_forgotten_and_another_of_its_name_is_woken(
    wake: Path, notifier: Fifos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\x07" * count)
    first = Fifos(wake, "default", PRIVATE)
    with first.listen([]) as ears:
        address = ears.address
        notifier.notify(address)
        assert heard(ears)
    first.close()
    for _ in range(2):
        notifier.notify(address)
    assert open_below(wake) == []
    second = Fifos(wake, "default", PRIVATE)
    with second.listen([]) as ears:
        assert ears.address == address
        notifier.notify(address)
        assert heard(ears)
    second.close()


def test_a_killed_listener_is_cleared_away_by_the_next_notice(wake: Path, notifier: Fifos) -> None:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        ears = Fifos(wake, "default", PRIVATE).listen([])
        os.write(writes, ears.address.encode())
        threading.Event().wait(PATIENCE_S)
        os._exit(1)
    address = os.read(reads, 100).decode()
    notifier.notify(address)
    assert len(open_below(wake)) == 1
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(reads)
    os.close(writes)
    notifier.notify(address)
    assert open_below(wake) == [] and os.listdir(wake) == []


def test_a_listener_is_woken_though_the_folder_is_gone(
    wake: Path, listening: Fifos, notifier: Fifos
) -> None:
    with listening.listen([]) as ears:
        notifier.notify(ears.address)
        assert heard(ears)
        shutil.rmtree(wake)
        notifier.notify(ears.address)
        assert heard(ears)
    with listening.listen([]) as again:
        assert again.address != ears.address
        notifier.notify(again.address)
        assert heard(again)


def test_only_so_many_writing_ends_are_kept(
    wake: Path, listening: Fifos, notifier: Fifos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifos_, "_WRITERS_MAX", 4)
    with ExitStack() as stack:
        all_ears = [stack.enter_context(listening.listen([])) for _ in range(10)]
        before = len(open_below(wake))
        for _ in range(3):
            for ears in all_ears:
                notifier.notify(ears.address)
            assert all(heard(ears) for ears in all_ears)
            assert len(open_below(wake)) == before + 4
        notifier.notify(*(ears.address for ears in all_ears))
        assert all(heard(ears) for ears in all_ears)


def test_a_listener_that_is_full_of_notices_is_woken_once_and_then_again(
    wake: Path, listening: Fifos, notifier: Fifos
) -> None:
    with listening.listen([]) as ears:
        notifier.notify(ears.address)
        for fd in (int(name) for name in os.listdir("/proc/self/fd")):
            if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(
                f"/proc/self/fd/{fd}"
            ).endswith(ears.address[1:]):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(5000):
            notifier.notify(ears.address)
        assert heard(ears) and not ears.wait(0).notified
        notifier.notify(ears.address)
        assert heard(ears)


def test_a_forked_child_closes_its_copies_and_notifies_by_itself(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.sqlite", boot_id="boot-1")) as store:

        def notify(address: str) -> None:
            store.transact(lambda tx: tx.notify(address), scope=[])

        with closing(SqliteStore(tmp_path / "s.sqlite", boot_id="boot-1")) as other:
            with other.listen([]) as ears, other.listen([]) as elsewhere:
                notify(ears.address)
                notify(elsewhere.address)
                assert heard(ears) and heard(elsewhere)
                writers = open_below(Path(f"{store.path}-wake"))
                pid = os.fork()
                if pid == 0:
                    # Its first change drops both copies, and opens one writing end of its own.
                    notify(ears.address)
                    store.close()
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
                assert heard(ears) and not elsewhere.wait(0).notified
                notify(ears.address)
                notify(elsewhere.address)
                assert heard(ears) and heard(elsewhere)
                assert open_below(Path(f"{store.path}-wake")) == writers


def test_threads_that_notify_at_once_lose_no_notice_and_no_descriptor(
    wake: Path, listening: Fifos, notifier: Fifos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep and drop writing ends that others are just using."""
    monkeypatch.setattr(fifos_, "_WRITERS_MAX", 2)
    wrong: list[BaseException] = []
    with ExitStack() as stack:
        all_ears = [stack.enter_context(listening.listen([])) for _ in range(6)]
        before = len(open_below(wake))

        def notify(first: int) -> None:
            try:
                for turn in range(300):
                    notifier.notify(all_ears[(first + turn) % len(all_ears)].address)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=notify, args=(at,)) for at in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert wrong == []
        assert all(heard(ears) for ears in all_ears)
        for ears in all_ears:
            notifier.notify(ears.address)
        assert all(heard(ears) for ears in all_ears)
        assert len(open_below(wake)) <= before + 2 + len(threads)
        notifier.close()
        assert len(open_below(wake)) == before


def test_no_notice_leaves_the_folder(tmp_path: Path, wake: Path, notifier: Fifos) -> None:
    os.mkfifo(tmp_path / "1-0123456789ab")
    reads = os.open(tmp_path / "1-0123456789ab", os.O_RDONLY | os.O_NONBLOCK)
    wake.mkdir(mode=0o700)
    os.symlink("../1-0123456789ab", wake / "2-0123456789ab")
    for address in ("@../1-0123456789ab", "@2-0123456789ab", "@", "@1-0123456789ab"):
        notifier.notify(address)
    assert os.read(reads, 10) == b""
    os.close(reads)
    assert open_below(tmp_path) == []
