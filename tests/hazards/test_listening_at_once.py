"""Threads that start and stop listening to one topic at the same moment."""

import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite import fifos as fifos_
from holdfast.stores.sqlite.fifos import Fifos
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import PRIVATE
from holdfast.testing.conformance.harness import heard
from tests.harness.descriptors import open_below
from tests.harness.timeouts import PATIENCE_S

THREADS, TURNS = 6, 300


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "s.sqlite", boot_id="boot-1")) as opened:
        yield opened


def test_the_first_to_come_and_the_last_to_leave_do_not_trip_over_each_other(
    store: SqliteStore,
) -> None:
    wrong: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(TURNS):
                store.listen(["topic"]).__exit__(None, None, None)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []


def test_a_notifier_that_comes_as_a_listener_leaves_its_topic_does_not_take_it_for_dead(
    tmp_path: Path,
) -> None:
    """It has listed the topic's folder, and finds the link gone. The listener listens to another
    topic by now.
    """
    fifos = Fifos(tmp_path / "wake", "default", PRIVATE)
    listed = os.listdir

    def leaving(folder: str) -> list[str]:
        names = listed(folder)
        ears.__exit__(None, None, None)
        return names

    ears = fifos.listen(["topic"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", leaving)
        fifos.notify("topic")
    with fifos.listen(["other"]) as later:
        assert later.address == ears.address
        for topic in ("other", later.address):
            fifos.notify(topic)
            assert heard(later)


def test_a_listener_whose_fifo_was_swept_away_gets_another(tmp_path: Path) -> None:
    fifos = Fifos(tmp_path / "wake", "default", PRIVATE)
    with fifos.listen(["topic"]) as ears:
        address = ears.address
    (tmp_path / "wake" / address[1:]).unlink()
    with fifos.listen(["topic"]) as ears:
        fifos.notify(ears.address)
        assert heard(ears) and ears.address != address
    fifos.close()
    assert os.listdir(tmp_path / "wake") == []


def test_two_topics_of_one_checksum_are_heard_by_one_listener(store: SqliteStore) -> None:
    first: dict[int, str] = {}
    for number in range(1 << 20):
        # Names that are alike never share one.
        topic = blake2b(b"%d" % number, digest_size=8).hexdigest()
        other = first.setdefault(zlib.crc32(f"default/{topic}".encode()), topic)
        if other != topic:
            break
    assert topic != other
    with store.listen([topic, other]) as ears:
        store.transact(lambda tx: tx.notify(topic), scope=[])
        assert heard(ears)


def test_a_listener_that_has_just_left_a_topic_is_not_taken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = tmp_path / "wake"
    fifos, notifier = Fifos(wake, "default", PRIVATE), Fifos(wake, "default", PRIVATE)
    ears = fifos.listen(["a"])
    listdir = os.listdir

    def listed_a_moment_ago(folder: int) -> list[str]:
        found, path = listdir(folder), os.readlink(f"/proc/self/fd/{folder}")
        # It leaves between the notifier's look and its knock, and another has come and gone
        # meanwhile.
        ears.__exit__(None, None, None)
        os.mkdir(path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", listed_a_moment_ago)
        notifier.notify("a")
    assert [name for name in os.listdir(wake) if name.startswith("t-")] == [], (
        "nobody is left of the topic"
    )
    with fifos.listen(["b"]) as again:
        assert again.address == ears.address, "it is the same ear, taken from the pool"
        notifier.notify("b")
        assert heard(again)
        notifier.notify(again.address)
        assert heard(again)
    fifos.close()
    assert os.listdir(wake) == []


def test_a_listener_that_leaves_after_its_store_was_closed_leaves_nothing_behind(
    store: SqliteStore,
) -> None:
    """It was kept for the next one, and there is none: a descriptor and a FIFO each time."""
    ears = store.listen(["t"])
    store.close()
    ears.__exit__(None, None, None)
    assert not [name for name in open_below(store.path.parent) if "-wake/" in name]
    assert os.listdir(f"{store.path}-wake") == []


def test_a_failed_listener_that_retries_leaks_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where the FIFO can be made and the topic's folder cannot."""
    fifos = Fifos(tmp_path / "wake", "default", PRIVATE)
    fifos.listen(["a"]).__exit__(None, None, None)
    before = open_below(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fifos_, "make_folder_in", full)
        for _ in range(20):
            with pytest.raises(StoreUnavailable, match="no space is left"):
                fifos.listen(["b"])
    assert open_below(tmp_path) == before
    fifos.close()


def test_one_whose_fifo_cannot_be_named_uses_up_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifos = Fifos(tmp_path / "wake", "default", PRIVATE)

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", broken)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                fifos.listen(["a"])
    assert open_below(tmp_path) == []
